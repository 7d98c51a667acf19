"""The fields of an affinity, checked and frozen: from a history, a matrix, part of another affinity, or two merged.

Every problem of one input is named at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tagalong.errors import name_problems, named, refuse

from .averaging import Average, Floats, Ints, averages
from .bootstrap import standard_errors

if TYPE_CHECKING:
    from .affinity import Affinity

DEFINING = ("estimator", "update", "held_out", "per_lr", "average", "trim")  # settings that say what is measured


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


def of_steps(affinity: Affinity, rows: NDArray[Any]) -> dict[str, Any]:
    """Fields of some measured steps; what was skipped is known for all of them only, so it is dropped."""
    return of_history(
        affinity.history[rows], affinity.tasks, affinity.steps[rows], affinity.null[rows], settings=affinity.settings
    )


def of_tasks(affinity: Affinity, tasks: Iterable[str]) -> dict[str, Any]:
    """Fields of some tasks alone, in the order asked for."""
    names = named(tasks)
    unknown = [task for task in names if task not in affinity.tasks]
    if unknown:
        known = ", ".join(map(repr, affinity.tasks))
        raise ValueError(f"`tasks` must be among {known}, found {', '.join(map(repr, unknown))}")
    at = np.array([affinity.tasks.index(task) for task in names], dtype=np.intp)
    pairs = np.ix_(at, at)
    skipped = {why: counts[pairs] for why, counts in affinity.skipped.items()}
    if len(affinity.steps):
        history = affinity.history[:, at][:, :, at]
        return of_history(history, names, affinity.steps, affinity.null[:, at], skipped, affinity.settings)
    part = of_matrix(
        affinity.mean[pairs],
        names,
        stderr=affinity.stderr[pairs],
        count=affinity.count[pairs],
        settings=affinity.settings,
    )
    return {**part, "skipped": skipped}


def _length(name: str, value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        raise ValueError(f"`{name}` must be an array, found {type(value).__name__}") from None


def merged(first: Affinity, second: Affinity) -> dict[str, Any]:
    """The fields of both together, over the union of their tasks."""
    settings = _merged_settings(first, second)
    tasks = (*first.tasks, *(task for task in second.tasks if task not in first.tasks))
    skipped = {why: _skips(why, first, second, tasks) for why in (*first.skipped, *second.skipped)}
    if len(first.steps) and len(second.steps):
        return of_history(**_joined(first, second, tasks), skipped=skipped, settings=settings)
    return {**of_matrix(**_pooled(first, second, tasks), settings=settings), "skipped": skipped}


def _merged_settings(first: Affinity, second: Affinity) -> dict[str, Any]:
    """What both say, or only one does; refuses settings under which the numbers mean different things."""
    ours, theirs = first.settings, second.settings
    differ = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    clash = [f"{key} ({ours[key]!r} and {theirs[key]!r})" for key in differ if key in DEFINING]
    if clash:
        raise ValueError(
            f"`other` must measure the same quantity, found different {', '.join(clash)}; "
            "measure both alike, or bring both to one average with averaged()"
        )
    return {key: value for key, value in {**theirs, **ours}.items() if key not in differ}


def _joined(first: Affinity, second: Affinity, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Both histories, one after the other."""
    length, n = len(first.steps) + len(second.steps), len(tasks)
    history, null = np.full((length, n, n), np.nan), np.full((length, n), np.nan)
    start = 0
    for part in (first, second):
        at = np.array([tasks.index(task) for task in part.tasks])
        rows = np.arange(start, start + len(part.steps))
        history[np.ix_(rows, at, at)], null[np.ix_(rows, at)] = part.history, part.null
        start += len(rows)
    # Steps that follow already, such as those of two windows of one run, keep their numbers.
    later = max(0, int(first.steps[-1]) + 1 - int(second.steps[0]))
    steps = np.concatenate([first.steps, second.steps + later])
    return {"history": history, "tasks": tasks, "steps": steps, "null": null}


