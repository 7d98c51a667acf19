"""Saves what a closure may change (objects, tensors, modules, random generators), and restores it bit for bit.

The objects are found by a plain walk from the closure's variables: through attributes, lists, dicts and modules.
"""

from __future__ import annotations

import random
import re
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from operator import is_, length_hint
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .isolation import copy_tensors

STATE_MEMORY = 64 * 2**20  # bytes
MAX_OBJECTS = 20_000  # more would take too long to search; the nearest ones come first
MAX_ENTRIES = 1000  # longer containers hold data, so their entries are not searched
MAX_COPIED = 100_000  # longer containers are only watched
LARGE = 65_536  # bytes; larger tensors and arrays that have not changed so far are only watched

Read = Callable[[Any], Any]
Write = Callable[[Any, Any], object]


class ClosureState:
    """The state of everything that a closure reaches, before its first run and after it.

    Restoring writes the old contents into the same objects, so that every reference to them stays valid. What cannot be
    restored is only watched: trained parameters and their gradients, iterators, sets, deques, and tensors and arrays
    for which there is no memory. Objects of the standard library and of torch, optimizers, and objects that hold a lock
    or a thread are left alone.

    Args:
        memory: The number of bytes available for copies of tensors and arrays.
        constants: The ids of large tensors and arrays that have not changed so far, which are watched, not copied.
        verify: Whether to copy them all the same, and to look for writes through ``.data`` to parameters.

    Attributes:
        modules: The modules that the closure uses, by id.
        start: The contents of everything that is saved, before the first run.
        end: The contents after the first run; empty if it has not finished.
        copied: The number of bytes copied.
        truncated: Whether there were too many objects to search all of them.
        compiled: Whether torch.compile has compiled any of the modules, whose state cannot be saved then.
    """

    def __init__(self, memory: float, constants: set[int] | None = None, *, verify: bool = True) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.copied, self.truncated, self.compiled = 0, False, False
        self._memory, self._constants, self._verify = memory, set() if constants is None else constants, verify
        self._seen: dict[Any, Any] = {}  # the objects too, so that no id is used twice
        self._waiting: deque[tuple[Any, str]] = deque()
        self._arrays: list[tuple[Any, str]] = []
        self._places: list[tuple[Any, Read, Write]] = []
        self._watched: list[tuple[str, str, Any, Read, Any]] = []
        for generator in random_generators():
            self._save(*generator)

    def add(self, value: Any, name: str) -> None:
        """Saves what `value` reaches, unless it is already saved. `name` is used in messages."""
        self._limit = len(self._seen) + MAX_OBJECTS
        self._reach(value, name)
        while self._waiting:
            self._visit(*self._waiting.popleft())
        self._copy_arrays()

    def add_module(self, module: nn.Module) -> None:
        """Saves a module that the closure uses."""
        for part in module.modules():
            self.modules[id(part)] = part
            self.add(part, type(part).__name__)

    def reached_modules(self) -> list[nn.Module]:
        """Returns all modules that have been reached, the outermost first."""
        return [value for value in self._seen.values() if isinstance(value, nn.Module)]

    def save_end(self) -> list[str]:
        """Saves the state after the first run, and returns what has changed and cannot be restored."""
        self.end = [read(target) for target, read, _ in self._places]
        if self._verify:
            for place, start, end in zip(self._places, self.start, self.end, strict=True):
                self._constants.update(_unchanged_arrays(place[0], start, end))
        changes = [(name, kind, x) for name, kind, x, read, old in self._watched if not _is_same(read(x), old)]
        self._constants.difference_update(id(value) for _, _, value in changes)
        return [f"`{_short(name)}` ({kind})" for name, kind, _ in changes]

    def restore(self, contents: Sequence[Any]) -> None:
        """Restores `start` or `end`."""
        for (target, _, write), content in zip(self._places, contents, strict=False):
            write(target, content)

    def _save(self, target: Any, read: Read, write: Write) -> None:
        self._places.append((target, read, write))
        self.start.append(read(target))

    def _watch(self, name: str, kind: str, target: Any, read: Read) -> None:
        self._watched.append((name, kind, target, read, read(target)))

    def _reach(self, value: Any, name: str) -> None:
        if type(value) in _ATOMS or id(value) in self._seen:
            return
        if len(self._seen) < self._limit:
            self._seen[id(value)] = value
            self._waiting.append((value, name))
        else:
            self.truncated = True

    def _visit(self, value: Any, name: str) -> None:
        """Saves or watches one object, and reaches those that it refers to."""
        if isinstance(value, Tensor):
            self._visit_tensor(value, name)
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            self._arrays.append((value, name))
        kind = next((kind for kind in _RESTORED if isinstance(value, kind)), None)
        if isinstance(value, list | dict) and len(value) > MAX_COPIED:
            self._watch(name, "a long container", value, len)
        elif kind is not None:
            self._save(value, *_RESTORED[kind])
        elif isinstance(value, (set, deque, *_ITERATORS)):
            self._watch(name, f"a {type(value).__name__}", value, list if hasattr(value, "__len__") else length_hint)
        for key, content in _references(value):
            self._reach(content, key if isinstance(value, types.FunctionType) else name + key)
        if _has_state(value):
            self._save(vars(value), *_RESTORED[dict])
        if isinstance(value, types.FunctionType) and not is_library(value.__module__):
            names, cells = _variable_names(value.__code__), value.__closure__ or ()
            self._visit_variables(value.__globals__, names)
            for module in filter(_is_own_module, map(_read_cell, cells)):  # imported inside a function
                self._visit_variables(vars(module), names & vars(module).keys())

    def _visit_variables(self, namespace: dict[str, Any], names: set[str]) -> None:
        """Saves variables of a module, and reaches what they refer to, even in other modules."""
        for name in names:
            if (id(namespace), name) not in self._seen:
                content = self._seen[id(namespace), name] = namespace.get(name, _NOTHING)
                self._save((namespace, name), lambda at: at[0].get(at[1], _NOTHING), _write_variable)
                self._reach(content, name)
                if _is_own_module(content):
                    self._visit_variables(vars(content), names & vars(content).keys())

    def _visit_tensor(self, tensor: Tensor, name: str) -> None:
        if is_lazy(tensor) or tensor.is_inference():
            self._watch(name, "a parameter of a lazy module; run the model once before measuring", tensor, is_lazy)
            return
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            self._watch(name, "a parameter", tensor, _version_and_norm if self._verify else _version)
            self._watch(f"{name}.grad", "a gradient", tensor, lambda p: _version(p.grad))
        elif type(tensor) in (Tensor, nn.Parameter) and tensor.is_leaf and _is_writable(tensor):
            self._arrays.append((tensor, name))
            self._reach(tensor.grad, f"{name}.grad")
        else:
            self._watch(name, "a tensor", tensor, _version)
        if tensor.is_leaf:
            self._save(tensor, _read_attributes, _write_attributes)

    def _copy_arrays(self) -> None:
        """Copies the tensors and arrays that have been reached, the smallest first, or watches them."""
        groups: dict[Any, list[Tensor]] = {}
        for value, name in sorted(self._arrays, key=lambda pair: pair[0].nbytes):
            is_constant = id(value) in self._constants and not self._verify
            if is_constant or self.copied + value.nbytes > self._memory:
                read = _version if isinstance(value, Tensor) else _sample
                self._watch(name, f"a {type(value).__name__} too large for `state_memory`", value, read)
                continue
            self.copied += value.nbytes
            if isinstance(value, Tensor):
                groups.setdefault((value.dtype, value.device), []).append(value)
            else:
                self._save(value, np.copy, np.copyto)
        for tensors in groups.values():
            self._save(tensors, _read_tensors, _write_tensors)
        self._arrays = []


