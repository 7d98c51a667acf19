"""Keys of trained networks: hashes of everything that determines the result of training."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property, partial
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tagalong._version import NUMERICS, is_own_module
from tagalong.learn import Job, Problem, Taught, build_network, describe_rule

CONSTANT_TYPES = (type(None), bool, int, float, complex, str, bytes, range, Enum, torch.dtype, np.generic)
FUNCTION_TYPES = (FunctionType, BuiltinFunctionType, MethodType, partial)
COMPARABLE_TYPES = (*CONSTANT_TYPES, np.ndarray, Tensor, type, *FUNCTION_TYPES)
MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # common to all modules
NO_REPR: Any = object.__repr__


class Keys:
    """Computes the keys of the networks for one problem and device type.

    A key depends on the data, the tasks, the losses, the rule, the seed, the recipe, the architecture with its initial
    weights, the width, the device type and `NUMERICS`. If others teach the network, its key also depends on their keys,
    on how it learns from them, and on additional rows. If it is another network than the problem's own, its key depends
    on the recipe and architecture of that network, and on its name. A key does not depend on the method that needs the
    network, so methods can share networks. Nor does a key depend on the version of tagalong or on where a class is
    defined, so networks can still be found after either changes. `NUMERICS` changes only when training results change.

    - A tagalong layer is identified by its class name, its parameters and submodules, and its `extra_repr`, which
      includes every setting that affects its output. The layer's code and other attributes may change without affecting
      the key.

    - A torch layer is identified by its class name, its parameters and submodules, and its plain public attributes.

    - Any other layer is identified in the same way, but also by its code and its plain private attributes.

    - A top-level function of tagalong or torch is identified by its name. Any other function is identified by its code
      and by the module-level constants and functions that it uses.

    - A recipe is identified only by `Recipe.definition`, so keys do not change when new settings are added.

    Args:
        problem: the problem that the networks are trained on.
        device: the device type, e.g. "cpu" or "cuda". The device index is ignored.
        numerics: the version of the training results (see `NUMERICS`).
    """

    def __init__(self, problem: Problem, device: torch.device | str, numerics: int = NUMERICS) -> None:
        self.problem, self.device, self.numerics = problem, torch.device(device).type, numerics
        self._known: dict[Job, str] = {}
        self._networks: dict[str, dict[str, Any]] = {}

    def of(self, job: Job) -> str:
        """Returns a network's key, which has 64 hexadecimal digits."""
        if job not in self._known:
            self._known[job] = _digest(self.definition(job))
        return self._known[job]

    def of_affinity(self, job: Job, settings: Mapping[str, Any]) -> str:
        """Returns the key of the affinity that a meter with these settings measures while this network is trained."""
        return _digest({"network": self.of(job), "meter": dict(settings)})

    def of_computation(self, definition: Mapping[str, Any]) -> str:
        """Returns the key of something that is computed from the data and tasks, without a network."""
        return _digest({"data": self.problem.fingerprint, "losses": self._losses, "computation": dict(definition)})

    def definition(self, job: Job) -> dict[str, Any]:
        """Returns everything that determines the result of training a network, as a JSON document."""
        own = {"tasks": list(job.tasks), "seed": job.seed, "rule": describe_rule(job.rule), "width": float(job.width)}
        optional = {"epochs": job.epochs, "lr": job.lr}
        given: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        if job.taught is not None:
            given["taught"] = self._taught_definition(job.taught)
        if job.weighting is not None:
            given["rows"] = self.problem.weighted(job.weighting).fingerprint
        if job.network is not None:
            return own | given | self._common_definition | self._network_definition(job.network)
        return own | given | self._common_definition

    def _network_definition(self, name: str) -> dict[str, Any]:
        """Returns what differs between the problem's own network and another one."""
        if name not in self._networks:
            other = Keys(self.problem.with_network(name), self.device, self.numerics)
            recipe = other.problem.recipe.definition
            self._networks[name] = {"network": name, "architecture": other.architecture, "recipe": recipe}
        return self._networks[name]

    def _taught_definition(self, taught: Taught) -> dict[str, Any]:
        """Returns the teachers and what determines their answers besides the definitions of the teachers."""
        unlabelled = self.problem.unlabelled_fingerprint if taught.unlabelled else None
        tasks = [
            [task.name, task.average, task.soft_targets]
            for task in self.problem.tasks
            if task.average is not None or task.soft_targets
        ]
        return taught.to_document() | {"unlabelled": unlabelled} | ({"tasks": tasks} if tasks else {})

    @cached_property
    def _common_definition(self) -> dict[str, Any]:
        return {
            "data": self.problem.fingerprint,
            "losses": self._losses,
            "architecture": self.architecture,
            "recipe": self.problem.recipe.definition,
            "device": self.device,
            "numerics": self.numerics,
        }

    @cached_property
    def _losses(self) -> str:
        return _digest([self._task_identity(name) for name in self.problem.names])[:16]

    @cached_property
    def architecture(self) -> str:
        """A hash of the layers, their settings and their initial weights, as 16 hexadecimal digits."""
        network = build_network(self.problem, self.problem.names, seed=0)
        _, *layers = _layer_identities(network)  # the first layer is just the container
        return _digest([layers, _tensor_identities(network)])[:16]

    def _task_identity(self, name: str) -> list[Any]:
        task = self.problem.task(name)
        return [name, task.kind, _identity(task.loss), _identity(task.error), self.problem.scales.get(name)]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=_identity).encode()).hexdigest()


def _layer_identities(module: nn.Module, enclosing: frozenset[int] = frozenset()) -> list[list[Any]]:
    return [[name, *_layer_identity(part, enclosing)] for name, part in module.named_modules()]


