"""A seeded random projection of the gradient that training has left in ``.grad``, in the metric of the optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.optim import Optimizer

from .preconditioners import GroupState
from .step_rules import iterate_chunks, select_rows

CHUNK_SIZE = 1 << 24  # elements that are copied at once, which bounds the memory for temporaries
# Relative to the mean of Adam's second moments. Moments far below the mean come from parameters that have had almost no
# gradient yet, such as LoRA's A while B is zero; dividing by them would amplify noise.
DAMPING = 1e-4


class GradientSketch:
    """Projects the shared gradient g to a few numbers whose inner products estimate ⟨g_i, P g_j⟩.

    P is the diagonal matrix that turns a gradient into the optimizer's step (`preconditioners`): η for SGD, and for
    Adam η (1−β₁)/(1−β₁ᵗ) / √v̂. The projected vector is √P g. Momentum and weight decay are the same for all tasks and
    are left out. Without an optimizer, P is 1 (or `lr`).

    The gradient is multiplied by random signs, cut into rows of `dimension` numbers, and the rows are added up
    (a count sketch whose buckets are i mod `dimension`). The sign of element i is b[i mod q]·a[i div `dimension`]:
    the row signs `a` make the inner products unbiased, and the period q, a prime above `dimension`, gives each row a
    differently shifted pattern, since the rows of a gradient matrix are often multiples of one another. So no table has
    an entry per parameter. The projection is linear in the gradient and deterministic.

    Args:
        parameters: The shared parameters, trainable or frozen.
        optimizers: The optimizers of the shared parameters, or none.
        dimension: The number of numbers in a projection.
        seed: The seed of the signs.
        precondition: Whether P is that of the optimizer's step, or only the learning rate.
        lr: A learning rate that replaces those of the optimizers.
        per_lr: Whether to leave the learning rate out of P.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizers: Sequence[Optimizer],
        dimension: int,
        seed: int,
        *,
        precondition: bool = True,
        lr: float | None = None,
        per_lr: bool = False,
    ) -> None:
        self._parameters, self._optimizers = parameters, optimizers
        self._dimension, self._seed, self._period = dimension, seed, _next_prime(dimension)
        self._precondition, self._lr = precondition, 1.0 if per_lr else lr
        self._trainable: tuple[bool, ...] | None = None
        self._parts: list[_Part] = []

    def __call__(self) -> Tensor | None:
        """Returns the projection of the current ``.grad``, or None if the optimizer has no state for it yet."""
        self._plan()
        parts = [(part, part.state()) for part in self._parts if part.has_gradient()]
        if self._precondition and not all(state is None or state.is_ready for _, state in parts):
            return None
        home = self._parameters[0].device
        projections = [part.project(state, self._precondition, self._lr).to(home) for part, state in parts]
        return sum(projections[1:], projections[0]) if projections else torch.zeros(self._dimension, device=home)

    @property
    def layout(self) -> int:
        """A number for the set of trainable parameters; projections under different sets are independent."""
        return zlib.crc32(bytes(self._trainable or ()))

    def _plan(self) -> None:
        """Divides the trainable parameters into parts, again whenever parameters have been frozen or unfrozen."""
        trainable = tuple(p.requires_grad for p in self._parameters)
        if trainable == self._trainable:
            return
        self._trainable, self._parts = trainable, []
        signs = _random_signs(self._period, [self._seed, 0])
        for owner, parameters in self._parameter_groups():
            for positions, rows in iterate_chunks(parameters, CHUNK_SIZE):
                here = select_rows(parameters, positions, rows)
                size = sum(p.numel() for p in here)
                row_signs = _random_signs(-(-size // self._dimension), [self._seed, 1, self.layout, len(self._parts)])
                dtype = torch.float64 if any(p.dtype == torch.float64 for p in here) else torch.float32
                tables = [table.to(here[0].device, dtype) for table in (signs, row_signs)]
                whole = [parameters[k] for k in positions]
                self._parts.append(_Part(whole, rows, [p.numel() for p in here], owner, self._dimension, *tables))

    def _parameter_groups(self) -> list[tuple[_Owner | None, list[Tensor]]]:
        """Returns the trainable parameters by device and by the parameter group of their optimizer."""
        owners = {
            id(p): _Owner(optimizer, k)
            for optimizer in self._optimizers
            for k, group in enumerate(optimizer.param_groups)
            for p in group["params"]
        }
        groups: dict[Any, tuple[_Owner | None, list[Tensor]]] = {}
        for p in self._parameters:
            owner = owners.get(id(p))
            if p.requires_grad and (owner is not None or not self._optimizers):  # others do not move
                key = p.device, owner and (id(owner.optimizer), owner.number)
                groups.setdefault(key, (owner, []))[1].append(p)
        return list(groups.values())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_trainable": None, "_parts": []}  # rebuilt from the seed


@dataclass(frozen=True)
class _Owner:
    """The optimizer of some parameters, and the number of their parameter group."""

    optimizer: Optimizer
    number: int


@dataclass(frozen=True)
class _Part:
    """Parameters (or rows of them) on one device and in one parameter group, which are projected together.

    Attributes:
        parameters: The parameters.
        rows: The rows of each parameter that belong to this part.
        sizes: The number of elements in these rows.
        owner: The optimizer of the parameters.
        dimension: The number of numbers in a projection.
        signs: The signs b, which repeat.
        row_signs: The signs a, one per row.
    """

    parameters: list[Tensor]
    rows: list[slice]
    sizes: list[int]
    owner: _Owner | None
    dimension: int
    signs: Tensor
    row_signs: Tensor

    def has_gradient(self) -> bool:
        return any(p.grad is not None for p in self.parameters)

    def state(self) -> GroupState | None:
        """Returns the optimizer's current state of the parameters, or None if they have no optimizer."""
        if self.owner is None:
            return None
        return GroupState(self.owner.optimizer, self.owner.optimizer.param_groups[self.owner.number], self.parameters)

    @torch.no_grad()
    def project(self, state: GroupState | None, precondition: bool, lr: float | None) -> Tensor:
        """Returns the projection of √P g."""
        flat = self._flatten([p.grad for p in self.parameters])
        rate = lr if lr is not None else 1.0 if state is None else state.settings.get("lr", 1.0)
        if state is not None and precondition:
            found = state.preconditioner(self._flatten)
            rate = rate * found.factor
            if found.squares is not None:
                flat.mul_(self._inverse_root(found.squares, found.least))
        return self._fold(flat).mul_(rate**0.5)

    def _inverse_root(self, squares: Tensor, least: Any) -> Tensor:
        """Returns 1/√√v in place, with damped squares v."""
        share = DAMPING / self.size
        squares.add_(squares.sum().add_(least / share), alpha=share)
        return squares.pow_(-0.25) if squares.is_cuda else squares.rsqrt_().sqrt_()  # whichever is faster there

    def _fold(self, flat: Tensor) -> Tensor:
        """Multiplies a flat tensor by the signs, in place, and adds up its rows."""
        period = len(self.signs)
        flat[: -(-self.size // period) * period].view(-1, period).mul_(self.signs)
        return self.row_signs @ flat[: len(self.row_signs) * self.dimension].view(-1, self.dimension)

    def _flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Copies the tensors into a flat one, with zeros for missing tensors and to fill the last row."""
        pieces = [
            self.padding[:1].expand(length) if tensor is None else tensor if rows.stop is None else tensor[rows]
            for tensor, rows, length in zip(tensors, self.rows, self.sizes, strict=True)
        ]
        flat: Tensor = _flatten_dense_tensors([*pieces, self.padding])
        return flat.to(self.signs.dtype)

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    @cached_property
    def padding(self) -> Tensor:
        """Zeros that fill the last row, both of `dimension` numbers and of one period of the signs."""
        longest = max(-(-(self.size + 1) // length) * length for length in (len(self.signs), self.dimension))
        return self.signs.new_zeros(longest - self.size)


def _random_signs(length: int, seed: list[int]) -> Tensor:
    bits = np.random.default_rng(seed).integers(0, 2, size=length, dtype=np.int8)
    return torch.from_numpy(2 * bits - 1)


def _next_prime(number: int) -> int:
    """Returns the smallest prime above `number`."""
    return next(n for n in count(number + 1) if all(n % k for k in range(2, int(n**0.5) + 1)))
