"""How the losses of a network become one gradient: the plain sum, GradNorm, and every rule of TorchJD, by name."""

from __future__ import annotations

import ast
import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .network import Network
from .randomness import drawing
from .task import Task

OWN = ("plain", "gradnorm", "gradnorm:ALPHA", "uw", "pcgrad", "pcgrad-uw")
LOWEST, HIGHEST = 0.1, 10.0  # weights of GradNorm
PER_TASK = ("shape", "n_tasks")  # arguments that say how many tasks there are, so nobody needs to give them
FIXED_ROWS = ("Krum", "TrimmedMean")  # fail when rows are left out
Losses = Mapping[str, Tensor]


class Balancer(Protocol):
    """A rule: gives every parameter its gradient."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the rule learns itself; the network's optimiser trains it."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        """Adds to every `.grad` what this step's losses ask for."""

    def after_step(self, losses: Callable[[], Losses]) -> None:
        """Told after the optimiser's step; `losses` computes them again, on the same batch."""

    def after_epoch(self) -> None:
        """Told when every row was seen once more."""

    def weights(self) -> Mapping[str, float]:
        """How much each task's loss counts now."""

    def state_dict(self) -> dict[str, Any]:
        """What changes while training."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts it back."""


def make_balancer(rule: str, network: Network, tasks: Sequence[Task]) -> Balancer:
    """The rule of this name.

    Args:
        rule: "plain" (the sum), "uw" (Uncertainty Weights), "gradnorm" (with another α: "gradnorm:0.5"), "pcgrad", or
            any aggregator or scalarizer of TorchJD with the arguments it needs ("mgda", "torchjd:CAGrad(c=0.5)"). An
            aggregator's name with "-uw" weighs the losses by Uncertainty Weights first ("pcgrad-uw").
        network: to be trained.
        tasks: of the network, in its order.

    Raises:
        ValueError: no such rule, or it does not fit this number of tasks.
        ImportError: the rule needs a package that is not there; says which.
    """
    if rule == "plain":
        return Plain(tasks)
    if rule.partition(":")[0] == "gradnorm":
        return GradNorm(network, tasks, _alpha(rule))
    name = rule.removeprefix("torchjd:").removesuffix("-uw")
    call, kind = _named(rule, name)
    like = next(network.parameters()).detach()
    made = _make(call, kind, len(tasks), like)
    weighs_first = rule.endswith("-uw")
    if not _is_aggregator(kind):
        if weighs_first:
            raise ValueError(f"`rule` with '-uw' must be an aggregator's name such as 'pcgrad-uw', found {rule!r}")
        return Scalarised(made, network, tasks)
    weigher = Scalarised(_make(*_named("uw", "uw"), len(tasks), like), network, tasks) if weighs_first else None
    return Aggregated(made, network, tasks, weigher, _takes_any_number(call, kind))


def check_rule(rule: str, tasks: int = 2) -> None:
    """Refuses, before any training, a rule that does not exist or does not fit so many tasks.

    Example:
        >>> check_rule("gradnorm:0.5")
        >>> check_rule("gradnorm:much")
        Traceback (most recent call last):
        ValueError: `rule` 'gradnorm:ALPHA' needs a number from 0, found 'gradnorm:much'
    """
    names = [str(number) for number in range(tasks)]
    with drawing(0, "check"):
        network = Network(nn.Linear(1, 1), [nn.Linear(1, 1) for _ in names], names)
    make_balancer(rule, network, [Task(name) for name in names])


def _alpha(rule: str) -> float:
    if rule == "gradnorm":
        return 1.5
    try:
        alpha = float(rule.partition(":")[2])
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"`rule` 'gradnorm:ALPHA' needs a number from 0, found {rule!r}")
    return alpha


def _named(rule: str, name: str) -> tuple[Call, type[nn.Module]]:
    call = read_call(name)
    kind = None if call is None else torchjd_kind(call.name)
    if call is None or kind is None:
        known = ", ".join([*OWN, *sorted(torchjd_kinds())])
        raise ValueError(
            f"`rule` must be one of {known}, with arguments where needed ('CAGrad(c=0.5)'); found {rule!r}"
        )
    return call, kind


