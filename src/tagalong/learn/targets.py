"""Converts the labels of a task to numbers, and infers the kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, collect, did_you_mean, first_few

from .column_types import MAX_MAGNITUDE, MISSING_HINT, as_column, text_cells, typing_errors
from .task import ERROR_MEASURES, Kind, Task

MAX_INTEGER_CLASSES = 10
MAX_TEXT_CLASSES = 50
MAX_REPEATED_ERRORS = 2  # a text that occurs more often among numbers is likely the name of a class
MARGIN = 0.1  # by which answers may be outside the range of the training labels, relative to its width
Label = str | float | int


@dataclass(frozen=True, eq=False)
class Target:
    """The labels of a task as numbers.

    Attributes:
        task: the task.
        values: the labels [rows] or [rows, …], with NaN for missing labels.
        classes: the original labels of the classes 0, 1, …, or None if the labels were not encoded.
    """

    task: Task
    values: NDArray[np.float64]
    classes: tuple[Label, ...] | None = None

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes."""
        return self.task.kind in ("binary", "multiclass")

    def scale(self, rows: NDArray[np.int64], clip: bool = False) -> tuple[float, ...]:
        """Returns the mean and standard deviation of the labels in the given rows.

        Args:
            rows: the training rows.
            clip: whether to append the smallest and largest answer that models may give.
        """
        values = self.values[rows]
        scale = float(np.nanmean(values)), float(np.nanstd(values))
        if not clip:
            return scale
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        return (*scale, low - MARGIN * (high - low), high + MARGIN * (high - low))

    def label(self, code: float) -> Label:
        """Returns the original label of a class, or the number of another task."""
        if self.task.kind in ("regression", "custom"):
            return code
        return int(code) if self.classes is None else self.classes[int(code)]


def read_targets(
    tasks: Sequence[Task | str],
    columns: Mapping[str, Any],
    problems: list[InvalidInput],
    kinds: Mapping[str, Kind] = MappingProxyType({}),
    errors: Mapping[str, str] = MappingProxyType({}),
) -> list[Target]:
    """Reads the labels of every task that has a column, and adds everything that is wrong to `problems`."""
    names = task_names(tasks)
    for argument, settings in (("kinds", kinds), ("errors", errors)):
        for unknown in set(settings).difference(names):
            hint = did_you_mean(unknown, names)
            problems.append(InvalidInput(argument, "must contain only targets", repr(unknown), hint))
    targets = []
    for task, name in zip(tasks, names, strict=True):
        if name in columns:
            targets.append(collect(problems, read_target, task, columns[name], kinds.get(name), errors.get(name)))
    return targets


def read_target(task_or_name: Task | str, raw: Any, kind: Kind | None = None, error: str | None = None) -> Target:
    """Reads the labels of one task.

    Args:
        task_or_name: the task or its name.
        raw: the labels; a column of `read_columns` locates those that are not numbers.
        kind: the kind of the task, if the task is given by name. If None, the kind is inferred as binary for two
            values, multiclass for text or few distinct integers, and regression otherwise.
        error: the error measure, or None for that of the task.

    Raises:
        InvalidInput: If the labels do not match the kind, or cannot be learned.
    """
    task = task_or_name if isinstance(task_or_name, Task) else None
    name = task_or_name if isinstance(task_or_name, str) else task_or_name.name
    argument = f"`targets`: {name!r}"
    kind = task.kind if task else kind
    if kind is not None and (not isinstance(kind, str) or kind not in ERROR_MEASURES):
        kinds = ", ".join(map(repr, ERROR_MEASURES))
        raise InvalidInput(argument, f"must have one of the kinds {kinds}", repr(kind))

    values = as_column(raw)
    is_text = values.dtype == object
    if is_text and values.ndim == 1 and kind not in ("binary", "multiclass"):
        _refuse_typing_errors(argument, values, raw, kind)
    missing = values == np.array(None) if is_text else np.isnan(values)
    present = values[~missing].astype(str) if is_text else values[~missing]
    distinct = np.unique(present)
    labels = tuple(
        int(label) if isinstance(label, float) and label.is_integer() else label for label in distinct.tolist()
    )
    found = f"{len(labels)}: {first_few(list(map(repr, labels)))}"
    _refuse_labels(argument, distinct, kind, found)
    kind = kind or _guess_kind(distinct, len(present))

    # Classes are encoded as 0, 1, … in the order of their labels, unless labels are such numbers already.
    classes = 2 if kind == "binary" else (task and task.classes) or len(distinct)
    task = task or Task(name, kind, classes=classes if kind == "multiclass" else None)
    if error is not None:
        task = replace(task, error=error)
    if kind in ("regression", "custom") or (not is_text and np.isin(distinct, np.arange(classes)).all()):
        return Target(task, values)
    if len(distinct) != classes and kind == "multiclass":
        expected = f"must have labels from 0 to {classes - 1}, or exactly {classes} distinct labels"
        raise InvalidInput(argument, expected, found)
    codes = np.full(values.shape, np.nan)
    codes[~missing] = np.searchsorted(distinct, present)
    return Target(task, codes, labels)


