"""Keys of trained networks: hashes of everything that determines the result of training."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import Enum
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tagalong._version import NUMERICS, is_own_module
from tagalong.files import checksum
from tagalong.learn import Job, Problem, build_network, describe_rule

JSON_TYPES = (type(None), bool, int, float, str)
CONSTANT_TYPES = (bytes, complex, range, Enum, np.generic, torch.dtype, torch.device)  # which their repr describes
SHOWN_GLOBALS = (bool, int, float, str, *CONSTANT_TYPES, FunctionType, CodeType)
LIBRARIES = {"torch", *sys.stdlib_module_names}
LAYER_STATE = ("training", "_parameters", "_buffers", "_modules")
HIDDEN_ATTRIBUTES = frozenset(vars(nn.Module()))  # common to all layers
Seen = dict[int, Any]  # objects by id, in the order in which they were described first


class Keys:
    """Computes the keys of the networks for one problem and device type.

    A key depends on the data, the tasks, the losses, the rule, the seed, the recipe, the architecture with its initial
    weights, the width, the device type and `NUMERICS`. If others teach the network, its key also depends on their keys,
    on how it learns from them, and on additional rows. It does not depend on the method that needs the network, on the
    version of tagalong, or on where a class is defined. `NUMERICS` changes only when training results change.

    Layers, losses and settings are described by `describe`: your own by their code and everything that they hold, those
    of torch and tagalong by their names and settings.

    Args:
        problem: the problem that the networks are trained on.
        device: the device type, e.g. "cpu" or "cuda". The device index is ignored.
    """

    def __init__(self, problem: Problem, device: torch.device | str) -> None:
        self.problem, self.device = problem, torch.device(device).type
        self._known: dict[Job, str] = {}
        self._networks: dict[str | None, dict[str, Any]] = {}

    def of(self, job: Job) -> str:
        """Returns a network's key, which has 64 hexadecimal digits."""
        if job not in self._known:
            self._known[job] = digest(self.definition(job))
        return self._known[job]

    def of_affinity(self, job: Job, settings: Mapping[str, Any]) -> str:
        """Returns the key of the affinity that a meter with these settings measures while this network is trained."""
        meter = {name: describe(value) for name, value in settings.items()}
        return digest({"network": self.of(job), "meter": meter})

    def definition(self, job: Job) -> dict[str, Any]:
        """Returns everything that determines the result of training a network, as a JSON document."""
        if job.network not in self._networks:
            problem = self.problem.with_network(job.network)
            network = None  # trained elsewhere
            if len(problem.train):
                network = build_network(problem, problem.names, seed=0)
            architecture = digest(describe(network))
            self._networks[job.network] = {"architecture": architecture, "recipe": asdict(problem.recipe)}
        # Without what is not set, so that later fields do not change the keys of other networks.
        own = {name: value for name, value in asdict(job).items() if value is not None}
        definition = {
            **own,
            "width": float(job.width),
            "rule": describe_rule(job.rule),
            "data": self.problem.weighted(job.weighting).fingerprint,
            "losses": self._losses,
            **self._networks[job.network],
            "device": self.device,
            "numerics": NUMERICS,
        }
        if job.taught is not None:
            definition["averages"] = [[task.name, task.average, task.soft_targets] for task in self.problem.tasks]
            if job.taught.unlabelled:
                definition["unlabelled"] = self.problem.unlabelled_fingerprint
        return definition

    @property
    def architecture(self) -> str:
        """A digest of the layers of the problem's own network, their settings and their initial weights."""
        return str(self.definition(Job(self.problem.names))["architecture"])

    @cached_property
    def _losses(self) -> str:
        scales = self.problem.scales
        tasks = self.problem.tasks
        return digest([[t.name, t.kind, describe(t.loss), describe(t.error), scales.get(t.name)] for t in tasks])


def digest(document: Any) -> str:
    """Returns a hash of a JSON document."""
    return checksum(json.dumps(document, sort_keys=True).encode())


