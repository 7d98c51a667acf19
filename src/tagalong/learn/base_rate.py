"""The outputs that a network would give without looking at its inputs, and heads that start there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .rows import Rows, Split
from .task import Kind, Task

if TYPE_CHECKING:
    from .problem import Problem

_base_rates: WeakKeyDictionary[Problem, dict[str, Tensor]] = WeakKeyDictionary()


def has_constant(problem: Problem, task: Task) -> bool:
    """Returns whether there is a best constant: the task has no loss of its own, and one label per row."""
    if task.loss is not None:
        return False
    _, targets = problem.val.only([task.name]).batch(torch.arange(1))
    return targets[task.name].dim() == 1


def constant_output(task: Task, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the output of the head that, as a constant, minimizes the mean loss over these labels.

    This is the mean for regression, the log-odds of the base rate for a binary task, and the log-frequencies of the
    classes for a multiclass task. Each label of a class counts as often as the weight of its class. No class is less
    frequent than half a label, so that a class that does not occur here has a finite loss elsewhere.

    Args:
        task: the task (see `has_constant`).
        labels: the labels [rows], with NaN for missing ones. At least one label must be present.
        weights: the weight of each row, or None if all rows count the same.

    Example:
        >>> constant_output(Task("age", kind="regression"), torch.tensor([1.0, 2.0, torch.nan])).item()
        1.5
        >>> round(constant_output(Task("ill"), torch.tensor([0.0, 0.0, 0.0, 1.0])).sigmoid().item(), 6)
        0.25
    """
    known = labels[labels.isfinite()].double()
    row_weights = torch.ones_like(known) if weights is None else weights[labels.isfinite()].to(known)
    if task.kind == "regression":
        return ((known * row_weights).sum() / row_weights.sum()).reshape(1)
    if task.kind == "multiclass":
        counts = torch.bincount(known.long(), row_weights, minlength=task.head_size)
        return _frequencies(counts * _class_weights(task), len(known)).log()
    row_weights = row_weights * _class_weights(task)[(known > 0.5).long()]
    counts = torch.stack([(row_weights * (1 - known)).sum(), (row_weights * known).sum()])
    return _frequencies(counts, len(known)).log().diff()  # of the positive and the negative class


def _class_weights(task: Task) -> Tensor:
    classes = task.head_size if task.kind == "multiclass" else 2
    return torch.tensor(task.class_weights or [1.0] * classes, dtype=torch.float64)


def _frequencies(counts: Tensor, labels: int) -> Tensor:
    """Returns the relative frequency of each class, given its weighted count. All are equal if no class counts."""
    total = counts.sum()
    shares = counts / total if total > 0 else torch.full_like(counts, 1 / len(counts))
    shares = shares.clamp(min=0.5 / labels)
    return shares / shares.sum()


def floor_probabilities(kind: Kind, outputs: Tensor, labels: int | Tensor) -> Tensor:
    """Returns outputs [rows, outputs] whose probabilities are at least 1 / (2 · training labels), as a constant's are.

    Otherwise, a single wrong answer that a model was sure of could outweigh all others.

    Args:
        kind: the kind of the task, which has no loss of its own.
        outputs: logits, as heads return them, or the outputs of a regression task, which are returned as they are.
        labels: the number of training labels of the task.

    Example:
        >>> floor_probabilities("binary", torch.tensor([[-9.0], [1.0]]), labels=5).sigmoid()
        tensor([[0.1000],
                [0.7311]])
    """
    lowest = 0.5 / torch.as_tensor(labels).to(outputs)
    if kind == "binary":
        largest = ((1 - lowest) / lowest).log()
        return outputs.clamp(-largest, largest)
    return outputs.log_softmax(1).clamp(min=lowest.log()) if kind == "multiclass" else outputs


def read_targets(rows: Rows) -> dict[str, Tensor]:
    """Returns the targets of all rows."""
    if isinstance(rows, Split):
        return {name: target.cpu().double() for name, target in rows.targets.items()}
    parts = [targets for _, targets in rows.chunks()]
    return {name: torch.cat([part[name].cpu().double() for part in parts]) for name in rows.tasks}


def base_rates(problem: Problem) -> dict[str, Tensor]:
    """Returns the best constant outputs for the training labels of each task, see `constant_output`.

    Tasks without a best constant or without training labels are left out. The result is remembered, since all labels
    have to be read.
    """
    if problem not in _base_rates:
        tasks = [task for task in problem.tasks if has_constant(problem, task)]
        labels = read_targets(problem.train.only([task.name for task in tasks])) if tasks else {}
        _base_rates[problem] = {
            task.name: constant_output(task, labels[task.name], problem.train.weights)
            for task in tasks
            if labels[task.name].isfinite().any()
        }
    return _base_rates[problem]
