"""Describes networks as JSON documents and rebuilds them, so that loading a network runs no code from its files."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tagalong._version import is_own_module

from .network import ModuleFactory, Network
from .problem import Problem
from .task import Task


def describe_network(problem: Problem, network: Network, features: int, width: float) -> dict[str, Any] | None:
    """Returns a JSON document from which `rebuild_network` builds the same layers, or None if they include user code.

    Args:
        problem: the problem that the network was built for.
        network: the network.
        features: the number of features that the network's encoder returns.
        width: the width of the network's encoder.
    """
    encoder = _describe_factory(problem.encoder)
    head = None if problem.head is None else _describe_factory(problem.head)
    tasks = [problem.task(name) for name in network.tasks]
    if encoder is None or (head is None and problem.head is not None) or any(task.head is not None for task in tasks):
        return None
    dtype = next((parameter.dtype for parameter in network.parameters()), torch.float32)
    return {
        "encoder": encoder | {"width": width},
        "head": head,
        "features": features,
        "outputs": {task.name: task.head_size for task in tasks},
        "kinds": {task.name: task.kind for task in tasks},
        "dtype": str(dtype).removeprefix("torch."),
        "seed": network.seed,
    }


def rebuild_network(document: Mapping[str, Any]) -> Network:
    """Builds the network that a document describes, with its parameters on the meta device.

    Raises:
        ValueError: If the document names a class that is not one of tagalong's encoders or heads.
    """
    encoder, head, kinds = document["encoder"], document["head"], document["kinds"]
    make_encoder = _make_factory(encoder)
    make_head: Callable[[Task, int], nn.Module] = Task.make_head if head is None else _make_factory(head)
    heads = []
    with torch.device("meta"):
        for name, size in document["outputs"].items():
            # Heads do not depend on the loss, but only tasks with a loss may have any number of outputs.
            task = Task(name, kinds[name], classes=max(size, 2), outputs=size, loss=torch.sub)
            heads.append(make_head(task, int(document["features"])))
        network = Network(make_encoder(width=float(encoder["width"])), heads, list(kinds), int(document["seed"]))
    return network.to(getattr(torch, document["dtype"]))


def _describe_factory(factory: Any) -> dict[str, Any] | None:
    """Returns the class and arguments of one of tagalong's own factories, or None for anything else."""
    kind = type(factory)
    if not (isinstance(factory, ModuleFactory) and is_own_module(kind.__module__)):
        return None
    arguments = {name: getattr(factory, name) for name in inspect.signature(kind).parameters}
    try:
        plain = json.loads(json.dumps(arguments))
    except TypeError:
        return None
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "arguments": plain}


def _make_factory(description: Mapping[str, Any]) -> Any:
    module, _, name = str(description["class"]).rpartition(".")
    kind = getattr(importlib.import_module(module), name, None) if is_own_module(module) else None
    if not (isinstance(kind, type) and issubclass(kind, ModuleFactory)):
        raise ValueError(f"{description['class']} is not an encoder or a head of tagalong")
    return kind(**description["arguments"])
