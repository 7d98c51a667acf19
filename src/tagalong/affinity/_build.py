"""The fields of an affinity from a history, a matrix, or part of another affinity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tagalong._names import named, refuse

from ._average import Average, averages
from ._check import Fields
from ._record import Record
from ._resample import standard_errors


def of_history(
    history: ArrayLike,
    tasks: Iterable[str],
    steps: ArrayLike | None = None,
    null: ArrayLike | None = None,
    skipped: Mapping[str, ArrayLike] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fields with the averages and errors of a history."""
    names = named(tasks)
    check, n = Fields(names), len(names)
    average = Average.of(settings or {})
    length = _length("history", history)
    values = check.array("history", history, (length, n, n))
    nulls = check.array("null", np.full((length, n), np.nan) if null is None else null, (length, n))
    calls = check.steps(np.arange(length) if steps is None else steps)
    if calls.size != length:
        check.problems.append(f"`steps` must number the {length} steps of `history`, found {calls.size}")
    refuse(check.problems)
    return {
        "tasks": names,
        "mean": averages(values, nulls, average),
        "stderr": standard_errors(values, nulls, average),
        "count": np.isfinite(values).sum(axis=0),
        "steps": calls,
        "history": values,
        "null": nulls,
        "skipped": skipped or {},
        "settings": {**(settings or {}), **average.settings},
    }


def of_matrix(
    matrix: ArrayLike,
    tasks: Iterable[str] | None = None,
    axis: str = "source",
    stderr: ArrayLike | None = None,
    count: ArrayLike | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fields with given averages and no history."""
    n = _length("matrix", matrix)
    names = tuple(map(str, range(n))) if tasks is None else named(tasks)
    check = Fields(names)
    if axis not in ("source", "target"):
        check.problems.append(f'`axis` must say what the rows are, "source" or "target", found {axis!r}')
    if len(names) != n:
        check.problems.append(f"`tasks` must name the {n} rows of `matrix`, found {len(names)} names")
    mean = check.array("matrix", matrix, (n, n))
    errors = check.errors(np.full((n, n), np.nan) if stderr is None else stderr)
    counts = check.counts("count", np.isfinite(mean) * 1 if count is None else count)
    refuse(check.problems)
    turn = np.transpose if axis == "target" else np.asarray
    parts: dict[str, NDArray[Any]] = {"mean": turn(mean), "stderr": turn(errors), "count": turn(counts)}
    empty = {"steps": np.zeros(0), "history": np.zeros((0, n, n)), "null": np.zeros((0, n))}
    return {"tasks": names, **parts, **empty, "settings": settings or {}}


def of_steps(record: Record, rows: NDArray[Any]) -> dict[str, Any]:
    """Fields of some measured steps; what was skipped is known for all of them only, so it is dropped."""
    return of_history(
        record.history[rows], record.tasks, record.steps[rows], record.null[rows], settings=record.settings
    )


def of_tasks(record: Record, tasks: Iterable[str]) -> dict[str, Any]:
    """Fields of some tasks alone, in the order asked for."""
    names = named(tasks)
    unknown = [task for task in names if task not in record.tasks]
    if unknown:
        known = ", ".join(map(repr, record.tasks))
        raise ValueError(f"`tasks` must be among {known}, found {', '.join(map(repr, unknown))}")
    at = np.array([record.tasks.index(task) for task in names], dtype=np.intp)
    pairs = np.ix_(at, at)
    skipped = {why: counts[pairs] for why, counts in record.skipped.items()}
    if len(record.steps):
        history = record.history[:, at][:, :, at]
        return of_history(history, names, record.steps, record.null[:, at], skipped, record.settings)
    part = of_matrix(
        record.mean[pairs],
        names,
        stderr=record.stderr[pairs],
        count=record.count[pairs],
        settings=record.settings,
    )
    return {**part, "skipped": skipped}


def _length(name: str, value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        raise ValueError(f"`{name}` must be an array, found {type(value).__name__}") from None