class Rule:
    """A rule that learns nothing and remembers nothing; others add to it.

    Every rule balances the losses times the weights of their tasks. A task without labels in a batch has a loss of
    exactly 0: it teaches nothing, and must not disturb what the rule does with the others.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.given = {task.name: float(task.weight) for task in tasks}

    def weighted(self, losses: Losses) -> Tensor:
        """The losses times their tasks' weights, in the order of the tasks."""
        return torch.stack([weight * losses[task] for task, weight in self.given.items()])

    def parameters(self) -> Iterable[nn.Parameter]:
        return ()

    def after_step(self, losses: Callable[[], Losses]) -> None:
        return

    def after_epoch(self) -> None:
        return

    def weights(self) -> Mapping[str, float]:
        return self.given

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def _scaled(loss: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
    """The loss as mixed precision wants it for the backward pass."""
    return loss if scaler is None else scaler.scale(loss)


class Plain(Rule):
    """The weighted sum of losses."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        _scaled(self.weighted(losses).sum(), scaler).backward()


class GradNorm(Rule):
    """Weights are moved until each task's gradient is as long as its pace of learning asks for.

    With W the last shared kernel, G_i = ‖∇_W w_i·L_i‖ and r_i the loss ratio L_i(t)/L_i(0) divided by its mean over
    tasks, weights descend Σ |G_i − mean(G)·r_i^α| (equation 2; the target is a constant) by their own Adam.

    The paper renormalises weights to sum to the number of tasks and stops there; TAG's published code clips them to
    [0.1, 10] first, as we do. L_i(0) is the first loss that a task shows. A task without labels in a batch is left out
    of the means and keeps its weight but for the sum.

    Args:
        network: whose losses are weighted.
        tasks: of the network.
        alpha: how strongly slow tasks are pulled; the paper's and TAG's value for large problems is 1.5.
        lr: of the weights.
    """

    def __init__(self, network: Network, tasks: Sequence[Task], alpha: float = 1.5, lr: float = 0.025) -> None:
        super().__init__(tasks)
        self._kernel = _last_kernel(network.encoder)
        self._alpha = alpha
        like = next(network.parameters())
        self._weights = nn.Parameter(like.new_ones(len(tasks)), requires_grad=False)
        self._first = like.new_full((len(tasks),), torch.nan).detach()
        self._optimizer = torch.optim.Adam([self._weights], lr=lr)

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        norms = None if self._kernel is None else self._norms(values, self._kernel, scaler)
        _scaled((self._weights * values).sum(), scaler).backward()
        if norms is not None:
            self._update(values.detach().to(norms.dtype), norms)

    def _norms(self, values: Tensor, kernel: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        found = [
            torch.autograd.grad(value, kernel, retain_graph=True, allow_unused=True, materialize_grads=True)[0].norm()
            for value in _scaled(values, scaler)
        ]
        return torch.stack(found) / (1.0 if scaler is None else scaler.get_scale())

    def _update(self, values: Tensor, norms: Tensor) -> None:
        there = (values > 0) & (norms > 0) & norms.isfinite()
        number = there.sum().clamp(min=1)
        self._first = torch.where(there & self._first.isnan(), values, self._first)
        ratios = torch.where(there, values / self._first, 0)
        lengths = torch.where(there, self._weights * norms, 0)
        targets = lengths.sum() / number * (ratios * number / ratios.sum()).pow(self._alpha)
        self._weights.grad = torch.where(there, (lengths - targets).sign() * norms, 0)
        before = self._weights.clone()
        self._optimizer.step()
        moved = torch.where(there, self._weights, before).clamp(LOWEST, HIGHEST)
        self._weights.copy_(moved * (len(moved) / moved.sum()))

    def weights(self) -> Mapping[str, float]:
        pairs = zip(self.given.items(), self._weights.tolist(), strict=True)
        return {task: given * weight for (task, given), weight in pairs}

    def state_dict(self) -> dict[str, Any]:
        state = {"weights": self._weights.data, "first": self._first, "optimizer": self._optimizer.state_dict()}
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights.copy_(state["weights"])
        self._first = state["first"].clone()
        self._optimizer.load_state_dict(state["optimizer"])


def _last_kernel(encoder: nn.Module) -> nn.Parameter | None:
    """The last trained parameter with more than one dimension, or else the last one; None if nothing is trained."""
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    kernels = [parameter for parameter in trained if parameter.dim() > 1]
    found = kernels or trained
    return found[-1] if found else None


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
        _scaled(self._total(self._scalarizer, values), scaler).backward()
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
            values = _scaled(values, scaler)
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


def torchjd_kinds() -> dict[str, type[nn.Module]]:
    """Every aggregator and scalarizer by its name in TorchJD; scalarizers, the cheaper ones, where both have one."""
    try:
        from torchjd import aggregation, scalarization
    except ImportError as error:
        raise ImportError("this balancing rule is TorchJD's; pip install torchjd") from error
    bases = ((aggregation, aggregation.Aggregator), (scalarization, scalarization.Scalarizer))
    return {
        name: kind
        for room, base in bases
        for name, kind in inspect.getmembers(room, inspect.isclass)
        if issubclass(kind, base) and not inspect.isabstract(kind) and not name.endswith("Aggregator")
    }


def torchjd_kind(name: str) -> type[nn.Module] | None:
    """The class of this name, however it is spelt: "nash-mtl" is `NashMTL`."""
    plain = _letters(name)
    return next((kind for known, kind in torchjd_kinds().items() if _letters(known) == plain), None)


def _make(call: Call, kind: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    """An aggregator or scalarizer for so many tasks, after one that was tried out on them."""
    try:
        trial = _construct(call, kind, tasks, torch.empty(0))
        with drawing(0, "trial"), torch.no_grad():
            rows = torch.rand(tasks, tasks + 1) + torch.eye(tasks, tasks + 1)
            trial(rows if _is_aggregator(kind) else rows[:, 0])
    except ImportError:
        raise
    except Exception as error:
        signature = str(inspect.signature(kind)).partition(" ->")[0]
        raise ValueError(
            f"`rule`: {kind.__name__}{signature} does not fit {tasks} tasks as written: {error}"
        ) from error
    return _construct(call, kind, tasks, like)


def _construct(call: Call, kind: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    names = list(inspect.signature(kind).parameters)
    per_task = {name: tasks for name in names if name in PER_TASK and name not in call.named}
    skipped = per_task if not call.given else {}
    named = {name: _tensor(value, like) for name, value in call.named.items()}
    return kind(*(_tensor(value, like) for value in call.given), **skipped, **named)


def _tensor(value: Any, like: Tensor) -> Any:
    return like.new_tensor(value) if isinstance(value, list | tuple) else value


def _is_aggregator(kind: type[nn.Module]) -> bool:
    """Whether it combines gradients, not losses."""
    from torchjd.aggregation import Aggregator

    return issubclass(kind, Aggregator)


def _takes_any_number(call: Call, kind: type[nn.Module]) -> bool:
    """Whether an aggregator may see fewer gradients in one step than in another."""
    from torchjd import Stateful

    return not (issubclass(kind, Stateful) or call.lists or kind.__name__ in FIXED_ROWS)


def _letters(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
