"""The step an optimizer would take on one task's gradient: formulas for SGD and Adam, copies of other optimizers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """

    elementwise = True
    separable = True

    @property
    def idle(self) -> bool:
        return False

    @property
    def state_bytes(self) -> int:
        """The size of the state that each step copies, in bytes."""
        return 0

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


class PlainSgd(StepRule):
    """Δθ = −η g, the lookahead step of the paper's equation 1."""

    def __init__(self, lr: float | Tensor) -> None:
        self._lr = float(lr)

    @property
    def idle(self) -> bool:
        return True

    def slope(self, piece: ParameterSlice) -> float | None:
        return -self._lr

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        torch._foreach_add_(list(out), list(gradients), alpha=-self._lr)


class SgdRule(StepRule):
    """The step of `torch.optim.SGD`, including momentum, dampening, Nesterov momentum, weight decay and maximization.

    Let d = ±g + λθ, and let m be the momentum buffer. The new buffer is μm + (1 − τ)d (or d at the first step). The
    direction is the new buffer, or d + μ·buffer for Nesterov. This is linear in d and m, so no temporary tensor is
    needed.
    """

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]]) -> None:
        self._lr, self._momentum = float(group["lr"]), float(group["momentum"])
        self._dampening, self._decay = float(group["dampening"]), float(group["weight_decay"])
        self._sign = -1.0 if group["maximize"] else 1.0
        self._nesterov = bool(group["nesterov"])
        self._buffers = {
            index: state["momentum_buffer"]
            for index, state in states.items()
            if self._momentum and state.get("momentum_buffer") is not None
        }

    @property
    def idle(self) -> bool:
        return not self._momentum and not self._decay

    def slope(self, piece: ParameterSlice) -> float | None:
        on_d, _ = self._coefficients(known=piece.index in self._buffers)
        return -self._lr * on_d * self._sign

    def _coefficients(self, known: bool) -> tuple[float, float]:
        """Returns the coefficients of d and m in the step direction."""
        fresh = 1.0 - self._dampening if known else 1.0
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
        known = [piece.index in self._buffers for piece in pieces]
        for seen in sorted({*known}):
            here = [k for k, this in enumerate(known) if this == seen]
            buffers = [pieces[k].select(self._buffers[pieces[k].index]) for k in here] if seen else None
            self._add([out[k] for k in here], [gradients[k] for k in here], [origin[k] for k in here], buffers)

    def _add(
        self, out: list[Tensor], gradients: list[Tensor], origin: list[Tensor], buffers: list[Tensor] | None
    ) -> None:
        on_d, on_m = self._coefficients(known=buffers is not None)
        torch._foreach_add_(out, gradients, alpha=-self._lr * on_d * self._sign)
        if self._decay:
            torch._foreach_add_(out, origin, alpha=-self._lr * on_d * self._decay)
        if buffers is not None:
            torch._foreach_add_(out, buffers, alpha=-self._lr * on_m)


# Elements per chunk: bounds the size of temporaries (two per chunk) without a noticeable number of kernel launches.
CHUNK_SIZE = 1 << 22


