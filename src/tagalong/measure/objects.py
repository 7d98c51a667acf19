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
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import is_, length_hint
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parameter import is_lazy

from .isolation import copy_tensors

STATE_MEMORY = 64 * 2**20  # bytes
MAX_OBJECTS = 20_000  # more would take too long to search; the nearest ones come first
MAX_ENTRIES = (
    1000  # of a container with those inside it; more are data: up to 50 times as many are copied, not searched
)
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


class ClosureState:
    """The state of everything that a closure reaches, before its first run and after it.

    Restoring writes the old contents into the same objects, so that every reference to them stays valid. What cannot be
    restored is only watched: trained parameters and their gradients, sets, deques, long containers, and tensors and
    arrays for which there is no memory. Objects of the standard library and of torch, optimizers, and objects that hold
    a lock or a thread are left alone.

    Args:
        memory: The number of bytes available for copies of tensors and arrays.
        constants: The ids of large tensors and arrays that have not changed so far, which are watched, not copied.
        verify: Whether to copy them all the same, and to look for writes through ``.data`` to parameters.

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
        self._waiting: deque[tuple[Any, str, int]] = deque()  # objects, their names, and how many entries to search
        self._arrays, self._copies = list[tuple[Any, str]](), list[tuple[Any, Any]]()
        self._places: list[tuple[Any, Callable[..., Any], Callable[..., Any] | None, str]] = []
        self._parameters: list[tuple[Tensor, str]] = []  # leaves that require gradients
        self._norms: list[Tensor] = []  # of these parameters
        self._views: set[int] = set()  # the ids of tensors and arrays that share memory with them
        # The generators of Python and numpy are reached through their methods.
        self.add(
            [random.getstate, np.random.get_state, torch.default_generator, *torch.cuda.default_generators],
            "generators",
        )
        if torch.backends.mps.is_available():
            self.add(torch.mps._get_default_mps_generator(), "generators")

    def add(self, value: Any, name: str) -> None:
        # Saves what `value` reaches, unless it is already saved. `name` is used in messages.
        limit = len(self.seen) + MAX_OBJECTS
        self._waiting.append((value, name, MAX_ENTRIES))
        while self._waiting and len(self.seen) < limit:
            value, name, entries = self._waiting.popleft()
            if type(value) not in _ATOMS and id(value) not in self.seen:
                self.seen[id(value)] = value
                self._visit(value, name, entries)
        self.truncated |= bool(self._waiting)
        self._waiting.clear()
        self._copy_arrays()
        self._norms += _norms_of(self._parameters[len(self._norms) :])

    def add_module(self, module: nn.Module) -> None:
        for part in module.modules():
            self.modules[id(part)] = part
            self.add(part, type(part).__name__)

    def save_end(self) -> list[str]:
        """Saves the state after the first run, and returns what has changed and cannot be restored."""
        self.end = [read(target) for target, read, *_ in self._places]
        # Backward hooks may change objects that the run has created, such as lists of activations.
        for old, new in zip(self.start[:], self.end[:], strict=True):
            if isinstance(new, dict | list) and max(len(old), len(new)) <= MAX_ENTRIES:
                known = {id(x) for x in (old.values() if isinstance(old, dict) else old)}
                for value in new.values() if isinstance(new, dict) else new:
                    if id(value) not in known:
                        self.add(value, "a new object")
        self.end += self.start[len(self.end) :]
        # Views of trained parameters, such as ``p.data`` in a list, must follow the steps that are tried.
        storages = {_address(p) for p, _ in self._parameters if p.layout == torch.strided}
        self._views = {id(value) for value, _ in self._copies if _address(value) in storages}
        if self._verify:
            self._constants |= {
                id(x)
                for x, copy in self._copies
                if x.nbytes > LARGE and x.shape == copy.shape and bool((x == copy).all())
            }
        changes: dict[str, None] = {}
        for (target, _, write, name), old, new in zip(self._places, self.start, self.end, strict=True):
            if write is None and bool(new != old):
                self._constants.discard(id(target))
                changes[name] = None
        # Writes through ``.data`` do not change versions, but norms. This reads the device once.
        if self._parameters:
            moved = _stacked(_norms_of(self._parameters)) != _stacked(self._norms)
            for number in moved.nonzero().flatten().tolist():
                changes[f"`{self._parameters[number][1]}` (a parameter)"] = None
        # ``model._modules['encoder']`` is shown as ``model.encoder``.
        names = [re.sub(r"\._(?:parameters|buffers|modules)\['([^']+)'\]", r".\1", name) for name in changes]
        return names if len(names) <= 5 else [*names[:4], f"{len(names) - 4} others"]

    def restore(self, contents: Sequence[Any]) -> None:
        for (target, _, write, _), content in zip(self._places, contents, strict=False):
            if write is not None:
                write(target, content)

    def _save(self, target: Any, read: Callable[..., Any], write: Callable[..., Any] | None, name: str = "") -> None:
        # Without `write`, the target is only watched.
        self._places.append((target, read, write, name))
        self.start.append(read(target))

    def _watch(self, name: str, kind: str, target: Any, read: Callable[..., Any]) -> None:
        self._save(target, read, None, f"`{name}` ({kind})")

    def _visit(self, value: Any, name: str, entries: int) -> None:
        # Saves or watches the object.
        if isinstance(value, Tensor):
            self._visit_tensor(value, name)
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            self._arrays.append((value, name))
        elif isinstance(value, list | dict | set | deque) and len(value) > 50 * entries:
            self._watch(name, "a long container", value, len)
        elif isinstance(value, set | deque):
            self._watch(
                name, f"a {type(value).__name__}", value, lambda x: [y if type(y) in _ATOMS else id(y) for y in x]
            )
        elif hasattr(type(value), "__length_hint__"):
            self._watch(name, "an iterator", value, length_hint)
        else:
            access = next((access for kind, access in _RESTORED.items() if isinstance(value, kind)), None)
            if access is not None:
                self._save(value, *access)

        # Queues what it refers to.
        if isinstance(value, dict | list | tuple | set | deque) and len(value) <= entries:
            # The entries share what is left to search, so that a table of records costs little more than its list.
            share = entries // max(1, len(value)) + 10
            for key, content in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
                self._waiting.append((content, f"{name}[{key!r}]" if isinstance(key, str | int) else name, share))
        elif isinstance(value, types.CellType):
            self._waiting.append((value.cell_contents, name, entries))
        elif isinstance(value, types.MethodType | types.BuiltinFunctionType | partial):
            parts = ("__self__", "__func__", "func", "args", "keywords")
            self._waiting += [(getattr(value, part, None), name, entries) for part in parts]
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, entries)
        if _has_state(value):
            self._save(vars(value), *_RESTORED[dict])
            entries = MAX_ENTRIES if isinstance(value, nn.Module) else entries
            self._waiting += [(x, f"{name}.{key}", entries) for key, x in vars(value).items() if key not in _UNCHANGED]
            own_classes = (kind for kind in type(value).__mro__ if not is_library(kind.__module__))
            self._waiting += [(x, name, entries) for kind in own_classes for x in vars(kind).values() if callable(x)]

    def _visit_function(self, function: types.FunctionType, entries: int) -> None:
        cells = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
        self._waiting += [(cell, name, entries) for cell, name in cells if cell != types.CellType()]
        self._waiting += [(x, function.__name__, entries) for x in (function.__defaults__, function.__kwdefaults__)]
        # Saves the variables that it names, in its own module and in modules of the user's that it refers to.
        names = set() if is_library(function.__module__) else _variable_names(function.__code__)
        namespaces = [function.__globals__]
        for namespace in namespaces:  # which grows
            fresh = {name for name in names if (id(namespace), name) not in self.seen}
            self.seen |= {(id(namespace), name): None for name in fresh}
            self._save(
                (namespace, fresh), lambda at: {name: at[0][name] for name in at[1] & at[0].keys()}, _write_variables
            )
            self._waiting += [(x, name, MAX_ENTRIES) for name, x in self.start[-1].items()]
            modules = (x for x in self.start[-1].values() if isinstance(x, types.ModuleType))
            namespaces += [vars(module) for module in modules if not is_library(module.__name__)]

    def _visit_tensor(self, tensor: Tensor, name: str) -> None:
        if is_lazy(tensor) or tensor.is_inference():
            self._watch(name, "a parameter of a lazy module; run the model once before measuring", tensor, is_lazy)
            return
        if tensor.is_leaf and tensor.requires_grad:
            self._watch(name, "a parameter", tensor, _version)
            self._parameters.append((tensor, name))
            if isinstance(tensor, nn.Parameter):
                self._watch(
                    f"{name}.grad", "a gradient", tensor, lambda p: None if p.grad is None else _version(p.grad)
                )
            else:
                self._waiting.append((tensor.grad, f"{name}.grad", 0))
        elif (
            type(tensor) in (Tensor, nn.Parameter)
            and tensor.is_leaf
            and tensor.layout == torch.strided
            and torch._debug_has_internal_overlap(tensor) != 1
        ):  # by expand()
            self._arrays.append((tensor, name))
            self._waiting.append((tensor.grad, f"{name}.grad", 0))
        else:
            self._watch(name, "a tensor", tensor, _version)
        if tensor.is_leaf:
            self._save(tensor, lambda x: (x.requires_grad, x.grad, dict(vars(x))), _write_attributes)
        if type(tensor) in (Tensor, nn.Parameter):  # the attributes of other kinds belong to torch
            self._waiting += [(x, f"{name}.{key}", MAX_ENTRIES) for key, x in vars(tensor).items()]

    def _copy_arrays(self) -> None:
        # The smallest come first, so that a large one does not use up the memory.
        groups: defaultdict[Any, list[Tensor]] = defaultdict(list)
        for value, name in sorted(self._arrays, key=lambda pair: pair[0].nbytes):
            if (id(value) in self._constants and not self._verify) or self.copied + value.nbytes > self._memory:
                read = _version if isinstance(value, Tensor) else _sample
                self._watch(name, f"a {type(value).__name__} too large for `state_memory`", value, read)
                continue
            self.copied += value.nbytes
            if isinstance(value, Tensor):
                groups[value.dtype, value.device].append(value)
            else:
                self._save(value, np.copy, lambda x, saved: None if id(x) in self._views else np.copyto(x, saved))
                self._copies.append((value, self.start[-1]))
        for tensors in groups.values():
            self._save(tensors, _read_tensors, self._write_tensors)
            self._copies += zip(tensors, self.start[-1][1], strict=True)
        self._arrays = []

    def _write_tensors(self, tensors: Sequence[Tensor], saved: tuple[list[Tensor], list[Tensor], Any]) -> None:
        aliases, copies, versions = saved
        for tensor, alias in zip(tensors, aliases, strict=True):
            if tensor.data_ptr() != alias.data_ptr():
                tensor.data = alias
        own = [k for k, tensor in enumerate(tensors) if id(tensor) not in self._views]
        if own:
            torch._foreach_copy_([aliases[k] for k in own], [copies[k] for k in own])
        # Otherwise, a backward pass would fail if its graph refers to a tensor that a replay has written.
        versions.__exit__()


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restores the random generators of Python, numpy and torch after the block."""
    generators = ClosureState(0)
    try:
        yield
    finally:
        generators.restore(generators.start)