def _tensor_identities(module: nn.Module) -> list[list[Any]]:
    """Returns the parameters and buffers, and whether each is trainable.

    Shared tensors are listed once.
    """
    found = chain(module.named_parameters(), module.named_buffers())
    return [[name, _tensor_identity(tensor), tensor.requires_grad] for name, tensor in found]


def _tensor_identity(tensor: Tensor) -> list[Any]:
    content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(content).hexdigest()]


def _layer_identity(module: nn.Module, enclosing: frozenset[int]) -> list[Any]:
    """Returns a layer's class name, settings and training mode, and its code if it is user-defined (see `Keys`)."""
    kind = type(module)
    settings: Any
    if is_own_module(kind.__module__):
        settings = module.extra_repr()
    else:
        user_defined = not _is_known(kind.__module__)
        settings = [
            [name, _identity(value, enclosing)]
            for name, value in sorted(vars(module).items())
            if name not in MODULE_ATTRIBUTES and (user_defined or not name.startswith("_")) and _is_comparable(value)
        ]
    return [kind.__qualname__, settings, module.training, _class_code(kind, enclosing)]


def _class_code(cls: type, enclosing: frozenset[int]) -> list[Any]:
    """Returns the methods and constants of a user-defined class and of its user-defined base classes."""
    own = [part for part in cls.__mro__ if not _is_known(part.__module__)]
    return [[name, _identity(value, enclosing)] for part in own for name, value in _class_members(part)]


def _class_members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(cls).items()):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, (property, cached_property)):
            value = value.fget if isinstance(value, property) else value.func
        if isinstance(value, FunctionType) or (not name.startswith("__") and _is_comparable(value)):
            yield name, value


def _is_known(module: str) -> bool:
    """Whether this module belongs to tagalong, torch or Python, whose code is identified by name."""
    return is_own_module(module) or module.partition(".")[0] in ("torch", "builtins")


def _is_comparable(value: Any) -> bool:
    """Whether a value can be compared across processes."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_is_comparable, value))
    if isinstance(value, Mapping):
        return all(map(_is_comparable, chain(value.keys(), value.values())))
    return isinstance(value, COMPARABLE_TYPES) or (is_dataclass(value) and not isinstance(value, type))


def _identity(value: Any, enclosing: frozenset[int] = frozenset()) -> Any:
    """Converts a value to JSON by type and content, never by memory address.

    Different lambdas and settings therefore get different keys.

    Args:
        value: any value.
        enclosing: the `id`s of the enclosing values. Recursion stops at a value that contains itself.
    """
    if id(value) in enclosing:
        return "…"
    enclosing |= {id(value)}
    identify = partial(_identity, enclosing=enclosing)
    if isinstance(value, (tuple, list)):
        return [*map(identify, value)]
    if isinstance(value, (set, frozenset)):  # their order differs between processes
        return sorted(json.dumps(identify(part)) for part in value)
    if isinstance(value, Mapping):
        return [[identify(key), identify(part)] for key, part in value.items()]
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, (np.ndarray, Tensor)):
        return _array_identity(value)
    if isinstance(value, partial):
        return ["partial", *map(identify, (value.func, *value.args, *sorted(value.keywords.items())))]
    if isinstance(value, MethodType):
        return [identify(value.__func__), identify(value.__self__)]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), [*map(identify, value.co_consts)]]
    if isinstance(value, FunctionType):
        return _function_identity(value, identify)
    return _object_identity(value, enclosing)


def _array_identity(value: np.ndarray[Any, Any] | Tensor) -> Any:
    if isinstance(value, Tensor):
        return _tensor_identity(value)
    return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]


def _function_identity(value: FunctionType, identify: partial[Any]) -> Any:
    named = "<" not in value.__qualname__ and not hasattr(value, "__wrapped__")
    # functools.wraps copies the name and module of the wrapped function, but not its globals.
    if named and _is_known(value.__globals__.get("__name__", "")):
        return value.__qualname__
    settings = (value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items())))
    parts = [value.__code__, settings, *(cell.cell_contents for cell in value.__closure__ or ())]
    return [value.__qualname__, *map(identify, parts), *_used_globals(value)]


def _used_globals(function: FunctionType) -> list[Any]:
    """Returns, by name, the module-level constants and functions that a function uses directly or indirectly."""
    found: dict[str, Any] = {}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        for name in _used_names(one.__code__) - found.keys():
            value = one.__globals__.get(name)
            if isinstance(value, FunctionType) and not _is_known(value.__module__ or ""):
                found[name] = _identity(value.__code__)
                waiting += [value] if value.__globals__ is one.__globals__ else []
            elif value is not None and isinstance(value, CONSTANT_TYPES) and not name.startswith("__"):
                found[name] = repr(value)
    return [[name, found[name]] for name in sorted(found)]


def _used_names(code: CodeType) -> set[str]:
    inner = [_used_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _object_identity(value: Any, enclosing: frozenset[int]) -> Any:
    kind = type(value)
    if isinstance(value, nn.Module):
        return [_layer_identities(value, enclosing), _tensor_identities(value)]
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, ModuleType):
        return value.__name__
    attributes = {name: getattr(value, name) for name in _slot_names(kind) if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )
    if kind.__repr__ is NO_REPR or (attributes and callable(value)):
        hidden = "_" if is_own_module(kind.__module__) else "__"  # e.g. a copied __module__
        shown = sorted(name for name in attributes if name == "__wrapped__" or not name.startswith(hidden))
        code = _class_code(kind, enclosing) if callable(value) else []
        return [kind.__qualname__, code, *([name, _identity(attributes[name], enclosing)] for name in shown)]
    return MEMORY_ADDRESS.sub("", repr(value))


def _slot_names(cls: type) -> Iterator[str]:
    for part in cls.__mro__:
        slots = vars(part).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
