"""Copies of many tensors with few kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Detached copies in the same layout."""
    made = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, [tensor.detach() for tensor in tensors])
    return made
