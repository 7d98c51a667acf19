"""The steps that the user's optimizers would take on one task's gradient, and checks of these optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, SparseAdam

from tagalong.errors import InvalidInput, raise_problems

from .step_rules import AdamRule, GenericRule, ParameterSlice, PlainSgd, SgdRule, StepRule

_EXACT_DTYPES = (torch.float32, torch.float64)  # fused kernels compute in another precision for the others
_WRAPPERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")


class Steps:
    """The steps of all shared parameters, each computed by the rule for its optimizer.

    As in training, parameters that no optimizer owns do not move.
    """

    def __init__(self, rules: Mapping[StepRule, Sequence[int]], learning_rates: Iterable[float]) -> None:
        self._rules = rules
        self._learning_rates = sorted(set(learning_rates))

    @property
    def elementwise(self) -> bool:
        return all(rule.elementwise for rule in self._rules)

    @property
    def separable(self) -> bool:
        return all(rule.separable for rule in self._rules)

    @property
    def idle(self) -> bool:
        return all(rule.idle for rule in self._rules)

    @property
    def moves(self) -> bool:
        """Whether any learning rate is nonzero, or unknown."""
        return not self._learning_rates or any(self._learning_rates)

    @property
    def state_bytes(self) -> int:
        """The size of the copies of the optimizers' state, in bytes."""
        return sum(rule.state_bytes for rule in self._rules)

    def slope(self, pieces: Sequence[ParameterSlice]) -> float | None:
        """Returns c if the step on a gradient g equals the step on zero plus c·g for all `pieces`, otherwise None."""
        rule_of = {index: rule for rule, indices in self._rules.items() for index in indices}
        found = {rule_of[p.index].slope(p) if p.index in rule_of else None for p in pieces}
        return found.pop() if len(found) == 1 else None

    @property
    def lr(self) -> float:
        if len(self._learning_rates) != 1:
            found = f"more than one: {self._learning_rates}" if self._learning_rates else "none"
            expected = f"divides by the learning rate, but the shared parameters have {found}"
            raise InvalidInput("per_lr", expected, hint="pass `per_lr=False`")
        return self._learning_rates[0]

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        """Adds the step on `gradients`, starting from `origin`, to `out` (the parameter values or zeros)."""
        for rule, indices in self._rules.items():
            mine = set(indices)
            here = [k for k, piece in enumerate(pieces) if piece.index in mine]
            if here:
                rule.add(
                    [out[k] for k in here],
                    [pieces[k] for k in here],
                    [gradients[k] for k in here],
                    [origin[k] for k in here],
                )


def sgd_steps(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], lr: float | None) -> Steps:
    """Returns the plain gradient steps of the paper, with the learning rate `lr` or that of each parameter group."""
    if lr is not None:
        return Steps({PlainSgd(lr): range(len(parameters))}, [lr])
    rules: dict[StepRule, list[int]] = {}
    rates: list[float] = []
    for optimizer, group, indices in _owned_groups(parameters, optimizers):
        if not _learning_rates(group):
            name = type(optimizer).__name__
            raise InvalidInput("optimizer", f"({name}) has no learning rate", hint="pass `update='sgd'` with `lr`")
        rules[PlainSgd(group["lr"])] = indices
        rates += _learning_rates(group)
    return Steps(rules, rates)


def optimizer_steps(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], *, generic: bool = False) -> Steps:
    """Returns the steps that the optimizers in their current state would take on one task's gradient.

    Args:
        parameters: The shared parameters.
        optimizers: The optimizers.
        generic: Whether to run the optimizer's own class even if there is an exact formula.
    """
    rules: dict[StepRule, list[int]] = {}
    rates: list[float] = []
    whole: dict[int, tuple[Optimizer, dict[int, Tensor]]] = {}
    for optimizer, group, indices in _owned_groups(parameters, optimizers):
        rates += _learning_rates(group)
        shortcut = None if generic else _exact_rule(optimizer, group, {i: parameters[i] for i in indices})
        if shortcut is not None:
            rules[shortcut] = indices
        else:
            whole.setdefault(id(optimizer), (optimizer, {}))[1].update({i: parameters[i] for i in indices})
    for optimizer, owned in whole.values():
        rules[GenericRule(optimizer, owned)] = list(owned)
    return Steps(rules, rates)


