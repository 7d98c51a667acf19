"""Joins two affinities: tasks come and go, and need not be measured again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._build import of_history, of_matrix
from ._check import Floats
from ._record import Record

DEFINING = ("estimator", "update", "held_out", "per_lr", "average", "trim")


def merged(first: Record, second: Record) -> dict[str, Any]:
    """The fields of both together, over the union of their tasks."""
    settings = _settings(first, second)
    tasks = (*first.tasks, *(task for task in second.tasks if task not in first.tasks))
    skipped = {why: _skips(why, first, second, tasks) for why in (*first.skipped, *second.skipped)}
    if len(first.steps) and len(second.steps):
        return of_history(**_joined(first, second, tasks), skipped=skipped, settings=settings)
    return {**of_matrix(**_pooled(first, second, tasks), settings=settings), "skipped": skipped}


def _settings(first: Record, second: Record) -> dict[str, Any]:
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


def _joined(first: Record, second: Record, tasks: tuple[str, ...]) -> dict[str, Any]:
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


def _pooled(first: Record, second: Record, tasks: tuple[str, ...]) -> dict[str, Any]:
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


def _skips(why: str, first: Record, second: Record, tasks: tuple[str, ...]) -> Floats:
    parts = [part for part in (first, second) if why in part.skipped]
    return np.asarray(np.sum([_widened(part.skipped[why], part, tasks, 0.0) for part in parts], axis=0))


def _widened(matrix: NDArray[Any], part: Record, tasks: tuple[str, ...], fill: float) -> Floats:
    """A matrix over some tasks as one over all."""
    at = [tasks.index(task) for task in part.tasks]
    wide = np.full((len(tasks), len(tasks)), fill)
    wide[np.ix_(at, at)] = matrix
    return wide
