"""Balancing rules that combine the losses of a network: the plain sum, GradNorm, and all rules from TorchJD."""

from __future__ import annotations

import ast
import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tagalong.errors import InvalidInput

from .network import Network
from .randomness import seeded_rng
from .task import Task

RULE_NAMES = ("plain", "gradnorm", "gradnorm:ALPHA", "uw", "pcgrad", "pcgrad-uw")
MIN_WEIGHT, MAX_WEIGHT = 0.1, 10.0  # limits of GradNorm's weights
TASK_COUNT_ARGUMENTS = ("shape", "n_tasks")  # TorchJD's names for arguments that we set to the number of tasks
NOT_RESUMABLE = ("NashMTL",)  # keeps the state of a solver
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
FIXED_COUNT_AGGREGATORS = ("Krum", "TrimmedMean")  # aggregators that fail if gradients are left out
Losses = Mapping[str, Tensor]


class Balancer(Protocol):
    """A rule that computes the gradient of every parameter from the losses of all tasks.

    Attributes:
        resumable: whether `state_dict` is complete, so that training can resume from a checkpoint.
    """

    resumable: bool

    def parameters(self) -> Iterable[nn.Parameter]:
        """Returns the rule's own parameters, which are trained by the network's optimizer."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        """Adds the gradients of this step's losses to the parameters' `.grad`."""

    def after_step(self, losses: Callable[[], Losses]) -> None:
        """Called after the optimizer step. `losses` recomputes the losses on the same batch."""

    def after_epoch(self) -> None:
        """Called after each epoch."""

    def weights(self) -> Mapping[str, float]:
        """Returns the current weight of each task's loss."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that changes during training, as tensors and plain values only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""


def make_balancer(rule: str, network: Network, tasks: Sequence[Task]) -> Balancer:
    """Creates a balancing rule from its name.

    Args:
        rule: "plain" (the sum), "uw" (Uncertainty Weights), "gradnorm" ("gradnorm:0.5" for a different α), "pcgrad", or
            any TorchJD aggregator or scalarizer with its arguments ("mgda", "torchjd:CAGrad(c=0.5)"). With the suffix
            "-uw", an aggregator is applied to losses weighted by Uncertainty Weights ("pcgrad-uw").
        network: the network to train.
        tasks: the tasks of the network, in the order of its heads.

    Raises:
        InvalidInput: If the rule is unknown or does not support this number of tasks.
        ImportError: If the rule needs a package that is not installed.
    """
    if rule == "plain":
        return Plain(tasks)
    if rule.partition(":")[0] == "gradnorm":
        return GradNorm(network, tasks, _parse_alpha(rule))
    name = rule.removeprefix("torchjd:").removesuffix("-uw")
    call, module_class = _find_class(rule, name)
    like = next(network.parameters()).detach()
    module = _make_module(call, module_class, len(tasks), like)
    has_uw_suffix = rule.endswith("-uw")
    if not _is_aggregator(module_class):
        if has_uw_suffix:
            expected = "must start with the name of an aggregator if it ends in '-uw', e.g. 'pcgrad-uw'"
            raise InvalidInput("rule", expected, repr(rule))
        return ScalarizerRule(module, network, tasks)
    weigher = None
    if has_uw_suffix:
        weigher = ScalarizerRule(_make_module(*_find_class("uw", "uw"), len(tasks), like), network, tasks)
    return AggregatorRule(module, network, tasks, weigher, _accepts_any_number(call, module_class))


def check_rule(rule: str, tasks: int = 2) -> None:
    """Raises an error if a rule is unknown or does not support this number of tasks.

    Example:
        >>> check_rule("gradnorm:0.5")
        >>> check_rule("gradnorm:-1")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `rule` must have the form 'gradnorm:ALPHA' with a non-negative ALPHA, found ...
    """
    names = [str(number) for number in range(tasks)]
    with seeded_rng(0, "check"):
        network = Network(nn.Linear(1, 1), [nn.Linear(1, 1) for _ in names], names)
    make_balancer(rule, network, [Task(name) for name in names])


def _parse_alpha(rule: str) -> float:
    if rule == "gradnorm":
        return 1.5
    try:
        alpha = float(rule.partition(":")[2])
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha >= 0):
        raise InvalidInput("rule", "must have the form 'gradnorm:ALPHA' with a non-negative ALPHA", repr(rule))
    return alpha


