"""Finds the plain Python objects that a closure reaches, saves their state, and restores it in place."""

from __future__ import annotations

import argparse
import dis
import gc
import io
import itertools
import random
import sys
import types
from collections import OrderedDict, UserDict, UserList, UserString, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import chain, count, islice
from operator import is_, length_hint
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

STATE_MEMORY = 64 * 2**20  # bytes
MAX_OBJECTS = 50_000  # more would take too long to search; the nearest ones come first
MAX_ENTRIES = 1000  # containers are saved as a whole, but the entries of longer ones are rarely state
_SMALL = 4096  # variables and attributes up to this size are restored even if .data was written, which leaves no mark

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
# Attributes that every Module has, except the mode; a forward pass does not change them.
_STANDARD_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]

_ATOMS = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
        *(torch.dtype, torch.device, torch.Size, types.CodeType, types.ModuleType),
    }
)
_OPAQUE = (Enum, PurePath, BaseException, np.generic, np.dtype, Optimizer, LRScheduler, DataLoader)
# Standard classes that only hold data. Other objects of the standard library are left alone: threads may share them.
_DATA_CLASSES = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, UserString)
_LEFT_ALONE = frozenset(sys.stdlib_module_names - {"__main__"}) | {"torch", "numpy"}
_OF_THREADS = frozenset(
    {"_queue", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "socket", "subprocess", "threading"}
)
_COMPOSED_ITERATORS: tuple[type, ...] = (enumerate, zip, map, filter)
_EMPTY: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(0), deque())
_ITERATORS: tuple[type, ...] = (
    *(type(iter(x)) for x in _EMPTY),
    *(count, reversed, type(reversed([])), types.GeneratorType, _BaseDataLoaderIter),
)
_ITERTOOLS = tuple(x for x in vars(itertools).values() if isinstance(x, type))

Path = tuple["Path | None", str, Any]  # parent, kind, key
Restore = Callable[[Any, Any], None]


@dataclass
class _Watched:
    """Something that cannot be restored, and how to see whether it has changed."""

    path: Path
    what: str
    target: Any
    read: Callable[[Any], Any]
    before: Any

    @property
    def changed(self) -> bool:
        return bool(self.read(self.target) != self.before)


