"""Keys of trained networks: hashes of everything that determines the training result."""

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
from tagalong.learn import Job, Problem, build_network

CONSTANTS = (type(None), bool, int, float, complex, str, bytes, range, Enum, torch.dtype, np.generic)
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)
PLAIN = (*CONSTANTS, np.ndarray, Tensor, type, *FUNCTIONS)
MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # common to all modules
NO_REPR: Any = object.__repr__


class Keys:
    """Keys of the networks of one problem on one kind of device.

    A key depends on the data, the tasks, the losses, the rule, the seed, the recipe, the architecture with its initial
    weights, the width, the kind of device and `NUMERICS`. It does not depend on the method that needs the network, so
    methods can share networks. Nor does it depend on the release of tagalong or the module that defines a class, so
    networks are still found after these change. `NUMERICS` changes only if training results do.

    - A layer of tagalong is identified by the name of its class, its parameters and submodules, and its `extra_repr`,
      which includes every setting that changes what it computes; its code and other attributes may change.
    - A layer of torch is identified by the name of its class, its parameters and submodules, and its plain public
      attributes.
    - Any other layer is identified in the same way, but also by its code and its private plain attributes.
    - A top-level function of tagalong or torch is identified by its name; any other function is identified by its code
      and by the constants and functions of its module that it uses.
    - A recipe is identified by `Recipe.definition` only, so that keys do not change when new settings are added.

    Args:
        problem: the problem of the networks.
        device: "cpu", "cuda", …; the index of the device does not matter.
        numerics: the version of the training results; see `NUMERICS`.
    """

    def __init__(self, problem: Problem, device: torch.device | str, numerics: int = NUMERICS) -> None:
        self.problem, self.device, self.numerics = problem, torch.device(device).type, numerics
        self._known: dict[Job, str] = {}

    def of(self, job: Job) -> str:
        """Returns the key of a network: 64 hexadecimal digits."""
        if job not in self._known:
            self._known[job] = _digest(self.definition(job))
        return self._known[job]

    def of_affinity(self, job: Job, settings: Mapping[str, Any]) -> str:
        """Returns the key of the affinity that a meter with these settings measures while this network trains."""
        return _digest({"network": self.of(job), "meter": dict(settings)})

    def definition(self, job: Job) -> dict[str, Any]:
        """Returns everything that determines the training result of a network, as a JSON document."""
        own = {"tasks": list(job.tasks), "seed": job.seed, "rule": job.rule, "width": float(job.width)}
        early = {} if job.epochs is None else {"epochs": job.epochs}
        return own | early | self._common

    @cached_property
    def _common(self) -> dict[str, Any]:
        return {
            "data": self.problem.fingerprint,
            "losses": _digest([self._task(name) for name in self.problem.names])[:16],
            "architecture": self.architecture,
            "recipe": self.problem.recipe.definition,
            "device": self.device,
            "numerics": self.numerics,
        }

    @cached_property
    def architecture(self) -> str:
        """A hash of the layers, their settings and their initial weights: 16 hexadecimal digits."""
        network = build_network(self.problem, self.problem.names, seed=0)
        (_, *layers), tensors = _layers(network), _tensors(network)  # the first layer is just the container
        return _digest([layers, tensors])[:16]

    def _task(self, name: str) -> list[Any]:
        task = self.problem.task(name)
        return [name, task.kind, _identity(task.loss), _identity(task.error), self.problem.scales.get(name)]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=_identity).encode()).hexdigest()


def _layers(module: nn.Module, inside: frozenset[int] = frozenset()) -> list[list[Any]]:
    return [[name, *_layer(part, inside)] for name, part in module.named_modules()]


def _tensors(module: nn.Module) -> list[list[Any]]:
    """Returns the parameters and buffers, and whether each is trainable; shared tensors are listed once."""
    found = chain(module.named_parameters(), module.named_buffers())
    return [[name, _tensor(tensor), tensor.requires_grad] for name, tensor in found]


def _tensor(tensor: Tensor) -> list[Any]:
    content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(content).hexdigest()]