def _pooled(first: Affinity, second: Affinity, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Means weighted by how many values they stand for."""
    parts = (first, second)
    means = np.stack([_widened(part.mean, part, tasks, np.nan) for part in parts])
    errors = np.stack([_widened(part.stderr, part, tasks, np.nan) for part in parts])
    counts = np.stack([_widened(part.count, part, tasks, 0.0) for part in parts])
    known = np.isfinite(means)
    weights = np.where(known, np.maximum(counts, 1.0), 0.0)
    total = weights.sum(axis=0)
    shares = weights / np.maximum(total, 1.0)
    mean = np.where(total > 0, (np.where(known, means, 0.0) * shares).sum(axis=0), np.nan)
    stderr = np.sqrt((np.where(known, errors * shares, 0.0) ** 2).sum(axis=0))
    return {"matrix": mean, "tasks": tasks, "stderr": np.where(total > 0, stderr, np.nan), "count": total}


def _skips(why: str, first: Affinity, second: Affinity, tasks: tuple[str, ...]) -> Floats:
    parts = [part for part in (first, second) if why in part.skipped]
    return np.asarray(np.sum([_widened(part.skipped[why], part, tasks, 0.0) for part in parts], axis=0))


def _widened(matrix: NDArray[Any], part: Affinity, tasks: tuple[str, ...], fill: float) -> Floats:
    """A matrix over some tasks as one over all."""
    at = [tasks.index(task) for task in part.tasks]
    wide = np.full((len(tasks), len(tasks)), fill)
    wide[np.ix_(at, at)] = matrix
    return wide


class Fields:
    """Converts and freezes arrays, and remembers what was wrong with them."""

    def __init__(self, tasks: tuple[Any, ...]) -> None:
        self.n = len(tasks)
        self.problems = name_problems(tasks)

    def array(self, name: str, value: Any, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Any:
        """A read-only copy of `value` with this shape and type."""
        try:
            array = np.asarray(value)
            if array.dtype.kind in "cmM":
                raise TypeError(f"values of type {array.dtype}")
            if np.issubdtype(dtype, np.integer) and (array != np.round(array)).any():
                raise ValueError("not whole numbers")
            array = np.asarray(array, dtype=dtype)
        except (TypeError, ValueError, OverflowError) as error:
            self.problems.append(f"`{name}` must be an array of numbers, found {type(value).__name__}: {error}")
            return np.zeros(shape, dtype)
        if array.size == 0 and 0 in shape:
            array = array.reshape(shape)  # an empty list cannot say how many tasks it is about
        if array.shape != shape:
            found = f"{self.n} tasks need {shape}, found {array.shape}"
            self.problems.append(f"`{name}` has the wrong shape: {found}")
        elif np.issubdtype(array.dtype, np.floating):
            infinite = int(np.isinf(array).sum())
            if infinite:
                expected = f"`{name}` must be finite, or NaN where not measured"
                self.problems.append(f"{expected}, found {infinite} infinite; has the loss diverged?")
        return frozen(array)

    def counts(self, name: str, value: Any) -> Ints:
        array: Ints = self.array(name, value, (self.n, self.n), np.int64)
        if (array < 0).any():
            self.problems.append(f"`{name}` must count values, found {array.min()}; counts are 0 or more")
        return array

    def errors(self, value: Any) -> Floats:
        array: Floats = self.array("stderr", value, (self.n, self.n))
        if (array < 0).any():
            self.problems.append(f"`stderr` must be 0 or more, or NaN where not known, found {array[array < 0].min()}")
        return array

    def steps(self, value: Any) -> Ints:
        array: Ints = self.array("steps", value, (np.size(value),), np.int64)
        if array.ndim == 1 and (np.diff(array) <= 0).any():
            self.problems.append("`steps` must rise strictly, one call number per measured step; sort them")
        return array

    def settings(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """A copy as JSON would give it back, so that a saved affinity equals the loaded one."""
        try:
            return MappingProxyType(json.loads(json.dumps(dict(value), allow_nan=False)))
        except (TypeError, ValueError) as error:
            self.problems.append(f"`settings` must be JSON-able (numbers, strings, lists, None), found {error}")
            return MappingProxyType({})


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only array that nobody else can write to; one that already is such stays itself."""
    if array.flags.writeable or array.base is not None:
        array = array.copy()
        array.setflags(write=False)
    return array
