"""How objects of each kind are searched, and what is saved of them, so that they can be restored."""

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
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache, partial
from itertools import chain, count, islice
from operator import length_hint
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .object_restoring import (
    NOTHING,
    Restore,
    read_slot,
    restore_bits,
    restore_bytes,
    restore_cell,
    restore_class,
    restore_deque,
    restore_dict,
    restore_list,
    restore_module,
    restore_ordered_dict,
    restore_set,
    restore_slot,
    restore_torch_generator,
    restore_variable,
)

if TYPE_CHECKING:
    from .objects import ObjectState

MAX_ENTRIES = 1000  # containers are saved as a whole, but the entries of longer ones are rarely state
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Attributes that every Module has, except the mode; a forward pass does not change them.
_STANDARD_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]

ATOMS = frozenset(
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


Visitor = Callable[["ObjectState", Any, Path], None]


def visitor_of(kind: type) -> Visitor:
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
    _save_container(state, value, entries, path, restore_list if isinstance(value, list) else restore_deque)
    _reach_entries(state, entries, enumerate(entries), path)
    _visit_own_attributes(state, value, path)


def _visit_dict(state: ObjectState, value: Any, path: Path) -> None:
    methods: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    entries = dict(methods.items(value))
    _save_container(state, value, entries, path, restore_ordered_dict if methods is OrderedDict else restore_dict)
    _reach_entries(state, entries.values(), entries.items(), path)
    _visit_own_attributes(state, value, path)


def _visit_set(state: ObjectState, value: Any, path: Path) -> None:
    _save_container(state, value, set(value), path, restore_set)
    _visit_own_attributes(state, value, path)


def _visit_bytearray(state: ObjectState, value: Any, path: Path) -> None:
    _save_container(state, value, bytes(value), path, restore_bytes)


def _visit_tuple(state: ObjectState, value: Any, path: Path) -> None:
    _reach_entries(state, value, enumerate(value), path)


def _save_container(state: ObjectState, value: Any, entries: Any, path: Path, restore: Restore) -> None:
    if state.reserve(len(entries) if isinstance(entries, bytes) else 8 * len(entries)):
        state.save(restore, value, entries)
    else:
        state.watch(path, f"a {type(value).__name__} larger than the meter's `state_memory`", value, len)


def _reach_entries(state: ObjectState, values: Iterable[Any], named: Iterable[tuple[Any, Any]], path: Path) -> None:
    if set(map(type, values)) <= ATOMS:
        return
    for key, value in islice(named, MAX_ENTRIES):
        if type(value) not in ATOMS:
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
        state.save(restore_dict, namespace, found)
    for name, slot in slots.items():
        content = read_slot(slot, value)
        state.save(restore_slot, (slot, value), content)
        state.reach(content, (path, "attribute", name))
    for name, content in found.items():
        if type(content) not in ATOMS:
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


def _visit_module(state: ObjectState, value: Any, path: Path) -> None:
    namespace = vars(value)
    own = {name: content for name, content in namespace.items() if name not in _STANDARD_ATTRIBUTES}
    state.save(restore_module, namespace, (own, frozenset(namespace)))
    for name, content in chain(own.items(), namespace.get("_modules", {}).items()):
        if type(content) not in ATOMS:
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
    state.save(restore_class, value, (own, frozenset(vars(value))))
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
        content = namespace.get(name, NOTHING)
        if stores:
            state.save(restore_variable, (namespace, name), content)
        if isinstance(content, types.ModuleType):
            if _is_user_code(content.__name__):
                _reach_module_variables(state, content, names)
        elif content is not NOTHING:
            state.reach(content, (None, "name", name))


def _reach_module_variables(state: ObjectState, module: types.ModuleType, names: set[str]) -> None:
    namespace = vars(module)
    for name in names & namespace.keys():
        state.save(restore_variable, (namespace, name), namespace[name])
        state.reach(namespace[name], (None, "name", f"{module.__name__}.{name}"))


def _visit_cell(state: ObjectState, value: Any, path: Path) -> None:
    try:
        content = value.cell_contents
    except ValueError:
        content = NOTHING
    state.save(restore_cell, value, content)
    if content is not NOTHING:
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
        state.watch(path, "a tensor", value, version_of)
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
    state.save(restore_torch_generator, value, value.get_state())


def _visit_numpy_generator(state: ObjectState, value: Any, path: Path) -> None:
    bits = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
    state.save(restore_bits, bits, bits.state)


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


_VISITORS: list[tuple[type | tuple[type, ...], Visitor]] = [
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


def is_writable(tensor: Tensor) -> bool:
    """Whether `tensor` can be written to in place, which requires that its elements do not share memory."""
    if is_lazy(tensor) or tensor.is_inference() or tensor.layout != torch.strided:
        return False
    if tensor.is_contiguous():
        return True
    return all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def version_of(tensor: Tensor) -> int:
    return tensor._version


def _gradient_version(tensor: Tensor) -> tuple[int, int]:
    return id(tensor.grad), 0 if tensor.grad is None else tensor.grad._version


def sample_of(array: np.ndarray) -> bytes:
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
