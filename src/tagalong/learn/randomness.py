"""Common random numbers: every random draw, including dropout masks, depends only on a seed and a purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        reseed(derive_seed(seed, *purpose))
        yield


def reseed(seed: int) -> None:
    """Seeds torch's random number generators on all devices.

    Without a GPU, only the CPU's generator is seeded. On every call, `torch.manual_seed` would record a traceback for
    the GPU's lazy initialization, which takes longer than computing a small layer. While a CUDA graph is captured, this
    does nothing: the generators are seeded before each replay.
    """
    if _has_accelerator():
        if not _is_capturing():
            torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def _is_capturing() -> bool:
    return _has_cuda() and torch.cuda.is_current_stream_capturing()


@cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


class SharedMasks(TorchFunctionMode):
    """Makes `functional.dropout`, and thus `nn.Dropout`, draw masks that do not depend on the values."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (_dropout if func is functional.dropout else func)(*args, **(kwargs or {}))


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    if not training or p == 0:
        return input
    keep = torch.empty(input.shape, dtype=input.dtype, device=input.device).bernoulli_(1 - p)
    return input * (keep if p == 1 else keep.div_(1 - p))