def describe(value: Any, seen: Seen | None = None) -> Any:
    """Describes a value as JSON by everything that it computes with, and never by its memory address.

    - A class or function of torch, tagalong or Python is described by its name, any other by its code and the
      module-level constants and functions that it uses.
    - A layer is described by its class, its settings, its layers and its parameters.
    - Any other object is described by its class and by what pickle would save.

    Args:
        value: any value.
        seen: the objects described so far, which are described by their number from now on.
    """
    seen = {} if seen is None else seen
    if isinstance(value, CONSTANT_TYPES):
        return repr(value)
    if isinstance(value, JSON_TYPES):
        return value
    if isinstance(value, (tuple, list)):
        return [describe(part, seen) for part in value]
    if isinstance(value, (set, frozenset)):  # their order differs between processes
        return sorted(json.dumps(describe(part, seen)) for part in value)
    if isinstance(value, Mapping):
        return [[describe(key, seen), describe(part, seen)] for key, part in value.items()]
    if id(value) in seen:
        return f"object {list(seen).index(id(value))}"
    seen[id(value)] = value  # which also keeps its id from being used again
    if isinstance(value, (np.ndarray, Tensor)):
        return _describe_array(value)
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), describe(value.co_consts, seen)]
    if isinstance(value, FunctionType):
        return _describe_function(value, seen)
    if isinstance(value, type):
        members = [] if _is_library(value.__module__) else [describe(part, seen) for part in _members(value)]
        return [value.__qualname__, *members, *(describe(base, seen) for base in value.__bases__)]
    if isinstance(value, nn.Module):
        return [describe(type(value), seen), describe(_layer_state(value), seen)]
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:  # which cannot be pickled, e.g. a lock
        return type(value).__qualname__
    if isinstance(reduced, str):
        return reduced
    return [describe(part, seen) for part in (type(value), *reduced[1:3])]


def _is_library(module: str) -> bool:
    """Whether code of this module belongs to tagalong, torch or Python, and is described by its name."""
    return is_own_module(module) or module.partition(".")[0] in LIBRARIES


def _describe_array(value: np.ndarray[Any, Any] | Tensor) -> list[Any]:
    described: list[Any] = [str(value.dtype), list(value.shape)]
    if isinstance(value, Tensor):
        described.append(value.requires_grad)
        value = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return [*described, checksum(np.ascontiguousarray(value).tobytes())]


def _layer_state(layer: nn.Module) -> dict[str, Any]:
    """Returns the attributes of a layer that determine what it computes, without its hooks."""
    is_library = _is_library(type(layer).__module__)
    state = {name: vars(layer)[name] for name in LAYER_STATE}
    for name in sorted(vars(layer).keys() - HIDDEN_ATTRIBUTES):
        if not (is_library and name.startswith("_")):
            state[name] = vars(layer)[name]
    return state


def _describe_function(function: FunctionType, seen: Seen) -> Any:
    # functools.wraps copies the name and module of the wrapped function, but not its globals.
    is_named = "<" not in function.__qualname__ and not hasattr(function, "__wrapped__")
    if is_named and _is_library(function.__globals__.get("__name__", "")):
        return function.__qualname__
    shown = {}
    for name in sorted(_used_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__globals__ is not function.__globals__:
            # Of another module, whose own functions are not followed.
            value = value.__qualname__ if _is_library(value.__module__ or "") else value.__code__
        if isinstance(value, SHOWN_GLOBALS):
            shown[name] = value
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [function.__code__, function.__defaults__, function.__kwdefaults__, cells, shown]
    return [function.__qualname__, *describe(parts, seen)]


def _used_names(code: CodeType) -> set[str]:
    inner = [_used_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return {name for name in code.co_names if not name.startswith("__")}.union(*inner)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields the methods and constants that a class defines itself."""
    for name, member in sorted(vars(cls).items()):
        value = member
        for attribute in ("__func__", "fget", "func"):  # of static and class methods, and of properties
            value = getattr(value, attribute, value)
        is_constant = isinstance(value, JSON_TYPES) and not name.startswith("__")
        if isinstance(value, FunctionType) or is_constant:
            yield name, value