def _refuse_labels(argument: str, distinct: NDArray[Any], kind: Kind | None, found: str) -> None:
    is_text, count = distinct.dtype.kind == "U", len(distinct)
    if not count:
        raise InvalidInput(argument, "must have labels, but all are missing", hint="drop this target")
    if not is_text and not np.abs(distinct).max() <= MAX_MAGNITUDE:
        expected = f"must be finite, or missing (NaN), and at most {MAX_MAGNITUDE:g} in magnitude"
        raise InvalidInput(argument, expected, f"{np.abs(distinct).max():g}", "rescale the target")
    if count == 1 and kind != "custom":
        raise InvalidInput(argument, "must have at least two distinct labels", found, "drop this target")
    if kind == "binary" and count > 2:
        raise InvalidInput(argument, "is binary and must have exactly two distinct labels", found)
    if kind in ("regression", "custom") and is_text:
        raise InvalidInput(argument, f"is a {kind} task and must have numeric labels", f"text, {found}")
    if is_text and count > MAX_TEXT_CLASSES:
        expected = f"must have at most {MAX_TEXT_CLASSES} distinct text labels"
        raise InvalidInput(argument, expected, found, "drop this target")


def _guess_kind(distinct: NDArray[Any], labels: int) -> Kind:
    if len(distinct) == 2:
        return "binary"
    if distinct.dtype.kind == "U":
        return "multiclass"
    whole = bool((distinct == np.round(distinct)).all())
    few = len(distinct) <= min(MAX_INTEGER_CLASSES, labels // 5)
    return "multiclass" if whole and few else "regression"


def _refuse_typing_errors(argument: str, values: NDArray[Any], raw: Any, kind: Kind | None) -> None:
    """Raises an error for labels that are numbers with few exceptions, unless these could be names of classes."""
    import pandas as pd

    column = raw if isinstance(raw, pd.Series) else pd.Series(values)
    cells = typing_errors(column)
    if cells is None:
        return
    most_repeated = text_cells(column).value_counts().max()
    if kind is None and column.nunique() <= MAX_TEXT_CLASSES and most_repeated > MAX_REPEATED_ERRORS:
        return
    hint = MISSING_HINT if kind else f"{MISSING_HINT}, or pass `kinds` if the labels are classes"
    raise InvalidInput(argument, "must be numeric", cells, hint)


def task_names(tasks: Sequence[Task | str]) -> tuple[str, ...]:
    """Returns the names of tasks that are given as `Task` objects or as names."""
    return tuple(task.name if isinstance(task, Task) else task for task in tasks)


def encoded_labels(targets: Sequence[Target]) -> dict[str, tuple[Label, ...]]:
    """Returns the original labels of each task whose classes were encoded as numbers."""
    return {target.task.name: target.classes for target in targets if target.classes is not None}
