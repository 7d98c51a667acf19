"""The best networks of a table of losses: as many as the budget allows, every task served where it does best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cover(values: Array, budget: int) -> tuple[int, ...]:
    """Which rows (networks) to take, so that the sum over columns (tasks) of the lowest value is low.

    Greedy from the first row and from every good start, then one network at a time is replaced by a better one until
    none is. Exact answers are for the final choice; this is asked thousands of times.

    Args:
        values: [networks, tasks], infinite where a network lacks a task; the first row must have all.
        budget: how many networks there may be.

    Returns:
        The rows, without those that serve nothing better.

    Example:
        >>> inf = np.inf
        >>> cover(np.array([[0.0, 0.0, 0.0], [-1.0, inf, inf], [inf, -1.0, 1.0], [inf, -2.0, inf]]), 2)
        (0, 3)
    """
    starts = [(0,), *((row,) for row in _promising(values))]
    there = np.isfinite(values)
    values = np.where(there, values, 1000 * (np.abs(values[there]).max() + 1))  # uncovered is worse than any
    found = [_improved(values, _grown(values, start, budget)) for start in starts]
    best = min(found, key=lambda rows: (round(_total(values, rows), 12), len(rows)))
    return _needed(values, best)


def served_by(values: Array, rows: tuple[int, ...]) -> NDArray[np.intp]:
    """For each task the row that serves it; the first of equals."""
    best: NDArray[np.intp] = np.asarray(rows, dtype=np.intp)[np.argmin(values[list(rows)], axis=0)]
    return best


def _promising(values: Array, count: int = 3) -> NDArray[np.intp]:
    gains = np.minimum(values - values[0], 0).sum(1)
    return np.argsort(gains, kind="stable")[:count]


def _total(values: Array, rows: tuple[int, ...]) -> float:
    return float(values[list(rows)].min(0).sum())


def _grown(values: Array, rows: tuple[int, ...], budget: int) -> tuple[int, ...]:
    while len(rows) < budget:
        rows = (*rows, _addition(values, rows))
    return rows


def _addition(values: Array, rows: tuple[int, ...]) -> int:
    """The row that lowers the sum most beside others."""
    held = values[list(rows)].min(0) if rows else np.full(values.shape[1], np.inf)
    return int(np.argmin(np.minimum(values, held).sum(1)))


def _improved(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    total = _total(values, rows)
    while True:
        for place in range(len(rows)):
            others = rows[:place] + rows[place + 1 :]
            changed = (*others, _addition(values, others))
            if (lower := _total(values, changed)) < total - 1e-12:
                rows, total = changed, lower
                break
        else:
            return rows


def _needed(values: Array, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Without rows that others serve as well as."""
    kept = tuple(dict.fromkeys(sorted(rows)))
    for row in kept[::-1]:
        rest = tuple(other for other in kept if other != row)
        if rest and _total(values, rest) <= _total(values, kept) + 1e-12:
            kept = rest
    return kept
