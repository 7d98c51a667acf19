"""Builds and checks the fields of an affinity from a history, a matrix, or one or two existing affinities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tagalong.errors import InvalidInput, as_names, raise_problems, task_name_problems

from .averaging import Average, Floats, Ints, averages
from .bootstrap import standard_errors

if TYPE_CHECKING:
    from .affinity import Affinity

MAX_MEASURED = 1e150  # the squares of larger values would overflow in standard errors
IDENTITY_SETTINGS = (
    "estimator",
    "update",
    "held_out",
    "per_lr",
    "average",
    "trim",
)  # these define the measured quantity


def fields_from_history(
    history: ArrayLike,
    tasks: Iterable[str],
    steps: ArrayLike | None = None,
    null: ArrayLike | None = None,
    skipped: Mapping[str, ArrayLike] | None = None,
    settings: Mapping[str, Any] | None = None,
    block_counts: ArrayLike | None = None,
) -> dict[str, Any]:
    """Returns the fields of an affinity with the given history."""
    names = as_names(tasks)
    checker, n = FieldChecker(names), len(names)
    average = Average.from_settings(settings or {})
    length = _checked_length("history", history)
    values = checker.check_array("history", history, (length, n, n))
    nulls = checker.check_array("null", np.full((length, n), np.nan) if null is None else null, (length, n))
    calls = checker.check_steps(np.arange(length) if steps is None else steps)
    if calls.size != length:
        checker.add_problem("steps", f"must contain {length} call numbers, one per step of `history`", str(calls.size))
    blocks = checker.check_block_counts(block_counts, values)
    raise_problems(checker.problems)
    return {
        "tasks": names,
        "mean": averages(values, nulls, average, blocks),
        "stderr": standard_errors(values, nulls, average, blocks),
        "count": np.isfinite(values).sum(axis=0) if blocks is None else blocks.sum(axis=0),
        "steps": calls,
        "history": values,
        "null": nulls,
        "skipped": skipped or {},
        "settings": {**(settings or {}), **average.settings},
        "block_counts": blocks,
    }


def fields_from_matrix(
    matrix: ArrayLike,
    tasks: Iterable[str] | None = None,
    axis: str = "source",
    stderr: ArrayLike | None = None,
    count: ArrayLike | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the fields of an affinity with the given averages but no history."""
    n = _checked_length("matrix", matrix)
    names = tuple(map(str, range(n))) if tasks is None else as_names(tasks)
    checker = FieldChecker(names)
    if axis not in ("source", "target"):
        checker.add_problem("axis", 'must be "source" or "target"', repr(axis))
    if len(names) != n:
        checker.add_problem("tasks", f"must contain {n} names, one per row of `matrix`", str(len(names)))
    mean = checker.check_array("matrix", matrix, (n, n))
    errors = checker.check_errors(np.full((n, n), np.nan) if stderr is None else stderr)
    counts = checker.check_counts("count", np.isfinite(mean) * 1 if count is None else count)
    raise_problems(checker.problems)
    orient = np.transpose if axis == "target" else np.asarray
    parts: dict[str, NDArray[Any]] = {"mean": orient(mean), "stderr": orient(errors), "count": orient(counts)}
    empty = {"steps": np.zeros(0), "history": np.zeros((0, n, n)), "null": np.zeros((0, n))}
    return {"tasks": names, **parts, **empty, "settings": settings or {}}


def fields_for_steps(affinity: Affinity, rows: NDArray[Any]) -> dict[str, Any]:
    """Returns the fields of an affinity for only some of its measured steps.

    `skipped` is omitted because it is not recorded per step.
    """
    return fields_from_history(
        affinity.history[rows],
        affinity.tasks,
        affinity.steps[rows],
        affinity.null[rows],
        settings=affinity.settings,
        block_counts=None if affinity.block_counts is None else affinity.block_counts[rows],
    )


def fields_for_tasks(affinity: Affinity, tasks: Iterable[str]) -> dict[str, Any]:
    """Returns the fields of an affinity for only the given tasks, in the given order."""
    names = as_names(tasks)
    unknown = [task for task in names if task not in affinity.tasks]
    if unknown:
        known = ", ".join(map(repr, affinity.tasks))
        raise InvalidInput("tasks", f"must contain only known tasks ({known})", ", ".join(map(repr, unknown)))
    at = np.array([affinity.tasks.index(task) for task in names], dtype=np.intp)
    pairs = np.ix_(at, at)
    skipped = {reason: counts[pairs] for reason, counts in affinity.skipped.items()}
    if len(affinity.steps):
        history = affinity.history[:, at][:, :, at]
        counts = None if affinity.block_counts is None else affinity.block_counts[:, at][:, :, at]
        null = affinity.null[:, at]
        return fields_from_history(history, names, affinity.steps, null, skipped, affinity.settings, counts)
    part = fields_from_matrix(
        affinity.mean[pairs],
        names,
        stderr=affinity.stderr[pairs],
        count=affinity.count[pairs],
        settings=affinity.settings,
    )
    return {**part, "skipped": skipped}


