"""Common random numbers: every random draw, including dropout masks, depends only on a seed and a purpose."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Torch's generators belong to the whole process, so threads that train networks take turns.
_GENERATORS = threading.RLock()


def derive_seed(seed: int, *purpose: object) -> int:
    """Derives a seed for a particular purpose from another seed.

    Example:
        >>> derive_seed(0, "rows", 3) == derive_seed(0, "rows", 4)
        False
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:6], "big")


def batches(seed: int, epoch: int, rows: int, size: int) -> list[Tensor]:
    """Returns the rows used in each step of an epoch, in random order.

    A single leftover row is added to the last batch, since BatchNorm needs at least two rows.
    """
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(derive_seed(seed, "rows", epoch)))
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


@contextmanager
def borrowed_rng() -> Iterator[None]:
    """Restores the state of torch's random number generators on exit. Only one thread at a time is inside."""
    with _GENERATORS, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


@contextmanager
def seeded_rng(seed: int, *purpose: object) -> Iterator[None]:
    """Seeds torch's random number generators within the context. Restores the generators' state on exit."""
    with borrowed_rng():
        unused = torch.cuda.is_available() and not torch.cuda.is_initialized()
        (torch.manual_seed if unused else reseed)(derive_seed(seed, *purpose))  # an encoder may use the GPU first
        yield


def reseed(seed: int) -> None:
    """Seeds torch's random number generators on the CPU and on GPUs that are in use.

    For GPUs that are not in use, `torch.manual_seed` would record a traceback on every call, which takes longer than
    computing a small layer. While a CUDA graph is captured, this does nothing: the generators are seeded before each
    replay.
    """
    if is_capturing():
        return
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def is_capturing() -> bool:
    """Returns whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class SharedMasks(TorchFunctionMode):
    """Makes `functional.dropout`, and thus `nn.Dropout`, draw masks that do not depend on the values.

    Masks are the same for all networks in a `torch.vmap`. With several seeds, they are drawn once per seed, and each
    network gets those of its seed.

    Args:
        generators: the generator of each seed. If empty, masks are drawn from the global one.
        seed_index: the index of the network's seed in `generators`: inside `torch.vmap`, a scalar for each network.
            Not needed for one generator.
    """

    def __init__(self, generators: Sequence[torch.Generator | None] = (), seed_index: Tensor | None = None) -> None:
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
        # A mask is 1 / (1 - p) where a value is kept, and 0 elsewhere.
        masks = [
            torch.empty(input.shape, dtype=input.dtype, device=input.device)
            .bernoulli_(1 - p, generator=generator)
            .div_(1 - p or 1)
            for generator in self._generators or [None]
        ]
        if self._seed_index is None or len(masks) == 1:
            return input * masks[0]
        return input * torch.stack(masks).index_select(0, self._seed_index.reshape(1)).squeeze(0)