_NOTHING = object()  # stands for the contents of variables that do not exist
_ATOMS = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(...), range, slice, type),
        *(torch.dtype, torch.device, torch.Size, types.CodeType, types.ModuleType, object),
    }
)
_EMPTY: tuple[Any, ...] = ([], (), "", range(0), set(), {}, {}.values())
_ITERATORS = tuple(type(iter(container)) for container in _EMPTY)
# Objects of these modules are left alone, except networks: threads may share them.
_LEFT_ALONE = frozenset(sys.stdlib_module_names - {"__main__", "argparse", "collections", "types"}) | {"torch", "numpy"}
_OF_THREADS = frozenset({"_queue", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "threading"})
# Of the attributes that every network has, a forward pass may change only its parts.
_PARTS = frozenset({"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"})
_UNCHANGED = frozenset(vars(nn.Module())) - _PARTS


def random_generators() -> Iterable[tuple[Any, Read, Write]]:
    """Yields the global random generators, with the functions that read and write their state."""
    yield None, lambda _: random.getstate(), lambda _, state: random.setstate(state)
    yield None, lambda _: np.random.get_state(), lambda _, state: np.random.set_state(state)  # noqa: NPY002
    yield None, lambda _: torch.get_rng_state(), lambda _, state: torch.set_rng_state(state)
    if torch.cuda.is_initialized():
        yield None, lambda _: torch.cuda.get_rng_state_all(), lambda _, states: torch.cuda.set_rng_state_all(states)
    if torch.backends.mps.is_available():
        yield None, lambda _: torch.mps.get_rng_state(), lambda _, state: torch.mps.set_rng_state(state)


