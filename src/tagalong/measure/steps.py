"""The steps that optimizers would take on one task's gradient: formulas for SGD and Adam, copies of the others."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

FORMULA_DTYPES = (torch.float32, torch.float64)  # fused kernels compute in another precision for the others
CHUNK_SIZE = 1 << 22  # elements, which bounds the memory for temporaries without many more kernel launches
# The wrappers of these packages do not change steps; those of others may.
WRAPPERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")

Tensors = Sequence[Tensor]


class StepRules:
    """The rules by which the optimizers move all shared parameters.

    As in training, parameters that no optimizer owns do not move, nor do those that the task does not use.

    Args:
        rules: The rules, with the indices of the parameters that they move.
        learning_rates: The learning rates, as far as they are known.

    Attributes:
        idle: Whether a zero gradient leaves the parameters unchanged.
        moves: Whether any learning rate is nonzero, or unknown.
    """

    def __init__(self, rules: Mapping[StepRule, Sequence[int]], learning_rates: Iterable[float]) -> None:
        self._rules = rules
        self._learning_rates = sorted(set(learning_rates))
        self.idle = all(rule.idle for rule in rules)
        self.moves = not self._learning_rates or any(self._learning_rates)

    @property
    def lr(self) -> float:
        if len(self._learning_rates) != 1:
            raise ValueError(f"`per_lr` needs one learning rate for all parameters, found {self._learning_rates}")
        return self._learning_rates[0]

    def add_step(self, out: Tensors, gradients: Sequence[Tensor | None], origin: Tensors) -> None:
        """Adds the step on `gradients`, starting from `origin`, to `out` (the parameter values or zeros).

        Where the gradient is None, the task does not use the parameter, so that it does not move, not even by momentum.
        """
        for rule, indices in self._rules.items():
            used = {index: gradient for index in indices if (gradient := gradients[index]) is not None}
            if used:
                rule.add_step([out[k] for k in used], list(used), list(used.values()), [origin[k] for k in used])


class StepRule(ABC):
    """The step Δθ that some of the shared parameters would take on one task's gradient.

    A rule is created for a single measured step and reads the optimizer's settings and state only once.

    Attributes:
        idle: Whether a zero gradient leaves the parameters unchanged (no momentum, no weight decay).
    """

    idle = False

    @abstractmethod
    def add_step(self, out: Tensors, indices: Sequence[int], gradients: Tensors, origin: Tensors) -> None:
        """Adds the step on `gradients`, starting from `origin` (the values of these parameters), to `out`.

        If `out` contains the parameters, it ends up with the parameters after the step. If `out` contains zeros, it
        ends up with the step itself. No other tensor is modified.
        """


class SgdRule(StepRule):
    """The step of `torch.optim.SGD`, including momentum, dampening, Nesterov momentum, weight decay and maximization.

    Let d = ±g + λθ, and let m be the momentum buffer. The new buffer is μm + (1 − τ)d (or d at the first step). The
    direction is the new buffer, or d + μ·buffer for Nesterov. This is linear in d and m, so no temporary tensor is
    needed. With only a learning rate, it is −η g, the lookahead step of the paper's equation 1.
    """

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]]) -> None:
        self._lr, self._momentum = float(group["lr"]), float(group.get("momentum", 0.0))
        self._dampening, self._decay = float(group.get("dampening", 0.0)), float(group.get("weight_decay", 0.0))
        self._sign = -1.0 if group.get("maximize") else 1.0
        self._nesterov = bool(group.get("nesterov"))
        has_buffer = [i for i, state in states.items() if self._momentum and state.get("momentum_buffer") is not None]
        self._buffers = {index: states[index]["momentum_buffer"] for index in has_buffer}
        self.idle = not self._momentum and not self._decay

    def _coefficients(self, has_buffer: bool) -> tuple[float, float]:
        # of d and m in the step direction
        fresh = 1.0 - self._dampening if has_buffer else 1.0
        if self._nesterov:
            return 1.0 + self._momentum * fresh, self._momentum**2
        return fresh, self._momentum

    def add_step(self, out: Tensors, indices: Sequence[int], gradients: Tensors, origin: Tensors) -> None:
        for has_buffer in (False, True):
            chosen = [k for k, index in enumerate(indices) if (index in self._buffers) == has_buffer]
            if not chosen:
                continue
            moved = [out[k] for k in chosen]
            on_d, on_m = self._coefficients(has_buffer)
            torch._foreach_add_(moved, [gradients[k] for k in chosen], alpha=-self._lr * on_d * self._sign)
            if self._decay:
                torch._foreach_add_(moved, [origin[k] for k in chosen], alpha=-self._lr * on_d * self._decay)
            if has_buffer:
                torch._foreach_add_(moved, [self._buffers[indices[k]] for k in chosen], alpha=-self._lr * on_m)


class AdamRule(StepRule):
    """m' = β₁m + (1−β₁)g, v' = β₂v + (1−β₂)g², Δθ = −η/(1−β₁ᵗ) · m' / (√v'/√(1−β₂ᵗ) + ε), plus weight decay.

    This is the step of `torch.optim.Adam` and `AdamW`, whose own function is slower for many small tensors.
    """

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]], decoupled: bool) -> None:
        self._group, self._decoupled = group, decoupled
        self._states = {index: state for index, state in states.items() if "exp_avg" in state}
        # Counts on a device are read in one transfer.
        counts = [torch.as_tensor(s["step"], dtype=torch.float32).reshape(()) for s in self._states.values()]
        self._counts = dict(zip(self._states, torch.stack(counts).tolist() if counts else (), strict=True))

    def add_step(self, out: Tensors, indices: Sequence[int], gradients: Tensors, origin: Tensors) -> None:
        ends = accumulate(g.numel() for g in gradients)
        rows = zip(ends, out, indices, gradients, origin, strict=True)
        for _, chunk in groupby(rows, key=lambda row: row[0] // CHUNK_SIZE):
            self._add_chunk(*map(list, list(zip(*chunk, strict=True))[1:]))

    def _add_chunk(self, out: list[Tensor], indices: list[int], gradients: list[Tensor], origin: list[Tensor]) -> None:
        group = self._group
        lr, decay, (beta1, beta2) = float(group["lr"]), float(group["weight_decay"]), map(float, group["betas"])
        if group["maximize"]:
            gradients = list(torch._foreach_neg(gradients))
        if decay and not self._decoupled:
            gradients = list(torch._foreach_add(gradients, origin, alpha=decay))

        # The moments; those of parameters that have had no gradient so far start at zero.
        means = torch._foreach_mul(gradients, 1.0 - beta1)
        squares = torch._foreach_mul(gradients, gradients)
        torch._foreach_mul_(squares, 1.0 - beta2)
        started = [k for k, index in enumerate(indices) if index in self._states]
        if started:
            states = [self._states[indices[k]] for k in started]
            started_squares = [squares[k] for k in started]
            torch._foreach_add_([means[k] for k in started], [s["exp_avg"] for s in states], alpha=beta1)
            torch._foreach_add_(started_squares, [s["exp_avg_sq"] for s in states], alpha=beta2)
            if group["amsgrad"]:
                torch._foreach_maximum_(started_squares, [s["max_exp_avg_sq"] for s in states])

        # The step
        counts = [self._counts.get(index, 0.0) + 1.0 for index in indices]
        torch._foreach_sqrt_(squares)
        torch._foreach_div_(squares, [(1.0 - beta2**count) ** 0.5 for count in counts])
        torch._foreach_add_(squares, float(group["eps"]))
        torch._foreach_div_(means, squares)
        torch._foreach_mul_(means, [-lr / (1.0 - beta1**count) for count in counts])
        if decay and self._decoupled:
            torch._foreach_add_(out, origin, alpha=-lr * decay)
        torch._foreach_add_(out, means)


# Schedulers replace `step`, and a GradScaler sets the others for fused kernels; a copy must have none of them.
NOT_COPIED = ("step", "grad_scale", "found_inf")


class CopiedOptimizer(StepRule):
    """Runs the actual optimizer class on copies of the parameters and their state, separately for each task."""

    def __init__(self, optimizer: Optimizer, parameters: Mapping[int, Tensor]) -> None:
        self._optimizer, self._parameters = optimizer, parameters

    def add_step(self, out: Tensors, indices: Sequence[int], gradients: Tensors, origin: Tensors) -> None:
        stand_ins = [nn.Parameter(start.detach().clone()) for start in origin]
        for stand_in, gradient in zip(stand_ins, gradients, strict=True):
            stand_in.grad = gradient.clone()  # which some optimizers change
        owners = [self._parameters[index] for index in indices]

        clone = copy_optimizer(self._optimizer, dict(zip(map(id, owners), stand_ins, strict=True)))
        try:
            with without_global_hooks():
                clone.step()
        except (TypeError, AttributeError) as error:
            name = type(clone).__name__
            raise RuntimeError(f"cannot take a step with a copy of {name}: {error}; use update='sgd'") from error

        for target, stand_in, start, owner in zip(out, stand_ins, origin, owners, strict=True):
            if target.data_ptr() == owner.data_ptr():
                target.copy_(stand_in.detach())
            else:
                target.add_(stand_in.detach() - start)


@contextmanager
def without_global_hooks() -> Iterator[None]:
    # Disables the hooks that users have registered for all optimizers, since no real step is taken.
    hooks: list[dict[int, Any]] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    registered = [of_kind.copy() for of_kind in hooks]
    try:
        for of_kind in hooks:
            of_kind.clear()
        yield
    finally:
        for of_kind, copies in zip(hooks, registered, strict=True):
            of_kind.update(copies)


def copy_optimizer(optimizer: Optimizer, stand_ins: Mapping[int, Tensor]) -> Optimizer:
    """Copies an optimizer with its settings and state, restricted to `stand_ins` (by id of the parameter they replace).

    The copy is created without calling `__init__`, as in unpickling, since `__init__` may require unknown arguments.
    All other attributes of the optimizer are copied too, but hooks are not. References to the parameters and the
    optimizer are replaced by references to their copies, so that the original cannot be modified.
    """
    clone: Optimizer = object.__new__(type(optimizer))
    state: defaultdict[Any, Any] = defaultdict(dict)
    memo: dict[int, Any] = {**stand_ins, id(optimizer): clone, id(optimizer.state): state}
    for group in optimizer.param_groups:
        memo[id(group["params"])] = [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]
    groups = [group for group in optimizer.param_groups if memo[id(group["params"])]]
    memo[id(optimizer.param_groups)] = copy.deepcopy(groups, memo)
    for key, value in optimizer.state.items():
        owner = stand_ins.get(id(key)) if isinstance(key, Tensor) else key
        if owner is not None:
            state[owner] = copy.deepcopy(value, memo)
    attributes = {
        name: copy.deepcopy(value, memo)
        for name, value in vars(optimizer).items()
        if name not in NOT_COPIED and not name.startswith("_optimizer_")  # hooks
    }
    Optimizer.__setstate__(clone, attributes)
    return clone


def make_step_rules(
    parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], update: str, lr: float | None = None
) -> StepRules:
    """Returns the steps that the optimizers in their current state would take on one task's gradient.

    Args:
        parameters: The shared parameters.
        optimizers: Their optimizers.
        update: ``"sgd"`` for the plain gradient steps of the paper, with the learning rates of the optimizers.
        lr: A learning rate that replaces them.
    """
    if lr is not None:
        return StepRules({SgdRule({"lr": lr}, {}): range(len(parameters))}, [lr])
    index_of = {id(p): i for i, p in enumerate(parameters)}
    rules: dict[StepRule, Sequence[int]] = {}
    without_formula: dict[Optimizer, dict[int, Tensor]] = {}
    learning_rates = []
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    for optimizer, group in groups:
        indices = [index_of[id(p)] for p in group["params"] if id(p) in index_of]
        if not indices:
            continue
        kind, rate = type(optimizer), group.get("lr")
        learning_rates += [] if rate is None else [float(rate)]
        states = {i: optimizer.state.get(parameters[i]) or {} for i in indices}
        if update == "sgd":
            rules[SgdRule({"lr": rate}, {})] = indices
        elif kind not in (SGD, Adam, AdamW) or any(parameters[i].dtype not in FORMULA_DTYPES for i in indices):
            without_formula.setdefault(optimizer, {}).update({i: parameters[i] for i in indices})
        elif kind is SGD:
            rules[SgdRule(group, states)] = indices
        else:
            rules[AdamRule(group, states, bool(group.get("decoupled_weight_decay", kind is AdamW)))] = indices
    for optimizer, owned in without_formula.items():
        rules[CopiedOptimizer(optimizer, owned)] = list(owned)
    return StepRules(rules, learning_rates)


def read_optimizers(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    # Returns the given optimizers as a list, without the wrappers of trainers.
    if optimizer is None:
        return []
    optimizers: list[Any] = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for position, candidate in enumerate(optimizers):
        while type(candidate).__module__.partition(".")[0] in WRAPPERS and hasattr(candidate, "optimizer"):
            candidate = optimizers[position] = candidate.optimizer
        # opacus's optimizer takes steps on clipped and noisy gradients of samples; the one inside it takes plain steps.
        candidate = optimizers[position] = getattr(candidate, "original_optimizer", candidate)
        if not isinstance(candidate, Optimizer):
            kind = type(candidate).__name__
            raise ValueError(f"`optimizer` must be a torch.optim.Optimizer or a list of them, found {kind}")
    return optimizers


def check_ownership(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    # Checks that no shared parameter belongs to multiple optimizers, and that at least one belongs to an optimizer.
    ids_by_optimizer = [{id(p) for group in o.param_groups for p in group["params"]} for o in optimizers]
    owners = [sum(id(p) in ids for ids in ids_by_optimizer) for p in parameters]
    if max(owners) > 1:
        raise ValueError("`optimizer` must own each shared parameter once; found some in more than one optimizer")
    if max(owners) == 0:
        raise ValueError(
            "`optimizer` contains none of the shared parameters, so its steps would not change them; pass the "
            "optimizer that trains `shared`, or `update='sgd'` with `lr`"
        )