class ObjectState:
    """A snapshot of the objects that a closure reaches: through its variables, `self`, attributes and containers.

    Restoring writes the old contents into the same objects, so that every reference to them stays valid. Tensors and
    arrays are copied, the smallest first, until the copies reach `memory`. What does not fit, or cannot be restored at
    all (iterators, files), is only watched. Objects of the standard library and of torch, and objects that hold a lock
    or a thread, are left alone.

    Args:
        memory: The number of bytes available for copies.

    Attributes:
        copied: The number of bytes copied.
        truncated: Whether there were too many objects to search all of them.
    """

    def __init__(self, memory: float = STATE_MEMORY) -> None:
        self.copied, self.truncated = 0, False
        self._memory = memory
        self._roots: list[tuple[Any, Path]] = []
        self._seen: dict[int, Any] = {}  # the objects too, so that no id is used twice
        self._waiting: deque[tuple[Any, Path]] = deque()
        self._visitors: dict[type, _Visitor] = {}
        self._saved: list[tuple[Restore, Any, Any]] = []
        self._watched: list[_Watched] = []
        self._values: list[tuple[Tensor | np.ndarray, Path]] = []
        self._tensors: list[tuple[Tensor, Tensor, Tensor, int]] = []  # with aliases, copies and versions
        self._small: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}

    def add_closure(self, closure: Callable[[], Any]) -> None:
        """Saves what `closure` reaches."""
        if isinstance(closure, types.MethodType):
            self.add(closure.__self__, "self")
        self.add(closure, "closure" if isinstance(closure, types.FunctionType) else "self")
        for name in _GLOBAL_HOOKS:
            # Only the hooks: a meter in another thread may add its own hook to the table, and remove it, at any time.
            for hook in tuple(getattr(module_hooks, name).values()):
                self.add(hook, name)

    def add(self, value: Any, name: str) -> None:
        """Saves what `value` reaches, unless it is already saved. `name` is used in messages."""
        if id(value) in self._seen:
            return
        path: Path = (None, "name", name)
        self._roots.append((value, path))
        self.reach(value, path)
        while self._waiting:
            self._visit(*self._waiting.popleft())
        self._values.sort(key=lambda pair: pair[0].nbytes)
        self._copy_tensors([pair for pair in self._values if self._copy_array(*pair)])
        self._values = []

    def snapshot(self) -> ObjectState:
        """Returns a snapshot of the current state."""
        state = ObjectState(self._memory)
        for value, path in self._roots:
            state.add(value, path[2])
        return state

    def restore(self) -> None:
        for restore, target, saved in self._saved:
            restore(target, saved)
        for tensor, alias, copy, version in self._tensors:
            if tensor._version != version:
                alias.copy_(copy)
                _set_version(tensor, version)
        for values, saved in self._small.values():
            if values:
                torch._foreach_copy_(values, saved)

    def changes(self, known: Iterable[Tensor] = ()) -> list[tuple[str, str]]:
        """Returns the names and kinds of objects that have changed and cannot be restored, except `known` ones."""
        changed = [watched for watched in self._watched if watched.changed]
        ids = {id(tensor) for tensor in known} if changed else set()
        return [(_render(w.path), w.what) for w in changed if id(w.target) not in ids]

    def reach(self, value: Any, path: Path) -> None:
        """Puts `value` on the list of objects to search."""
        kind = type(value)
        if kind in _ATOMS or id(value) in self._seen:
            return
        if len(self._seen) >= MAX_OBJECTS:
            self.truncated = True
            return
        self._seen[id(value)] = value
        self._waiting.append((value, path))

    def save(self, restore: Restore, target: Any, saved: Any) -> None:
        self._saved.append((restore, target, saved))

    def watch(self, path: Path, what: str, target: Any, read: Callable[[Any], Any]) -> None:
        self._watched.append(_Watched(path, what, target, read, read(target)))

    def reserve(self, size: int) -> bool:
        """Whether `size` more bytes may be copied."""
        if self.copied + size > self._memory:
            return False
        self.copied += size
        return True

    def _visit(self, value: Any, path: Path) -> None:
        kind = type(value)
        visitor = self._visitors.get(kind)
        if visitor is None:
            visitor = self._visitors[kind] = _visitor_of(kind)
        visitor(self, value, path)

    def collect(self, value: Tensor | np.ndarray, path: Path) -> None:
        """Puts `value` on the list of tensors and arrays to copy."""
        self._values.append((value, path))

    def _copy_array(self, value: Tensor | np.ndarray, path: Path) -> bool:
        """Copies or watches an array, and watches a tensor that is too large. Returns whether to copy the tensor."""
        fits = self.reserve(value.nbytes)
        if isinstance(value, Tensor):
            if not fits:
                self.watch(path, "a tensor larger than the meter's `state_memory`", value, _version)
            return fits
        if fits:
            self.save(np.copyto, value, value.copy())
        else:
            self.watch(path, "an array larger than the meter's `state_memory`", value, _sample)
        return False

    def _copy_tensors(self, found: Sequence[tuple[Any, Path]]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Path]]] = {}
        for tensor, path in found:
            kinds.setdefault((tensor.dtype, tensor.device), []).append((tensor, path))
        for kind, group in kinds.items():
            aliases = [tensor.data for tensor, _ in group]
            copies = [torch.empty_like(alias) for alias in aliases]
            torch._foreach_copy_(copies, aliases)
            values, saved = self._small.setdefault(kind, ([], []))
            for (tensor, path), alias, copy in zip(group, aliases, copies, strict=True):
                self._tensors.append((tensor, alias, copy, tensor._version))
                if path[1] != "entry" and tensor.numel() <= _SMALL:
                    self.save(_restore_data, tensor, alias)
                    values.append(alias)
                    saved.append(copy)


