"""Checks a problem's data before training, and counts its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, pluralize, raise_problems
from tagalong.rendering import TextTable

from .problem import Problem
from .rows import ROWS_AT_ONCE, Rows, Split, require_in_memory
from .splitting import PARTS
from .task import Task

LARGEST_LABEL = 1e18  # the square of a much larger number overflows in float32
MIN_SHARED_ROWS = 50
MIN_SHARED_FRACTION = 0.02


def check_data(problem: Problem) -> None:
    """Raises an error if parts have no rows, inputs are not finite, or tasks cannot be learned from their labels.

    Only the number of rows that are read from files is checked: reading all of them would take longer than an epoch.

    Raises:
        InvalidInput: lists all problems with the data.
    """
    problems = [found for part, split in problem.splits.items() for found in _part_problems(part, split)]
    if all(isinstance(split, Split) for split in problem.splits.values()):
        problems += [found for task in problem.tasks for found in _task_problems(problem, task)]
    raise_problems(problems)


def _part_problems(part: str, split: Rows) -> list[InvalidInput]:
    if not len(split):
        return [InvalidInput(part, "must have at least one row", "none")]
    if not isinstance(split, Split) or not split.inputs.is_floating_point():
        return []
    rows = sum(int((~some.isfinite()).flatten(1).any(1).sum()) for some in split.inputs.split(ROWS_AT_ONCE))
    found = f"NaN or inf in {pluralize(rows, 'row')}"
    return [InvalidInput(f"`{part}`: inputs", "must be finite", found)] if rows else []


def _task_problems(problem: Problem, task: Task) -> list[InvalidInput]:
    name = repr(task.name)
    targets = {part: require_in_memory(split, "this").targets[task.name] for part, split in problem.splits.items()}
    dtypes = [labels.dtype for labels in targets.values() if not labels.is_floating_point()]
    if dtypes:
        dtype = str(dtypes[0]).removeprefix("torch.")
        expected = "must have a floating-point dtype (NaN for missing labels)"
        return [InvalidInput(f"the target of {name}", expected, dtype)]
    too_large = [part for part, labels in targets.items() if bool((labels.abs() > LARGEST_LABEL).any())]
    if too_large and task.kind != "custom" and task.loss is None:
        return [_too_large_problem(task, part, targets[part]) for part in too_large]
    values = {part: torch.unique(labels[labels.isfinite()]) for part, labels in targets.items()}
    unlabeled = [part for part in PARTS if not len(values[part]) and len(problem.splits[part])]
    if unlabeled:
        hint = "remove the task"
        return [InvalidInput(f"`{part}`: {name}", "must have labels", "none", hint) for part in unlabeled]
    if task.kind == "custom" or not len(values["train"]):
        return []
    if len(values["train"]) == 1:
        found = f"only {float(values['train'][0]):g}"
        return [InvalidInput(f"`train`: {name}", "must have at least two distinct labels", found)]
    return [] if task.kind == "regression" or task.loss is not None else _class_problems(task, values)


def _too_large_problem(task: Task, part: str, labels: Tensor) -> InvalidInput:
    rows = int((labels.abs() > LARGEST_LABEL).reshape(len(labels), -1).any(1).sum())
    return InvalidInput(
        f"`{part}`: labels of {task.name!r}",
        f"must be at most {LARGEST_LABEL:g} in magnitude (after any standardization)",
        f"{pluralize(rows, 'row')} with larger values",
        "if they mark missing labels, use NaN instead",
    )


def _class_problems(task: Task, values: dict[str, Tensor]) -> list[InvalidInput]:
    """Finds labels that are not classes, or else classes that do not occur in train."""
    classes = torch.arange(task.classes or 2, device=values["train"].device)
    problems = []
    for part in PARTS:
        invalid = values[part][~torch.isin(values[part], classes.to(values[part]))]
        if len(invalid):
            expected = f"must be integers from 0 to {len(classes) - 1}"
            problems.append(InvalidInput(f"`{part}`: labels of {task.name!r}", expected, f"{float(invalid[0]):g}"))
    unseen = [
        InvalidInput(
            f"`{part}`: {task.name!r}",
            f"has class {float(label):g}, which does not occur in train",
            hint="remove those rows",
        )
        for part in ("val", "test")
        for label in values[part][~torch.isin(values[part], values["train"])]
    ]
    return problems or unseen


def label_summary(problem: Problem) -> LabelSummary:
    """Counts the labels of a problem.

    Warns about pairs of tasks that share fewer than 50 training rows, or fewer than 2% of them.
    """
    present = {part: _present(split, problem.names) for part, split in problem.splits.items()}
    lines = tuple(
        TaskLabels(
            task.name,
            task.kind,
            {part: int(present[part][number].sum()) for part in PARTS},
            _positives(problem, task.name) if task.kind == "binary" else None,
        )
        for number, task in enumerate(problem.tasks)
    )
    train = present["train"].astype(np.int64)
    overlap = train @ train.T
    rows = {part: len(split) for part, split in problem.splits.items()}
    return LabelSummary(rows, lines, overlap, _warnings(problem.names, lines, overlap, rows["train"]))


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """Counts of a problem's labels; `str` formats them as a table.

    Attributes:
        rows: the number of rows in each part.
        tasks: the label counts of each task.
        overlap: the number of training rows with labels for both tasks, [task, task]; on the diagonal, all labels.
        warnings: pairs of tasks that share too few training rows to learn from each other, and parts with only one
            class.
    """

    rows: Mapping[str, int]
    tasks: tuple[TaskLabels, ...]
    overlap: NDArray[np.int64]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        headings = [f"{f'{part} ({self.rows[part]})':>20}" for part in PARTS]
        table = TextTable("task", f"{'kind':<10}", *headings, numbers=headings)
        for line in self.tasks:
            table.add_row(line.task, line.kind, *(_cell(line, part) for part in PARTS))
        return "\n".join([*table.lines(), self.pairs, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def pairs(self) -> str:
        """A one-line summary of how many training rows pairs of tasks share."""
        names = [line.task for line in self.tasks]
        if len(names) < 2:
            return "one task, no pairs"
        above = np.triu_indices(len(names), 1)
        shared = self.overlap[above]
        if shared.min() == shared.max():
            return f"pairs share {shared.min()} train rows"
        least = int(shared.argmin())
        first, second = names[above[0][least]], names[above[1][least]]
        return f"pairs share {shared.min()} to {shared.max()} train rows (fewest: {first} and {second})"


@dataclass(frozen=True)
class TaskLabels:
    """Label counts of one task.

    Attributes:
        task: the name of the task.
        kind: the kind of the task.
        labels: the number of rows with a label, by part.
        positives: the number of positive labels of a binary task, by part; None for other kinds.
    """

    task: str
    kind: str
    labels: Mapping[str, int]
    positives: Mapping[str, int] | None


def _cell(line: TaskLabels, part: str) -> str:
    if line.positives is None:
        return f"{line.labels[part]}"
    return f"{line.labels[part]} ({line.positives[part]} pos)"


def _present(split: Rows, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Returns whether each row has a label, [task, row]; for dense targets, at least one."""
    return np.stack([split.labelled(name).cpu().numpy() for name in names])


def _positives(problem: Problem, name: str) -> dict[str, int]:
    targets = {
        part: require_in_memory(split, "counting positives").targets[name] for part, split in problem.splits.items()
    }
    return {part: int((labels == 1).sum()) for part, labels in targets.items()}


def _warnings(
    names: tuple[str, ...], lines: tuple[TaskLabels, ...], overlap: NDArray[np.int64], rows: int
) -> tuple[str, ...]:
    fewest = max(MIN_SHARED_ROWS, MIN_SHARED_FRACTION * rows)
    few_shared = [
        f"{first!r} and {second!r} share only {overlap[i, j]} train rows with both labels; "
        "the affinity between them can hardly be measured"
        for i, first in enumerate(names)
        for j, second in enumerate(names)
        if i < j and overlap[i, j] < fewest
    ]
    one_class = [
        f"{line.task!r} has only one class in {part}"
        for line in lines
        if line.positives is not None
        for part in PARTS
        if line.positives[part] in (0, line.labels[part])
    ]
    return (*few_shared, *one_class)
