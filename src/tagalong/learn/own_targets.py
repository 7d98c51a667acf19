"""Training targets that replace those of a problem, for networks that learn from the predictions of others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from tagalong.errors import InvalidInput

from .problem import Problem
from .rows import Rows, Split, require_in_memory
from .task import Task

Targets = Mapping[str, Tensor]
OPERATION = "training with other targets"  # what needs rows in memory, for messages


def target_problems(problem: Problem, tasks: Sequence[str], targets: Targets | None) -> list[InvalidInput]:
    """Returns the reasons why these targets cannot replace the training targets of a network with these tasks."""
    if not targets:
        return []
    if not isinstance(problem.train, Split):
        return [InvalidInput("", f"{OPERATION} requires rows in memory", "rows that are read from files")]
    unknown = [name for name in targets if name not in tasks or name not in problem.names]
    if unknown:
        known, found = (", ".join(map(repr, names)) for names in (tasks, unknown))
        return [InvalidInput("targets", f"must be for tasks of the network, which are {known}", found)]
    found_problems = (_problem_of_target(problem.train, problem.task(name), targets[name]) for name in targets)
    return [found for found in found_problems if found is not None]


def _problem_of_target(rows: Split, task: Task, target: Tensor) -> InvalidInput | None:
    name = f"`targets[{task.name!r}]`"
    if not isinstance(target, Tensor) or not target.is_floating_point():
        return InvalidInput(name, "must be a floating-point tensor", str(getattr(target, "dtype", type(target))))
    shapes = [tuple(rows.targets[task.name].shape)]
    has_classes = task.kind == "multiclass" if task.loss is None else task.soft_targets and task.average == "softmax"
    if has_classes and len(shapes[0]) == 1:
        shapes.append((len(rows), task.head_size))  # probabilities
    if tuple(target.shape) not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        return InvalidInput(name, f"must have the shape {expected}", str(list(target.shape)))
    if task.loss is not None or task.kind == "regression":
        return None
    labels = target[target.isfinite()]
    if task.kind == "binary" or tuple(target.shape) != shapes[0]:
        expected, valid = "must be between 0 and 1, or NaN", (labels >= 0) & (labels <= 1)
    else:
        expected = f"must be labels from 0 to {task.head_size - 1}, or NaN"
        valid = (labels >= 0) & (labels < task.head_size) & (labels == labels.round())
    return None if bool(valid.all()) else InvalidInput(name, expected, repr(float(labels[~valid][0])))


def replace_targets(rows: Rows, targets: Targets | None) -> Rows:
    """Returns the same rows with some targets replaced, which take the device and dtype of the replaced ones."""
    if not targets:
        return rows
    split = require_in_memory(rows, OPERATION)
    own = {name: target.to(split.targets[name]) for name, target in targets.items()}
    return replace(split, targets={**split.targets, **own})


def to_probabilities(labels: Tensor, classes: int) -> Tensor:
    """Converts class labels [rows] to probabilities [rows, classes], with NaN for missing labels."""
    present = labels.isfinite()
    encoded = functional.one_hot(torch.where(present, labels, 0).long(), classes).to(labels.dtype)
    return torch.where(present.unsqueeze(1), encoded, torch.nan)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns a string that identifies named tensors by their contents."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        content = tensors[name].detach().cpu().double().contiguous()
        digest.update(f"{name!r} {tuple(content.shape)}".encode())
        digest.update(content.numpy().tobytes())
    return digest.hexdigest()[:16]
