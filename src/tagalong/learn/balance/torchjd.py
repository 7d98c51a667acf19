"""Balancing rules of TorchJD by name: scalarizers such as UW, aggregators such as PCGrad."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..network import Network
from ..randomness import drawing
from ..task import Task
from .rules import Losses, Rule, scaled

PIP = "pip install torchjd"
PER_TASK = ("shape", "n_tasks")  # arguments that say how many tasks there are, so nobody needs to give them
FIXED_ROWS = ("Krum", "TrimmedMean")  # fail when rows are left out


@dataclass(frozen=True)
class Call:
    """A name with arguments, as a rule spells it.

    Example:
        >>> read_call("CAGrad(c=0.5)")
        Call(name='CAGrad', given=(), named={'c': 0.5})
    """

    name: str
    given: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    @property
    def lists(self) -> bool:
        """Whether a value per task was given."""
        return any(isinstance(value, list | tuple) for value in (*self.given, *self.named.values()))


def read_call(text: str) -> Call | None:
    """Reads a name and its arguments, which must be plain values, since nothing is evaluated; None if it is no call."""
    name, bracket, rest = text.strip().partition("(")
    try:
        node = ast.parse(name.replace("-", "_") + bracket + rest, mode="eval").body
        if isinstance(node, ast.Name):
            return Call(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            return Call(node.func.id, tuple(map(ast.literal_eval, node.args)), named)
    except (SyntaxError, ValueError):
        return None
    return None


def kinds() -> dict[str, type[nn.Module]]:
    """Every aggregator and scalarizer by its name in TorchJD; scalarizers, the cheaper ones, where both have one."""
    try:
        from torchjd import aggregation, scalarization
    except ImportError as error:
        raise ImportError(f"this balancing rule is TorchJD's; {PIP}") from error
    bases = ((aggregation, aggregation.Aggregator), (scalarization, scalarization.Scalarizer))
    return {
        name: kind
        for room, base in bases
        for name, kind in inspect.getmembers(room, inspect.isclass)
        if issubclass(kind, base) and not inspect.isabstract(kind) and not name.endswith("Aggregator")
    }


def find(name: str) -> type[nn.Module] | None:
    """The class of this name, however it is spelt: "nash-mtl" is `NashMTL`."""
    plain = _letters(name)
    return next((kind for known, kind in kinds().items() if _letters(known) == plain), None)


def make(call: Call, kind: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    """An aggregator or scalarizer for so many tasks, after one that was tried out on them."""
    try:
        trial = _construct(call, kind, tasks, torch.empty(0))
        with drawing(0, "trial"), torch.no_grad():
            rows = torch.rand(tasks, tasks + 1) + torch.eye(tasks, tasks + 1)
            trial(rows if is_aggregator(kind) else rows[:, 0])
    except ImportError:
        raise
    except Exception as error:
        signature = str(inspect.signature(kind)).partition(" ->")[0]
        raise ValueError(
            f"`rule`: {kind.__name__}{signature} does not fit {tasks} tasks as written: {error}"
        ) from error
    return _construct(call, kind, tasks, like)


def is_aggregator(kind: type[nn.Module]) -> bool:
    """Whether it combines gradients, not losses."""
    from torchjd.aggregation import Aggregator

    return issubclass(kind, Aggregator)


def takes_any_number(call: Call, kind: type[nn.Module]) -> bool:
    """Whether an aggregator may see fewer gradients in one step than in another."""
    from torchjd import Stateful

    return not (issubclass(kind, Stateful) or call.lists or kind.__name__ in FIXED_ROWS)


def _construct(call: Call, kind: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    names = list(inspect.signature(kind).parameters)
    per_task = {name: tasks for name in names if name in PER_TASK and name not in call.named}
    skipped = per_task if not call.given else {}
    named = {name: _tensor(value, like) for name, value in call.named.items()}
    return kind(*(_tensor(value, like) for value in call.given), **skipped, **named)


def _tensor(value: Any, like: Tensor) -> Any:
    return like.new_tensor(value) if isinstance(value, list | tuple) else value


def _letters(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


class Scalarised(Rule):
    """A function of all losses is minimised; what the function itself learns, the network's optimiser trains.

    Uncertainty Weights (Kendall et al. 2018) minimise Σ ½·exp(−s)·L + ½·s with a learnt s for each task, 0 at the
    start. TAG's published code has L/exp(2s) + s, s clipped to [0.01, 10] and 1 at the start: the same weights but
    for the factor ½, the start and the clipping.

    A task without labels in a batch counts with the loss it had last, gets no gradient and learns nothing.

    Args:
        scalarizer: of TorchJD.
        network: whose losses they are.
        tasks: of the network.
    """

    def __init__(self, scalarizer: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        like = next(network.parameters())
        self._scalarizer = scalarizer.to(device=like.device, dtype=like.dtype)
        self._seed = network.seed
        self._calls = 0
        self._seen = like.new_ones(len(tasks)).detach()

    def parameters(self) -> Iterable[nn.Parameter]:
        # FAMO has an `update`, and an optimiser of its own
        return () if hasattr(self._scalarizer, "update") else self._scalarizer.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        (self.coefficients(values.detach(), scaler) * values).sum().backward()

    def coefficients(self, values: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        """How much each loss counts (times the scaler's factor); what the scalarizer learns gets its gradient."""
        absent = values == 0
        values = torch.where(absent, self._seen, values.to(self._seen.dtype)).requires_grad_()
        self._seen = values.detach()
        scaled(self._total(self._scalarizer, values), scaler).backward()
        self._calls += 1
        assert values.grad is not None
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(absent, 0)
        return values.grad.masked_fill(absent, 0)

    def after_step(self, losses: Callable[[], Losses]) -> None:
        update = getattr(self._scalarizer, "update", None)
        if update is not None:
            with torch.no_grad():
                values = self.weighted(losses()).to(self._seen.dtype)
            update(torch.where(values == 0, self._seen, values))

    def after_epoch(self) -> None:
        step = getattr(self._scalarizer, "step", None)  # DWA compares epochs
        if step is not None:
            step()

    def weights(self) -> Mapping[str, float]:
        values = self._seen.clone().requires_grad_()
        with torch.enable_grad():
            total = self._total(copy.deepcopy(self._scalarizer), values)  # a call changes some of them
        (slopes,) = torch.autograd.grad(total, values)
        return {task: weight * slope for (task, weight), slope in zip(self.given.items(), slopes.tolist(), strict=True)}

    def _total(self, scalarizer: nn.Module, values: Tensor) -> Tensor:
        with drawing(self._seed, "balance", self._calls):
            total: Tensor = scalarizer(values)
        return total

    def state_dict(self) -> dict[str, Any]:
        return {"scalarizer": copy.deepcopy(self._scalarizer), "calls": self._calls, "seen": self._seen.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._calls, self._seen = state["calls"], state["seen"].clone()
        if any(True for _ in self.parameters()):  # the optimiser holds them, so they stay where they are
            self._scalarizer.load_state_dict(state["scalarizer"].state_dict())
        else:
            self._scalarizer = copy.deepcopy(state["scalarizer"])


class Aggregated(Rule):
    """Shared parameters get one combination of the tasks' gradients; each head gets its own task's gradient.

    Args:
        aggregator: of TorchJD.
        network: whose gradients they are.
        tasks: of the network.
        weigher: weighs the losses first, as the published PCGrad run of TAG did with Uncertainty Weights.
        any_number: whether the aggregator takes any number of gradients; then tasks without labels in a batch are
            left out, otherwise their gradient is zero.
    """

    def __init__(
        self,
        aggregator: nn.Module,
        network: Network,
        tasks: Sequence[Task],
        weigher: Scalarised | None = None,
        any_number: bool = True,
    ) -> None:
        super().__init__(tasks)
        self._shared = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
        shared = set(map(id, self._shared))
        self._own = [
            [p for p in head.parameters() if p.requires_grad and id(p) not in shared] for head in network.heads
        ]
        like = next(network.parameters())
        self._aggregator = aggregator.to(device=like.device, dtype=like.dtype)
        self._weigher, self._any_number = weigher, any_number
        self._seed, self._calls = network.seed, 0

    def parameters(self) -> Iterable[nn.Parameter]:
        return () if self._weigher is None else self._weigher.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        if self._weigher is None:
            values = scaled(values, scaler)
        else:
            values = self._weigher.coefficients(values.detach(), scaler) * values
        factor = 1.0 if scaler is None else scaler.get_scale()
        gradients = torch.stack([self._gradient(value, own) for value, own in zip(values, self._own, strict=True)])
        combined = self._combined(gradients / factor) * factor
        parts = combined.split([parameter.numel() for parameter in self._shared])
        for parameter, part in zip(self._shared, parts, strict=True):
            _add(parameter, part.view_as(parameter))

    def _gradient(self, value: Tensor, own: list[nn.Parameter]) -> Tensor:
        """Of the shared parameters, in one row; the head's own are added where they belong."""
        wanted = [*self._shared, *own]
        found = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
        for parameter, gradient in zip(own, found[len(self._shared) :], strict=True):
            _add(parameter, gradient)
        return torch.cat([value.new_zeros(0), *(gradient.flatten() for gradient in found[: len(self._shared)])])

    def _combined(self, gradients: Tensor) -> Tensor:
        # too small to be squared in this precision: PCGrad divides by squared norms, MGDA would stop for a zero row
        teaching = gradients.square().sum(1) >= torch.finfo(gradients.dtype).tiny
        if not gradients.isfinite().all() or not teaching.any():
            return gradients.sum(0)  # the scaler skips such a step; without one, training diverges and says so
        with drawing(self._seed, "balance", self._calls):
            combined: Tensor = self._aggregator(gradients[teaching] if self._any_number else gradients)
        self._calls += 1
        return combined.detach()

    def weights(self) -> Mapping[str, float]:
        return self.given if self._weigher is None else self._weigher.weights()

    def state_dict(self) -> dict[str, Any]:
        weigher = None if self._weigher is None else self._weigher.state_dict()
        return {"aggregator": copy.deepcopy(self._aggregator), "calls": self._calls, "weigher": weigher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._aggregator, self._calls = copy.deepcopy(state["aggregator"]), state["calls"]
        if self._weigher is not None:
            self._weigher.load_state_dict(state["weigher"])


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    # a fresh tensor: two parameters must not share one, and the caller's may be a view
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
