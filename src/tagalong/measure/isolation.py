"""Replays closures without keeping their activations, detects their modules, and copies and compares tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from .objects import ClosureState


class Replayer:
    """Replays a closure from the same random state and module state, and in the same grad mode.

    Replays are not differentiated, so their activations are dropped immediately. A replay in grad mode therefore needs
    no more memory than one under no_grad. Replays do not use no_grad, since it may change losses by more than the size
    of an affinity. Activations are kept only for closures that compute gradients themselves (for gradient penalties or
    forces).

    Attributes:
        constants: The ids of large tensors and arrays that replays have not changed so far.
    """

    def __init__(self) -> None:
        self._keep_activations = False
        self.constants: set[int] = set()

    def run(self, closure: Callable[[], Any], state: ClosureState) -> Any:
        with without_caches():
            state.restore(state.start)
            if not self._keep_activations:
                try:
                    with torch.autograd.graph.saved_tensors_hooks(lambda _: None, _reject_unpacking):
                        return closure()
                except (RuntimeError, _SavedTensorError) as error:
                    # torch.func refuses to run inside hooks.
                    if not isinstance(error, _SavedTensorError) and "saved tensor hooks" not in str(error):
                        raise
                    self._keep_activations = True
                    state.restore(state.start)
            return closure()


class _SavedTensorError(Exception):  # not a RuntimeError, which a closure that retries would catch
    """Raised if a replay needs an activation that was not kept."""


def _reject_unpacking(_: object) -> Tensor:
    raise _SavedTensorError


@contextmanager
def without_caches() -> Iterator[None]:
    """Disables weight caches, so that reads always return the current values.

    An outer autocast region caches the weights that it has cast, and ``parametrize.cached`` caches parametrized
    weights. The caches are not cleared, since other code in that region relies on what the first run stored in them.
    """
    enabled, cached = torch.is_autocast_cache_enabled(), parametrize._cache_enabled
    torch.set_autocast_cache_enabled(False)
    parametrize._cache_enabled = 0
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
        parametrize._cache_enabled = cached


@contextmanager
def save_called_modules(state: ClosureState) -> Iterator[None]:
    # Saves the state of every module called inside the block, as it was before the first call.
    thread = threading.get_ident()

    def save(module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # compiled modules cannot be watched, and are rejected later
            state.compiled = True
        elif threading.get_ident() == thread and id(module) not in state.modules:  # other threads run other closures
            state.add_module(module)

    handle = register_module_forward_pre_hook(save)
    try:
        yield
    finally:
        handle.remove()


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


def norms_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    # Returns the norms of parameters, which writes through ``.data`` change.
    if not parameters:
        return []
    values = [torch.view_as_real(p.detach()) if p.is_complex() else p.detach() for p in parameters]
    return list(torch._foreach_norm(values, dtype=torch.float32 if values[0].device.type == "mps" else torch.float64))


def differ(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[bool]:
    # Compares numbers on any devices, which are read at once; NaN, which is not equal to itself, counts as 0.
    stacked = (torch.stack([x.to(left[0].device) for x in numbers]).nan_to_num() for numbers in (left, right))
    return torch.ne(*stacked).tolist()


def sample(array: np.ndarray) -> bytes:
    # Returns about a thousand evenly spaced elements, since reading all of a large array would take too long.
    return array.ravel(order="K")[:: max(1, array.size // 1000)].tobytes() if array.flags.forc else b""
