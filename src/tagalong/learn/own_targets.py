"""Training targets that replace those of a problem, for networks that learn from the predictions of others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tagalong.errors import InvalidInput

from .problem import Problem
from .rows import require_in_memory

Targets = Mapping[str, Tensor]
OPERATION = "training with other targets"  # what needs rows in memory, for messages


def check_targets(problem: Problem, tasks: Sequence[str], targets: Targets) -> None:
    """Raises an error if these targets cannot replace the training targets of a network with these tasks."""
    for name, target in targets.items():
        if name not in tasks:
            raise InvalidInput("targets", f"must be for tasks of the network, which are {', '.join(tasks)}", repr(name))
        task, argument = problem.task(name), f"`targets[{name!r}]`"
        labels = require_in_memory(problem.train, OPERATION).targets[name]
        shapes = [list(labels.shape)]
        has_classes = task.kind == "multiclass" if task.loss is None else task.averaging == "softmax"
        if has_classes and labels.dim() == 1:
            shapes.append([len(labels), task.head_size])  # probabilities
        if list(target.shape) not in shapes or not target.is_floating_point():
            expected = f"must be a floating-point tensor of shape {' or '.join(map(str, shapes))}"
            raise InvalidInput(argument, expected, f"{target.dtype} of shape {list(target.shape)}")
        if task.loss is None and (task.kind == "binary" or target.dim() > labels.dim()):
            probabilities = target[target.isfinite()]
            if ((probabilities < 0) | (probabilities > 1)).any():
                raise InvalidInput(argument, "must be probabilities between 0 and 1, or NaN", "others")


def to_probabilities(labels: Tensor, classes: int) -> Tensor:
    """Converts class labels [rows] to probabilities [rows, classes], with NaN for missing labels."""
    present = labels.isfinite()
    encoded = functional.one_hot(torch.where(present, labels, 0).long(), classes).to(labels.dtype)
    return torch.where(present.unsqueeze(1), encoded, torch.nan)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Returns a string that identifies named tensors by their contents."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name!r} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()[:16]
