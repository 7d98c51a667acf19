"""Balancing rules: how the losses of a network's tasks, or their gradients, become one step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tagalong.errors import InvalidInput

from .network import Network
from .randomness import seeded_rng
from .task import Task

RULE_NAMES = ("plain", "uw", "gradnorm", "pcgrad", "pcgrad-uw")


_rules: dict[str, nn.Module] = {}


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
    if name in RULE_NAMES or "+" in name or ":" in name:
        raise InvalidInput("name", "must be a new name without '+' or ':'", repr(name))
    if not isinstance(rule, nn.Module) or hasattr(rule, "update") or hasattr(rule, "step"):
        expected = "must be a TorchJD aggregator or scalarizer that needs no call after a step or an epoch"
        raise InvalidInput("rule", expected, repr(rule))
    _rules[name] = rule


def describe_rule(rule: str) -> str:
    """Returns what identifies a rule in the keys of networks."""
    return f"{rule}: {_rules[rule]!r}" if rule in _rules else rule


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
        losses = torch.cat([*network(torch.ones(1, 1)).values()]).square().flatten()
        try:
            balancer.backward(losses, torch.ones(()))
        except (ValueError, RuntimeError, TypeError, AssertionError) as error:
            reason = f"{describe_rule(rule)} cannot be used with {tasks} tasks: {error}"
            raise InvalidInput("`rule`:", reason) from error


def make_balancer(rule: str, network: Network, tasks: Sequence[Task]) -> Balancer:
    """Creates a balancing rule.

    Args:
        rule: "plain" (the sum), "uw" (Uncertainty Weights), "gradnorm" ("gradnorm:0.5" for a different α), "pcgrad",
            "pcgrad-uw" (PCGrad of losses weighted by Uncertainty Weights), or a name given to `register_rule`.
        network: the network to train.
        tasks: the tasks of the network, in the order of its heads.

    Raises:
        InvalidInput: If the rule is unknown.
    """
    if rule == "plain":
        return Balancer(network, tasks)
    name, _, alpha = rule.partition(":")
    if name == "gradnorm":
        from .gradnorm import GradNorm

        return GradNorm(network, tasks, float(alpha)) if alpha else GradNorm(network, tasks)

    from torchjd.aggregation import Aggregator, PCGrad
    from torchjd.scalarization import UW

    if rule == "pcgrad-uw":
        return AggregatorRule(PCGrad(), network, tasks, ScalarizerRule(UW(len(tasks)), network, tasks))
    modules = {"uw": UW(len(tasks)), "pcgrad": PCGrad()}
    module = modules.get(rule) or copy.deepcopy(_rules.get(rule))
    if module is None:
        hint = "give a TorchJD object a name with `tagalong.learn.register_rule`"
        raise InvalidInput("rule", f"must be one of {', '.join([*RULE_NAMES, *_rules])}", repr(rule), hint)
    rule_class = AggregatorRule if isinstance(module, Aggregator) else ScalarizerRule
    return rule_class(module, network, tasks)


class Balancer(nn.Module):
    """Computes the gradient of every parameter from the losses of all tasks. This one minimizes the weighted sum.

    Rules balance the losses after multiplying them by the weights of their tasks. If a task has no labels in a batch,
    its loss is exactly 0 and must not affect how the rule treats the other tasks. The parameters of a rule are trained
    by the network's optimizer.

    Attributes:
        task_weights: the weight of each task [tasks].
        resumable: whether `state_dict` is complete, so that training can resume from a checkpoint.
    """

    resumable = True

    def __init__(self, network: Network, tasks: Sequence[Task]) -> None:
        super().__init__()
        self.names = [task.name for task in tasks]
        self.task_weights = next(network.parameters()).new_tensor([task.weight for task in tasks]).detach()

    def backward(self, losses: Tensor, factor: Tensor) -> None:
        """Computes the gradients of the parameters.

        Args:
            losses: the loss of each task [tasks].
            factor: what to multiply all gradients by, for a `GradScaler`.
        """
        losses.backward(self.coefficients(losses, factor))

    def coefficients(self, losses: Tensor, factor: Tensor) -> Tensor:
        """Returns how much each loss [tasks] counts, times the factor, and trains what determines this."""
        return self.task_weights * factor

    def weights(self) -> Mapping[str, float]:
        """Returns the current weight of each task's loss."""
        return dict(zip(self.names, (self.task_weights * self.balance()).tolist(), strict=True))

    def balance(self) -> Tensor:
        """Returns how much each weighted loss [tasks] currently counts, or 1 for all."""
        return self.task_weights.new_ones(())


