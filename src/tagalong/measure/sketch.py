"""A seeded random projection of the gradient that training has left in ``.grad``, in the metric of the optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from .distributed import Replicas
from .preconditioners import Preconditioner, preconditioner
from .sharding import local_part, local_start

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
    an entry per parameter. The projection is linear in the gradient and deterministic: each rank can project its part
    of a sharded gradient, and the projections add up.

    Args:
        parameters: The shared parameters, trainable or frozen.
        optimizers: The optimizers of the shared parameters, or none.
        dimension: The number of numbers in a projection.
        seed: The seed of the signs.
        precondition: Whether P is that of the optimizer's step, or only the learning rate.
        lr: A learning rate that replaces those of the optimizers.

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
    ) -> None:
        self._parameters, self._optimizers = parameters, optimizers
        self._dimension, self._seed = dimension, seed
        self._precondition, self._lr = precondition and bool(optimizers), lr
        self._is_trainable: list[bool] | None = None
        self._parts: list[_Part] = []
        self.layout, self.trainable = 0, list[Tensor]()

    def __call__(self, ranks: Replicas) -> Tensor | None:
        """Returns the projection of the current ``.grad``, or None if the optimizer has no state for it yet.

        Args:
            ranks: The ranks among which the parameters are divided.
        """
        home = self._parameters[0].device
        projection = torch.zeros(self._dimension, device=home)
        with torch.autocast(home.type, enabled=False):  # which would round the sums
            self._plan()
            for part in self._parts:
                if all(p.grad is None for p in part.parameters):
                    continue
                metric = self._metric(part)
                if metric is None:
                    return None
                projection = projection + part.project(metric, ranks).to(home)
            return ranks.sum_of_parts(projection)

    def _metric(self, part: _Part) -> Preconditioner | None:
        """Returns P, with the learning rate in its factor."""
        if part.owner is None:
            return Preconditioner(1.0 if self._lr is None else self._lr)
        optimizer, number = part.owner
        rate = optimizer.param_groups[number].get("lr", 1.0) if self._lr is None else self._lr
        metric = preconditioner(optimizer, number, part.parameters) if self._precondition else Preconditioner(1.0)
        return metric and replace(metric, factor=rate * metric.factor)

    def _plan(self) -> None:
        """Divides the trainable parameters into parts, again whenever parameters have been frozen or unfrozen."""
        is_trainable = [p.requires_grad for p in self._parameters]
        if is_trainable == self._is_trainable:
            return
        self._is_trainable, self._parts, self.layout = is_trainable, [], zlib.crc32(bytes(is_trainable))
        self.trainable = [p for p in self._parameters if p.requires_grad]

        # Each device, and each parameter group of an optimizer, has a part of its own.
        owners = {
            id(p): (optimizer, number)
            for optimizer in self._optimizers
            for number, group in enumerate(optimizer.param_groups)
            for p in group["params"]
        }
        groups: dict[Any, list[Tensor]] = {}
        for p in self.trainable:
            if not self._optimizers or id(p) in owners:  # others do not move
                groups.setdefault((p.device, owners.get(id(p))), []).append(p)
        for (_, owner), parameters in groups.items():
            row_seed = [self._seed, 1, self.layout, len(self._parts)]
            self._parts.append(_Part(parameters, owner, self._dimension, [self._seed, 0], row_seed))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_is_trainable": None, "_parts": []}  # rebuilt from the seed


Owner = tuple[Optimizer, int] | None  # an optimizer, and the number of one of its parameter groups


class _Part:
    """Parameters on one device and in one parameter group, which are projected together."""

    def __init__(
        self, parameters: Sequence[Tensor], owner: Owner, dimension: int, seed: Sequence[int], row_seed: Sequence[int]
    ) -> None:
        device, size = parameters[0].device, sum(p.numel() for p in parameters)
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self.parameters, self.owner = parameters, owner
        self._size, self._dimension, self._period = size, dimension, _next_prime(dimension)
        rows_per_tile = max(1, (CPU_TILE if device.type == "cpu" else TILE) // dimension)
        self._tiles = _tiles(parameters, rows_per_tile * dimension)

        # Repeated, so that the signs of a tile are a slice, wherever in a period the tile starts.
        longest = max((tile.stop - tile.start for tile in self._tiles), default=0) + 2 * dimension
        signs = _random_signs(self._period, seed).repeat(-(-longest // self._period) + 1)
        self._signs = signs.to(device, dtype)
        self._row_signs = _random_signs(-(-size // dimension), row_seed).to(device, dtype)

    def project(self, metric: Preconditioner, ranks: Replicas) -> Tensor:
        """Returns the projection of this rank's part of √P g."""
        gradients = [None if p.grad is None else local_part(p.grad) for p in self.parameters]
        squares: Callable[[_Tile], Tensor] = partial(self._squares, metric)
        if metric.moments:
            squares = cache(squares) if self._size < KEPT else squares
            inside = (squares(tile)[self._inside(tile)] for tile in self._tiles)
            total = ranks.sum_of_parts(sum((s.sum() for s in inside), start=self._signs.new_zeros(())))
            damping = total * (DAMPING / self._size) + metric.least

        projection = self._signs.new_zeros(self._dimension)
        for tile in self._tiles:
            flat = self._flatten(tile, gradients)
            if metric.moments:
                flat.div_(squares(tile).add_(damping).sqrt_().sqrt_())
            start = tile.start - tile.start % self._dimension
            row = start // self._dimension
            rows = flat.mul_(self._signs[start % self._period :][: len(flat)]).view(-1, self._dimension)
            projection += self._row_signs[row : row + len(rows)] @ rows
        return projection * metric.factor**0.5

    def _squares(self, metric: Preconditioner, tile: _Tile) -> Tensor:
        return metric.squares(*(self._flatten(tile, moment) for moment in metric.moments))

    def _flatten(self, tile: _Tile, tensors: Sequence[Tensor | None]) -> Tensor:
        """Copies the tile's elements of the tensors, with zeros for missing tensors and to fill rows."""
        zeros = self._signs.new_zeros
        pieces = [zeros(tile.start % self._dimension)]
        for number, part in tile.pieces:
            tensor = tensors[number]
            pieces.append(zeros(part.stop - part.start) if tensor is None else tensor.reshape(-1)[part])
        pieces.append(zeros(-tile.stop % self._dimension))
        return torch.cat(pieces).to(self._signs.dtype)

    def _inside(self, tile: _Tile) -> slice:
        """Returns where the tile's elements are in what `_flatten` returns."""
        padding = tile.start % self._dimension
        return slice(padding, padding + tile.stop - tile.start)


