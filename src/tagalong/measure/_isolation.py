"""Everything a replay of the closure may disturb, saved and put back bit for bit."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from ._containers import refill, saved_containers
from ._copies import copies
from ._writes import Writes

# What every Module carries by construction, except the mode: not state a forward pass may change.
_STRUCTURE = frozenset(vars(nn.Module())) - {"training"}


class RandomState:
    """The state of every global generator a closure may draw from."""

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
    """Buffers, modes and plain attributes of modules at one moment.

    Plain attributes matter too: old-style ``spectral_norm`` keeps the computed weight there, stateful layers
    their last hidden state, DistributedDataParallel whether buffers were synchronised.

    Args:
        writes: Told of every module, to find out what else of it is written.

    Attributes:
        compiled: Whether torch.compile met modules that it kept from being saved here.
    """

    def __init__(self, writes: Writes | None = None) -> None:
        self.compiled = False
        self._attributes: dict[int, tuple[nn.Module, frozenset[str], dict[str, Any]]] = {}
        self._containers: list[tuple[Any, Any]] = []
        self._bound: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._versions: list[Any] = []
        self._values: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        self._trained: list[tuple[Tensor, bool]] = []
        self._roots: list[nn.Module] = []
        self._writes = writes

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._attributes

    def add(self, module: nn.Module) -> None:
        """Saves `module` and everything inside it, unless already saved."""
        self._roots.append(module)
        fresh: dict[torch.dtype, list[Tensor]] = {}
        for name, part in module.named_modules():
            if part in self:
                continue
            if self._writes is not None:
                self._writes.watch(part, name or type(part).__name__)
            own = {name: value for name, value in vars(part).items() if name not in _STRUCTURE}
            self._attributes[id(part)] = part, frozenset(vars(part)), own
            self._containers += [pair for value in own.values() for pair in saved_containers(value)]
            self._trained += [(p, p.requires_grad) for p in part._parameters.values() if p is not None]
            if part._buffers:
                self._bound.append((part, dict(part._buffers)))
            for buffer in filter(_writable, part._buffers.values()):
                self._versions.append(_unsafe_preserve_version_counter(buffer))
                fresh.setdefault(buffer.dtype, []).append(buffer.data)
        for dtype, values in fresh.items():
            all_values, all_saved = self._values.setdefault(dtype, ([], []))
            all_values += values
            all_saved += copies(values)

    def modules(self) -> list[nn.Module]:
        return [module for module, _, _ in self._attributes.values()]

    @property
    def buffer_bytes(self) -> int:
        return sum(saved.nbytes for _, all_saved in self._values.values() for saved in all_saved)

    def restore(self) -> None:
        for module, names, own in self._attributes.values():
            now = vars(module)
            if now.keys() != names:
                for name in now.keys() - names:
                    del now[name]
            now.update(own)
        for container, saved in self._containers:
            refill(container, saved)
        for parameter, trained in self._trained:
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, bound in self._bound:
            if [*map(id, module._buffers.values())] != [*map(id, bound.values())]:
                module._buffers.clear()
                module._buffers.update(bound)
        for values, old in self._values.values():
            torch._foreach_copy_(values, old)
        # The values are those of then, so the version may be too; otherwise a backward pass whose graph holds a
        # buffer that the forward pass had written would refuse to run.
        for version in self._versions:
            version.__exit__(None, None, None)

    def again(self) -> "ModuleState":
        """The same modules, as they are now."""
        state = ModuleState()
        for module in self._roots:
            state.add(module)
        return state


def _writable(buffer: Tensor | None) -> TypeGuard[Tensor]:
    """Whether a forward pass can write `buffer` in place: not where numbers share memory, or under inference mode."""
    if buffer is None or is_lazy(buffer) or buffer.is_inference():
        return False
    return all(stride or size < 2 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))


@contextmanager
def without_caches() -> Iterator[None]:
    """Makes every read of a weight see the weight itself.

    Inside an outer autocast region the weights' casts are kept, inside ``parametrize.cached`` the parametrised
    weights. They are not cleared: what else runs in that region is to find what the first run put there.
    """
    enabled, cached = torch.is_autocast_cache_enabled(), parametrize._cache_enabled
    torch.set_autocast_cache_enabled(False)
    parametrize._cache_enabled = 0
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
        parametrize._cache_enabled = cached


class _SavedTensorNeeded(Exception):  # no RuntimeError, which a closure that retries would catch
    """A replay asked for an activation that was not kept."""


def _refuse(_: object) -> Tensor:
    raise _SavedTensorNeeded


def _needs_activations(error: Exception) -> bool:
    return isinstance(error, _SavedTensorNeeded) or "saved tensor hooks" in str(error)  # the latter: torch.func


class Replayer:
    """Runs a closure again from the same random and module state, and in the same grad mode.

    The graph of a replay is never walked, so its activations are dropped as they are made: a replay in grad
    mode (whose kernels may differ from no_grad's by more than an affinity) then needs no more memory than one
    without. Closures that differentiate inside (gradient penalties, forces) need them and get them.
    """

    def __init__(self) -> None:
        self._keep_activations = False

    def run(self, closure: Callable[[], Any], modules: ModuleState, randomness: RandomState) -> Any:
        with without_caches():
            self._rewind(modules, randomness)
            if not self._keep_activations:
                try:
                    with torch.autograd.graph.saved_tensors_hooks(lambda _: None, _refuse):
                        return closure()
                except (RuntimeError, _SavedTensorNeeded) as error:
                    if not _needs_activations(error):
                        raise
                    self._keep_activations = True
                    self._rewind(modules, randomness)
            return closure()

    @staticmethod
    def _rewind(modules: ModuleState, randomness: RandomState) -> None:
        modules.restore()
        randomness.restore()


def compiled(modules: Iterable[nn.Module]) -> bool:
    """Whether torch.compile has taken over any of `modules`."""
    return any(getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod") for m in modules)