@lru_cache(maxsize=4096)
def is_library(module: object) -> bool:
    # Part of Python or torch, or in a folder into which packages are installed.
    file = getattr(sys.modules.get(str(module)), "__file__", None) or "/"
    is_standard = not isinstance(module, str) or module.partition(".")[0] in _LEFT_ALONE | {"tagalong"}
    return is_standard or any(next(folder.glob("*.dist-info"), None) for folder in Path(file).resolve().parents)


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
    for name in where[1] - saved.keys():
        where[0].pop(name, None)
    where[0].update(saved)


def _write_dict(target: dict[Any, Any], saved: dict[Any, Any], kind: Any = dict) -> None:
    same = len(target) == len(saved) and all(map(is_, kind.values(target), saved.values()))
    if not same or not all(map(is_, kind.__iter__(target), saved)):  # otherwise, other threads may be reading it
        kind.clear(target)
        kind.update(target, saved)


# The first kind that fits; the functions of the base classes, since subclasses may have changed them.
_RESTORED: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    list: (list.copy, lambda target, saved: list.__setitem__(target, slice(None), saved)),
    OrderedDict: (lambda x: dict(OrderedDict.items(x)), partial(_write_dict, kind=OrderedDict)),
    dict: (lambda x: dict(dict.items(x)), _write_dict),
    types.CellType: (lambda cell: cell.cell_contents, lambda cell, x: setattr(cell, "cell_contents", x)),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (lambda x: x.bit_generator.state, lambda x, state: setattr(x.bit_generator, "state", state)),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}


