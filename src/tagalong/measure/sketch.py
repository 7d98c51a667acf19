"""A seeded random projection of the gradient that training has left in ``.grad``, in the metric of the optimizer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from .distributed import Replicas, local_part, local_start

# Elements that are projected at once, which bounds the memory for temporaries. On a CPU, they should stay in the cache.
CPU_TILE, TILE = 1 << 18, 1 << 24
# Relative to the mean of Adam's second moments. Moments far below the mean come from parameters that have had almost no
# gradient yet, such as LoRA's A while B is zero; dividing by them would amplify noise.
DAMPING = 1e-4

# P = factor / √(moments + least), or the factor without moments: the factor, `least`, and this rank's part of the
# second moments of each parameter's gradient, None for those without a state. Numbers are tensors if the optimizer
# counts its steps, or has its learning rate, on the device.
Preconditioner = tuple[float | Tensor, float | Tensor, Sequence[Tensor | None]]


class GradientSketch:
    """Projects the shared gradient g to a few numbers whose inner products estimate ⟨g_i, P g_j⟩.

    P is the diagonal matrix that turns a gradient into the optimizer's step (`preconditioner`): η for SGD, and for
    Adam η (1−β₁)/(1−β₁ᵗ) / √v̂. The projected vector is √P g. Momentum and weight decay are the same for all tasks and
    are left out. Without an optimizer, P is 1.

    The gradient is multiplied by random signs, cut into rows of `dimension` numbers, and the rows are added up
    (a count sketch whose buckets are i mod `dimension`). The sign of element i is b[i mod q]·a[i div `dimension`]:
    the row signs `a` make the inner products unbiased, and the period q, a prime above `dimension`, gives each row a
    differently shifted pattern, since the rows of a gradient matrix are often multiples of one another. So no table has
    an entry per parameter. The projection is linear in the gradient and deterministic: each rank can project its part
    of a sharded gradient, and the projections add up.

    Args:
        parameters: The shared parameters. Those that are frozen at the first projection are left out.
        optimizers: The optimizers of the shared parameters, or none.
        dimension: The number of numbers in a projection.
        seed: The seed of the signs.
        precondition: Whether P is that of the optimizer's step, or only the learning rate.

    Attributes:
        trainable: The parameters that are projected, known from the first projection on.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizers: Sequence[Optimizer],
        dimension: int,
        seed: int,
        *,
        precondition: bool = True,
    ) -> None:
        self._parameters, self._optimizers, self._precondition = parameters, optimizers, precondition
        self._dimension, self._seed = dimension, seed
        self._parts: list[_Part] = []
        self.trainable: list[Tensor] = []

    def __call__(self, ranks: Replicas) -> Tensor | None:
        """Returns the projection of the current ``.grad``, or None if the optimizer has no state for it yet.

        Args:
            ranks: The ranks among which the parameters are divided.
        """
        if not self.trainable:
            self._divide()
        home = self._parameters[0].device
        projection = torch.zeros(self._dimension, device=home)
        with torch.autocast(home.type, enabled=False):  # which would round the sums
            for part in self._parts:
                if all(p.grad is None for p in part.parameters):
                    continue
                metric = preconditioner(part.owner, part.parameters, self._precondition)
                if metric is None:
                    return None
                projection = projection + part.project(metric, ranks).to(home)
            return ranks.sum_of_parts(projection)

    def _divide(self) -> None:
        # Divides the trainable parameters into parts: by device, and by parameter group of an optimizer.
        self.trainable = [p for p in self._parameters if p.requires_grad]
        layout = zlib.crc32(bytes(p.requires_grad for p in self._parameters))
        owners: dict[int, tuple[Optimizer, int]] = {}
        for optimizer in self._optimizers:
            for number, group in enumerate(optimizer.param_groups):
                owners |= {id(p): (optimizer, number) for p in group["params"]}
        groups: dict[Any, list[Tensor]] = {}
        for p in self.trainable:
            if not self._optimizers or id(p) in owners:  # others do not move
                groups.setdefault((p.device, owners.get(id(p))), []).append(p)
        for (_, owner), parameters in groups.items():
            row_seed = [self._seed, 1, layout, len(self._parts)]
            self._parts.append(_Part(parameters, owner, self._dimension, [self._seed, 0], row_seed))