class AdamRule(StepRule):
    """m' = β₁m + (1−β₁)g, v' = β₂v + (1−β₂)g², Δθ = −η/(1−β₁ᵗ) · m' / (√v'/√(1−β₂ᵗ) + ε), plus weight decay."""

    def __init__(self, group: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]], decoupled: bool) -> None:
        self._states = states
        self._decoupled = decoupled
        self._amsgrad = bool(group["amsgrad"])
        self._lr, self._eps, self._decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
        self._beta1, self._beta2 = (float(beta) for beta in group["betas"])
        self._sign = -1.0 if group["maximize"] else 1.0
        self._steps = _read_step_counts(states)

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        for positions, rows in iterate_chunks(gradients, CHUNK_SIZE):
            here = [pieces[p] for p in positions]
            self._add(
                select_rows(out, positions, rows),
                here,
                select_rows(gradients, positions, rows),
                select_rows(origin, positions, rows),
                rows,
            )

    def _add(
        self,
        out: list[Tensor],
        pieces: list[ParameterSlice],
        gradients: list[Tensor],
        origin: list[Tensor],
        rows: list[slice],
    ) -> None:
        if self._sign < 0:
            gradients = list(torch._foreach_neg(gradients))
        if self._decay and not self._decoupled:
            gradients = list(torch._foreach_add(gradients, origin, alpha=self._decay))
        counts = [self._steps.get(piece.index, 0.0) + 1.0 for piece in pieces]
        denominator = self._denominator(pieces, gradients, rows, counts)
        moment = list(torch._foreach_mul(gradients, 1.0 - self._beta1))
        known = [k for k, piece in enumerate(pieces) if self._has_state(piece, "exp_avg")]
        if known:
            old = self._state("exp_avg", pieces, rows, known)
            torch._foreach_add_([moment[k] for k in known], old, alpha=self._beta1)
        torch._foreach_div_(moment, denominator)
        torch._foreach_mul_(moment, [-self._lr / (1.0 - self._beta1**count) for count in counts])
        if self._decay and self._decoupled:
            torch._foreach_add_(out, origin, alpha=-self._lr * self._decay)
        torch._foreach_add_(out, moment)

    def _denominator(
        self, pieces: list[ParameterSlice], gradients: list[Tensor], rows: list[slice], counts: list[float]
    ) -> list[Tensor]:
        square = list(torch._foreach_mul(gradients, gradients))
        torch._foreach_mul_(square, 1.0 - self._beta2)
        known = [k for k, piece in enumerate(pieces) if self._has_state(piece, "exp_avg_sq")]
        if known:
            old = self._state("exp_avg_sq", pieces, rows, known)
            torch._foreach_add_([square[k] for k in known], old, alpha=self._beta2)
            if self._amsgrad:
                largest = self._state("max_exp_avg_sq", pieces, rows, known)
                torch._foreach_maximum_([square[k] for k in known], largest)
        torch._foreach_sqrt_(square)
        torch._foreach_div_(square, [(1.0 - self._beta2**count) ** 0.5 for count in counts])
        torch._foreach_add_(square, self._eps)
        return square

    def _has_state(self, piece: ParameterSlice, name: str) -> bool:
        return self._states.get(piece.index, {}).get(name) is not None

    def _state(self, name: str, pieces: list[ParameterSlice], rows: list[slice], known: list[int]) -> list[Tensor]:
        """Returns the state tensors of the slices, restricted to the rows of the chunk."""
        states = [pieces[k].select(self._states[pieces[k].index][name]) for k in known]
        return select_rows(states, range(len(states)), [rows[k] for k in known])


