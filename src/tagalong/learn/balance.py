"""Balancing rules: how the losses of a network's tasks, or their gradients, become one step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tagalong.errors import InvalidInput
from tagalong.registry import Registry

from .network import Network
from .randomness import seeded_rng
from .task import Task

RULE_NAMES = ("plain", "uw", "gradnorm", "pcgrad", "pcgrad-uw")
MIN_WEIGHT, MAX_WEIGHT = 0.1, 10.0  # limits of GradNorm's weights
Losses = Mapping[str, Tensor]


def _check_module(name: str, value: Any) -> nn.Module:
    if name in RULE_NAMES or "+" in name or ":" in name:
        raise InvalidInput("name", "must be a new name without '+' or ':'", repr(name))
    if not isinstance(value, nn.Module) or hasattr(value, "update") or hasattr(value, "step"):
        expected = "must be a TorchJD aggregator or scalarizer that needs no call after a step or an epoch"
        raise InvalidInput("rule", expected, repr(value))
    return value


_rules: Registry[nn.Module] = Registry("rule", _check_module, {})


def register_rule(name: str, rule: nn.Module) -> None:
    """Makes a TorchJD aggregator or scalarizer available as a balancing rule.

    Each network is trained with a copy. The keys of networks contain the name and the `repr` of the rule.

    Args:
        name: the name, for `Job.rule` and the methods of a study ("mtl" with this rule is called by its name).
        rule: an aggregator, which must accept any number of gradients if some batches have no labels for a task, or a
            scalarizer.

    Example:
        >>> from torchjd.aggregation import MGDA
        >>> register_rule("mgda", MGDA(max_iters=50))
        >>> check_rule("mgda", tasks=3)
    """
    _rules.register(name, rule)


def describe_rule(rule: str) -> str:
    """Returns what identifies a rule in the keys of networks."""
    module = _rules.get(rule)
    return rule if module is None else f"{rule}: {module!r}"


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
        balancer = make_balancer(rule, network, [Task(name) for name in names])
        outputs = network(torch.ones(1, 1))
        try:
            balancer.backward({name: outputs[name].square().sum() for name in names}, None)
        except (ValueError, RuntimeError, TypeError, AssertionError) as error:
            raise InvalidInput(
                "`rule`:", f"{describe_rule(rule)} cannot be used with {tasks} tasks: {error}"
            ) from error


def make_balancer(rule: str, network: Network, tasks: Sequence[Task]) -> Balancer:
    """Creates a balancing rule.

    Args:
        rule: "plain" (the sum), "uw" (Uncertainty Weights), "gradnorm" ("gradnorm:0.5" for a different α), "pcgrad",
            "pcgrad-uw" (PCGrad of losses weighted by Uncertainty Weights), or a name given to `register_rule`.
        network: the network to train.
        tasks: the tasks of the network, in the order of its heads.

    Raises:
        InvalidInput: If the rule is unknown.
        ImportError: If the rule needs a package that is not installed.
    """
    name, _, alpha = rule.partition(":")
    if name == "plain":
        return Balancer(tasks)
    if name == "gradnorm":
        return GradNorm(network, tasks, _parse_alpha(rule, alpha))
    module = _rules.get(rule)
    if module is None and rule not in RULE_NAMES:
        known = ", ".join(map(repr, [*RULE_NAMES, *_rules.names()]))
        hint = "give a TorchJD object a name with `tagalong.learn.register_rule`"
        raise InvalidInput("rule", f"must be one of {known}", repr(rule), hint)
    try:
        from torchjd.aggregation import Aggregator, PCGrad
        from torchjd.scalarization import UW
    except ImportError as error:
        raise ImportError(f"the balancing rule {rule!r} requires TorchJD; run pip install torchjd") from error
    if module is None:
        module = UW(len(tasks)) if rule == "uw" else PCGrad()
    like = next(network.parameters())
    module = copy.deepcopy(module).to(device=like.device, dtype=like.dtype)
    if not isinstance(module, Aggregator):
        return ScalarizerRule(module, network, tasks)
    weigher = None
    if rule == "pcgrad-uw":
        weigher = ScalarizerRule(UW(len(tasks)).to(device=like.device, dtype=like.dtype), network, tasks)
    return AggregatorRule(module, network, tasks, weigher)


def _parse_alpha(rule: str, text: str) -> float:
    try:
        alpha = float(text) if ":" in rule else 1.5
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha >= 0):
        raise InvalidInput("rule", "must have the form 'gradnorm:ALPHA' with a non-negative ALPHA", repr(rule))
    return alpha


class Balancer:
    """Computes the gradient of every parameter from the losses of all tasks. This one minimizes the weighted sum.

    Rules balance the losses after multiplying them by the weights of their tasks. If a task has no labels in a batch,
    its loss is exactly 0 and must not affect how the rule treats the other tasks.

    Attributes:
        resumable: whether `state_dict` is complete, so that training can resume from a checkpoint.
    """

    resumable = True

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.task_weights = {task.name: float(task.weight) for task in tasks}

    def weighted(self, losses: Losses) -> Tensor:
        """Returns the losses in task order, each multiplied by the weight of its task."""
        return torch.stack([weight * losses[task] for task, weight in self.task_weights.items()])

    def parameters(self) -> Iterable[nn.Parameter]:
        """Returns the rule's own parameters, which are trained by the network's optimizer."""
        return ()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        """Adds the gradients of this step's losses to the parameters' `.grad`."""
        _scale(self.weighted(losses).sum(), scaler).backward()

    def weights(self) -> Mapping[str, float]:
        """Returns the current weight of each task's loss."""
        return self.task_weights

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that changes during training, as tensors and plain values only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""


