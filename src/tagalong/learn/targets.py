"""Converts the labels of a task to numbers, and infers the kind of task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput

from .column_types import MAX_MAGNITUDE, MISSING_HINT, Column, as_column, locate_text, text_cells
from .task import DEFAULT_ERROR_MEASURES, Kind, Task

MAX_INTEGER_CLASSES = 10
MAX_TEXT_CLASSES = 50
MAX_REPEATED_ERRORS = 2  # a text that occurs more often among numbers is likely the name of a class
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

    def scale(self, rows: NDArray[np.int64]) -> tuple[float, float]:
        """Returns the mean and standard deviation of the labels in the given rows."""
        values = self.values[rows]
        return float(np.nanmean(values)), float(np.nanstd(values))


def read_target(
    task_or_name: Task | str, raw: Any, kind: Kind | None = None, locate: Callable[[], str | None] | None = None
) -> Target:
    """Reads the labels of one task.

    Args:
        task_or_name: the task or its name.
        raw: the labels.
        kind: the kind of the task, if the task is given by name. If None, the kind is inferred as binary for two
            values, multiclass for text or few distinct integers, and regression otherwise.
        locate: locates the few labels that are not numbers. If None, they are located by their row numbers.

    Raises:
        InvalidInput: If the labels do not match the kind, or cannot be learned.
    """
    name = task_or_name if isinstance(task_or_name, str) else task_or_name.name
    argument = f"`targets`: {name!r}"
    kind = kind if isinstance(task_or_name, str) else task_or_name.kind
    values = as_column(raw)
    present = values[_is_present(values)]
    if values.dtype == object and values.ndim == 1 and kind not in ("binary", "multiclass"):
        _check_typing_errors(argument, values, kind, locate or partial(locate_text, values))
    _check_labels(argument, present, values, kind)
    distinct = np.unique(present.astype(str) if present.dtype == object else present)
    kind = kind or _guess_kind(distinct, len(present))
    if kind == "multiclass" and distinct.dtype.kind == "U" and len(distinct) > MAX_TEXT_CLASSES:
        found = f"{len(distinct)}, e.g. {_format_some(distinct)}"
        raise InvalidInput(
            argument, f"must have at most {MAX_TEXT_CLASSES} distinct text labels", found, "drop this target"
        )
    if kind in ("regression", "custom"):
        task = task_or_name if isinstance(task_or_name, Task) else Task(name, kind)
        return Target(task, values)
    return _encode_classes(task_or_name, name, kind, values, distinct)


def _check_typing_errors(argument: str, values: Column, kind: Kind | None, locate: Callable[[], str | None]) -> None:
    """Raises an error for labels that are numbers with few exceptions, unless these could be names of classes."""
    cells = locate()
    if cells is None:
        return
    few = len(set(values.tolist()) - {None}) <= MAX_TEXT_CLASSES
    if kind is None and few and max(Counter(values[text_cells(values)].tolist()).values()) > MAX_REPEATED_ERRORS:
        return
    hint = MISSING_HINT if kind else f"{MISSING_HINT}, or pass `kinds` if the labels are classes"
    raise InvalidInput(argument, "must be numeric", cells, hint)


def _check_labels(argument: str, present: Column, values: Column, kind: Kind | None) -> None:
    if kind is not None and (not isinstance(kind, str) or kind not in DEFAULT_ERROR_MEASURES):
        raise InvalidInput(
            argument, f"must have one of the kinds {', '.join(map(repr, DEFAULT_ERROR_MEASURES))}", repr(kind)
        )
    if not len(present):
        raise InvalidInput(argument, f"must have labels, but all {len(values)} are missing", hint="drop this target")
    if present.dtype != object:
        _check_magnitudes(argument, np.abs(present))
    distinct = np.unique(present.astype(str) if present.dtype == object else present)
    some = _format_some(distinct)
    if len(distinct) == 1 and kind != "custom":
        raise InvalidInput(argument, "must have at least two distinct labels", f"only {some}", "drop this target")
    if kind == "binary" and len(distinct) > 2:
        raise InvalidInput(argument, "is binary and must have exactly two distinct labels", f"{len(distinct)}: {some}")
    if kind in ("regression", "custom") and present.dtype == object:
        raise InvalidInput(argument, f"is a {kind} task and must have numeric labels", f"text, e.g. {some}")


def _check_magnitudes(argument: str, magnitudes: Column) -> None:
    if not np.isfinite(magnitudes).all():
        found = f"{int(np.isinf(magnitudes).sum())} infinite labels"
        raise InvalidInput(argument, "must be finite or missing (NaN)", found)
    if magnitudes.max() > MAX_MAGNITUDE:
        expected = f"must be at most {MAX_MAGNITUDE:g} in magnitude"
        raise InvalidInput(argument, expected, f"{magnitudes.max():g}", "rescale the target")


def _guess_kind(distinct: NDArray[Any], labels: int) -> Kind:
    if len(distinct) == 2:
        return "binary"
    if distinct.dtype.kind == "U":
        return "multiclass"
    whole = bool((distinct == np.round(distinct)).all())
    few = len(distinct) <= min(MAX_INTEGER_CLASSES, labels // 5)
    return "multiclass" if whole and few else "regression"


def _encode_classes(task_or_name: Task | str, name: str, kind: Kind, values: Column, distinct: NDArray[Any]) -> Target:
    """Encodes the classes as 0, 1, …, in the order of their labels."""
    classes = task_or_name.classes if isinstance(task_or_name, Task) else None
    limit = 2 if kind == "binary" else (classes or len(distinct))
    task = (
        task_or_name
        if isinstance(task_or_name, Task)
        else Task(name, kind, classes=limit if kind == "multiclass" else None)
    )
    if distinct.dtype.kind == "f" and np.isin(distinct, np.arange(limit)).all():
        return Target(task, values)
    if len(distinct) != limit and kind == "multiclass":
        expected = f"must have labels from 0 to {limit - 1}, or exactly {limit} distinct labels"
        raise InvalidInput(f"`targets`: {name!r}", expected, f"{len(distinct)} labels: {_format_some(distinct)}")
    codes = np.full(values.shape, np.nan)
    present = _is_present(values)
    known = values[present].astype(str) if values.dtype == object else values[present]
    codes[present] = np.searchsorted(distinct, known)
    return Target(task, codes, tuple(_as_integer(label) for label in distinct.tolist()))


def _is_present(values: Column) -> NDArray[np.bool_]:
    if values.dtype == object:
        return np.array([value is not None for value in values.ravel()], dtype=bool).reshape(values.shape)
    return ~np.isnan(values)


def _as_integer(label: Label) -> Label:
    """Converts floats without a fractional part to integers."""
    return int(label) if isinstance(label, float) and label.is_integer() else label


def _format_some(distinct: NDArray[Any]) -> str:
    shown = ", ".join(repr(_as_integer(label)) for label in distinct[:5].tolist())
    return shown + (", …" if len(distinct) > 5 else "")


def with_error_measure(target: Target, error: Any) -> Target:
    """Returns the same target with a different error measure."""
    if not isinstance(error, str) and not callable(error):
        expected = "must be the name of an error measure or a function"
        raise InvalidInput(f"`errors`: {target.task.name!r}", expected, repr(error))
    return replace(target, task=replace(target.task, error=error))


def task_names(tasks: Sequence[Task | str]) -> tuple[str, ...]:
    """Returns the names of tasks that are given as `Task` objects or as names."""
    return tuple(task.name if isinstance(task, Task) else task for task in tasks)


def encoded_labels(targets: Sequence[Target]) -> dict[str, tuple[Label, ...]]:
    """Returns the original labels of each task whose classes were encoded as numbers."""
    return {target.task.name: target.classes for target in targets if target.classes is not None}