def _layer(module: nn.Module, inside: frozenset[int]) -> list[Any]:
    """Returns the class name, settings and training mode of a layer, and its code if user-defined; see `Keys`."""
    kind = type(module)
    settings: Any
    if is_own_module(kind.__module__):
        settings = module.extra_repr()
    else:
        user_defined = not _is_known(kind.__module__)
        settings = [
            [name, _identity(value, inside)]
            for name, value in sorted(vars(module).items())
            if name not in MODULE_ATTRIBUTES and (user_defined or not name.startswith("_")) and _is_comparable(value)
        ]
    return [kind.__qualname__, settings, module.training, _code(kind, inside)]


def _code(kind: type, inside: frozenset[int]) -> list[Any]:
    """Returns the methods and constants of a user-defined class and its user-defined bases."""
    own = [part for part in kind.__mro__ if not _is_known(part.__module__)]
    return [[name, _identity(value, inside)] for part in own for name, value in _members(part)]


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(kind).items()):
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
    """Whether a value can be compared between processes."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_is_comparable, value))
    if isinstance(value, Mapping):
        return all(map(_is_comparable, chain(value.keys(), value.values())))
    return isinstance(value, PLAIN) or (is_dataclass(value) and not isinstance(value, type))


def _identity(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """Converts a value to JSON by type and content, never by address, so that different lambdas and settings differ.

    Args:
        value: any value.
        inside: the `id` of each enclosing value; recursion stops at a value that contains itself.
    """
    if id(value) in inside:
        return "…"
    inside |= {id(value)}
    deeper = partial(_identity, inside=inside)
    if isinstance(value, (tuple, list)):
        return [*map(deeper, value)]
    if isinstance(value, (set, frozenset)):  # their order differs between processes
        return sorted(json.dumps(deeper(part)) for part in value)
    if isinstance(value, Mapping):
        return [[deeper(key), deeper(part)] for key, part in value.items()]
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, (np.ndarray, Tensor)):
        return _array(value)
    if isinstance(value, partial):
        return ["partial", *map(deeper, (value.func, *value.args, *sorted(value.keywords.items())))]
    if isinstance(value, MethodType):
        return [deeper(value.__func__), deeper(value.__self__)]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), [*map(deeper, value.co_consts)]]
    if isinstance(value, FunctionType):
        return _function(value, deeper)
    return _object(value, inside)


def _array(value: np.ndarray[Any, Any] | Tensor) -> Any:
    if isinstance(value, Tensor):
        return _tensor(value)
    return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]


def _function(value: FunctionType, deeper: partial[Any]) -> Any:
    named = "<" not in value.__qualname__ and not hasattr(value, "__wrapped__")
    # functools.wraps copies the name and module of the wrapped function, but not its globals.
    if named and _is_known(value.__globals__.get("__name__", "")):
        return value.__qualname__
    settings = (value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items())))
    parts = [value.__code__, settings, *(cell.cell_contents for cell in value.__closure__ or ())]
    return [value.__qualname__, *map(deeper, parts), *_used_globals(value)]


def _used_globals(function: FunctionType) -> list[Any]:
    """Returns the module-level constants and functions that a function uses, directly or indirectly, by name."""
    found: dict[str, Any] = {}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        for name in _names(one.__code__) - found.keys():
            value = one.__globals__.get(name)
            if isinstance(value, FunctionType) and not _is_known(value.__module__ or ""):
                found[name] = _identity(value.__code__)
                waiting += [value] if value.__globals__ is one.__globals__ else []
            elif value is not None and isinstance(value, CONSTANTS) and not name.startswith("__"):
                found[name] = repr(value)
    return [[name, found[name]] for name in sorted(found)]


def _names(code: CodeType) -> set[str]:
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _object(value: Any, inside: frozenset[int]) -> Any:
    kind = type(value)
    if isinstance(value, nn.Module):
        return [_layers(value, inside), _tensors(value)]
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, ModuleType):
        return value.__name__
    attributes = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )
    if kind.__repr__ is NO_REPR or (attributes and callable(value)):
        hidden = "_" if is_own_module(kind.__module__) else "__"  # e.g. a copied __module__
        shown = sorted(name for name in attributes if name == "__wrapped__" or not name.startswith(hidden))
        code = _code(kind, inside) if callable(value) else []
        return [kind.__qualname__, code, *([name, _identity(attributes[name], inside)] for name in shown)]
    return MEMORY_ADDRESS.sub("", repr(value))


def _slots(kind: type) -> Iterator[str]:
    for part in kind.__mro__:
        slots = vars(part).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