def _write_attributes(tensor: Tensor, saved: tuple[bool, Tensor | None, dict[str, Any]]) -> None:
    tensor.requires_grad, gradient, attributes = saved
    tensor.grad = gradient
    _write_dict(vars(tensor), attributes)


def _read_tensors(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], Any]:
    aliases = [tensor.data for tensor in tensors]
    return aliases, copy_tensors(aliases), _unsafe_preserve_version_counter(tuple(tensors))


def _version(tensor: Tensor) -> object:
    # Changes if a tensor is written to or replaced, except through ``.data``.
    has_address = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    return id(tensor), tensor._version, tensor.data_ptr() if has_address else 0


def _address(value: Tensor | np.ndarray) -> int:
    # where the memory begins that a value may share with others
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    owner = value.base if isinstance(value.base, np.ndarray) else value
    return owner.ctypes.data


def _norms_of(parameters: Sequence[tuple[Tensor, str]]) -> list[Tensor]:
    if not parameters:
        return []
    values = [torch.view_as_real(p.detach()) if p.is_complex() else p.detach() for p, _ in parameters]
    return list(torch._foreach_norm(values, dtype=torch.float32 if values[0].device.type == "mps" else torch.float64))


def _stacked(norms: Sequence[Tensor]) -> Tensor:
    # NaN, which is not equal to itself, counts as 0.
    return torch.stack([norm.to(norms[0].device) for norm in norms]).nan_to_num()


def _sample(array: np.ndarray) -> bytes:
    # About a thousand evenly spaced elements, since reading all of a large array would take too long.
    return array.ravel(order="K")[:: max(1, array.size // 1000)].tobytes() if array.flags.forc else b""