def _exact_rule(optimizer: Optimizer, group: Mapping[str, Any], owned: Mapping[int, Tensor]) -> StepRule | None:
    if any(p.dtype not in _EXACT_DTYPES for p in owned.values()):
        return None
    states = {index: optimizer.state.get(p) or {} for index, p in owned.items()}
    if type(optimizer) is SGD:
        return SgdRule(group, states)
    if type(optimizer) in (Adam, AdamW):
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        return AdamRule(group, states, bool(decoupled))
    return None


def _learning_rates(group: Mapping[str, Any]) -> list[float]:
    """Returns the group's learning rate as a list, which is empty if the optimizer computes its own."""
    return [] if group.get("lr") is None else [float(group["lr"])]


def _owned_groups(
    parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]
) -> list[tuple[Optimizer, Mapping[str, Any], list[int]]]:
    index_of = {id(p): i for i, p in enumerate(parameters)}
    owned: list[tuple[Optimizer, Mapping[str, Any], list[int]]] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            indices = [index_of[id(p)] for p in group["params"] if id(p) in index_of]
            if indices:
                owned.append((optimizer, group, indices))
    return owned


def read_optimizers(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """Returns the given optimizers as a list, or raises one error that lists all unsupported ones."""
    if optimizer is None:
        return []
    given: object = optimizer
    optimizers: list[Any] = [given] if isinstance(given, Optimizer) or not isinstance(given, Iterable) else list(given)
    optimizers = [_unwrap(o) for o in optimizers]
    wrong = [type(o).__name__ for o in optimizers if not isinstance(o, Optimizer)]
    if wrong:
        raise InvalidInput("optimizer", "must be a torch.optim.Optimizer or a list of them", ", ".join(wrong))
    raise_problems([problem for o in optimizers for problem in _optimizer_problems(o)])
    return optimizers


def _unwrap(optimizer: Any) -> Any:
    """Returns the optimizer inside an accelerate, Fabric or Lightning wrapper, which does not change its steps.

    Other wrappers may change the steps, so they are not removed.
    """
    while type(optimizer).__module__.partition(".")[0] in _WRAPPERS and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _optimizer_problems(optimizer: Optimizer) -> Iterable[InvalidInput]:
    name = type(optimizer).__name__
    if isinstance(optimizer, LBFGS):
        yield InvalidInput(
            "optimizer",
            "is LBFGS, which evaluates the loss multiple times per step",
            hint="use `update='sgd'` with `lr` instead of `optimizer`",
        )
    if isinstance(optimizer, SparseAdam):
        yield InvalidInput(
            "optimizer",
            "is SparseAdam, which accepts only sparse gradients",
            hint="leave the sparse embeddings out of `shared` and pass the optimizer that trains the dense parameters",
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        expected = f"({name}) has differentiable=True, which makes its step part of the autograd graph"
        yield InvalidInput("optimizer", expected, hint="create it with differentiable=False")


def check_ownership(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    """Checks that no shared parameter belongs to multiple optimizers, and that at least one belongs to an optimizer."""
    ids_by_optimizer = [{id(p) for group in o.param_groups for p in group["params"]} for o in optimizers]
    owners = [sum(id(p) in ids for ids in ids_by_optimizer) for p in parameters]
    if max(owners) > 1:
        raise InvalidInput(
            "optimizer",
            f"is ambiguous: {sum(n > 1 for n in owners)} shared parameters belong to more than one optimizer",
            hint="pass only the one that updates them",
        )
    if max(owners) == 0:
        raise InvalidInput(
            "optimizer",
            "contains none of the shared parameters, so its steps would not change them",
            hint="pass the optimizer that trains `shared`, or `update='sgd'` with `lr`",
        )
