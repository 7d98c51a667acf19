"""A seeded random projection of the gradient that training has left in ``.grad``, in the metric of the optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, count, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.optim import Optimizer

from .preconditioners import GroupState

# Elements that are projected at once, which bounds the memory for temporaries. On a CPU, they should stay in the cache.
CPU_TILE, TILE = 1 << 18, 1 << 24
# Second moments are copied once if there are fewer, and otherwise once for their mean and once for the projection.
KEPT = 1 << 24
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

    Attributes:
        trainable: The parameters that were trainable at the last projection.
        layout: A number for this set; projections under different sets are independent.
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
        self._is_trainable: list[bool] | None = None
        self._parts: list[_Part] = []
        self.layout, self.trainable = 0, list[Tensor]()

    def __call__(self) -> Tensor | None:
        """Returns the projection of the current ``.grad``, or None if the optimizer has no state for it yet."""
        self._plan()
        parts = [(part, gradients, part.state()) for part in self._parts if (gradients := part.gradients()) is not None]
        if self._precondition and not all(state is None or state.is_ready for _, _, state in parts):
            return None
        home = self._parameters[0].device
        if not parts:
            return torch.zeros(self._dimension, device=home)
        with torch.no_grad(), _without_autocast(home):
            first, *others = (
                part.project(gradients, state, self._precondition, self._lr).to(home)
                for part, gradients, state in parts
            )
            return sum(others, first)

    def _plan(self) -> None:
        """Divides the trainable parameters into parts, again whenever parameters have been frozen or unfrozen."""
        is_trainable = [p.requires_grad for p in self._parameters]
        if is_trainable == self._is_trainable:
            return
        self._is_trainable, self._parts, self.layout = is_trainable, [], zlib.crc32(bytes(is_trainable))
        self.trainable = [p for p in self._parameters if p.requires_grad]
        signs = _random_signs(self._period, [self._seed, 0])
        for owner, parameters in self._parameter_groups():
            size = sum(p.numel() for p in parameters)
            if not size:
                continue
            rows = _random_signs(-(-size // self._dimension), [self._seed, 1, self.layout, len(self._parts)])
            dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
            tiles = _tiles([p.numel() for p in parameters], self._dimension, parameters[0].device)
            # Repeated, so that the signs of a tile are a slice, wherever in a period the tile starts.
            repeated = signs.repeat(-(-tiles[0].padded_size // self._period) + 1)
            tables = [table.to(parameters[0].device, dtype) for table in (repeated, rows)]
            self._parts.append(_Part(parameters, owner, self._dimension, self._period, tiles, *tables))

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
        return {**vars(self), "_is_trainable": None, "_parts": []}  # rebuilt from the seed


@dataclass(frozen=True)
class _Owner:
    """The optimizer of some parameters, and the number of their parameter group."""

    optimizer: Optimizer
    number: int


@dataclass(frozen=True)
class _Tile:
    """A range of the elements of some parameters, one after the other.

    Attributes:
        start: The number of elements before the range; a multiple of the dimension.
        size: The number of elements in the range.
        padding: The number of zeros that fill the last row.
        pieces: The numbers of the parameters that the range covers, and which elements of each (None for all).
    """

    start: int
    size: int
    padding: int
    pieces: list[tuple[int, slice | None]]

    @property
    def padded_size(self) -> int:
        return self.size + self.padding


def _tiles(sizes: Sequence[int], dimension: int, device: torch.device) -> list[_Tile]:
    """Divides parameters with the given numbers of elements into tiles."""
    limit = max(1, (CPU_TILE if device.type == "cpu" else TILE) // dimension) * dimension
    starts = [0, *accumulate(sizes)]
    tiles = []
    for first in range(0, starts[-1], limit):
        last = min(first + limit, starts[-1])
        pieces: list[tuple[int, slice | None]] = []
        for k, (start, size) in enumerate(zip(starts, sizes, strict=False)):
            here = slice(max(first - start, 0), min(last - start, size))
            if here.start < here.stop:
                pieces.append((k, None if here == slice(0, size) else here))
        tiles.append(_Tile(first, last - first, -(last - first) % dimension, pieces))
    return tiles


@dataclass
class _Part:
    """Parameters on one device and in one parameter group, which are projected together.

    Attributes:
        parameters: The parameters.
        owner: The optimizer of the parameters.
        dimension: The number of numbers in a projection.
        period: The period of the signs b.
        tiles: The parts of the parameters that are projected at once.
        signs: The signs b, repeated.
        row_signs: The signs a, one per row.
    """

    parameters: list[Tensor]
    owner: _Owner | None
    dimension: int
    period: int
    tiles: list[_Tile]
    signs: Tensor
    row_signs: Tensor

    def gradients(self) -> list[Tensor | None] | None:
        """Returns the gradient of each parameter, or None if there is none at all."""
        found = [p.grad for p in self.parameters]
        return found if any(gradient is not None for gradient in found) else None

    def state(self) -> GroupState | None:
        """Returns the optimizer's current state of the parameters, or None if they have no optimizer."""
        if self.owner is None:
            return None
        return GroupState(self.owner.optimizer, self.owner.optimizer.param_groups[self.owner.number], self.parameters)

    def project(
        self, gradients: Sequence[Tensor | None], state: GroupState | None, precondition: bool, lr: float | None
    ) -> Tensor:
        """Returns the projection of √P g."""
        rate = lr if lr is not None else 1.0 if state is None else state.settings.get("lr", 1.0)
        if state is None or not precondition:
            return self._projection(gradients).mul_(rate**0.5)
        factor, least = state.scalars()
        projection: Tensor = self._projection(gradients, least, state=state) * (rate * factor) ** 0.5
        return projection

    def _projection(
        self, gradients: Sequence[Tensor | None], least: Any = 0.0, *, state: GroupState | None = None
    ) -> Tensor:
        """Returns the projection of g, divided by the fourth root of the squares if there is a state with squares."""
        all_squares = self._all_squares(state)
        damping = None if all_squares is None else self._damping(all_squares()).add_(least)
        total: Tensor | None = None
        for tile, squares in zip(self.tiles, all_squares() if all_squares else repeat(None), strict=False):
            flat = self._flatten(tile, gradients)
            if damping is not None:
                flat.div_(_fourth_root(squares, damping))
            folded = self._fold(tile, flat)
            total = folded if total is None else total.add_(folded)
        assert total is not None  # there is at least one tile
        return total

    def _all_squares(self, state: GroupState | None) -> Callable[[], Iterable[Tensor]] | None:
        """Returns a function that returns the squares of each tile, or None if the preconditioner has none."""
        inputs = [] if state is None else state.square_tensors()
        if state is None or not inputs:
            return None

        def squares() -> Iterator[Tensor]:
            for tile in self.tiles:
                yield state.squares([self._flatten(tile, tensors) for tensors in inputs])

        if self.tiles[-1].start >= KEPT:
            return squares
        kept = list(squares())
        return lambda: kept

    def _damping(self, squares: Iterable[Tensor]) -> Tensor:
        """Returns the number that is added to the squares of all tiles."""
        first, *others = (found[: tile.size].sum() for tile, found in zip(self.tiles, squares, strict=True))
        total: Tensor = sum(others, first)
        return total.mul_(DAMPING / (self.tiles[-1].start + self.tiles[-1].size))

    def _fold(self, tile: _Tile, flat: Tensor) -> Tensor:
        """Multiplies a flat tensor by the signs, in place, and adds up its rows."""
        start, row = tile.start % self.period, tile.start // self.dimension
        rows = flat.mul_(self.signs[start : start + tile.padded_size]).view(-1, self.dimension)
        return self.row_signs[row : row + len(rows)] @ rows

    def _flatten(self, tile: _Tile, tensors: Sequence[Tensor | None]) -> Tensor:
        """Copies the tile's elements of the tensors, with zeros for missing tensors and to fill the last row."""
        pieces = []
        for k, part in tile.pieces:
            tensor = tensors[k]
            known = torch.zeros_like(self.parameters[k]) if tensor is None else tensor
            pieces.append(known if part is None else known.reshape(-1)[part])
        if tile.padding:
            pieces.append(self.signs.new_zeros(tile.padding))
        if len(pieces) == 1:  # not copied by `_flatten_dense_tensors`
            return pieces[0].reshape(-1).to(self.signs.dtype, copy=True)
        flat: Tensor = _flatten_dense_tensors(pieces)
        return flat.to(self.signs.dtype)


def _fourth_root(squares: Any, damping: Tensor) -> Any:
    """Returns √√v in place, with damped squares v."""
    return squares.add_(damping).sqrt_().sqrt_()


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keeps mixed precision, if it is on, from rounding the sums."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def _random_signs(length: int, seed: list[int]) -> Tensor:
    bits = np.random.default_rng(seed).integers(0, 2, size=length, dtype=np.int8)
    return torch.from_numpy(2 * bits - 1)


def _next_prime(number: int) -> int:
    """Returns the smallest prime above `number`."""
    return next(n for n in count(number + 1) if all(n % k for k in range(2, int(n**0.5) + 1)))
