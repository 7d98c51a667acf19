"""The outputs that a network would give without looking at its inputs, and heads that start there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .rows import Rows
from .task import Kind, Task

if TYPE_CHECKING:
    from .problem import Problem


def has_constant(problem: Problem, task: Task) -> bool:
    """Returns whether there is a best constant: the task has no loss of its own, and one label per row."""
    if task.loss is not None:
        return False
    _, targets = problem.val.only([task.name]).batch(torch.arange(1))
    return targets[task.name].dim() == 1


def constant_output(task: Task, labels: Tensor, weights: Tensor | None = None) -> Tensor | None:
    """Returns the output of the head that, as a constant, minimizes the mean loss over these labels.

    This is the mean for regression, the log-odds of the base rate for a binary task, and the log-frequencies of the
    classes for a multiclass task. Each label of a class counts as often as the weight of its class. No class is less
    frequent than half a label, so that a class that does not occur here has a finite loss elsewhere.

    Args:
        task: the task (see `has_constant`).
        labels: the labels [rows], with NaN for missing ones.
        weights: the weight of each row, or None if all rows count the same.

    Returns:
        The output [outputs], or None if there are no labels.

    Example:
        >>> constant_output(Task("age", kind="regression"), torch.tensor([1.0, 2.0, torch.nan])).item()
        1.5
        >>> round(constant_output(Task("ill"), torch.tensor([0.0, 0.0, 0.0, 1.0])).sigmoid().item(), 6)
        0.25
    """
    weights = torch.ones_like(labels) if weights is None else weights
    counted = labels.isfinite() & (weights > 0)
    known, row_weights = labels[counted].double(), weights[counted].double()
    if not len(known):
        return None
    if task.kind == "regression":
        return ((known * row_weights).sum() / row_weights.sum()).reshape(1)
    classes = task.head_size if task.kind == "multiclass" else 2
    class_weights = known.new_tensor(task.class_weights or [1.0] * classes)
    counts = torch.bincount(known.long(), row_weights, minlength=classes) * class_weights
    if not counts.any():  # all classes that occur have the weight 0
        counts = torch.ones_like(counts)
    shares = (counts / counts.sum()).clamp(min=0.5 / len(known))
    logs = (shares / shares.sum()).log()
    return logs if task.kind == "multiclass" else logs.diff()


def output_range(kind: Kind, labels: int) -> tuple[float, float]:
    """Returns the lowest and highest logit or log-probability of a class: no probability is below 1 / (2 · labels).

    Example:
        >>> [round(logit, 3) for logit in output_range("binary", labels=5)]  # probabilities from 0.1 to 0.9
        [-2.197, 2.197]
    """
    if kind == "binary":
        return -math.log(2 * labels - 1), math.log(2 * labels - 1)
    return -math.log(2 * labels), 0.0


def read_targets(rows: Rows) -> dict[str, Tensor]:
    """Returns the targets of all rows."""
    parts = [targets for _, targets in rows.chunks()]
    return {name: torch.cat([part[name].cpu().double() for part in parts]) for name in rows.tasks}


def base_rates(problem: Problem) -> dict[str, Tensor]:
    """Returns the best constant outputs for the training labels of each task, see `constant_output`.

    Tasks without a best constant or without training labels are left out.
    """
    tasks = [task for task in problem.tasks if has_constant(problem, task)]
    labels = read_targets(problem.train.only([task.name for task in tasks])) if tasks else {}
    constants = {task.name: constant_output(task, labels[task.name], problem.train.weights) for task in tasks}
    return {name: constant for name, constant in constants.items() if constant is not None}
