"""Copies of tensors and arrays, and what shows cheaply that they have changed."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter


def copy_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    # Returns detached copies of tensors with the same memory layout.
    made = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, [tensor.detach() for tensor in tensors])
    return made


def read_tensors(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
    # Returns aliases and copies of tensors, and a context manager that restores their version counters.
    aliases = [tensor.data for tensor in tensors]
    return aliases, copy_tensors(aliases), _unsafe_preserve_version_counter(tuple(tensors))


def write_tensors(
    tensors: Sequence[Tensor], saved: tuple[list[Tensor], list[Tensor], Any], kept: Container[int] = ()
) -> None:
    # Restores what `read_tensors` has returned, except the values of those whose id is in `kept`.
    aliases, copies, versions = saved
    for tensor, alias in zip(tensors, aliases, strict=True):
        if tensor.data_ptr() != alias.data_ptr():
            tensor.data = alias
    restored = [k for k, tensor in enumerate(tensors) if id(tensor) not in kept]
    if restored:
        torch._foreach_copy_([aliases[k] for k in restored], [copies[k] for k in restored])
    # Otherwise, a backward pass would fail if its graph refers to a tensor that a replay has written.
    versions.__exit__()


def read_attributes(tensor: Tensor) -> tuple[bool, Tensor | None, dict[str, Any]]:
    return tensor.requires_grad, tensor.grad, dict(vars(tensor))


def write_attributes(tensor: Tensor, saved: tuple[bool, Tensor | None, dict[str, Any]]) -> None:
    tensor.requires_grad, tensor.grad, attributes = saved
    vars(tensor).clear()
    vars(tensor).update(attributes)


def version(tensor: Tensor | None) -> object:
    # Returns what changes if a tensor is written to or replaced, except through ``.data``.
    if tensor is None:
        return None
    has_address = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return id(tensor), tensor._version, tensor.data_ptr() if has_address else 0


def address(value: Tensor | np.ndarray) -> int:
    # Returns where the memory begins that a value may share with others.
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    owner = value.base if isinstance(value.base, np.ndarray) else value
    return owner.ctypes.data


def norms_of(parameters: Sequence[Tensor]) -> Tensor:
    # Returns the norms of parameters, which writes through ``.data`` change; 0 instead of NaN.
    values = [torch.view_as_real(p.detach()) if p.is_complex() else p.detach() for p in parameters]
    norms = torch._foreach_norm(values, dtype=torch.float32 if values[0].device.type == "mps" else torch.float64)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).nan_to_num()


def sample(array: np.ndarray) -> bytes:
    # Returns about a thousand evenly spaced elements, since reading all of a large array would take too long.
    return array.ravel(order="K")[:: max(1, array.size // 1000)].tobytes() if array.flags.forc else b""
