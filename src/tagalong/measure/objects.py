"""Saves what a closure may change (objects, tensors, modules, random generators), and restores it bit for bit.

The objects are found by a plain walk from the closure's variables: through attributes, lists, dicts and modules.
"""

from __future__ import annotations

import random
import re
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import compress
from operator import is_
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .isolation import (
    address,
    differ,
    norms_of,
    read_attributes,
    read_tensors,
    sample,
    version,
    write_attributes,
    write_tensors,
)

STATE_MEMORY = 64 * 2**20  # bytes
MAX_OBJECTS = 20_000  # more would take too long to search; the nearest ones come first
# Of a container with those inside it; more are data: up to 50 times as many are copied, but not searched.
MAX_ENTRIES = 1000
LARGE = 65_536  # bytes; larger tensors and arrays that have not changed so far are only watched

_ATOMS = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(...), range, slice, type),
        *(torch.dtype, torch.device, torch.Size, types.CodeType, types.ModuleType, object),
    }
)
# Objects of these packages are left alone, except networks: threads may share them.
_LEFT_ALONE = frozenset(sys.stdlib_module_names - {"__main__", "argparse", "collections", "types"}) | {"torch", "numpy"}
_OF_THREADS = frozenset({"_queue", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "threading"})
# Of the attributes that every network has, a forward pass may change only its parts.
_UNCHANGED = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"}

Read = Callable[[Any], Any]
Write = Callable[[Any, Any], Any] | None


