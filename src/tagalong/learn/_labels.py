"""How many labels there are: per task and part, and for each pair of tasks on the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._problem import Problem
from ._rows import Rows, held
from ._split import PARTS

FEWEST_SHARED = 50
FEWEST_SHARED_PART = 0.02


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
        width = max(len("task"), *(len(line.task) for line in self.tasks))
        heads = [f"{part} ({self.rows[part]})" for part in PARTS]
        lines = [f"{'task':<{width}}  {'kind':<10}  " + "  ".join(f"{head:>20}" for head in heads)]
        for line in self.tasks:
            cells = "  ".join(f"{_cell(line, part):>20}" for part in PARTS)
            lines.append(f"{line.task:<{width}}  {line.kind:<10}  {cells}")
        return "\n".join([*lines, self.pairs, *(f"warning: {warning}" for warning in self.warnings)])

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


def _cell(line: TaskLabels, part: str) -> str:
    if line.positives is None:
        return f"{line.labels[part]}"
    return f"{line.labels[part]} ({line.positives[part]} pos)"


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


def _present(split: Rows, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """[task, row]: whether a row has a label, in a dense target any."""
    return np.stack([split.labelled(name).cpu().numpy() for name in names])


def _positives(problem: Problem, name: str) -> dict[str, int]:
    targets = {part: held(split, "counting positives").targets[name] for part, split in problem.splits.items()}
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
