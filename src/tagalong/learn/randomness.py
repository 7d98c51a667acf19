"""Common random numbers: every draw follows from the seed and its purpose, dropout masks included."""

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


def derived(seed: int, *purpose: object) -> int:
    """A seed of its own for one purpose.

    Example:
        >>> derived(0, "rows", 3) == derived(0, "rows", 3), derived(0, "rows", 3) == derived(0, "rows", 4)
        (True, False)
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:6], "big")


def row_order(seed: int, epoch: int, rows: int) -> Tensor:
    """The order in which an epoch visits the rows."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(derived(seed, "rows", epoch)))


def batches(seed: int, epoch: int, rows: int, size: int) -> list[Tensor]:
    """The rows of every step of an epoch. A last single row joins the batch before: BatchNorm needs two."""
    parts = list(row_order(seed, epoch, rows).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


@contextmanager
def drawing(seed: int, *purpose: object) -> Iterator[None]:
    """Random numbers inside follow from the seed and the purpose; outside nothing has been drawn."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        reseed(derived(seed, *purpose))
        yield


def reseed(seed: int) -> None:
    """Seeds torch's random numbers on every device.

    `torch.manual_seed` notes a traceback for the GPU's lazy start at every call, which takes longer than a small
    layer: where there is no GPU only the CPU is seeded.
    """
    if _accelerated():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()


class SharedMasks(TorchFunctionMode):
    """Inside, `functional.dropout` (and with it `nn.Dropout`) draws its mask apart from the values."""

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
