"""Common random numbers: every random draw, including dropout masks, depends only on a seed and a purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def derive_seed(seed: int, *purpose: object) -> int:
    """Derives a seed for a particular purpose from another seed.

    Example:
        >>> derive_seed(0, "rows", 3) == derive_seed(0, "rows", 4)
        False
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:6], "big")


def row_order(seed: int, epoch: int, rows: int) -> Tensor:
    """Returns the order in which an epoch visits the rows."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(derive_seed(seed, "rows", epoch)))


def batches(seed: int, epoch: int, rows: int, size: int) -> list[Tensor]:
    """Returns the rows used in each step of an epoch.

    A single leftover row is added to the last batch, since BatchNorm needs at least two rows.
    """
    parts = list(row_order(seed, epoch, rows).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


@contextmanager
def seeded_rng(seed: int, *purpose: object) -> Iterator[None]:
    """Seeds torch's random number generators within the context. Restores the generators' state on exit."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        unused = torch.cuda.is_available() and not torch.cuda.is_initialized()
        (torch.manual_seed if unused else reseed)(derive_seed(seed, *purpose))  # an encoder may use the GPU first
        yield


def reseed(seed: int) -> None:
    """Seeds torch's random number generators on all devices that are in use.

    For devices that are not in use, `torch.manual_seed` would record a traceback on every call, which takes longer than
    computing a small layer. While a CUDA graph is captured, this does nothing: the generators are seeded before each
    replay.
    """
    if torch.cuda.is_initialized():
        if torch.cuda.is_current_stream_capturing():
            return
        torch.cuda.manual_seed_all(seed)
    elif _has_other_accelerator():
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)


@cache
def _has_other_accelerator() -> bool:
    return torch.accelerator.is_available() and not torch.cuda.is_available()


class SharedMasks(TorchFunctionMode):
    """Makes `functional.dropout`, and thus `nn.Dropout`, draw masks that do not depend on the values.

    By default, masks are drawn from the global random number generator, the same ones for all networks in a
    `torch.vmap`. With several seeds, they are drawn once per seed, and each network gets those of its seed.

    Args:
        generators: the generator of each seed.
        seed_index: the index of the network's seed in `generators`: inside `torch.vmap`, a scalar for each network.
    """

    def __init__(self, generators: Sequence[torch.Generator] = (), seed_index: Tensor | None = None) -> None:
        super().__init__()
        self._generators, self._seed_index = generators, seed_index

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (self._dropout if func is functional.dropout else func)(*args, **(kwargs or {}))

    def _dropout(
        self,
        input: Tensor,  # noqa: A002
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        if self._seed_index is None or not self._generators:
            return input * _draw_mask(input, p)
        masks = torch.stack([_draw_mask(input, p, generator) for generator in self._generators])
        return input * masks.index_select(0, self._seed_index.reshape(1)).squeeze(0)


def _draw_mask(values: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    keep = torch.empty(values.shape, dtype=values.dtype, device=values.device).bernoulli_(1 - p, generator=generator)
    return keep if p == 1 else keep.div_(1 - p)


class MaskGenerators:
    """Random number generators for the dropout masks of several seeds.

    A generator is seeded exactly as `Network.reseed_part` seeds the global one, so it draws the same masks.

    Args:
        seeds: the seeds.
        device: the device on which masks are drawn.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds, self._device = tuple(seeds), device
        self._of_part: dict[str, list[torch.Generator]] = {}

    def at(self, part: str, step: int) -> list[torch.Generator]:
        """Returns the generator of each seed, seeded for one part of the network and one step."""
        if part not in self._of_part:
            self._of_part[part] = [torch.Generator(self._device) for _ in self.seeds]
        if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():  # else, seeded before
            for seed, generator in zip(self.seeds, self._of_part[part], strict=True):
                generator.manual_seed(derive_seed(seed, "masks", part, step))
        return self._of_part[part]

    def all(self) -> list[torch.Generator]:
        """Returns the generators of all parts that have been seeded."""
        return [generator for part in self._of_part.values() for generator in part]
