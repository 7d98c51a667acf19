"""The step an optimizer would take on one task's gradient: formulas for SGD and Adam, copies of other optimizers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


@dataclass(frozen=True)
class ParameterSlice:
    """Rows `start` to `stop` of the shared parameter with this index, or all rows if `stop` is None."""

    index: int
    start: int = 0
    stop: int | None = None

    def select(self, tensor: Tensor) -> Tensor:
        return tensor if self.stop is None else tensor[self.start : self.stop]


def split_tensor(index: int, tensor: Tensor, limit: int) -> Iterator[ParameterSlice]:
    """Splits a tensor into slices of at most `limit` elements (but at least one row each)."""
    if tensor.numel() <= limit or tensor.dim() == 0:
        yield ParameterSlice(index)
        return
    rows = max(1, limit * tensor.shape[0] // tensor.numel())
    for start in range(0, tensor.shape[0], rows):
        yield ParameterSlice(index, start, min(start + rows, tensor.shape[0]))


class StepRule(ABC):
    """The step Δθ that some of the shared parameters would take on one task's gradient.

    A rule is created for a single measured step and reads the optimizer's settings and state only once.

    Attributes:
        elementwise: Whether each element's step depends only on that element's history, so that the step can be
            computed on slices of a tensor.
        separable: Whether each tensor's step depends only on that tensor.
        idle: Whether a zero gradient leaves the parameters unchanged (no momentum, no weight decay).
        state_bytes: The size of what each step copies, in bytes.
    """

    elementwise = True
    separable = True
    idle = False
    state_bytes = 0

    def slope(self, piece: ParameterSlice) -> float | None:
        """Returns c if the step on a gradient g equals the step on a zero gradient plus c·g, otherwise None."""
        return None

    @abstractmethod
    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        """Adds the step on `gradients`, starting from `origin` (the current values of these pieces), to `out`.

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
        buffers = {index: state.get("momentum_buffer") for index, state in states.items() if self._momentum}
        self._buffers = {index: buffer for index, buffer in buffers.items() if buffer is not None}
        self.idle = not self._momentum and not self._decay

    def slope(self, piece: ParameterSlice) -> float | None:
        return -self._lr * self._coefficients(piece.index in self._buffers)[0] * self._sign

    def _coefficients(self, has_buffer: bool) -> tuple[float, float]:
        """Returns the coefficients of d and m in the step direction."""
        fresh = 1.0 - self._dampening if has_buffer else 1.0
        if self._nesterov:
            return 1.0 + self._momentum * fresh, self._momentum**2
        return fresh, self._momentum

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        for has_buffer in (False, True):
            here = [k for k, piece in enumerate(pieces) if (piece.index in self._buffers) == has_buffer]
            if not here:
                continue
            moved = [out[k] for k in here]
            on_d, on_m = self._coefficients(has_buffer)
            torch._foreach_add_(moved, [gradients[k] for k in here], alpha=-self._lr * on_d * self._sign)
            if self._decay:
                torch._foreach_add_(moved, [origin[k] for k in here], alpha=-self._lr * on_d * self._decay)
            if has_buffer:
                buffers = [pieces[k].select(self._buffers[pieces[k].index]) for k in here]
                torch._foreach_add_(moved, buffers, alpha=-self._lr * on_m)


# Elements per chunk: bounds the size of temporaries (two per chunk) without a noticeable number of kernel launches.
CHUNK_SIZE = 1 << 22


class AdamRule(StepRule):
    """m' = β₁m + (1−β₁)g, v' = β₂v + (1−β₂)g², Δθ = −η/(1−β₁ᵗ) · m' / (√v'/√(1−β₂ᵗ) + ε), plus weight decay."""

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]], decoupled: bool) -> None:
        self._group, self._decoupled = group, decoupled
        self._states = {index: state for index, state in states.items() if "exp_avg" in state}
        # Counts on a device are read in one transfer.
        counts = [torch.as_tensor(s["step"], dtype=torch.float32).reshape(()) for s in self._states.values()]
        self._steps = dict(zip(self._states, torch.stack(counts).tolist() if counts else (), strict=True))

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        group, (beta1, beta2) = self._group, map(float, self._group["betas"])
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        for chunk in _chunks(gradients, CHUNK_SIZE):
            moved = [rows.select(out[rows.index]) for rows in chunk]
            start = [rows.select(origin[rows.index]) for rows in chunk]
            g = [rows.select(gradients[rows.index]) for rows in chunk]
            if group["maximize"]:
                g = list(torch._foreach_neg(g))
            if decay and not self._decoupled:
                g = list(torch._foreach_add(g, start, alpha=decay))

            # Parameters that have had no gradient so far have no state, which counts as zero.
            here = [pieces[rows.index] for rows in chunk]
            counts = [self._steps.get(piece.index, 0.0) + 1.0 for piece in here]
            trained = [k for k, piece in enumerate(here) if piece.index in self._states]

            square = list(torch._foreach_mul(g, g))
            torch._foreach_mul_(square, 1.0 - beta2)
            moment = list(torch._foreach_mul(g, 1.0 - beta1))
            if trained:
                states = {
                    name: [chunk[k].select(here[k].select(self._states[here[k].index][name])) for k in trained]
                    for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))
                }
                torch._foreach_add_([moment[k] for k in trained], states["exp_avg"], alpha=beta1)
                torch._foreach_add_([square[k] for k in trained], states["exp_avg_sq"], alpha=beta2)
                if group["amsgrad"]:
                    torch._foreach_maximum_([square[k] for k in trained], states["max_exp_avg_sq"])

            torch._foreach_sqrt_(square)
            torch._foreach_div_(square, [(1.0 - beta2**count) ** 0.5 for count in counts])
            torch._foreach_add_(square, float(group["eps"]))
            torch._foreach_div_(moment, square)
            torch._foreach_mul_(moment, [-lr / (1.0 - beta1**count) for count in counts])
            if decay and self._decoupled:
                torch._foreach_add_(moved, start, alpha=-lr * decay)
            torch._foreach_add_(moved, moment)


