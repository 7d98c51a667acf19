"""Checks a problem's data before training, and counts its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, pluralize, raise_problems

from .problem import Problem
from .rows import MAX_CHUNK_ROWS, Split, require_in_memory
from .splitting import label_problems

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
    problems = [
        InvalidInput(part, "must have at least one row", "none")
        for part, split in problem.splits.items()
        if not len(split)
    ]
    splits = {part: split for part, split in problem.splits.items() if isinstance(split, Split)}
    if problems or len(splits) < len(problem.splits):
        raise_problems(problems)
        return
    for part, split in splits.items():
        wrong = sum(int((~rows.isfinite()).flatten(1).any(1).sum()) for rows in split.inputs.split(MAX_CHUNK_ROWS))
        if wrong:
            found = f"NaN or inf in {pluralize(wrong, 'row')}"
            problems.append(InvalidInput(f"`{part}`: inputs", "must be finite", found))
    for task in problem.tasks:
        where, targets = f"labels of {task.name!r}", {part: split.targets[task.name] for part, split in splits.items()}
        largest = max(float(labels.double().abs().nan_to_num().max()) for labels in targets.values())
        if not all(labels.is_floating_point() for labels in targets.values()):
            expected = "must have a floating-point dtype (NaN for missing labels)"
            problems.append(
                InvalidInput(where, expected, ", ".join({str(labels.dtype) for labels in targets.values()}))
            )
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
        labels: for each task, the number of rows with a label in each split.
        positives: for each binary task, the number of positive labels in each split.
        overlap: the number of training rows with labels for both tasks, [task, task].
        pairs: how many training rows the pairs of tasks share, as text.
        warnings: warnings about pairs of tasks that share too few training rows to learn from each other.
    """

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
    labels = {name: {part: int(split.labelled(name).sum()) for part, split in splits.items()} for name in names}
    positives = {}
    for task in problem.tasks:
        if task.kind == "binary":
            own = {part: require_in_memory(split, "this").targets[task.name] for part, split in splits.items()}
            positives[task.name] = {part: int((targets == 1).sum()) for part, targets in own.items()}

    present = torch.stack([problem.train.labelled(name) for name in names]).cpu().numpy().astype(np.int64)
    overlap = present @ present.T  # [tasks, tasks]
    first, second = np.triu_indices(len(names), 1)
    shared = overlap[first, second]
    if not len(shared):
        return LabelSummary(labels, positives, overlap, "one task, no pairs", ())
    warnings = []
    for pair in np.flatnonzero(shared < max(MIN_SHARED_ROWS, MIN_SHARED_FRACTION * len(problem.train))):
        what = (
            f"{names[first[pair]]!r} and {names[second[pair]]!r} share only {shared[pair]} train rows with both labels"
        )
        warnings.append(f"{what}; the affinity between them can hardly be measured")
    least = int(shared.argmin())
    pairs = f"pairs share at least {shared.min()} train rows ({names[first[least]]} and {names[second[least]]})"
    return LabelSummary(labels, positives, overlap, pairs, tuple(warnings))