def _read_step_counts(states: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Returns the step count of each parameter, reading counts on a device in one transfer."""
    counts = {index: state["step"] for index, state in states.items() if "step" in state}
    if not counts:
        return {}
    tensors = [torch.as_tensor(count, dtype=torch.float32) for count in counts.values()]
    on_host = all(t.device.type == "cpu" for t in tensors)
    values = [t.item() for t in tensors] if on_host else torch.stack([t.reshape(()) for t in tensors]).tolist()
    return dict(zip(counts, values, strict=True))


def iterate_chunks(tensors: Sequence[Tensor], limit: int) -> Iterator[tuple[list[int], list[slice]]]:
    """Groups tensors into chunks of about `limit` elements. Large tensors are split along the first dimension.

    Yields:
        Positions in `tensors`, and the rows of each of these tensors that belong to the chunk.
    """
    positions: list[int] = []
    rows: list[slice] = []
    size = 0
    for position, tensor in enumerate(tensors):
        for piece in split_tensor(position, tensor, limit):
            part = piece.select(tensor).numel()
            if positions and size + part > limit:
                yield positions, rows
                positions, rows, size = [], [], 0
            positions.append(position)
            rows.append(slice(piece.start, piece.stop))
            size += part
    if positions:
        yield positions, rows


def select_rows(tensors: Sequence[Tensor], positions: Iterable[int], rows: Iterable[slice]) -> list[Tensor]:
    return [tensors[p] if r.stop is None else tensors[p][r] for p, r in zip(positions, rows, strict=True)]


# Schedulers replace `step`, and a GradScaler sets the other two for fused kernels; a copy must have none of them.
_PATCHED_ATTRIBUTES = frozenset({"step", "grad_scale", "found_inf"})


class GenericRule(StepRule):
    """Runs the actual optimizer class on copies of the parameters' state, separately for each task.

    The optimizer updates `out` directly if it contains the parameters. If `out` collects only the step, the optimizer
    updates `origin`, which is reset to θ afterward.
    """

    elementwise = False

    def __init__(self, optimizer: Optimizer, parameters: Mapping[int, Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._from_torch = type(optimizer).__module__.startswith("torch.optim")
        # Other optimizers may mix tensors (e.g. through a global norm), so they update all of them at once.
        self.separable = self._from_torch

    @property
    def state_bytes(self) -> int:
        states = (self._optimizer.state.get(p) or {} for p in self._parameters.values())
        return sum(v.nbytes for state in states for v in state.values() if isinstance(v, Tensor))

    def add(
        self,
        out: Sequence[Tensor],
        pieces: Sequence[ParameterSlice],
        gradients: Sequence[Tensor],
        origin: Sequence[Tensor],
    ) -> None:
        theta = [self._parameters[piece.index].data for piece in pieces]
        in_place = [o.data_ptr() == t.data_ptr() for o, t in zip(out, theta, strict=True)]
        moving = [o if here else start for o, here, start in zip(out, in_place, origin, strict=True)]
        stand_ins = [nn.Parameter(values.detach()) for values in moving]
        for stand_in, gradient in zip(stand_ins, gradients, strict=True):
            stand_in.grad = gradient if self._from_torch else gradient.clone()
        owners = [self._parameters[piece.index] for piece in pieces]
        try:
            clone = copy_optimizer(self._optimizer, dict(zip(map(id, owners), stand_ins, strict=True)))
            with without_global_hooks():
                clone.step()
        except (TypeError, AttributeError) as error:
            raise RuntimeError(
                f"could not run a step with a copy of `optimizer` ({type(self._optimizer).__name__}): {error}; "
                "use update='sgd'"
            ) from error
        for values, stand_in in zip(moving, stand_ins, strict=True):
            if stand_in.data_ptr() != values.data_ptr():  # the optimizer has replaced `p.data`
                values.copy_(stand_in.data)
        for target, here, start, old in zip(out, in_place, origin, theta, strict=True):
            if not here:
                target.add_(start - old)
                start.copy_(old)


def copy_optimizer(optimizer: Optimizer, stand_ins: Mapping[int, Tensor]) -> Optimizer:
    """Copies an optimizer with its settings and state, restricted to `stand_ins` (by id of the parameter they replace).

    The copy is created without calling `__init__`, as in unpickling, since `__init__` may require unknown arguments.
    All other attributes of the optimizer are copied too. References to the parameters and the optimizer are replaced by
    references to their copies, so that the original cannot be modified.
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
    rest = {k: copy.deepcopy(v, memo) for k, v in vars(optimizer).items() if not _is_rebuilt(k)}
    Optimizer.__setstate__(clone, {**rest, "param_groups": groups, "state": state})
    return clone


def _is_rebuilt(name: str) -> bool:
    """Whether an attribute must not be copied, because it is rebuilt or because it is a patch or a hook."""
    return (
        name in _PATCHED_ATTRIBUTES
        or name in ("param_groups", "state")
        or (name.startswith("_optimizer_") and "hooks" in name)
    )


@contextmanager
def without_global_hooks() -> Iterator[None]:
    """Disables the global step hooks that users have registered, since no real step is taken."""
    registries: tuple[dict[int, Any], ...] = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    kept = [dict(registry) for registry in registries]
    for registry in registries:
        registry.clear()
    try:
        yield
    finally:
        for registry, hooks in zip(registries, kept, strict=True):
            registry.update(hooks)