def _chunks(tensors: Sequence[Tensor], limit: int) -> Iterator[list[ParameterSlice]]:
    """Yields rows of the tensors (by position), together about `limit` elements at a time."""
    chunk: list[ParameterSlice] = []
    size = 0
    for position, tensor in enumerate(tensors):
        for rows in split_tensor(position, tensor, limit):
            elements = rows.select(tensor).numel()
            if chunk and size + elements > limit:
                yield chunk
                chunk, size = [], 0
            chunk.append(rows)
            size += elements
    if chunk:
        yield chunk


class GenericRule(StepRule):
    """Runs the actual optimizer class on copies of the parameters and their state, separately for each task."""

    elementwise = False

    def __init__(self, optimizer: Optimizer, parameters: Mapping[int, Tensor]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._from_torch = type(optimizer).__module__.startswith("torch.optim")
        # Other optimizers may mix tensors (e.g. through a global norm), so they update all of them at once.
        self.separable = self._from_torch
        states = [optimizer.state.get(p) or {} for p in parameters.values()]
        copied = [*parameters.values(), *(v for state in states for v in state.values() if isinstance(v, Tensor))]
        self.state_bytes = sum(tensor.nbytes for tensor in copied)

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        owners = [self._parameters[piece.index] for piece in pieces]
        stand_ins = [nn.Parameter(start.detach().clone()) for start in origin]
        for stand_in, gradient in zip(stand_ins, gradients, strict=True):
            stand_in.grad = gradient if self._from_torch else gradient.clone()
        try:
            clone = copy_optimizer(self._optimizer, dict(zip(map(id, owners), stand_ins, strict=True)))
            with _without_global_hooks():
                clone.step()
        except (TypeError, AttributeError) as error:
            name = type(self._optimizer).__name__
            raise RuntimeError(
                f"could not run a step with a copy of `optimizer` ({name}): {error}; use update='sgd'"
            ) from error
        for target, stand_in, start, owner in zip(out, stand_ins, origin, owners, strict=True):
            if target.data_ptr() == owner.data_ptr():
                target.copy_(stand_in.detach())
            else:
                target.add_(stand_in.detach() - start)


# Schedulers replace `step`, and a GradScaler sets the next two for fused kernels; a copy must have none of them.
_NOT_COPIED = frozenset({"step", "grad_scale", "found_inf", "param_groups", "state"})


def copy_optimizer(optimizer: Optimizer, stand_ins: Mapping[int, Tensor]) -> Optimizer:
    """Copies an optimizer with its settings and state, restricted to `stand_ins` (by id of the parameter they replace).

    The copy is created without calling `__init__`, as in unpickling, since `__init__` may require unknown arguments.
    All other attributes of the optimizer are copied too, but hooks are not. References to the parameters and the
    optimizer are replaced by references to their copies, so that the original cannot be modified.
    """
    clone: Optimizer = object.__new__(type(optimizer))
    groups: list[dict[str, Any]] = []
    state: defaultdict[Any, Any] = defaultdict(dict)
    memo: dict[int, Any] = {
        **stand_ins, id(optimizer): clone, id(optimizer.param_groups): groups, id(optimizer.state): state
    }  # fmt: skip
    for group in optimizer.param_groups:
        here = [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]
        if here:
            settings = {k: copy.deepcopy(v, memo) for k, v in group.items() if k not in ("params", "param_names")}
            groups.append({**settings, "params": here})
    for key, value in optimizer.state.items():
        if not isinstance(key, Tensor):
            state[key] = copy.deepcopy(value, memo)
        elif value and id(key) in stand_ins:
            state[stand_ins[id(key)]] = copy.deepcopy(value, memo)
    attributes = {
        name: copy.deepcopy(value, memo)
        for name, value in vars(optimizer).items()
        if name not in _NOT_COPIED and not (name.startswith("_optimizer_") and "hooks" in name)
    }
    Optimizer.__setstate__(clone, {**attributes, "param_groups": groups, "state": state})
    return clone


@contextmanager
def _without_global_hooks() -> Iterator[None]:
    """Disables the global step hooks that users have registered, since no real step is taken."""
    registries: tuple[dict[int, Any], ...] = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    saved = [dict(registry) for registry in registries]
    for registry in registries:
        registry.clear()
    try:
        yield
    finally:
        for registry, hooks in zip(registries, saved, strict=True):
            registry.update(hooks)