@dataclass(eq=False)
class _Tile:
    """A range of the elements of some parameters, one after the other.

    Attributes:
        start: The position of the first element among all elements.
        stop: The position after the last element.
        pieces: The numbers of the parameters that the range covers, and which elements of this rank's part of each.
    """

    start: int
    stop: int
    pieces: list[tuple[int, slice]]


def _tiles(parameters: Sequence[Tensor], limit: int) -> list[_Tile]:
    """Divides this rank's parts of parameters into tiles: at multiples of `limit`, and where other ranks have parts."""
    tiles: list[_Tile] = []
    position = 0
    for number, p in enumerate(parameters):
        start = position + local_start(p)
        stop = start + local_part(p).numel()
        cuts = [start, *range((start // limit + 1) * limit, stop, limit), stop]
        for first, last in pairwise(cuts):
            if not tiles or tiles[-1].stop != first or first % limit == 0:
                tiles.append(_Tile(first, first, []))
            tiles[-1].pieces.append((number, slice(first - start, last - start)))
            tiles[-1].stop = last
        position += p.numel()
    return [tile for tile in tiles if tile.start < tile.stop]


def _random_signs(length: int, seed: Sequence[int]) -> Tensor:
    bits = np.random.default_rng(seed).integers(0, 2, size=length, dtype=np.int8)
    return torch.from_numpy(2 * bits - 1)


def _next_prime(number: int) -> int:
    """Returns the smallest prime above `number`."""
    return next(n for n in count(number + 1) if all(n % k for k in range(2, int(n**0.5) + 1)))