def _scale(loss: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
    return loss if scaler is None else scaler.scale(loss)


class GradNorm(Balancer):
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
        trained = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.dim() > 1] or trained
        self._matrix = matrices[-1] if matrices else None
        self._alpha = alpha
        like = next(network.parameters())
        self._weights = nn.Parameter(like.new_ones(len(tasks)), requires_grad=False)
        self._initial_losses = like.new_full((len(tasks),), torch.nan).detach()
        self._optimizer = torch.optim.Adam([self._weights], lr=lr)

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        norms = None
        if self._matrix is not None:
            gradients = [
                torch.autograd.grad(value, self._matrix, retain_graph=True, allow_unused=True, materialize_grads=True)
                for value in _scale(values, scaler)
            ]
            norms = torch.stack([gradient.norm() for (gradient,) in gradients])
            norms = norms / (1.0 if scaler is None else scaler.get_scale())
        _scale((self._weights * values).sum(), scaler).backward()
        if norms is not None:
            self._update_weights(values.detach().to(norms.dtype), norms)

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
        return {task: own * weight for (task, own), weight in pairs}

    def state_dict(self) -> dict[str, Any]:
        weights, optimizer = self._weights.data, self._optimizer.state_dict()
        return copy.deepcopy({"weights": weights, "first": self._initial_losses, "optimizer": optimizer})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights.copy_(state["weights"])
        self._initial_losses = state["first"].clone()
        self._optimizer.load_state_dict(state["optimizer"])