def _find_class(rule: str, name: str) -> tuple[ParsedCall, type[nn.Module]]:
    call = parse_call(name)
    module_class = None if call is None else find_torchjd_class(call.name)
    if call is None or module_class is None:
        known = ", ".join([*RULE_NAMES, *sorted(torchjd_classes())])
        expected = f"must be one of {known}, with arguments if required, e.g. 'CAGrad(c=0.5)'"
        raise InvalidInput("rule", expected, repr(rule))
    return call, module_class


class Rule:
    """Base class for rules. By default, a rule has no parameters and no state.

    Rules balance the losses after multiplying them by the weights of their tasks. If a task has no labels in a batch,
    its loss is exactly 0 and must not affect how the rule treats the other tasks.
    """

    resumable = True

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.task_weights = {task.name: float(task.weight) for task in tasks}

    def weighted(self, losses: Losses) -> Tensor:
        """Returns the losses in task order, each multiplied by the weight of its task."""
        return torch.stack([weight * losses[task] for task, weight in self.task_weights.items()])

    def parameters(self) -> Iterable[nn.Parameter]:
        return ()

    def after_step(self, losses: Callable[[], Losses]) -> None:
        return

    def after_epoch(self) -> None:
        return

    def weights(self) -> Mapping[str, float]:
        return self.task_weights

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def _scale_loss(loss: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
    """Scales a loss for the backward pass in mixed-precision training."""
    return loss if scaler is None else scaler.scale(loss)


class Plain(Rule):
    """Minimizes the weighted sum of the losses."""

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        _scale_loss(self.weighted(losses).sum(), scaler).backward()


class GradNorm(Rule):
    """GradNorm (Chen et al. 2018): weights the losses so that tasks that learn slowly get larger gradients.

    Let W be the last shared weight matrix, G_i = ‖∇_W w_i·L_i‖, and r_i the loss ratio L_i(t)/L_i(0) divided by its
    mean over tasks. A separate Adam optimizer chooses the weights w_i to minimize Σ |G_i − mean(G)·r_i^α|, where
    mean(G)·r_i^α is treated as a constant (equation 2).

    In the paper, the weights are only renormalized to sum to the number of tasks. Here, as in TAG's published code, the
    weights are first clipped to [0.1, 10]. L_i(0) is the first nonzero loss of task i. A task without labels in a batch
    is excluded from the means. Its weight changes only through the renormalization.

    Args:
        network: the network to train.
        tasks: the tasks of the network.
        alpha: how strongly slow tasks are favored. The GradNorm paper and TAG use 1.5 for large problems.
        lr: the learning rate for the weights.
    """

    def __init__(self, network: Network, tasks: Sequence[Task], alpha: float = 1.5, lr: float = 0.025) -> None:
        super().__init__(tasks)
        self._weight_matrix = _last_weight_matrix(network.encoder)
        self._alpha = alpha
        like = next(network.parameters())
        self._weights = nn.Parameter(like.new_ones(len(tasks)), requires_grad=False)
        self._initial_losses = like.new_full((len(tasks),), torch.nan).detach()
        self._optimizer = torch.optim.Adam([self._weights], lr=lr)

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        norms = None if self._weight_matrix is None else self._gradient_norms(values, self._weight_matrix, scaler)
        _scale_loss((self._weights * values).sum(), scaler).backward()
        if norms is not None:
            self._update_weights(values.detach().to(norms.dtype), norms)

    def _gradient_norms(self, values: Tensor, matrix: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        found = [
            torch.autograd.grad(value, matrix, retain_graph=True, allow_unused=True, materialize_grads=True)[0].norm()
            for value in _scale_loss(values, scaler)
        ]
        return torch.stack(found) / (1.0 if scaler is None else scaler.get_scale())

    def _update_weights(self, values: Tensor, norms: Tensor) -> None:
        active = (values > 0) & (norms > 0) & norms.isfinite()
        count = active.sum().clamp(min=1)
        self._initial_losses = torch.where(active & self._initial_losses.isnan(), values, self._initial_losses)
        ratios = torch.where(active, values / self._initial_losses, 0)
        weighted_norms = torch.where(active, self._weights * norms, 0)
        targets = weighted_norms.sum() / count * (ratios * count / ratios.sum()).pow(self._alpha)
        self._weights.grad = torch.where(active, (weighted_norms - targets).sign() * norms, 0)
        before = self._weights.clone()
        self._optimizer.step()
        moved = torch.where(active, self._weights, before).clamp(MIN_WEIGHT, MAX_WEIGHT)
        self._weights.copy_(moved * (len(moved) / moved.sum()))

    def weights(self) -> Mapping[str, float]:
        pairs = zip(self.task_weights.items(), self._weights.tolist(), strict=True)
        return {task: given * weight for (task, given), weight in pairs}

    def state_dict(self) -> dict[str, Any]:
        weights, optimizer = self._weights.data, self._optimizer.state_dict()
        return copy.deepcopy({"weights": weights, "first": self._initial_losses, "optimizer": optimizer})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights.copy_(state["weights"])
        self._initial_losses = state["first"].clone()
        self._optimizer.load_state_dict(state["optimizer"])


def _last_weight_matrix(encoder: nn.Module) -> nn.Parameter | None:
    """Returns the last trainable weight matrix, or the last trainable parameter if there is no matrix."""
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    kernels = [parameter for parameter in trained if parameter.dim() > 1]
    found = kernels or trained
    return found[-1] if found else None


class ScalarizerRule(Rule):
    """Minimizes a TorchJD scalarizer, i.e. a function of all losses. Its parameters are trained along with the network.

    Uncertainty Weights (Kendall et al. 2018) minimize Σ ½·exp(−s)·L + ½·s, where s is learned for each task and starts
    at 0. TAG's published code minimizes L/exp(2s) + s, where s starts at 1 and is clipped to [0.01, 10]. Its weights
    differ only in the factor ½, the initial value and the clipping.

    If a task has no labels in a batch, the scalarizer receives the task's last loss, and neither the task's head nor
    its weight is trained.

    Args:
        scalarizer: the TorchJD scalarizer.
        network: the network to train.
        tasks: the tasks of the network.
    """

    def __init__(self, scalarizer: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        like = next(network.parameters())
        self._scalarizer = scalarizer.to(device=like.device, dtype=like.dtype)
        self._seed = network.seed
        self._calls = 0
        self._last_losses = like.new_ones(len(tasks)).detach()

    def parameters(self) -> Iterable[nn.Parameter]:
        # FAMO has its own optimizer, which its `update` method steps
        return () if hasattr(self._scalarizer, "update") else self._scalarizer.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        (self.coefficients(values.detach(), scaler) * values).sum().backward()

    def coefficients(self, values: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        """Returns each loss's weight times the scaler's factor. Also backpropagates to the scalarizer's parameters."""
        absent = values == 0
        values = torch.where(absent, self._last_losses, values.to(self._last_losses.dtype)).requires_grad_()
        self._last_losses = values.detach()
        _scale_loss(self._total_loss(self._scalarizer, values), scaler).backward()
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
                values = self.weighted(losses()).to(self._last_losses.dtype)
            update(torch.where(values == 0, self._last_losses, values))

    def after_epoch(self) -> None:
        step = getattr(self._scalarizer, "step", None)  # DWA compares epochs
        if step is not None:
            step()

    def weights(self) -> Mapping[str, float]:
        values = self._last_losses.clone().requires_grad_()
        with torch.enable_grad():
            total = self._total_loss(copy.deepcopy(self._scalarizer), values)  # some scalarizers change when called
        (gradients,) = torch.autograd.grad(total, values)
        return {
            task: weight * gradient
            for (task, weight), gradient in zip(self.task_weights.items(), gradients.tolist(), strict=True)
        }

    def _total_loss(self, scalarizer: nn.Module, values: Tensor) -> Tensor:
        with seeded_rng(self._seed, "balance", self._calls):
            total: Tensor = scalarizer(values)
        return total

    def state_dict(self) -> dict[str, Any]:
        return {"scalarizer": _plain_state(self._scalarizer), "calls": self._calls, "seen": self._last_losses.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._calls, self._last_losses = state["calls"], state["seen"].clone()
        update = getattr(self._scalarizer, "update", None)
        if update is not None and state["scalarizer"]["optimizers"]:
            self._scalarizer(self._last_losses)  # FAMO creates its optimizer in the first update
            update(self._last_losses)
        _load_plain_state(self._scalarizer, state["scalarizer"])


class AggregatorRule(Rule):
    """Combines the tasks' gradients for the shared parameters with a TorchJD aggregator.

    Each head uses only the gradient of its own task.

    Args:
        aggregator: the TorchJD aggregator.
        network: the network to train.
        tasks: the tasks of the network.
        weigher: an optional rule that weights the losses first. TAG's published PCGrad run used Uncertainty Weights.
        any_number: whether the aggregator accepts any number of gradients. If so, tasks without labels in a batch are
            left out. Otherwise, their gradients are set to zero.
    """

    def __init__(
        self,
        aggregator: nn.Module,
        network: Network,
        tasks: Sequence[Task],
        weigher: ScalarizerRule | None = None,
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
        self.resumable = type(aggregator).__name__ not in NOT_RESUMABLE
        self._seed, self._calls = network.seed, 0

    def parameters(self) -> Iterable[nn.Parameter]:
        return () if self._weigher is None else self._weigher.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        if self._weigher is None:
            values = _scale_loss(values, scaler)
        else:
            values = self._weigher.coefficients(values.detach(), scaler) * values
        factor = 1.0 if scaler is None else scaler.get_scale()
        gradients = torch.stack(
            [
                self._shared_gradient(value, head_parameters)
                for value, head_parameters in zip(values, self._own, strict=True)
            ]
        )
        combined = self._combine_gradients(gradients / factor) * factor
        parts = combined.split([parameter.numel() for parameter in self._shared])
        for parameter, part in zip(self._shared, parts, strict=True):
            _accumulate(parameter, part.view_as(parameter))

    def _shared_gradient(self, value: Tensor, head_parameters: list[nn.Parameter]) -> Tensor:
        """Returns the gradient for the shared parameters as a vector, and accumulates the head's own gradients."""
        wanted = [*self._shared, *head_parameters]
        found = torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
        for parameter, gradient in zip(head_parameters, found[len(self._shared) :], strict=True):
            _accumulate(parameter, gradient)
        return torch.cat([value.new_zeros(0), *(gradient.flatten() for gradient in found[: len(self._shared)])])

    def _combine_gradients(self, gradients: Tensor) -> Tensor:
        # leave out gradients whose square underflows: PCGrad divides by squared norms, MGDA fails for a zero row
        usable = gradients.square().sum(1) >= torch.finfo(gradients.dtype).tiny
        if not gradients.isfinite().all() or not usable.any():
            return gradients.sum(0)  # the scaler skips this step; without one, training is reported as diverged
        with seeded_rng(self._seed, "balance", self._calls):
            combined: Tensor = self._aggregator(gradients[usable] if self._any_number else gradients)
        self._calls += 1
        return combined.detach()

    def weights(self) -> Mapping[str, float]:
        return self.task_weights if self._weigher is None else self._weigher.weights()

    def state_dict(self) -> dict[str, Any]:
        weigher = None if self._weigher is None else self._weigher.state_dict()
        return {"aggregator": _plain_state(self._aggregator), "calls": self._calls, "weigher": weigher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._calls = state["calls"]
        _load_plain_state(self._aggregator, state["aggregator"])
        if self._weigher is not None:
            self._weigher.load_state_dict(state["weigher"])


def _plain_state(module: nn.Module) -> dict[str, Any]:
    """Returns the state of a TorchJD module: its tensors and those of its attributes that are plain values.

    Other attributes, such as functions, are settings that do not change during training.
    """
    buffers: dict[str, Tensor | None] = {}
    attributes: dict[str, Any] = {}
    optimizers: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        buffers |= {f"{prefix}.{name}": value for name, value in part._buffers.items()}  # some are None at first
        for name, value in vars(part).items():
            if isinstance(value, torch.optim.Optimizer):
                optimizers[f"{prefix}.{name}"] = value.state_dict()
            elif name not in MODULE_ATTRIBUTES and _is_plain(value):
                attributes[f"{prefix}.{name}"] = value
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return copy.deepcopy(
        {"parameters": parameters, "buffers": buffers, "attributes": attributes, "optimizers": optimizers}
    )


def _load_plain_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    found = copy.deepcopy(dict(state))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(found["parameters"][name])  # in place: an optimizer refers to it
    for part, name, value in _located(module, found["buffers"]):
        part._buffers[name] = value
    for part, name, value in _located(module, found["attributes"]):
        vars(part)[name] = value
    for part, name, value in _located(module, found["optimizers"]):
        getattr(part, name).load_state_dict(value)


def _located(module: nn.Module, values: Mapping[str, Any]) -> Iterator[tuple[nn.Module, str, Any]]:
    for key, value in values.items():
        prefix, _, name = key.rpartition(".")
        yield module.get_submodule(prefix), name, value


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (type(None), bool, int, float, str, Tensor, torch.dtype, torch.device))


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    # always a new tensor: parameters must not share one, and `gradient` may be a view
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient


@dataclass(frozen=True)
class ParsedCall:
    """A parsed call, with its name and arguments.

    Example:
        >>> parse_call("CAGrad(c=0.5)")
        ParsedCall(name='CAGrad', positional=(), keywords={'c': 0.5})
    """

    name: str
    positional: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)

    @property
    def has_list_arguments(self) -> bool:
        """Whether any argument is a list with one value per task."""
        return any(isinstance(value, list | tuple) for value in (*self.positional, *self.keywords.values()))


def parse_call(text: str) -> ParsedCall | None:
    """Parses a name with optional literal arguments, without evaluating any code. Returns None for any other text."""
    name, bracket, rest = text.strip().partition("(")
    try:
        node = ast.parse(name.replace("-", "_") + bracket + rest, mode="eval").body
        if isinstance(node, ast.Name):
            return ParsedCall(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            return ParsedCall(node.func.id, tuple(map(ast.literal_eval, node.args)), keywords)
    except (SyntaxError, ValueError):
        return None
    return None


def torchjd_classes() -> dict[str, type[nn.Module]]:
    """Returns TorchJD's aggregators and scalarizers by name.

    If an aggregator and a scalarizer have the same name, the scalarizer is used, since it is cheaper.
    """
    try:
        from torchjd import aggregation, scalarization
    except ImportError as error:
        raise ImportError("this balancing rule requires TorchJD; run pip install torchjd") from error
    bases = ((aggregation, aggregation.Aggregator), (scalarization, scalarization.Scalarizer))
    return {
        name: module_class
        for module, base in bases
        for name, module_class in inspect.getmembers(module, inspect.isclass)
        if issubclass(module_class, base) and not inspect.isabstract(module_class) and not name.endswith("Aggregator")
    }


def find_torchjd_class(name: str) -> type[nn.Module] | None:
    """Returns the class with this name, ignoring case and hyphens: "nash-mtl" means `NashMTL`."""
    wanted = _normalize(name)
    return next(
        (module_class for known, module_class in torchjd_classes().items() if _normalize(known) == wanted), None
    )


def _make_module(call: ParsedCall, module_class: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    """Creates an aggregator or scalarizer for the given number of tasks, after testing a separate instance."""
    try:
        trial = _construct_module(call, module_class, tasks, torch.empty(0))
        with seeded_rng(0, "trial"), torch.no_grad():
            rows = torch.rand(tasks, tasks + 1) + torch.eye(tasks, tasks + 1)
            trial(rows if _is_aggregator(module_class) else rows[:, 0])
    except ImportError:
        raise
    except Exception as error:
        signature = str(inspect.signature(module_class)).partition(" ->")[0]
        message = f"{module_class.__name__}{signature} cannot be used with {tasks} tasks: {error}"
        raise InvalidInput("`rule`:", message) from error
    return _construct_module(call, module_class, tasks, like)


def _construct_module(call: ParsedCall, module_class: type[nn.Module], tasks: int, like: Tensor) -> nn.Module:
    names = list(inspect.signature(module_class).parameters)
    task_counts = {name: tasks for name in names if name in TASK_COUNT_ARGUMENTS and name not in call.keywords}
    filled_in = {} if call.positional else task_counts
    keywords = {name: _to_tensor(value, like) for name, value in call.keywords.items()}
    return module_class(*(_to_tensor(value, like) for value in call.positional), **filled_in, **keywords)


def _to_tensor(value: Any, like: Tensor) -> Any:
    return like.new_tensor(value) if isinstance(value, list | tuple) else value


def _is_aggregator(module_class: type[nn.Module]) -> bool:
    """Returns whether a class combines gradients rather than losses."""
    from torchjd.aggregation import Aggregator

    return issubclass(module_class, Aggregator)


def _accepts_any_number(call: ParsedCall, module_class: type[nn.Module]) -> bool:
    """Returns whether an aggregator accepts a different number of gradients in each step."""
    from torchjd import Stateful

    return not (
        issubclass(module_class, Stateful)
        or call.has_list_arguments
        or module_class.__name__ in FIXED_COUNT_AGGREGATORS
    )


def _normalize(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
