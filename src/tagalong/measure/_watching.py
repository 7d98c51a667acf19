"""Finds the modules that a closure uses, while it uses them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ._isolation import ModuleState

_lock = threading.RLock()
_states: list[tuple[int, ModuleState]] = []  # by thread: what another one does is not this closure's doing
_compiling = [False]  # whether torch.compile has met a module since anyone watches; a list can be written from within


@contextmanager
def watching(state: ModuleState) -> Iterator[None]:
    """Adds every module used inside the block to `state`, as it was before its first use.

    Used is: called, put into another mode, or asked for one of its parts (a method such as ``training_step`` reads
    ``self.encoder``). Only calls have a hook, so the other two are seen through the class for as long as anyone
    watches.
    """
    mine = threading.get_ident(), state
    with _lock:
        if not _states:
            _compiling[0] = False
            _install()
        _states.append(mine)
    handle = register_module_forward_pre_hook(lambda module, _: _save(module))
    try:
        yield
        state.compiled |= _compiling[0]
    finally:
        handle.remove()
        with _lock:
            _states.remove(mine)
            if not _states:
                _remove()


def _save(module: nn.Module) -> None:
    if torch.compiler.is_compiling():  # what is compiled cannot be watched, and is refused later
        _compiling[0] = True
        return
    here = threading.get_ident()
    for thread, state in tuple(_states):
        if thread == here and module not in state:
            state.add(module)


_train, _getattr = nn.Module.train, nn.Module.__getattr__


def _saving_train(module: nn.Module, mode: bool = True) -> nn.Module:
    _save(module)
    return _train(module, mode)


def _saving_getattr(module: nn.Module, name: str) -> Any:
    if "_modules" in vars(module) and not name.startswith("__"):
        _save(module)
    return _getattr(module, name)


def _install() -> None:
    nn.Module.train = _saving_train  # type: ignore[method-assign, assignment]
    nn.Module.__getattr__ = _saving_getattr  # type: ignore[method-assign]


def _remove() -> None:
    nn.Module.train = _train  # type: ignore[method-assign]
    nn.Module.__getattr__ = _getattr  # type: ignore[method-assign]