_Visitor = Callable[[ObjectState, Any, Path], None]


def _visitor_of(kind: type) -> _Visitor:
    """Returns the function that searches and saves objects of one type."""
    for bases, visitor in _VISITORS:
        if issubclass(kind, bases):
            return visitor
    if issubclass(kind, _OPAQUE):
        return _leave_alone
    if not issubclass(kind, _DATA_CLASSES) and _is_left_alone(kind.__module__):
        return _leave_alone
    return _visit_instance


def _is_left_alone(module: object) -> bool:
    return isinstance(module, str) and (
        module.partition(".")[0] in _LEFT_ALONE or module.startswith("tagalong.measure")
    )


@lru_cache(maxsize=4096)
def _is_user_code(module: object) -> bool:
    """Whether a module is neither part of the standard library nor installed as a package."""
    if module == "__main__":  # a script or a notebook, even if a program started it
        return True
    if not isinstance(module, str) or _is_left_alone(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file and module.partition(".")[0] != "tagalong"


def _leave_alone(state: ObjectState, value: Any, path: Path) -> None:
    pass


def _visit_list(state: ObjectState, value: Any, path: Path) -> None:
    entries: list[Any] = list.copy(value) if isinstance(value, list) else list(deque.__iter__(value))
    _save_container(state, value, entries, path, _restore_list if isinstance(value, list) else _restore_deque)
    _reach_entries(state, entries, enumerate(entries), path)
    _visit_own_attributes(state, value, path)


def _visit_dict(state: ObjectState, value: Any, path: Path) -> None:
    methods: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    entries = dict(methods.items(value))
    _save_container(state, value, entries, path, _restore_ordered_dict if methods is OrderedDict else _restore_dict)
    _reach_entries(state, entries.values(), entries.items(), path)
    _visit_own_attributes(state, value, path)


def _visit_set(state: ObjectState, value: Any, path: Path) -> None:
    _save_container(state, value, set(value), path, _restore_set)
    _visit_own_attributes(state, value, path)


def _visit_bytearray(state: ObjectState, value: Any, path: Path) -> None:
    _save_container(state, value, bytes(value), path, _restore_bytes)


def _visit_tuple(state: ObjectState, value: Any, path: Path) -> None:
    _reach_entries(state, value, enumerate(value), path)


def _save_container(state: ObjectState, value: Any, entries: Any, path: Path, restore: Restore) -> None:
    if state.reserve(len(entries) if isinstance(entries, bytes) else 8 * len(entries)):
        state.save(restore, value, entries)
    else:
        state.watch(path, f"a {type(value).__name__} larger than the meter's `state_memory`", value, len)


def _reach_entries(state: ObjectState, values: Iterable[Any], named: Iterable[tuple[Any, Any]], path: Path) -> None:
    if set(map(type, values)) <= _ATOMS:
        return
    for key, value in islice(named, MAX_ENTRIES):
        if type(value) not in _ATOMS:
            state.reach(value, (path, "entry", key))


def _visit_own_attributes(state: ObjectState, value: Any, path: Path) -> None:
    """Searches the attributes of an object whose class is derived from a container."""
    if type(value).__module__ not in ("builtins", "collections"):
        _visit_instance(state, value, path)


def _visit_instance(state: ObjectState, value: Any, path: Path) -> None:
    namespace = getattr(value, "__dict__", None) if type(value).__dictoffset__ else None
    slots = _slots(type(value))
    found = dict(namespace) if isinstance(namespace, dict) else {}
    if any(type(v).__module__.partition(".")[0] in _OF_THREADS for v in found.values()):
        return  # another thread may be using it
    if isinstance(namespace, dict):
        state.save(_restore_dict, namespace, found)
    for name, slot in slots.items():
        content = _read_slot(slot, value)
        state.save(_restore_slot, (slot, value), content)
        state.reach(content, (path, "attribute", name))
    for name, content in found.items():
        if type(content) not in _ATOMS:
            state.reach(content, (path, "attribute", name))
    state.reach(type(value), (None, "name", type(value).__qualname__))


def _slots(kind: type) -> dict[str, Any]:
    """Returns the descriptors of the attributes that are kept outside ``__dict__``."""
    return {
        name: slot
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    }


_NOTHING = object()


def _read_slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _NOTHING


def _visit_module(state: ObjectState, value: Any, path: Path) -> None:
    namespace = vars(value)
    own = {name: content for name, content in namespace.items() if name not in _STANDARD_ATTRIBUTES}
    state.save(_restore_module, namespace, (own, frozenset(namespace)))
    for name, content in chain(own.items(), namespace.get("_modules", {}).items()):
        if type(content) not in _ATOMS:
            state.reach(content, (path, "attribute", name))
    for name in _HOOKS:
        for hook in namespace.get(name, {}).values():
            state.reach(hook, (path, "attribute", name))
    state.reach(type(value), (None, "name", type(value).__qualname__))


def _visit_class(state: ObjectState, value: Any, path: Path) -> None:
    if not _is_user_code(value.__module__) or issubclass(value, Enum):
        return
    own: dict[str, Any] = {}
    for name, content in vars(value).items():
        if isinstance(content, staticmethod | classmethod):
            state.reach(content.__func__, (path, "attribute", name))
        elif isinstance(content, property):
            state.reach(content.fget, (path, "attribute", name))
        elif isinstance(content, types.FunctionType):
            state.reach(content, (path, "attribute", name))
        elif not name.startswith("__") and not hasattr(type(content), "__set__"):
            own[name] = content
            state.reach(content, (path, "attribute", name))
    state.save(_restore_class, value, (own, frozenset(vars(value))))
    for base in value.__bases__:
        state.reach(base, (None, "name", base.__qualname__))


def _visit_function(state: ObjectState, value: Any, path: Path) -> None:
    if value.__closure__ is not None:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
            state.reach(cell, (None, "name", name))
    for content in (value.__defaults__, value.__kwdefaults__, getattr(value, "__wrapped__", None)):
        state.reach(content, path)
    if _is_user_code(value.__globals__.get("__name__")):
        state.reach(value.__dict__, path)
        _reach_globals(state, value)


def _reach_globals(state: ObjectState, function: Any) -> None:
    """Searches the global variables that `function` names; those that it assigns are saved as well."""
    namespace, codes, names, stores = function.__globals__, [function.__code__], set(), False
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        stores |= _STORE_GLOBAL in code.co_code[::2]
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    for name in names:
        content = namespace.get(name, _NOTHING)
        if stores:
            state.save(_restore_variable, (namespace, name), content)
        if isinstance(content, types.ModuleType):
            if _is_user_code(content.__name__):
                _reach_module_variables(state, content, names)
        elif content is not _NOTHING:
            state.reach(content, (None, "name", name))


def _reach_module_variables(state: ObjectState, module: types.ModuleType, names: set[str]) -> None:
    namespace = vars(module)
    for name in names & namespace.keys():
        state.save(_restore_variable, (namespace, name), namespace[name])
        state.reach(namespace[name], (None, "name", f"{module.__name__}.{name}"))


def _visit_cell(state: ObjectState, value: Any, path: Path) -> None:
    try:
        content = value.cell_contents
    except ValueError:
        content = _NOTHING
    state.save(_restore_cell, value, content)
    if content is not _NOTHING:
        state.reach(content, path)


def _visit_method(state: ObjectState, value: Any, path: Path) -> None:
    state.reach(value.__self__, path)
    state.reach(value.__func__, path)


def _visit_builtin(state: ObjectState, value: Any, path: Path) -> None:
    if not isinstance(value.__self__, types.ModuleType):  # such as `append = record.append`
        state.reach(value.__self__, path)


def _visit_partial(state: ObjectState, value: Any, path: Path) -> None:
    for content in (value.func, value.args, value.keywords):
        state.reach(content, path)


def _visit_tensor(state: ObjectState, value: Any, path: Path) -> None:
    if value.is_inference() or is_lazy(value):
        return
    if value.requires_grad or type(value) is not Tensor or not is_writable(value):
        state.watch(path, "a tensor", value, _version)
        if value.is_leaf and value.requires_grad:
            state.watch((path, "attribute", "grad"), "a gradient", value, _gradient_version)
    else:
        state.collect(value, path)


def _visit_array(state: ObjectState, value: Any, path: Path) -> None:
    if value.dtype.hasobject and value.size <= MAX_ENTRIES:
        _visit_tuple(state, tuple(value.ravel()), path)
    if value.flags.writeable:
        state.collect(value, path)


def _visit_torch_generator(state: ObjectState, value: Any, path: Path) -> None:
    state.save(_restore_torch_generator, value, value.get_state())


def _visit_numpy_generator(state: ObjectState, value: Any, path: Path) -> None:
    bits = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
    state.save(_restore_bits, bits, bits.state)


def _visit_python_generator(state: ObjectState, value: Any, path: Path) -> None:
    if not isinstance(value, random.SystemRandom):
        state.save(random.Random.setstate, value, value.getstate())


def _visit_iterator(state: ObjectState, value: Any, path: Path) -> None:
    state.watch(path, "an iterator", value, _position)


def _visit_composed_iterator(state: ObjectState, value: Any, path: Path) -> None:
    for content in value.__reduce__()[1]:
        state.reach(content, path)


def _visit_itertool(state: ObjectState, value: Any, path: Path) -> None:
    for content in gc.get_referents(value):  # the iterators that it draws from, which it does not show otherwise
        state.reach(content, path)


def _visit_file(state: ObjectState, value: Any, path: Path) -> None:
    state.watch(path, "a file", value, _file_position)


_VISITORS: list[tuple[type | tuple[type, ...], _Visitor]] = [
    (nn.Module, _visit_module),
    (Tensor, _visit_tensor),
    ((list, deque), _visit_list),
    (dict, _visit_dict),
    (set, _visit_set),
    ((tuple, frozenset), _visit_tuple),
    (types.FunctionType, _visit_function),
    (types.CellType, _visit_cell),
    (types.MethodType, _visit_method),
    (types.BuiltinFunctionType, _visit_builtin),
    (partial, _visit_partial),
    (type, _visit_class),
    (np.ndarray, _visit_array),
    (bytearray, _visit_bytearray),
    (torch.Generator, _visit_torch_generator),
    ((np.random.Generator, np.random.RandomState), _visit_numpy_generator),
    (random.Random, _visit_python_generator),
    (_COMPOSED_ITERATORS, _visit_composed_iterator),
    (_ITERATORS, _visit_iterator),
    (_ITERTOOLS, _visit_itertool),
    (io.IOBase, _visit_file),
]


# The following functions compare before they write: most objects have not changed, and other threads may read them.


def _restore_list(target: list[Any], saved: list[Any]) -> None:
    list.__setitem__(target, slice(None), saved)  # atomic, and faster than comparing


def _restore_deque(target: deque[Any], saved: list[Any]) -> None:
    if len(target) != len(saved) or not all(map(is_, deque.__iter__(target), saved)):
        deque.clear(target)
        deque.extend(target, saved)


def _has_same_items(target: Any, saved: dict[Any, Any], methods: Any) -> bool:
    return (
        len(target) == len(saved)
        and all(map(is_, methods.values(target), saved.values()))
        and all(map(is_, methods.__iter__(target), saved))
    )


def _restore_dict(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    if not _has_same_items(target, saved, dict):
        dict.clear(target)
        dict.update(target, saved)


def _restore_ordered_dict(target: OrderedDict[Any, Any], saved: dict[Any, Any]) -> None:
    if not _has_same_items(target, saved, OrderedDict):
        OrderedDict.clear(target)
        OrderedDict.update(target, saved)


def _restore_set(target: set[Any], saved: set[Any]) -> None:
    if target != saved:
        set.clear(target)
        set.update(target, saved)


def _restore_bytes(target: bytearray, saved: bytes) -> None:
    if target != saved:
        target[:] = saved


def _restore_slot(where: tuple[Any, Any], saved: Any) -> None:
    slot, target = where
    if _read_slot(slot, target) is not saved:
        slot.__delete__(target) if saved is _NOTHING else slot.__set__(target, saved)


def _restore_module(namespace: dict[str, Any], saved: tuple[dict[str, Any], frozenset[str]]) -> None:
    own, names = saved
    if namespace.keys() != names:
        for name in namespace.keys() - names:
            del namespace[name]
    namespace.update(own)


def _restore_class(target: type, saved: tuple[dict[str, Any], frozenset[str]]) -> None:
    own, names = saved
    for name in vars(target).keys() - names:
        type.__delattr__(target, name)
    for name, content in own.items():
        if vars(target).get(name, _NOTHING) is not content:
            type.__setattr__(target, name, content)


def _restore_variable(where: tuple[dict[str, Any], str], saved: Any) -> None:
    namespace, name = where
    if namespace.get(name, _NOTHING) is saved:
        return
    if saved is _NOTHING:
        del namespace[name]
    else:
        namespace[name] = saved


def _restore_cell(cell: types.CellType, saved: Any) -> None:
    try:
        now = cell.cell_contents
    except ValueError:
        now = _NOTHING
    if now is saved:
        return
    if saved is _NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = saved


def _restore_torch_generator(target: torch.Generator, saved: Tensor) -> None:
    target.set_state(saved)


def _restore_bits(bits: Any, saved: Any) -> None:
    bits.state = saved


def _restore_data(tensor: Tensor, alias: Tensor) -> None:
    if tensor.data_ptr() != alias.data_ptr():
        tensor.data = alias


def _set_version(tensor: Tensor, version: int) -> None:
    """Sets the version of `tensor`; otherwise, a backward pass would fail if its graph refers to it."""
    keeper = _unsafe_preserve_version_counter(tensor)
    for name, value in vars(keeper).items():
        if name.startswith("prev_version"):
            setattr(keeper, name, (version,) if isinstance(value, tuple) else version)
    keeper.__exit__(None, None, None)


def is_writable(tensor: Tensor) -> bool:
    """Whether `tensor` can be written to in place, which requires that its elements do not share memory."""
    if is_lazy(tensor) or tensor.is_inference() or tensor.layout != torch.strided:
        return False
    if tensor.is_contiguous():
        return True
    return all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _version(tensor: Tensor) -> int:
    return tensor._version


def _gradient_version(tensor: Tensor) -> tuple[int, int]:
    return id(tensor.grad), 0 if tensor.grad is None else tensor.grad._version


def _sample(array: np.ndarray) -> bytes:
    """Returns about a thousand evenly spaced elements, since reading all of a large array would take too long."""
    return array.ravel(order="K")[:: max(1, array.size // 1000)].tobytes() if array.flags.forc else b""


def _position(iterator: Any) -> object:
    if isinstance(iterator, count):
        return repr(iterator)
    if isinstance(iterator, _BaseDataLoaderIter):
        return iterator._num_yielded
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, {name: id(x) for name, x in frame.f_locals.items()})
    return length_hint(iterator, -1)


def _file_position(file: Any) -> object:
    try:
        return "closed" if file.closed else file.tell()
    except (OSError, ValueError):
        return None


def _render(path: Path) -> str:
    """Returns the expression that leads to an object, such as ``self.losses['a'].record``."""
    parts: list[str] = []
    at: Path | None = path
    while at is not None:
        at, kind, key = at
        parts.append(f"[{key!r}]" if kind == "entry" else f".{key}" if kind == "attribute" else str(key))
    return "".join(reversed(parts))
