"""Finds and saves all state that replaying the closure may change, and restores it bit for bit."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .object_kinds import is_writable
from .objects import ObjectState


class Replayer:
    """Replays a closure from the same random state and module state, and in the same grad mode.

    Replays are not differentiated, so their activations are dropped immediately. A replay in grad mode therefore needs
    no more memory than one under no_grad. Replays do not use no_grad, since it may change losses by more than the size
    of an affinity. Activations are kept only for closures that compute gradients themselves (for gradient penalties or
    forces).
    """

    def __init__(self) -> None:
        self._keep_activations = False

    def run(self, closure: Callable[[], Any], modules: ModuleState, randomness: RandomState) -> Any:
        with without_caches():
            self._rewind(modules, randomness)
            if not self._keep_activations:
                try:
                    with torch.autograd.graph.saved_tensors_hooks(lambda _: None, _reject_unpacking):
                        return closure()
                except (RuntimeError, _SavedTensorError) as error:
                    if not _needs_activations(error):
                        raise
                    self._keep_activations = True
                    self._rewind(modules, randomness)
            return closure()

    @staticmethod
    def _rewind(modules: ModuleState, randomness: RandomState) -> None:
        modules.restore()
        randomness.restore()


class _SavedTensorError(Exception):  # not a RuntimeError, which a closure that retries would catch
    """Raised if a replay needs an activation that was not kept."""


def _reject_unpacking(_: object) -> Tensor:
    raise _SavedTensorError


def _needs_activations(error: Exception) -> bool:
    return isinstance(error, _SavedTensorError) or "saved tensor hooks" in str(error)  # the latter: torch.func


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


class RandomState:
    """The state of every global random generator that a closure may use."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        self._numpy = np.random.get_state()  # noqa: NPY002 - augmentation code draws from the legacy generator
        self._python = random.getstate()

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._mps is not None:
            torch.mps.set_rng_state(self._mps)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)


class ModuleState:
    """A snapshot of the buffers of modules, and of the attributes and other objects that the modules reach.

    Plain attributes are included because some modules keep state in them: the old ``spectral_norm`` keeps its computed
    weight, stateful layers keep their last hidden state, and DistributedDataParallel records whether buffers are
    synchronized.

    Args:
        objects: The snapshot of plain objects to which those that modules reach are added.
        writes: Records the writes to modules that cannot be undone.

    Attributes:
        compiled: Whether torch.compile has compiled any of the modules, in which case their state cannot be saved.
        objects: The snapshot of plain objects.
    """

    def __init__(self, objects: ObjectState, writes: WriteDetector | None = None) -> None:
        self.compiled, self.objects = False, objects
        self._modules: dict[int, nn.Module] = {}
        self._bound: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._versions: list[Any] = []
        self._values: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        self._trained: list[tuple[Tensor, bool]] = []
        self._roots: list[nn.Module] = []
        self._writes = writes

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._modules

    def add(self, module: nn.Module) -> None:
        """Saves `module` and its submodules, unless they are already saved."""
        self._roots.append(module)
        self.objects.add(module, type(module).__name__)
        fresh: dict[torch.dtype, list[Tensor]] = {}
        for name, part in module.named_modules():
            if part in self:
                continue
            if self._writes is not None:
                self._writes.watch(part, name or type(part).__name__)
            self._modules[id(part)] = part
            self._trained += [(p, p.requires_grad) for p in part._parameters.values() if p is not None]
            if part._buffers:
                self._bound.append((part, dict(part._buffers)))
            for buffer in part._buffers.values():
                if buffer is not None and is_writable(buffer):
                    self._versions.append(_unsafe_preserve_version_counter(buffer))
                    fresh.setdefault(buffer.dtype, []).append(buffer.data)
        for dtype, values in fresh.items():
            all_values, all_saved = self._values.setdefault(dtype, ([], []))
            all_values += values
            all_saved += copy_tensors(values)

    def modules(self) -> list[nn.Module]:
        return list(self._modules.values())

    @property
    def copied_bytes(self) -> int:
        buffers = sum(saved.nbytes for _, all_saved in self._values.values() for saved in all_saved)
        return buffers + self.objects.copied

    def restore(self) -> None:
        self.objects.restore()
        for parameter, trained in self._trained:
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, bound in self._bound:
            if [*map(id, module._buffers.values())] != [*map(id, bound.values())]:
                module._buffers.clear()
                module._buffers.update(bound)
        for values, old in self._values.values():
            torch._foreach_copy_(values, old)
        # Versions are restored along with the values; otherwise a backward pass would fail if its graph refers to a
        # buffer that the forward pass has written.
        for version in self._versions:
            version.__exit__(None, None, None)

    def snapshot(self) -> ModuleState:
        """Returns a snapshot of the current state of the same modules and objects."""
        state = ModuleState(self.objects.snapshot())
        for module in self._roots:
            state.add(module)
        return state


