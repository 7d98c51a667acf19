"""Dropout masks that are the same wherever a network is trained: alone, beside others, whatever the memory layout.

Fused kernels draw masks together with the values, in an order of their own. Drawing the mask apart, from the shape
alone, gives a network the same mask whether its values have a first dimension of networks (vmap) or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


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