class _Part:
    """Parameters on one device and in one parameter group, which are projected together, one after the other.

    Args:
        parameters: The parameters.
        owner: Their optimizer and the number of the parameter group, if there are optimizers.
        dimension: The number of numbers in a projection.
        seed: The seed of the signs within rows.
        row_seed: The seed of the signs of rows.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        owner: tuple[Optimizer, int] | None,
        dimension: int,
        seed: Sequence[int],
        row_seed: Sequence[int],
    ) -> None:
        self.parameters, self.owner, self._dimension = parameters, owner, dimension
        self._size = sum(p.numel() for p in parameters)
        device = parameters[0].device
        rows_per_tile = max(1, (CPU_TILE if device.type == "cpu" else TILE) // dimension)
        self._tiles = _tiles(parameters, rows_per_tile * dimension)

        # Repeated, so that the signs of a tile are a slice, wherever in a period the tile starts.
        rows = -(-self._size // dimension)
        self._period = next(n for n in count(dimension + 1) if all(n % k for k in range(2, int(n**0.5) + 1)))
        repeats = -(-(min(rows_per_tile, rows) + 2) * dimension // self._period) + 1
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self._signs = _random_signs(self._period, seed).repeat(repeats).to(device, dtype)
        self._row_signs = _random_signs(rows, row_seed).to(device, dtype)

    def project(self, metric: Preconditioner, ranks: Replicas) -> Tensor:
        # Returns the projection of this rank's part of √P g.
        gradients = [None if p.grad is None else local_part(p.grad) for p in self.parameters]
        factor, damping, moments = metric
        if moments:
            norms = torch._foreach_norm([m for m in moments if m is not None], 1, dtype=self._signs.dtype)
            damping = damping + DAMPING * ranks.sum_of_parts(torch.stack(norms).sum()) / self._size

        projection = self._signs.new_zeros(self._dimension)
        for start, pieces in self._tiles:
            flat = self._flatten(start, pieces, gradients)
            if moments:
                flat.div_(self._flatten(start, pieces, moments).add_(damping).sqrt_().sqrt_())
            row, padding = divmod(start, self._dimension)
            rows = flat.mul_(self._signs[(start - padding) % self._period :][: len(flat)]).view(-1, self._dimension)
            projection += self._row_signs[row : row + len(rows)] @ rows
        return projection * factor**0.5

    def _flatten(self, start: int, pieces: Sequence[tuple[int, slice]], tensors: Sequence[Tensor | None]) -> Tensor:
        # Copies a tile's elements of the tensors, with zeros for missing tensors and to fill rows.
        parts = [self._signs.new_zeros(start % self._dimension)]
        for number, elements in pieces:
            tensor = tensors[number]
            if tensor is None:
                parts.append(self._signs.new_zeros(elements.stop - elements.start))
            else:
                parts.append(tensor.reshape(-1)[elements])
        parts.append(self._signs.new_zeros(-sum(map(len, parts)) % self._dimension))
        return torch.cat(parts).to(self._signs.dtype)


def _tiles(parameters: Sequence[Tensor], limit: int) -> list[tuple[int, list[tuple[int, slice]]]]:
    """Divides this rank's parts of parameters into tiles: at multiples of `limit`, and where other ranks have parts.

    A tile is the position of its first element, and which elements of which parameters it contains.
    """
    tiles: list[tuple[int, list[tuple[int, slice]]]] = []
    position, end = 0, -1
    for number, p in enumerate(parameters):
        start = position + local_start(p)
        stop = start + local_part(p).numel()
        for first, last in pairwise([start, *range((start // limit + 1) * limit, stop, limit), stop]):
            if first != end or first % limit == 0:
                tiles.append((first, []))
            tiles[-1][1].append((number, slice(first - start, last - start)))
            end = last
        position += p.numel()
    return tiles


def _random_signs(length: int, seed: Sequence[int]) -> Tensor:
    bits = np.random.default_rng(seed).integers(0, 2, size=length, dtype=np.int8)
    return torch.from_numpy(2 * bits - 1)


def preconditioner(
    owner: tuple[Optimizer, int] | None, parameters: Sequence[Tensor], precondition: bool
) -> Preconditioner | None:
    """Returns P for some parameters of a group, or None before they have a state.

    P is the derivative of the step with respect to the gradient, except that the gradient's own contribution to the
    moments is left out, as is the factor by which SGD's momentum scales a whole group. Momentum from earlier steps and
    decoupled weight decay do not depend on the gradient.

    Args:
        owner: The optimizer and the number of the parameter group, if there are optimizers.
        parameters: The parameters.
        precondition: Whether P is that of the optimizer's step, or only the learning rate.
    """
    if owner is None:
        return 1.0, 0.0, ()
    optimizer, number = owner
    group = optimizer.param_groups[number]
    if not precondition or isinstance(optimizer, SGD):
        return group["lr"], 0.0, ()
    # Fused and other implementations of Adam have the same settings, and their state has the same names.
    if "betas" not in group or not isinstance(group.get("eps"), float):
        raise _unknown_optimizer(optimizer)
    states = [optimizer.state.get(p) or {} for p in parameters]
    if not any(states):
        return None

    step = next((state["step"] for state in states if "step" in state), torch.inf)  # without one, as after many steps
    if not isinstance(step, Tensor) or step.device.type == "cpu":
        step = float(step)
    name = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    moments = [None if state.get(name) is None else local_part(state[name]) for state in states]
    shapes = {(m.shape, local_part(p).shape) for m, p in zip(moments, parameters, strict=True) if m is not None}
    if not shapes or any(shape != of_parameter for shape, of_parameter in shapes):
        raise _unknown_optimizer(optimizer)
    beta1, beta2 = map(float, group["betas"])
    correction = 1.0 - beta2**step  # v̂ = v / correction
    factor = group["lr"] * (1.0 - beta1) / (1.0 - beta1 ** (step + 1.0)) * correction**0.5
    return factor, correction * float(group["eps"]) ** 2, moments


def _unknown_optimizer(optimizer: Optimizer) -> ValueError:
    return ValueError(
        f"`optimizer` is {type(optimizer).__name__}, whose steps estimator='streaming' cannot predict; it knows SGD, "
        "Adam and variants of Adam. Pass `update='sgd'` to measure plain gradients"
    )