def _checked_length(name: str, value: Any) -> int:
    try:
        return len(value)
    except TypeError:
        raise InvalidInput(name, "must be an array", type(value).__name__) from None


def merge_fields(first: Affinity, second: Affinity) -> dict[str, Any]:
    """Returns the fields of the affinity that combines two others over the union of their tasks."""
    settings = _merge_settings(first, second)
    tasks = (*first.tasks, *(task for task in second.tasks if task not in first.tasks))
    skipped = {reason: _sum_skipped(reason, first, second, tasks) for reason in (*first.skipped, *second.skipped)}
    if len(first.steps) and len(second.steps):
        return fields_from_history(**_join_histories(first, second, tasks), skipped=skipped, settings=settings)
    return {**fields_from_matrix(**_pool_means(first, second, tasks), settings=settings), "skipped": skipped}


def _merge_settings(first: Affinity, second: Affinity) -> dict[str, Any]:
    """Returns the settings that do not differ between the two affinities.

    Settings that define the measured quantity must not differ.
    """
    ours, theirs = first.settings, second.settings
    differ = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    clash = [f"{key} ({ours[key]!r} and {theirs[key]!r})" for key in differ if key in IDENTITY_SETTINGS]
    if clash:
        raise InvalidInput(
            "other",
            "must have been measured with the same settings",
            f"different values for {', '.join(clash)}",
            "measure both in the same way, or call averaged() on both if they differ only in how they are averaged",
        )
    return {key: value for key, value in {**theirs, **ours}.items() if key not in differ}