class TorchJDRule(Balancer):
    """A rule that calls a TorchJD object, whose random numbers depend on the network's seed."""

    def __init__(self, module: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        from torchjd import Stateful

        super().__init__(tasks)
        self._module, self._seed, self._calls = module, network.seed, 0
        # other state than parameters is private to the object, so such a training starts again if it is killed
        self.resumable = not isinstance(module, Stateful) or any(True for _ in module.parameters())

    def _call(self, module: nn.Module, values: Tensor) -> Tensor:
        with seeded_rng(self._seed, "balance", self._calls):
            result: Tensor = module(values)
        return result

    def state_dict(self) -> dict[str, Any]:
        return {"module": copy.deepcopy(self._module.state_dict()), "calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._module.load_state_dict(state["module"])
        self._calls = state["calls"]


class ScalarizerRule(TorchJDRule):
    """Minimizes a TorchJD scalarizer, i.e. a function of all losses. Its parameters are trained along with the network.

    Uncertainty Weights (Kendall et al. 2018) minimize Σ ½·exp(−s)·L + ½·s, where s is learned for each task and starts
    at 0. TAG's published code minimizes L/exp(2s) + s, where s starts at 1 and is clipped to [0.01, 10]. Its weights
    differ only in the factor ½, the initial value and the clipping.

    If a task has no labels in a batch, the scalarizer receives the task's last loss, and neither the task's head nor
    its weight is trained.
    """

    def __init__(self, scalarizer: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        super().__init__(scalarizer, network, tasks)
        self._last_losses = next(network.parameters()).new_ones(len(tasks)).detach()

    def parameters(self) -> Iterable[nn.Parameter]:
        return self._module.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        (self.coefficients(values.detach(), scaler) * values).sum().backward()

    def coefficients(self, values: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
        """Returns each loss's weight times the scaler's factor. Also backpropagates to the scalarizer's parameters."""
        absent = values == 0
        values = torch.where(absent, self._last_losses, values.to(self._last_losses.dtype)).requires_grad_()
        self._last_losses = values.detach()
        _scale(self._call(self._module, values), scaler).backward()
        self._calls += 1
        assert values.grad is not None
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(absent, 0)
        return values.grad.masked_fill(absent, 0)

    def weights(self) -> Mapping[str, float]:
        values = self._last_losses.clone().requires_grad_()
        with torch.enable_grad():
            total = self._call(copy.deepcopy(self._module), values)  # some scalarizers change when called
        (gradients,) = torch.autograd.grad(total, values)
        pairs = zip(self.task_weights.items(), gradients.tolist(), strict=True)
        return {task: weight * gradient for (task, weight), gradient in pairs}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"last": self._last_losses.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._last_losses = state["last"].clone()


class AggregatorRule(TorchJDRule):
    """Combines the tasks' gradients for the shared parameters with a TorchJD aggregator.

    Each head uses only the gradient of its own task. Tasks without labels in a batch are left out, unless the
    aggregator remembers the gradients of earlier steps.

    Args:
        aggregator: the TorchJD aggregator.
        network: the network to train.
        tasks: the tasks of the network.
        weigher: an optional rule that weights the losses first. TAG's published PCGrad run used Uncertainty Weights.
    """

    def __init__(
        self, aggregator: nn.Module, network: Network, tasks: Sequence[Task], weigher: ScalarizerRule | None = None
    ) -> None:
        super().__init__(aggregator, network, tasks)
        self._shared = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
        shared = set(map(id, self._shared))
        self._own = [
            [p for p in head.parameters() if p.requires_grad and id(p) not in shared] for head in network.heads
        ]
        self._weigher = weigher

    def parameters(self) -> Iterable[nn.Parameter]:
        return () if self._weigher is None else self._weigher.parameters()

    def backward(self, losses: Losses, scaler: torch.amp.GradScaler | None) -> None:
        values = self.weighted(losses)
        if self._weigher is None:
            values = _scale(values, scaler)
        else:
            values = self._weigher.coefficients(values.detach(), scaler) * values
        # one row per task: its gradient for the shared parameters; the gradients of heads are used as they are
        rows = []
        for value, own in zip(values, self._own, strict=True):
            trained = [*self._shared, *own]
            gradients = torch.autograd.grad(
                value, trained, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for parameter, gradient in zip(own, gradients[len(self._shared) :], strict=True):
                _accumulate(parameter, gradient)
            rows.append(torch.cat([value.new_zeros(0), *(part.flatten() for part in gradients[: len(self._shared)])]))
        factor = 1.0 if scaler is None else scaler.get_scale()
        combined = self._combine(torch.stack(rows) / factor) * factor
        parts = combined.split([parameter.numel() for parameter in self._shared])
        for parameter, part in zip(self._shared, parts, strict=True):
            _accumulate(parameter, part.view_as(parameter))

    def _combine(self, gradients: Tensor) -> Tensor:
        # leave out gradients whose square underflows: PCGrad divides by squared norms, MGDA fails for a zero row
        usable = gradients.square().sum(1) >= torch.finfo(gradients.dtype).tiny
        if not gradients.isfinite().all() or not usable.any():
            return gradients.sum(0)  # the scaler skips this step; without one, training is reported as diverged
        combined = self._call(self._module, gradients[usable] if self.resumable else gradients)
        self._calls += 1
        return combined.detach()

    def weights(self) -> Mapping[str, float]:
        return self.task_weights if self._weigher is None else self._weigher.weights()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"weigher": None if self._weigher is None else self._weigher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._weigher is not None:
            self._weigher.load_state_dict(state["weigher"])


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    # always a new tensor: parameters must not share one, and `gradient` may be a view
    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