@lru_cache(maxsize=4096)
def is_library(module: object) -> bool:
    """Whether a module is part of Python or torch, or in a folder into which packages are installed."""
    if not isinstance(module, str) or module.partition(".")[0] in _LEFT_ALONE | {"tagalong"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(next(folder.glob("*.dist-info"), None) for folder in Path(file).resolve().parents)


def _is_own_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not is_library(value.__name__)


def _references(value: Any) -> Iterable[tuple[str, Any]]:
    """Yields what an object refers to, and how, such as ``.name`` or ``['key']``."""
    if isinstance(value, dict) and len(value) <= MAX_ENTRIES:
        yield from ((f"[{key!r}]" if isinstance(key, str | int) else "[…]", x) for key, x in list(value.items()))
    elif isinstance(value, list | tuple | set | deque) and len(value) <= MAX_ENTRIES:
        yield from ((f"[{number}]", x) for number, x in enumerate([*value]))
    elif isinstance(value, np.ndarray) and value.dtype.hasobject and value.size <= MAX_ENTRIES:
        yield from ((f"[{number}]", x) for number, x in enumerate(value.flat))
    elif isinstance(value, types.FunctionType):
        yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((value.__name__, x) for x in (value.__defaults__, value.__kwdefaults__))
    elif isinstance(value, types.CellType):
        yield "", _read_cell(value)
    elif isinstance(value, types.MethodType | types.BuiltinFunctionType | partial):
        yield from (("", getattr(value, name, None)) for name in ("__self__", "__func__", "func", "args", "keywords"))
    if _has_state(value):
        yield from ((f".{name}", x) for name, x in vars(value).items() if name not in _UNCHANGED)
        for kind in type(value).__mro__:
            if not is_library(kind.__module__):
                yield from ((name, x) for name, x in vars(kind).items() if isinstance(x, types.FunctionType))


def _has_state(value: Any) -> bool:
    """Whether an object has attributes that a closure may change."""
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or isinstance(value, Tensor | type | Optimizer | BaseException):
        return False
    module, contents = str(type(value).__module__), {type(x).__module__.partition(".")[0] for x in attributes.values()}
    if module.startswith("tagalong.measure") or contents & _OF_THREADS:
        return False
    return module.partition(".")[0] not in _LEFT_ALONE or isinstance(value, nn.Module | types.FunctionType)


def _variable_names(code: types.CodeType) -> set[str]:
    inner = (_variable_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _write_variable(where: tuple[dict[str, Any], str], content: Any) -> None:
    namespace, name = where
    if content is not _NOTHING:
        namespace[name] = content
    elif name in namespace:
        del namespace[name]


def _read_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _write_cell(cell: types.CellType, content: Any) -> None:
    if content is not _NOTHING:
        cell.cell_contents = content
    elif _read_cell(cell) is not _NOTHING:
        del cell.cell_contents


def _write_dict(target: dict[Any, Any], saved: dict[Any, Any], kind: Any = dict) -> None:
    same = len(target) == len(saved) and all(map(is_, kind.values(target), saved.values()))
    if not same or not all(map(is_, kind.__iter__(target), saved)):  # otherwise, other threads may be reading it
        kind.clear(target)
        kind.update(target, saved)


# The first kind that fits; the functions of the base classes, since subclasses may have changed them.
_RESTORED: dict[type, tuple[Read, Write]] = {
    list: (list.copy, lambda target, saved: list.__setitem__(target, slice(None), saved)),
    OrderedDict: (lambda x: dict(OrderedDict.items(x)), partial(_write_dict, kind=OrderedDict)),
    dict: (lambda x: dict(dict.items(x)), _write_dict),
    types.CellType: (_read_cell, _write_cell),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (lambda x: x.bit_generator.state, lambda x, state: setattr(x.bit_generator, "state", state)),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}


def _read_attributes(tensor: Tensor) -> tuple[bool, Tensor | None, dict[str, Any]]:
    return tensor.requires_grad, tensor.grad, dict(vars(tensor))


def _write_attributes(tensor: Tensor, saved: tuple[bool, Tensor | None, dict[str, Any]]) -> None:
    trained, gradient, attributes = saved
    if tensor.requires_grad != trained:
        tensor.requires_grad_(trained)
    if tensor.grad is not gradient:
        tensor.grad = gradient
    _write_dict(vars(tensor), attributes)


def _read_tensors(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
    aliases = [tensor.data for tensor in tensors]
    return aliases, copy_tensors(aliases), _unsafe_preserve_version_counter(tuple(tensors))


def _write_tensors(tensors: Sequence[Tensor], saved: tuple[list[Tensor], list[Tensor], Any]) -> None:
    aliases, copies, versions = saved
    for tensor, alias in zip(tensors, aliases, strict=True):
        if tensor.data_ptr() != alias.data_ptr():
            tensor.data = alias
    torch._foreach_copy_(aliases, copies)
    # Otherwise, a backward pass would fail if its graph refers to a tensor that a replay has written.
    versions.__exit__()


def _unchanged_arrays(target: Any, start: Any, end: Any) -> Iterable[int]:
    """Yields the ids of large tensors and arrays that the first run has not changed."""
    if isinstance(target, np.ndarray) and target.nbytes > LARGE and np.array_equal(start, end):
        yield id(target)
    elif isinstance(end, tuple) and isinstance(end[-1], _unsafe_preserve_version_counter):
        pairs = zip(target, start[1], end[1], strict=True)
        yield from (id(tensor) for tensor, a, b in pairs if tensor.nbytes > LARGE and torch.equal(a, b))


def _short(name: str) -> str:
    """Returns ``model.encoder`` for ``model._modules['encoder']``."""
    return re.sub(r"\._(?:parameters|buffers|modules)\['([^']+)'\]", r".\1", name)


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(before, list):
        return len(now) == len(before) and all(map(is_, now, before))
    return bool(now == before)


def _is_writable(tensor: Tensor) -> bool:
    """Whether `tensor` can be written to in place, which requires that its elements do not share memory."""
    dimensions = zip(tensor.stride(), tensor.shape, strict=True) if tensor.layout == torch.strided else [(0, 2)]
    return all(stride or size < 2 for stride, size in dimensions)


def _version(tensor: Tensor | None) -> object:
    """Returns what changes if a tensor is written to or replaced, except through ``.data``."""
    if tensor is None or type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return None if tensor is None else (id(tensor), tensor._version)
    return id(tensor), tensor._version, tensor.data_ptr()


def _version_and_norm(parameter: Tensor) -> object:
    """Returns the norm as well, which shows most writes through ``.data``."""
    precise = torch.float32 if parameter.device.type == "mps" else torch.float64
    return _version(parameter), torch.linalg.vector_norm(parameter.detach().to(precise).nan_to_num())


def _sample(array: np.ndarray) -> bytes:
    """Returns about a thousand evenly spaced elements, since reading all of a large array would take too long."""
    return array.ravel(order="K")[:: max(1, array.size // 1000)].tobytes() if array.flags.forc else b""