class ClosureState:
    """The state of everything that a closure reaches, before its first run and after it.

    Restoring writes the old contents into the same objects, so that every reference to them stays valid. What cannot be
    restored is only watched: trained parameters and their gradients, sets, deques, long containers, and tensors and
    arrays for which there is no memory. Objects of the standard library and of torch, optimizers, and objects that hold
    a lock or a thread are left alone.

    Args:
        memory: The number of bytes available for copies of tensors and arrays.
        constants: The ids of large tensors and arrays that have not changed so far, which are watched, not copied.
        verify: Whether to copy them all the same.

    Attributes:
        modules: The modules that the closure uses, by id.
        seen: Everything that the closure reaches, by id.
        start: The contents of everything that is saved, before the first run.
        end: The contents after the first run; empty if it has not finished.
        copied: The number of bytes copied.
        truncated: Whether there were too many objects to search all of them.
        compiled: Whether torch.compile has compiled any of the modules, whose state cannot be saved then.
    """

    def __init__(self, memory: float, constants: set[int] | None = None, *, verify: bool = True) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.start, self.end = list[Any](), list[Any]()
        self.copied, self.truncated, self.compiled = 0, False, False
        self._memory, self._constants, self._verify = memory, set() if constants is None else constants, verify
        self.seen: dict[Any, Any] = {}  # the objects too, so that no id is used twice
        self._places: list[tuple[Any, Read, Write, str]] = []  # what is saved (without `Write`, only watched)
        self._arrays, self._copies = list[tuple[Any, str]](), list[tuple[Any, Any]]()
        self._parameters: list[Tensor] = []  # leaves that require gradients
        self._parameter_names, self._norms = list[str](), list[Tensor]()
        self._views: set[int] = set()  # the ids of tensors and arrays that share memory with them
        # The generators of Python and numpy are reached through their methods.
        generators = [random.getstate, np.random.get_state, torch.default_generator, *torch.cuda.default_generators]
        on_mps = [torch.mps._get_default_mps_generator()] if torch.backends.mps.is_available() else []
        self.add([*generators, *on_mps], "generators")

    def add(self, value: Any, name: str) -> None:
        # Saves what `value` reaches, unless it is already saved. `name` is used in messages.
        self._walk([(value, name, MAX_ENTRIES)])

    def add_module(self, module: nn.Module) -> None:
        for part in module.modules():
            self.modules[id(part)] = part
            self.add(part, type(part).__name__)

    def save_end(self) -> list[str]:
        # Saves the state after the first run, and returns what has changed and cannot be restored.
        self.end = [read(target) for target, read, *_ in self._places]
        # Backward hooks may change objects that the run has created, such as lists of activations.
        for old, new in [*zip(self.start, self.end, strict=True)]:
            if isinstance(new, dict | list) and len(new) <= MAX_ENTRIES:
                old_values, new_values = ([*x.values()] if isinstance(x, dict) else x for x in (old, new))
                if len(old) != len(new) or not all(map(is_, old_values, new_values)):
                    self._walk([(value, "a new object", MAX_ENTRIES) for value in new_values])
        self.end += self.start[len(self.end) :]

        # Views of trained parameters, such as ``p.data`` in a list, must follow the steps that are tried.
        storages = {address(p) for p in self._parameters if p.layout == torch.strided}
        self._views |= {id(value) for value, _ in self._copies if address(value) in storages}
        if self._verify:
            large = ((x, saved) for x, saved in self._copies if x.nbytes > LARGE and x.shape == saved.shape)
            self._constants |= {id(x) for x, saved in large if bool((x == saved).all())}

        changes = []
        for (target, _, write, name), old, new in zip(self._places, self.start, self.end, strict=True):
            if write is None and new != old:
                self._constants.discard(id(target))
                changes.append(name)
        # Writes through ``.data`` do not change versions, but norms. This reads the device once.
        if self._parameters:
            moved = differ(norms_of(self._parameters), self._norms)
            changes += [f"`{name}` (a parameter)" for name in compress(self._parameter_names, moved)]
        # ``model._modules['encoder']`` is shown as ``model.encoder``.
        names = [
            re.sub(r"\._(?:parameters|buffers|modules)\['([^']+)'\]", r".\1", name) for name in dict.fromkeys(changes)
        ]
        return names if len(names) <= 5 else [*names[:4], f"{len(names) - 4} others"]

    def restore(self, contents: Sequence[Any]) -> None:
        for (target, _, write, _), content in zip(self._places, contents, strict=False):
            if write is not None:
                write(target, content)

    def _save(self, target: Any, read: Read, write: Write, name: str = "") -> None:
        self._places.append((target, read, write, name))
        self.start.append(read(target))

    def _walk(self, start: list[tuple[Any, str, int]]) -> None:
        # Visits objects, given with their names and how many entries of containers to search, nearest first.
        waiting, limit = deque(start), len(self.seen) + MAX_OBJECTS
        while waiting and len(self.seen) < limit:
            value, name, entries = waiting.popleft()
            if type(value) in _ATOMS or id(value) in self.seen:
                continue
            self.seen[id(value)] = value
            if isinstance(value, Tensor):
                waiting += self._visit_tensor(value, name)
            elif isinstance(value, types.FunctionType):
                waiting += self._visit_function(value, entries)
            else:
                self._visit(value, name, entries)
                waiting += _contents(value, name, entries)
            if _has_state(value):
                self._save(vars(value), *_KINDS[dict])
                entries = MAX_ENTRIES if isinstance(value, nn.Module) else entries
                waiting += [(x, f"{name}.{key}", entries) for key, x in vars(value).items() if key not in _UNCHANGED]
                own_classes = (kind for kind in type(value).__mro__ if not is_library(kind.__module__))
                waiting += [(x, name, entries) for kind in own_classes for x in vars(kind).values() if callable(x)]
        self.truncated |= bool(waiting)
        self._copy_arrays()
        self._norms += norms_of(self._parameters[len(self._norms) :])

    def _visit(self, value: Any, name: str, entries: int) -> None:
        kind = next((kind for kind in _KINDS if isinstance(value, kind)), None)
        if isinstance(value, np.ndarray) and value.flags.writeable:
            self._arrays.append((value, name))
        elif isinstance(value, list | dict | set | deque) and len(value) > 50 * entries:
            self._save(value, len, None, f"`{name}` (a long container)")
        elif kind is not None:
            self._save(value, *_KINDS[kind], f"`{name}` (a {kind.__name__})")

    def _visit_function(self, function: types.FunctionType, entries: int) -> Iterator[tuple[Any, str, int]]:
        cells = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
        yield from ((cell, name, entries) for cell, name in cells if cell != types.CellType())
        yield from ((x, function.__name__, entries) for x in (function.__defaults__, function.__kwdefaults__))
        # Saves the variables that it names, in its own module and in modules of the user's that it refers to.
        names = set() if is_library(function.__module__) else _variable_names(function.__code__)
        namespaces = [function.__globals__]
        for namespace in namespaces:  # which grows
            fresh = {name for name in names if (id(namespace), name) not in self.seen}
            self.seen |= {(id(namespace), name): None for name in fresh}
            self._save((namespace, fresh), lambda at: {x: at[0][x] for x in at[1] & at[0].keys()}, _write_variables)
            variables = self.start[-1]
            yield from ((x, name, MAX_ENTRIES) for name, x in variables.items())
            modules = (x for x in variables.values() if isinstance(x, types.ModuleType))
            namespaces += [vars(module) for module in modules if not is_library(module.__name__)]

    def _visit_tensor(self, tensor: Tensor, name: str) -> Iterator[tuple[Any, str, int]]:
        is_plain = type(tensor) in (Tensor, nn.Parameter)  # the attributes of other kinds belong to torch
        is_dense = is_plain and tensor.layout == torch.strided and torch._debug_has_internal_overlap(tensor) != 1
        if is_lazy(tensor) or tensor.is_inference():
            self._save(tensor, is_lazy, None, f"`{name}` (a parameter of a lazy module; run the model once first)")
            return
        if tensor.is_leaf and tensor.requires_grad:
            self._parameters.append(tensor)
            self._parameter_names.append(name)
            self._save(tensor, version, None, f"`{name}` (a parameter)")
        elif tensor.is_leaf and is_dense:
            self._arrays.append((tensor, name))
        else:
            self._save(tensor, version, None, f"`{name}` (a tensor)")
        if tensor.is_leaf:
            self._save(tensor, read_attributes, write_attributes)
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                self._save(tensor, lambda p: version(p.grad), None, f"`{name}.grad` (a gradient)")
            else:
                yield tensor.grad, f"{name}.grad", 0
        if is_plain:
            yield from ((x, f"{name}.{key}", MAX_ENTRIES) for key, x in vars(tensor).items())

    def _copy_arrays(self) -> None:
        # The smallest come first, so that a large one does not use up the memory.
        groups: defaultdict[Any, list[Tensor]] = defaultdict(list)
        for value, name in sorted(self._arrays, key=lambda pair: pair[0].nbytes):
            if (id(value) in self._constants and not self._verify) or self.copied + value.nbytes > self._memory:
                self._constants.add(id(value))  # even if there is memory for it in the next call
                read = version if isinstance(value, Tensor) else sample
                self._save(value, read, None, f"`{name}` (a {type(value).__name__} too large for `state_memory`)")
                continue
            self.copied += value.nbytes
            if isinstance(value, Tensor):
                groups[value.dtype, value.device].append(value)
            else:
                self._save(value, np.copy, lambda x, saved: None if id(x) in self._views else np.copyto(x, saved))
                self._copies.append((value, self.start[-1]))
        for tensors in groups.values():
            self._save(tensors, read_tensors, partial(write_tensors, kept=self._views))
            self._copies += zip(tensors, self.start[-1][1], strict=True)
        self._arrays = []


