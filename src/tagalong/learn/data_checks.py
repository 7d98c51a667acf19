"""Checks of a problem's data before training: what cannot be learnt, and how many labels there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import counted
from tagalong.rendering import TextTable

from .problem import Problem
from .rows import ROWS_AT_ONCE, Rows, Split, in_memory
from .splitting import PARTS
from .task import Task

LARGEST_LABEL = 1e18  # the square of a much larger number is no float32
FEWEST_SHARED = 50
FEWEST_SHARED_PART = 0.02


def data_problems(problem: Problem) -> list[str]:
    """Parts without rows, inputs that are not finite, and labels that a task cannot be learnt from or judged by.

    Of rows that are read from files only the number is looked at: reading all of them would take longer than an epoch.
    """
    found = [wrong for part, split in problem.splits.items() for wrong in _part_problems(part, split)]
    if not all(isinstance(split, Split) for split in problem.splits.values()):
        return found
    return found + [wrong for task in problem.tasks for wrong in _task_problems(problem, task)]


def _part_problems(part: str, split: Rows) -> list[str]:
    if not len(split):
        return [f"`{part}` must have rows, found none"]
    if not isinstance(split, Split) or not split.inputs.is_floating_point():
        return []
    rows = sum(int((~some.isfinite()).flatten(1).any(1).sum()) for some in split.inputs.split(ROWS_AT_ONCE))
    return [f"`{part}`: inputs must be finite, found NaN or inf in {rows} rows"] if rows else []


def _task_problems(problem: Problem, task: Task) -> list[str]:
    targets = {part: in_memory(split, "this").targets[task.name] for part, split in problem.splits.items()}
    whole = [part for part, labels in targets.items() if not labels.is_floating_point()]
    if whole:
        found = str(targets[whole[0]].dtype).removeprefix("torch.")
        return [f"the target of {task.name!r} must be floating point (NaN where a label is missing), found {found}"]
    beyond = [part for part, labels in targets.items() if bool((labels.abs() > LARGEST_LABEL).any())]
    if beyond and task.kind != "custom" and task.loss is None:
        return [_too_large(task, part, targets[part]) for part in beyond]
    values = {part: torch.unique(labels[labels.isfinite()]) for part, labels in targets.items()}
    unlabelled = [part for part in PARTS if not len(values[part]) and len(problem.splits[part])]
    if unlabelled:
        return [f"`{part}`: {task.name!r} must have labels, found none; leave the task out" for part in unlabelled]
    if task.kind == "custom" or not len(values["train"]):
        return []
    if len(values["train"]) == 1:
        return [f"`train`: {task.name!r} must vary, found {float(values['train'][0]):g} wherever it is known"]
    return [] if task.kind == "regression" or task.loss is not None else _class_problems(task, values)


def _too_large(task: Task, part: str, labels: Tensor) -> str:
    rows = int((labels.abs() > LARGEST_LABEL).reshape(len(labels), -1).any(1).sum())
    return (
        f"`{part}`: labels of {task.name!r} must be at most {LARGEST_LABEL:g} in size (standardised, if they are), "
        f"found {counted(rows, 'row')} beyond; if that stands for a missing label, leave it empty"
    )


def _class_problems(task: Task, values: dict[str, Tensor]) -> list[str]:
    """Labels that are no class, or that train lacks."""
    classes = torch.arange(task.classes or 2, device=values["train"].device)
    problems = []
    for part in PARTS:
        odd = values[part][~torch.isin(values[part], classes.to(values[part]))]
        if len(odd):
            last, other = len(classes) - 1, float(odd[0])
            problems.append(f"`{part}`: labels of {task.name!r} must be whole numbers 0 to {last}, found {other:g}")
    lacking = [
        f"`{part}`: {task.name!r} has the class {float(label):g} that train lacks; leave those rows out"
        for part in ("val", "test")
        for label in values[part][~torch.isin(values[part], values["train"])]
    ]
    return problems or lacking


def label_summary(problem: Problem) -> LabelSummary:
    """Counts the labels of a problem.

    A pair of tasks is warned about when it shares fewer train rows than 50 or 2 % of them, whichever is more.
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
    return LabelSummary(rows, lines, overlap, (*_few_shared(problem.names, overlap, rows["train"]), *_one_class(lines)))


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """The labels of a problem; `str` gives a table.

    Attributes:
        rows: of each part.
        tasks: one line per task.
        overlap: train rows that have both labels, [task, task]; the diagonal is the number of labels.
        warnings: pairs that share too few train rows to learn from each other, and parts with one class only.
    """

    rows: Mapping[str, int]
    tasks: tuple[TaskLabels, ...]
    overlap: NDArray[np.int64]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        heads = [f"{f'{part} ({self.rows[part]})':>20}" for part in PARTS]
        table = TextTable("task", f"{'kind':<10}", *heads, numbers=heads)
        for line in self.tasks:
            table.add_row(line.task, line.kind, *(_cell(line, part) for part in PARTS))
        return "\n".join([*table.lines(), self.pairs, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def pairs(self) -> str:
        """How many train rows pairs of tasks share, in a line."""
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
    """The labels of one task.

    Attributes:
        task: its name.
        kind: its kind.
        labels: rows with a label, by part.
        positives: of a binary task, by part; None for other kinds.
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
    """[task, row]: whether a row has a label, in a dense target any."""
    return np.stack([split.labelled(name).cpu().numpy() for name in names])


def _positives(problem: Problem, name: str) -> dict[str, int]:
    targets = {part: in_memory(split, "counting positives").targets[name] for part, split in problem.splits.items()}
    return {part: int((labels == 1).sum()) for part, labels in targets.items()}


def _few_shared(names: tuple[str, ...], overlap: NDArray[np.int64], rows: int) -> list[str]:
    fewest = max(FEWEST_SHARED, FEWEST_SHARED_PART * rows)
    return [
        f"{first!r} and {second!r} share only {overlap[i, j]} train rows with both labels; "
        "what one does for the other is hardly measured"
        for i, first in enumerate(names)
        for j, second in enumerate(names)
        if i < j and overlap[i, j] < fewest
    ]


def _one_class(lines: tuple[TaskLabels, ...]) -> list[str]:
    return [
        f"{line.task!r} has only one class in {part}"
        for line in lines
        if line.positives is not None
        for part in PARTS
        if line.positives[part] in (0, line.labels[part])
    ]
