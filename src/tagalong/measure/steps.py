"""The steps that the user's optimizers would take on one task's gradient, and checks of these optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, SparseAdam

from tagalong.errors import InvalidInput

from .step_rules import AdamRule, GenericRule, ParameterSlice, SgdRule, StepRule

_EXACT_DTYPES = (torch.float32, torch.float64)  # fused kernels compute in another precision for the others
# The wrappers of these packages do not change steps; those of others may.
_WRAPPERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")


class Steps:
    """The steps of all shared parameters, each computed by the rule for its optimizer.

    As in training, parameters that no optimizer owns do not move, nor do those that the task does not use.

    Attributes:
        elementwise: Whether steps can be computed on slices of tensors.
        separable: Whether each tensor's step depends only on that tensor.
        idle: Whether a zero gradient leaves the parameters unchanged.
        moves: Whether any learning rate is nonzero, or unknown.
        state_bytes: The size of what each step copies, in bytes.
    """

    def __init__(self, rules: Mapping[StepRule, Sequence[int]], learning_rates: Iterable[float]) -> None:
        self._rules = rules
        self._rule_of = {index: rule for rule, indices in rules.items() for index in indices}
        self._learning_rates = sorted(set(learning_rates))
        self.elementwise = all(rule.elementwise for rule in rules)
        self.separable = all(rule.separable for rule in rules)
        self.idle = all(rule.idle for rule in rules)
        self.moves = not self._learning_rates or any(self._learning_rates)
        self.state_bytes = sum(rule.state_bytes for rule in rules)

    @property
    def lr(self) -> float:
        if len(self._learning_rates) != 1:
            raise InvalidInput(
                "per_lr",
                f"needs one learning rate for all shared parameters, found {self._learning_rates or 'none'}",
                hint="pass `per_lr=False`",
            )
        return self._learning_rates[0]

    def slope(self, pieces: Sequence[ParameterSlice]) -> float | None:
        """Returns c if the step on a gradient g equals the step on zero plus c·g for all `pieces`, otherwise None."""
        rules = [self._rule_of.get(piece.index) for piece in pieces]
        slopes = {None if rule is None else rule.slope(piece) for rule, piece in zip(rules, pieces, strict=True)}
        return slopes.pop() if len(slopes) == 1 else None

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor | None],
        origin: Sequence[Tensor],
    ) -> None:
        """Adds the step on `gradients`, starting from `origin`, to `out` (the parameter values or zeros).

        Where the gradient is None, the task does not use the parameter, so that it does not move, not even by momentum.
        """
        for rule in self._rules:
            mine = [
                (target, piece, gradient, start)
                for target, piece, gradient, start in zip(out, pieces, gradients, origin, strict=True)
                if gradient is not None and self._rule_of.get(piece.index) is rule
            ]
            if mine:
                rule.add(*map(list, zip(*mine, strict=True)))


def sgd_steps(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], lr: float | None) -> Steps:
    """Returns the plain gradient steps of the paper, with the learning rate `lr` or that of each parameter group."""
    if lr is not None:
        return Steps({SgdRule({"lr": lr}, {}): range(len(parameters))}, [lr])
    rules: dict[StepRule, Sequence[int]] = {}
    for optimizer, group, indices in _owned_groups(parameters, optimizers):
        if group.get("lr") is None:
            name = type(optimizer).__name__
            raise InvalidInput("optimizer", f"({name}) has no learning rate", hint="pass `update='sgd'` with `lr`")
        rules[SgdRule({"lr": group["lr"]}, {})] = indices
    return Steps(rules, _learning_rates(parameters, optimizers))


def optimizer_steps(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> Steps:
    """Returns the steps that the optimizers in their current state would take on one task's gradient."""
    rules: dict[StepRule, Sequence[int]] = {}
    without_formula: dict[Optimizer, dict[int, Tensor]] = {}
    for optimizer, group, indices in _owned_groups(parameters, optimizers):
        kind = type(optimizer)
        states = {i: optimizer.state.get(parameters[i]) or {} for i in indices}
        if kind not in (SGD, Adam, AdamW) or any(parameters[i].dtype not in _EXACT_DTYPES for i in indices):
            without_formula.setdefault(optimizer, {}).update({i: parameters[i] for i in indices})
        elif kind is SGD:
            rules[SgdRule(group, states)] = indices
        else:
            decoupled = bool(group.get("decoupled_weight_decay", kind is AdamW))
            rules[AdamRule(group, states, decoupled)] = indices
    for optimizer, owned in without_formula.items():
        rules[GenericRule(optimizer, owned)] = list(owned)
    return Steps(rules, _learning_rates(parameters, optimizers))


def _owned_groups(
    parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]
) -> list[tuple[Optimizer, Mapping[str, Any], list[int]]]:
    """Returns the parameter groups that contain any of the parameters, with the indices of these."""
    index_of = {id(p): i for i, p in enumerate(parameters)}
    owned: list[tuple[Optimizer, Mapping[str, Any], list[int]]] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            indices = [index_of[id(p)] for p in group["params"] if id(p) in index_of]
            if indices:
                owned.append((optimizer, group, indices))
    return owned


def _learning_rates(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> list[float]:
    """Returns the learning rates of the parameters, without optimizers that compute their own."""
    rates = [group.get("lr") for _, group, _ in _owned_groups(parameters, optimizers)]
    return [float(rate) for rate in rates if rate is not None]


def read_optimizers(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """Returns the given optimizers as a list, without the wrappers of trainers, and refuses unsupported ones."""
    if optimizer is None:
        return []
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for position, candidate in enumerate(optimizers):
        while type(candidate).__module__.partition(".")[0] in _WRAPPERS and hasattr(candidate, "optimizer"):
            candidate = optimizers[position] = candidate.optimizer
        name = type(candidate).__name__
        if not isinstance(candidate, Optimizer):
            raise InvalidInput("optimizer", "must be a torch.optim.Optimizer or a list of them", name)
        if isinstance(candidate, LBFGS):
            expected = "is LBFGS, which evaluates the loss multiple times per step"
            raise InvalidInput("optimizer", expected, hint="use `update='sgd'` with `lr` instead of `optimizer`")
        if isinstance(candidate, SparseAdam):
            expected = "is SparseAdam, which accepts only sparse gradients"
            hint = "leave the sparse embeddings out of `shared` and pass the optimizer that trains the dense parameters"
            raise InvalidInput("optimizer", expected, hint=hint)
        if any(group.get("differentiable") for group in candidate.param_groups):
            expected = f"({name}) has differentiable=True, which makes its step part of the autograd graph"
            raise InvalidInput("optimizer", expected, hint="create it with differentiable=False")
    return optimizers


def check_ownership(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """Checks that no shared parameter belongs to multiple optimizers, and that at least one belongs to an optimizer."""
    ids_by_optimizer = [{id(p) for group in o.param_groups for p in group["params"]} for o in optimizers]
    owners = [sum(id(p) in ids for ids in ids_by_optimizer) for p in parameters]
    if max(owners) > 1:
        number = sum(n > 1 for n in owners)
        expected = f"is ambiguous: {number} shared parameters belong to more than one optimizer"
        raise InvalidInput("optimizer", expected, hint="pass only the one that updates them")
    if max(owners) == 0:
        expected = "contains none of the shared parameters, so its steps would not change them"
        hint = "pass the optimizer that trains `shared`, or `update='sgd'` with `lr`"
        raise InvalidInput("optimizer", expected, hint=hint)
