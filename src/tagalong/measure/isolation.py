"""Replays closures without keeping their activations, and detects the modules that they use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
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
    """Saves the state of every module called inside the block, as it was before the first call."""
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


def has_compiled_modules(modules: Iterable[nn.Module]) -> bool:
    # Whether any of `modules` has been compiled by torch.compile.
    return any(getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod") for m in modules)