class TorchJDRule(Balancer):
    """A rule that calls a TorchJD object, whose random numbers depend on the network's seed and the step."""

    def __init__(self, module: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        from torchjd import Stateful

        super().__init__(network, tasks)
        self.module = module.to(device=self.task_weights.device, dtype=self.task_weights.dtype)
        # other state than parameters is private to the object, so such a training starts again if it is killed
        self.resumable = not isinstance(module, Stateful) or any(True for _ in module.parameters())
        self._networks = [network]  # in a list, so that it is no part of this module

    def _call(self, values: Tensor) -> Tensor:
        (network,) = self._networks
        with seeded_rng(network.seed, "balance", network.step):
            result: Tensor = self.module(values)
        return result


class ScalarizerRule(TorchJDRule):
    """Minimizes a TorchJD scalarizer, i.e. a function of all losses. Its parameters are trained along with the network.

    Uncertainty Weights (Kendall et al. 2018) minimize Σ ½·exp(−s)·L + ½·s, where s is learned for each task and starts
    at 0. TAG's published code minimizes L/exp(2s) + s, where s starts at 1 and is clipped to [0.01, 10]. Its weights
    differ only in the factor ½, the initial value and the clipping.

    If a task has no labels in a batch, the scalarizer receives the task's last loss, and neither the task's head nor
    its weight is trained.
    """

    last_losses: Tensor

    def __init__(self, scalarizer: nn.Module, network: Network, tasks: Sequence[Task]) -> None:
        super().__init__(scalarizer, network, tasks)
        self.register_buffer("last_losses", torch.ones_like(self.task_weights))

    def coefficients(self, losses: Tensor, factor: Tensor) -> Tensor:
        absent, values = losses == 0, (losses.detach() * self.task_weights).to(self.last_losses.dtype)
        values = torch.where(absent, self.last_losses, values).requires_grad_()
        self.last_losses = values.detach()
        self._call(values).backward(factor)
        assert values.grad is not None
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad.masked_fill_(absent, 0)
        return self.task_weights * values.grad.masked_fill(absent, 0)

    def balance(self) -> Tensor:
        values = self.last_losses.clone().requires_grad_()
        with torch.enable_grad():
            total = self._call(values)
        return torch.autograd.grad(total, values)[0]


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
        self, aggregator: nn.Module, network: Network, tasks: Sequence[Task], weigher: Balancer | None = None
    ) -> None:
        super().__init__(aggregator, network, tasks)
        self.weigher = Balancer(network, tasks) if weigher is None else weigher
        self._shared = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
        shared = set(map(id, self._shared))
        self._own = [p for p in network.heads.parameters() if p.requires_grad and id(p) not in shared]

    def backward(self, losses: Tensor, factor: Tensor) -> None:
        values = losses * self.weigher.coefficients(losses, factor)
        rows = []  # the gradient of each task for the shared parameters
        for value in values if self._shared else ():
            gradients = torch.autograd.grad(
                value, self._shared, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        if self._own:
            values.sum().backward(inputs=self._own)
        if not rows:
            return

        # Leave out gradients whose square underflows: PCGrad divides by squared norms, MGDA fails for a zero row.
        matrix = torch.stack(rows) / factor
        usable = matrix.square().sum(1) >= torch.finfo(matrix.dtype).tiny
        if matrix.isfinite().all() and usable.any():
            combined = self._call(matrix[usable] if self.resumable else matrix).detach() * factor
        else:  # the scaler skips this step; without one, training is reported as diverged
            combined = matrix.sum(0) * factor
        parts = combined.split([parameter.numel() for parameter in self._shared])
        for parameter, part in zip(self._shared, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def balance(self) -> Tensor:
        return self.weigher.balance()