def copy_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns detached copies of tensors with the same memory layout."""
    made = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    if made:
        torch._foreach_copy_(made, [tensor.detach() for tensor in tensors])
    return made


class WriteDetector:
    """Detects writes to parameters and their ``.grad``.

    Copies of these tensors would take as much memory as the model, so closures that write to them are rejected instead.

    Attributes:
        lazy: Names of parameters that are not initialized yet.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[str, Tensor, int]] = []
        self._gradients: list[tuple[str, Tensor, Tensor | None, int]] = []
        self._norms: list[tuple[str, Tensor, int, Tensor]] = []
        self.lazy: list[str] = []

    def watch(self, module: nn.Module, name: str) -> None:
        parameters = {f"{name}.{key}": p for key, p in module.named_parameters(recurse=False)}
        self.lazy += [key for key, p in parameters.items() if is_lazy(p)]
        known = {key: p for key, p in parameters.items() if not is_lazy(p)}
        for key, p in known.items():
            self._tensors.append((key, p, p._version))
            self._gradients.append((f"{key}.grad", p, p.grad, _version_counter(p.grad)))
            # Writes through .data do not increase the version, but replace the storage or change the norm.
            self._norms.append((key, p, p.data_ptr(), _norm(p)))

    def written_names(self) -> list[str]:
        """Returns the names of the tensors that have been written to."""
        tensors = [name for name, tensor, version in self._tensors if tensor._version != version]
        gradients = [
            name for name, p, old, version in self._gradients if p.grad is not old or _version_counter(old) != version
        ]
        data = [name for name, p, at, norm in self._norms if p.data_ptr() != at or not torch.equal(_norm(p), norm)]
        return list(dict.fromkeys(tensors + gradients + data))


def _version_counter(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version


def _norm(parameter: Tensor) -> Tensor:
    precise = torch.float32 if parameter.device.type == "mps" else torch.float64
    norm: Tensor = torch.linalg.vector_norm(parameter.detach().to(precise).nan_to_num())
    return norm


_lock = threading.RLock()
_states: list[tuple[int, ModuleState]] = []  # with the thread's id, since other threads do not run this closure
_compiling = [False]  # whether torch.compile has compiled a module; a list, so that compiled code can write it
_train, _getattr = nn.Module.train, nn.Module.__getattr__


@contextmanager
def save_used_modules(state: ModuleState) -> Iterator[None]:
    """Records the state of every module used inside the block, as it was before the first use.

    A module counts as used if it is called, if its mode is changed, or if one of its submodules is accessed (methods
    such as ``training_step`` access ``self.encoder``). PyTorch has hooks only for calls, so methods of ``nn.Module``
    are patched inside the block to detect the other uses.
    """
    mine = threading.get_ident(), state
    with _lock:
        if not _states:
            _compiling[0] = False
            _patch_module()
        _states.append(mine)
    handle = register_module_forward_pre_hook(lambda module, _: _save_state(module))
    try:
        yield
        state.compiled |= _compiling[0]
    finally:
        handle.remove()
        with _lock:
            _states.remove(mine)
            if not _states:
                _restore_module()


def _save_state(module: nn.Module) -> None:
    if torch.compiler.is_compiling():  # compiled modules cannot be watched, and are rejected later
        _compiling[0] = True
        return
    here = threading.get_ident()
    for thread, state in tuple(_states):
        if thread == here and module not in state:
            state.add(module)


def _saving_train(module: nn.Module, mode: bool = True) -> nn.Module:
    _save_state(module)
    return _train(module, mode)


def _saving_getattr(module: nn.Module, name: str) -> Any:
    if "_modules" in vars(module) and not name.startswith("__"):
        _save_state(module)
    return _getattr(module, name)


def _patch_module() -> None:
    nn.Module.train = _saving_train  # type: ignore[method-assign, assignment]
    nn.Module.__getattr__ = _saving_getattr  # type: ignore[method-assign]


def _restore_module() -> None:
    nn.Module.train = _train  # type: ignore[method-assign]
    nn.Module.__getattr__ = _getattr  # type: ignore[method-assign]


def has_compiled_modules(modules: Iterable[nn.Module]) -> bool:
    """Whether any of `modules` has been compiled by torch.compile."""
    return any(getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod") for m in modules)