def _join_histories(first: Affinity, second: Affinity, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Returns the two histories, concatenated."""
    length, n = len(first.steps) + len(second.steps), len(tasks)
    history, null = np.full((length, n, n), np.nan), np.full((length, n), np.nan)
    in_blocks = first.block_counts is not None or second.block_counts is not None
    counts = np.zeros((length, n, n), dtype=np.int64) if in_blocks else None
    start = 0
    for part in (first, second):
        at = np.array([tasks.index(task) for task in part.tasks])
        rows = np.arange(start, start + len(part.steps))
        history[np.ix_(rows, at, at)], null[np.ix_(rows, at)] = part.history, part.null
        if counts is not None:
            own = np.isfinite(part.history) if part.block_counts is None else part.block_counts
            counts[np.ix_(rows, at, at)] = own
        start += len(rows)
    # Steps that are already in order, e.g. those of two windows of one run, keep their numbers.
    offset = max(0, int(first.steps[-1]) + 1 - int(second.steps[0]))
    steps = np.concatenate([first.steps, second.steps + offset])
    return {"history": history, "tasks": tasks, "steps": steps, "null": null, "block_counts": counts}


def _pool_means(first: Affinity, second: Affinity, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Returns the average of the two means, weighted by the number of values."""
    parts = (first, second)
    means = np.stack([_expand_matrix(part.mean, part, tasks, np.nan) for part in parts])
    errors = np.stack([_expand_matrix(part.stderr, part, tasks, np.nan) for part in parts])
    counts = np.stack([_expand_matrix(part.count, part, tasks, 0.0) for part in parts])
    known = np.isfinite(means)
    weights = np.where(known, np.maximum(counts, 1.0), 0.0)
    total = weights.sum(axis=0)
    fractions = weights / np.maximum(total, 1.0)
    mean = np.where(total > 0, (np.where(known, means, 0.0) * fractions).sum(axis=0), np.nan)
    stderr = np.sqrt((np.where(known, errors * fractions, 0.0) ** 2).sum(axis=0))
    return {"matrix": mean, "tasks": tasks, "stderr": np.where(total > 0, stderr, np.nan), "count": total}


def _sum_skipped(reason: str, first: Affinity, second: Affinity, tasks: tuple[str, ...]) -> Floats:
    parts = [part for part in (first, second) if reason in part.skipped]
    return np.asarray(np.sum([_expand_matrix(part.skipped[reason], part, tasks, 0.0) for part in parts], axis=0))


def _expand_matrix(matrix: NDArray[Any], affinity: Affinity, tasks: tuple[str, ...], fill_value: float) -> Floats:
    """Returns a matrix for all tasks, with the values of one affinity and `fill_value` everywhere else."""
    at = [tasks.index(task) for task in affinity.tasks]
    wide = np.full((len(tasks), len(tasks)), fill_value)
    wide[np.ix_(at, at)] = matrix
    return wide


class FieldChecker:
    """Converts values to read-only arrays and collects all problems found.

    Args:
        tasks: the task names. Problems with the names are collected as well.

    Attributes:
        problems: all problems found so far.
    """

    def __init__(self, tasks: tuple[Any, ...]) -> None:
        self.n = len(tasks)
        self.problems = task_name_problems(tasks)

    def add_problem(self, argument: str, expected: str, found: str = "", hint: str = "") -> None:
        """Adds a problem."""
        is_name = argument.isidentifier()
        self.problems.append(InvalidInput(argument if is_name else f"`{argument}`", expected, found, hint))

    def check_array(self, name: str, value: Any, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Any:
        """Checks the shape of `value` and returns it as a read-only array of the given type."""
        try:
            array = np.asarray(value)
            if array.dtype.kind in "cmM":
                raise TypeError(f"unsupported dtype {array.dtype}")
            if np.issubdtype(dtype, np.integer) and not ((array == np.round(array)) & (np.abs(array) < 2**62)).all():
                raise ValueError("not integers, or too large")
            array = np.asarray(array, dtype=dtype)
        except (TypeError, ValueError, OverflowError) as error:
            self.add_problem(name, "must be an array of numbers", f"{type(value).__name__} ({error})")
            return np.zeros(shape, dtype)
        if array.size == 0 and 0 in shape:
            array = array.reshape(shape)  # the shape of an empty list does not show the number of tasks
        if array.shape != shape:
            self.add_problem(name, f"must have shape {shape} for {self.n} tasks", str(array.shape))
        elif np.issubdtype(array.dtype, np.floating):
            infinite = int(np.isinf(array).sum())
            if infinite:
                expected = "must be finite, or NaN where nothing was measured"
                self.add_problem(name, expected, f"{infinite} infinite values", "did the loss diverge?")
            elif name in ("history", "null") and (largest := _largest(array)) > MAX_MEASURED:
                expected = f"must be at most {MAX_MEASURED:g} in magnitude"
                self.add_problem(name, expected, f"{largest:g}", "divide all values by the same number")
        return as_read_only(array)

    def check_counts(self, name: str, value: Any) -> Ints:
        array: Ints = self.check_array(name, value, (self.n, self.n), np.int64)
        if (array < 0).any():
            self.add_problem(name, "must contain only non-negative integers", str(array.min()))
        return array

    def check_block_counts(self, value: Any, history: Floats) -> Ints | None:
        """Checks that there is a positive count for every known entry of `history`, and zero for every other entry."""
        if value is None:
            return None
        array: Ints = self.check_array("block_counts", value, history.shape, np.int64)
        if array.shape == history.shape and ((array > 0) != np.isfinite(history)).any():
            self.add_problem("block_counts", "must be positive where `history` is known, and 0 elsewhere")
        return array

    def check_errors(self, value: Any) -> Floats:
        array: Floats = self.check_array("stderr", value, (self.n, self.n))
        if (array < 0).any():
            self.add_problem("stderr", "must be at least 0, or NaN where unknown", str(array[array < 0].min()))
        return array

    def check_steps(self, value: Any) -> Ints:
        array: Ints = self.check_array("steps", value, (np.size(value),), np.int64)
        if array.ndim == 1 and (np.diff(array) <= 0).any():
            self.add_problem(
                "steps", "must be strictly increasing, with one call number per measured step", hint="sort them"
            )
        return array

    def check_settings(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a copy converted to JSON and back, so a loaded affinity equals the saved one."""
        try:
            Average.from_settings(value)
            return MappingProxyType(json.loads(json.dumps(dict(value), allow_nan=False)))
        except InvalidInput as error:
            self.problems.append(error)
            return MappingProxyType({})
        except (TypeError, ValueError) as error:
            self.add_problem(
                "settings",
                f"must contain only JSON-compatible values (numbers, strings, lists, None): {error}",
            )
            return MappingProxyType({})


def _largest(array: NDArray[Any]) -> float:
    """Returns the largest magnitude, ignoring NaN, without a copy of the array."""
    low, high = (reduce(array, axis=None, initial=0.0) for reduce in (np.fmin.reduce, np.fmax.reduce))
    return float(max(-low, high))


def as_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Returns a read-only array that shares no memory with writable arrays, making a copy only if necessary."""
    if array.flags.writeable or array.base is not None:
        array = array.copy()
        array.setflags(write=False)
    return array
