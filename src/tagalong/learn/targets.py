"""Labels as people have them become numbers: which kind of task is it, and what does each number stand for?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .table_reading import LARGEST, Column, as_column
from .task import DEFAULT_ERRORS, Kind, Task

MOST_WHOLE_CLASSES = 10
MOST_TEXT_CLASSES = 50
Label = str | float | int


@dataclass(frozen=True, eq=False)
class Target:
    """The labels of a task as numbers.

    Attributes:
        task: which, with its kind.
        values: [rows] or [rows, …], NaN where missing.
        classes: the label that each number 0, 1, … stands for; None for numbers that stand for themselves.
    """

    task: Task
    values: NDArray[np.float64]
    classes: tuple[Label, ...] | None = None

    def scale(self, rows: NDArray[np.int64]) -> tuple[float, float]:
        """Mean and standard deviation of the labels of some rows."""
        values = self.values[rows]
        return float(np.nanmean(values)), float(np.nanstd(values))


def read_target(wanted: Task | str, raw: Any, kind: Kind | None = None) -> Target | list[str]:
    """The labels of one task, or what is wrong with them.

    Args:
        wanted: the task, or its name: the kind is then `kind` or guessed. Two values are a binary task, text or few
            whole numbers a multiclass one, everything else regression.
        raw: the labels.
        kind: of a task given by name.
    """
    name = wanted if isinstance(wanted, str) else wanted.name
    kind = kind if isinstance(wanted, str) else wanted.kind
    values = as_column(raw)
    present = values[_present(values)]
    problems = [f"`targets`: {name!r} {problem}" for problem in _unfit(present, values, kind)]
    if problems:
        return problems
    distinct = np.unique(present.astype(str) if present.dtype == object else present)
    kind = kind or _guess(distinct, len(present))
    if kind == "multiclass" and distinct.dtype.kind == "U" and len(distinct) > MOST_TEXT_CLASSES:
        found = f"{len(distinct)}, such as {_some(distinct)}"
        return [
            f"`targets`: {name!r} must have at most {MOST_TEXT_CLASSES} different texts, found {found}; leave it out"
        ]
    if kind in ("regression", "custom"):
        task = wanted if isinstance(wanted, Task) else Task(name, kind)
        return Target(task, values)
    return _coded(wanted, name, kind, values, distinct)


def _unfit(present: Column, values: Column, kind: Kind | None) -> list[str]:
    if kind is not None and kind not in DEFAULT_ERRORS:
        return [f"must be of kind {', '.join(map(repr, DEFAULT_ERRORS))}, found {kind!r}"]
    if not len(present):
        return [f"must have labels, found all {len(values)} missing; leave the task out"]
    if present.dtype != object and not np.isfinite(present).all():
        return [f"must be finite or missing (NaN), found {int(np.isinf(present).sum())} infinite labels"]
    if present.dtype != object and np.abs(present).max() > LARGEST:
        return [f"must be at most {LARGEST:g} in size, found {np.abs(present).max():g}; use another unit"]
    distinct = np.unique(present.astype(str) if present.dtype == object else present)
    if len(distinct) == 1 and kind != "custom":
        return [f"must vary, found {_some(distinct)} wherever it is known; leave the task out"]
    if kind == "binary" and len(distinct) > 2:
        return [f"is binary and must have two values, found {len(distinct)}: {_some(distinct)}"]
    if kind in ("regression", "custom") and present.dtype == object:
        return [f"is a {kind} task and must be numbers, found text such as {_some(distinct)}"]
    return []


def _guess(distinct: NDArray[Any], labels: int) -> Kind:
    if len(distinct) == 2:
        return "binary"
    if distinct.dtype.kind == "U":
        return "multiclass"
    whole = bool((distinct == np.round(distinct)).all())
    few = len(distinct) <= min(MOST_WHOLE_CLASSES, labels // 5)
    return "multiclass" if whole and few else "regression"


def _coded(wanted: Task | str, name: str, kind: Kind, values: Column, distinct: NDArray[Any]) -> Target | list[str]:
    """Classes as 0, 1, …, in the order of their labels."""
    classes = wanted.classes if isinstance(wanted, Task) else None
    limit = 2 if kind == "binary" else (classes or len(distinct))
    task = wanted if isinstance(wanted, Task) else Task(name, kind, classes=limit if kind == "multiclass" else None)
    if distinct.dtype.kind == "f" and np.isin(distinct, np.arange(limit)).all():
        return Target(task, values)
    if len(distinct) != limit and kind == "multiclass":
        found = f"{len(distinct)} labels: {_some(distinct)}"
        return [f"`targets`: {name!r} must have labels 0 to {limit - 1} or {limit} different ones, found {found}"]
    codes = np.full(values.shape, np.nan)
    present = _present(values)
    known = values[present].astype(str) if values.dtype == object else values[present]
    codes[present] = np.searchsorted(distinct, known)
    return Target(task, codes, tuple(_plain(label) for label in distinct.tolist()))


def _present(values: Column) -> NDArray[np.bool_]:
    if values.dtype == object:
        return np.array([value is not None for value in values.ravel()], dtype=bool).reshape(values.shape)
    return ~np.isnan(values)


def _plain(label: Label) -> Label:
    return int(label) if isinstance(label, float) and label.is_integer() else label


def _some(distinct: NDArray[Any]) -> str:
    shown = ", ".join(repr(_plain(label)) for label in distinct[:5].tolist())
    return shown + (", …" if len(distinct) > 5 else "")


def with_error(target: Target, error: Any) -> Target:
    """The same labels with another measure of error."""
    return replace(target, task=replace(target.task, error=error))


def by_name(tasks: Sequence[Task | str]) -> tuple[str, ...]:
    """The names of tasks, some of which are given by name."""
    return tuple(task.name if isinstance(task, Task) else task for task in tasks)


def coded_classes(targets: Sequence[Target]) -> dict[str, tuple[Label, ...]]:
    """What the numbers of coded tasks stand for."""
    return {target.task.name: target.classes for target in targets if target.classes is not None}