@lru_cache(maxsize=4096)
def is_library(module: object) -> bool:
    # Part of Python or torch, or in a folder into which packages are installed.
    file = getattr(sys.modules.get(str(module)), "__file__", None) or "/"
    is_standard = not isinstance(module, str) or module.partition(".")[0] in _LEFT_ALONE | {"tagalong"}
    return is_standard or any(next(folder.glob("*.dist-info"), None) for folder in Path(file).resolve().parents)


def _contents(value: Any, name: str, entries: int) -> Iterator[tuple[Any, str, int]]:
    # What an object refers to, other than by its attributes.
    if isinstance(value, dict | list | tuple | set | deque) and len(value) <= entries:
        # The entries share what is left to search, so that a table of records costs little more than its list.
        share = entries // max(1, len(value)) + 10
        for key, content in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
            yield content, f"{name}[{key!r}]" if isinstance(key, str | int) else name, share
    elif isinstance(value, types.CellType):
        yield value.cell_contents, name, entries
    elif isinstance(value, types.MethodType | types.BuiltinFunctionType | partial):
        for part in ("__self__", "__func__", "func", "args", "keywords"):
            yield getattr(value, part, None), name, entries


def _has_state(value: Any) -> bool:
    # Whether it has attributes that a closure may change.
    attributes, module = getattr(value, "__dict__", None), str(type(value).__module__)
    if not isinstance(attributes, dict) or isinstance(value, Tensor | type | torch.optim.Optimizer | BaseException):
        return False
    has_threads = any(type(x).__module__.partition(".")[0] in _OF_THREADS for x in attributes.values())
    is_own = module.partition(".")[0] not in _LEFT_ALONE and not module.startswith("tagalong.measure")
    return (is_own or isinstance(value, nn.Module | types.FunctionType)) and not has_threads


def _variable_names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_variable_names(x) for x in code.co_consts if isinstance(x, types.CodeType)))


def _write_variables(where: tuple[dict[str, Any], set[str]], saved: dict[str, Any]) -> None:
    namespace, names = where
    for name in names - saved.keys():
        namespace.pop(name, None)
    namespace.update(saved)


def _write_dict(target: dict[Any, Any], saved: dict[Any, Any], kind: Any = dict) -> None:
    same = len(target) == len(saved) and all(map(is_, kind.values(target), saved.values()))
    if not same or not all(map(is_, kind.__iter__(target), saved)):  # otherwise, other threads may be reading it
        kind.clear(target)
        kind.update(target, saved)


# How to read and write the first kind that fits: with functions of the base classes, which subclasses may have changed.
_KINDS: dict[type, tuple[Read, Write]] = {
    list: (list.copy, lambda target, saved: list.__setitem__(target, slice(None), saved)),
    OrderedDict: (lambda x: dict(OrderedDict.items(x)), partial(_write_dict, kind=OrderedDict)),
    dict: (lambda x: dict(dict.items(x)), _write_dict),
    types.CellType: (lambda cell: cell.cell_contents, lambda cell, x: setattr(cell, "cell_contents", x)),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (lambda x: x.bit_generator.state, lambda x, state: setattr(x.bit_generator, "state", state)),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    **dict.fromkeys((set, deque), (lambda x: [y if type(y) in _ATOMS else id(y) for y in x], None)),
}
