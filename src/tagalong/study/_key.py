"""What defines a trained network, as one short text: the same definition, the same network, whoever asks for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from tagalong._version import __version__
from tagalong.learn import Job, Problem, build_network

FUNCTIONS = (FunctionType, BuiltinFunctionType)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Keys:
    """Keys of the networks of one problem on one kind of device.

    A key follows from the data, the tasks, the rule, the seed, the recipe, the architecture with its first weights,
    the width, the kind of device and the version; never from the method that asked, so that methods share networks.

    Args:
        problem: whose networks.
        device: "cpu", "cuda", …; which of several does not matter.
    """

    def __init__(self, problem: Problem, device: torch.device | str) -> None:
        self.problem, self.device = problem, torch.device(device).type
        self._known: dict[Job, str] = {}

    def of(self, job: Job) -> str:
        """The key of a network: 64 hexadecimal digits."""
        if job not in self._known:
            self._known[job] = _digest(self.definition(job))
        return self._known[job]

    def measured(self, job: Job, settings: Mapping[str, Any]) -> str:
        """The key of what a meter with these settings measures while this network trains."""
        return _digest({"network": self.of(job), "meter": dict(settings)})

    def definition(self, job: Job) -> dict[str, Any]:
        """Everything that the numbers of a network follow from, as JSON can hold it."""
        own = {"tasks": list(job.tasks), "seed": job.seed, "rule": job.rule, "width": float(job.width)}
        early = {} if job.epochs is None else {"epochs": job.epochs}
        return own | early | self._common

    @cached_property
    def _common(self) -> dict[str, Any]:
        return {
            "data": self.problem.fingerprint,
            "losses": _digest([self._task(name) for name in self.problem.names])[:16],
            "architecture": self.architecture,
            "recipe": asdict(self.problem.recipe),
            "device": self.device,
            "version": __version__,
        }

    @cached_property
    def architecture(self) -> str:
        """Layers, their code and first weights, in 16 letters: a pretrained encoder is another one."""
        network = build_network(self.problem, self.problem.names, seed=0)
        digest = hashlib.sha256(str(network).encode())
        parts = (*network.encoder.modules(), *network.heads.modules())
        digest.update(json.dumps([_layer(part) for part in parts]).encode())
        for name, tensor in network.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def _task(self, name: str) -> list[Any]:
        task = self.problem.task(name)
        return [name, task.kind, _identity(task.loss), _identity(task.error), self.problem.scales.get(name)]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=repr).encode()).hexdigest()


def _layer(module: nn.Module) -> list[Any]:
    """What a layer's weights and its text need not show: plain settings, such as heads of attention, and own code."""
    settings = {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "training"}
    known = [[name, _identity(value)] for name, value in sorted(settings.items()) if _tells(value)]
    own = [kind for kind in type(module).__mro__ if not kind.__module__.startswith(("torch.", "builtins", "tagalong."))]
    code = [
        [name, _identity(part)]
        for kind in own
        for name, part in sorted(vars(kind).items())
        if isinstance(part, FunctionType)
    ]
    return [known, code]


def _tells(value: Any) -> bool:
    """Whether a value can be told from another by its text, in any process."""
    if isinstance(value, (tuple, list)):
        return all(map(_tells, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, partial, *FUNCTIONS))


def _identity(value: Any, depth: int = 0) -> Any:
    """A loss or error by its code and what it holds, so that two lambdas or two settings are not taken for one."""
    if depth > 4:  # functions that hold themselves
        return "…"
    if isinstance(value, partial):
        parts = [value.func, *value.args, *sorted(value.keywords.items())]
        return ["partial", *(_identity(part, depth + 1) for part in parts)]
    if isinstance(value, MethodType):
        return [_identity(value.__func__, depth + 1), _identity(value.__self__, depth + 1)]
    if isinstance(value, frozenset):  # its text is in another order in another process
        return sorted(map(repr, value))
    if isinstance(value, tuple):
        return [_identity(part, depth + 1) for part in value]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), [_identity(part, depth + 1) for part in value.co_consts]]
    if isinstance(value, FunctionType):
        settings = (value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items())))
        held = [value.__code__, settings, *(cell.cell_contents for cell in value.__closure__ or ())]
        return [value.__qualname__, *(_identity(part, depth + 1) for part in held)]
    if callable(value) and not isinstance(value, type) and getattr(value, "__dict__", None):
        return [type(value).__qualname__, *(_identity(part, depth + 1) for part in sorted(vars(value).items()))]
    return ADDRESS.sub("", repr(value))
