"""Checks a problem's data before training, and counts its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, pluralize, raise_problems

from .problem import Problem
from .rows import MAX_CHUNK_ROWS, Split, require_in_memory
from .splitting import PARTS, label_problems

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
    problems = []
    for part, split in problem.splits.items():
        if not len(split):
            problems.append(InvalidInput(part, "must have at least one row", "none"))
        elif isinstance(split, Split) and split.inputs.is_floating_point():
            wrong = sum(int((~some.isfinite()).flatten(1).any(1).sum()) for some in split.inputs.split(MAX_CHUNK_ROWS))
            if wrong:
                found = f"NaN or inf in {pluralize(wrong, 'row')}"
                problems.append(InvalidInput(f"`{part}`: inputs", "must be finite", found))
    is_readable = all(isinstance(split, Split) and len(split) for split in problem.splits.values())
    for task in problem.tasks if is_readable else ():
        targets = {part: require_in_memory(split, "this").targets[task.name] for part, split in problem.splits.items()}
        dtypes = {str(labels.dtype).removeprefix("torch.") for labels in targets.values()}
        largest = max(float(labels.double().abs().nan_to_num().max()) for labels in targets.values())
        where = f"labels of {task.name!r}"
        if not all(labels.is_floating_point() for labels in targets.values()):
            expected = "must have a floating-point dtype (NaN for missing labels)"
            problems.append(InvalidInput(where, expected, ", ".join(sorted(dtypes))))
        elif largest > MAX_LABEL_MAGNITUDE and task.kind != "custom" and task.loss is None:
            expected = f"must be at most {MAX_LABEL_MAGNITUDE:g} in magnitude (after any standardization)"
            hint = "if they mark missing labels, use NaN instead"
            problems.append(InvalidInput(where, expected, f"{largest:g}", hint))
        else:
            problems += label_problems(task, {part: labels.cpu().numpy() for part, labels in targets.items()})
    raise_problems(problems)


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """The label counts of a problem.

    Attributes:
        rows: the number of rows in each split.
        labels: for each task, the number of rows with a label in each split.
        positives: for each binary task, the number of positive labels in each split.
        overlap: the number of training rows with labels for both tasks, [task, task]. The diagonal contains the number
            of labels for each task.
        pairs: how many training rows the pairs of tasks share, as text.
        warnings: warnings about pairs of tasks that share too few training rows to learn from each other.
    """

    rows: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int]]
    positives: Mapping[str, Mapping[str, int]]
    overlap: NDArray[np.int64]
    pairs: str
    warnings: tuple[str, ...]


def label_summary(problem: Problem) -> LabelSummary:
    """Counts the labels of a problem.

    Warns about pairs of tasks that share fewer than 50 training rows, or less than 2% of all training rows.
    """
    names, splits = problem.names, problem.splits
    labels = {name: {part: int(splits[part].labelled(name).sum()) for part in PARTS} for name in names}
    positives = {}
    for task in problem.tasks:
        if task.kind == "binary":
            targets = {part: require_in_memory(splits[part], "counting positives").targets for part in PARTS}
            positives[task.name] = {part: int((targets[part][task.name] == 1).sum()) for part in PARTS}

    present = np.stack([problem.train.labelled(name).cpu().numpy() for name in names]).astype(np.int64)  # [tasks, rows]
    overlap = present @ present.T
    fewest, warnings, pairs = max(MIN_SHARED_ROWS, MIN_SHARED_FRACTION * len(problem.train)), [], "one task, no pairs"
    first, second = np.triu_indices(len(names), 1)
    shared = overlap[first, second]
    for i, j, rows in zip(first, second, shared, strict=True):
        if rows < fewest:
            what = f"{names[i]!r} and {names[j]!r} share only {rows} train rows with both labels"
            warnings.append(f"{what}; the affinity between them can hardly be measured")
    if len(shared):
        least = int(shared.argmin())
        pairs = f"pairs share at least {shared.min()} train rows ({names[first[least]]} and {names[second[least]]})"
    rows_by_part = {part: len(split) for part, split in splits.items()}
    return LabelSummary(rows_by_part, labels, positives, overlap, pairs, tuple(warnings))
