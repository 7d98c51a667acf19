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
from .rows import MAX_CHUNK_ROWS, Rows, Split, require_in_memory
from .splitting import PARTS
from .task import Task

MAX_LABEL_MAGNITUDE = 1e18  # the square of a much larger number overflows in float32
MIN_SHARED_ROWS = 50
MIN_SHARED_FRACTION = 0.02


def check_data(problem: Problem) -> None:
    """Raises an error if a split has no rows, inputs are not finite, or tasks cannot be learned from their labels.

    For rows that are read from files, only the number of rows is checked, since reading all of them would take longer
    than an epoch.

    Raises:
        InvalidInput: If the data is invalid. The message lists every problem.
    """
    problems = [found for split_name, split in problem.splits.items() for found in _split_problems(split_name, split)]
    if all(isinstance(split, Split) for split in problem.splits.values()):
        problems += [found for task in problem.tasks for found in _task_problems(problem, task)]
    raise_problems(problems)


def _split_problems(split_name: str, split: Rows) -> list[InvalidInput]:
    if not len(split):
        return [InvalidInput(split_name, "must have at least one row", "none")]
    if not isinstance(split, Split) or not split.inputs.is_floating_point():
        return []
    rows = sum(int((~some.isfinite()).flatten(1).any(1).sum()) for some in split.inputs.split(MAX_CHUNK_ROWS))
    found = f"NaN or inf in {pluralize(rows, 'row')}"
    return [InvalidInput(f"`{split_name}`: inputs", "must be finite", found)] if rows else []


def _task_problems(problem: Problem, task: Task) -> list[InvalidInput]:
    name = repr(task.name)
    targets = {
        split_name: require_in_memory(split, "this").targets[task.name] for split_name, split in problem.splits.items()
    }
    dtypes = [labels.dtype for labels in targets.values() if not labels.is_floating_point()]
    if dtypes:
        expected = "must have a floating-point dtype (NaN for missing labels)"
        return [InvalidInput(f"the target of {name}", expected, str(dtypes[0]).removeprefix("torch."))]
    too_large = [
        split_name for split_name, labels in targets.items() if bool((labels.abs() > MAX_LABEL_MAGNITUDE).any())
    ]
    if too_large and task.kind != "custom" and task.loss is None:
        return [_too_large_problem(task, split_name, targets[split_name]) for split_name in too_large]
    values = {split_name: torch.unique(labels[labels.isfinite()]) for split_name, labels in targets.items()}
    unlabeled = [split_name for split_name in PARTS if not len(values[split_name]) and len(problem.splits[split_name])]
    if unlabeled:
        hint = "drop this task"
        return [InvalidInput(f"`{split_name}`: {name}", "must have labels", "none", hint) for split_name in unlabeled]
    if task.kind == "custom" or not len(values["train"]):
        return []
    if len(values["train"]) == 1:
        found = f"only {float(values['train'][0]):g}"
        return [InvalidInput(f"`train`: {name}", "must have at least two distinct labels", found)]
    return [] if task.kind == "regression" or task.loss is not None else _class_problems(task, values)


def _too_large_problem(task: Task, split_name: str, labels: Tensor) -> InvalidInput:
    rows = int((labels.abs() > MAX_LABEL_MAGNITUDE).reshape(len(labels), -1).any(1).sum())
    return InvalidInput(
        f"`{split_name}`: labels of {task.name!r}",
        f"must be at most {MAX_LABEL_MAGNITUDE:g} in magnitude (after any standardization)",
        f"{pluralize(rows, 'row')} with larger values",
        "if they mark missing labels, use NaN instead",
    )


def _class_problems(task: Task, values: dict[str, Tensor]) -> list[InvalidInput]:
    """Finds labels that are not valid classes or, if there are none, classes without training rows."""
    classes = torch.arange(task.classes or 2, device=values["train"].device)
    problems = []
    for split_name in PARTS:
        invalid = values[split_name][~torch.isin(values[split_name], classes.to(values[split_name]))]
        if len(invalid):
            expected = f"must be integers from 0 to {len(classes) - 1}"
            problems.append(
                InvalidInput(f"`{split_name}`: labels of {task.name!r}", expected, f"{float(invalid[0]):g}")
            )
    unseen = [
        InvalidInput(
            f"`{split_name}`: {task.name!r}",
            f"has class {float(label):g}, which does not occur in train",
            hint="remove the rows with this class",
        )
        for split_name in ("val", "test")
        for label in values[split_name][~torch.isin(values[split_name], values["train"])]
    ]
    return problems or unseen


def label_summary(problem: Problem) -> LabelSummary:
    """Counts the labels of a problem.

    Warns about pairs of tasks that share fewer than 50 training rows, or less than 2% of all training rows.
    """
    present = {split_name: _labeled_rows(split, problem.names) for split_name, split in problem.splits.items()}
    lines = tuple(
        TaskLabels(
            task.name,
            task.kind,
            {split_name: int(present[split_name][number].sum()) for split_name in PARTS},
            _count_positives(problem, task.name) if task.kind == "binary" else None,
        )
        for number, task in enumerate(problem.tasks)
    )
    train = present["train"].astype(np.int64)
    overlap = train @ train.T
    rows = {split_name: len(split) for split_name, split in problem.splits.items()}
    return LabelSummary(rows, lines, overlap, _find_warnings(problem.names, lines, overlap, rows["train"]))


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """The label counts of a problem. `str` formats them as a table.

    Attributes:
        rows: the number of rows in each split.
        tasks: the label counts of each task.
        overlap: the number of training rows with labels for both tasks, [task, task]. The diagonal contains the number
            of labels for each task.
        warnings: warnings about pairs of tasks that share too few training rows to learn from each other, and about
            splits with only one class.
    """

    rows: Mapping[str, int]
    tasks: tuple[TaskLabels, ...]
    overlap: NDArray[np.int64]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        headings = [f"{f'{split_name} ({self.rows[split_name]})':>20}" for split_name in PARTS]
        table = TextTable("task", f"{'kind':<10}", *headings, numbers=headings)
        for line in self.tasks:
            table.add_row(line.task, line.kind, *(_format_count(line, split_name) for split_name in PARTS))
        return "\n".join([*table.lines(), self.pairs, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def pairs(self) -> str:
        """Summarizes in one line how many training rows the pairs of tasks share."""
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
    """The label counts of one task.

    Attributes:
        task: the name of the task.
        kind: the kind of task.
        labels: the number of rows with a label in each split.
        positives: the number of positive labels in each split; None if the task is not binary.
    """

    task: str
    kind: str
    labels: Mapping[str, int]
    positives: Mapping[str, int] | None


def _format_count(line: TaskLabels, split_name: str) -> str:
    if line.positives is None:
        return f"{line.labels[split_name]}"
    return f"{line.labels[split_name]} ({line.positives[split_name]} pos)"


def _labeled_rows(split: Rows, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Returns an array [task, row] that is True where a row has a label for a task."""
    return np.stack([split.labelled(name).cpu().numpy() for name in names])


def _count_positives(problem: Problem, name: str) -> dict[str, int]:
    targets = {
        split_name: require_in_memory(split, "counting positives").targets[name]
        for split_name, split in problem.splits.items()
    }
    return {split_name: int((labels == 1).sum()) for split_name, labels in targets.items()}


def _find_warnings(
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
        f"{line.task!r} has only one class in {split_name}"
        for line in lines
        if line.positives is not None
        for split_name in PARTS
        if line.positives[split_name] in (0, line.labels[split_name])
    ]
    return (*few_shared, *one_class)
