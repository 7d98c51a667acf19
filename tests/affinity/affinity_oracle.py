"""Slow, direct versions of what `tagalong.affinity` computes with arrays."""

from __future__ import annotations

from math import floor, isfinite, nan

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def slow_average(history: Floats, null: Floats, average: str, trim: float = 0.05) -> Floats:
    """Returns the average of every pair, one value at a time."""
    _, n, _ = history.shape
    result = np.full((n, n), nan)
    for target in range(n):
        onto = slow_alignment(history[:, :, target], null[:, target])
        means = [_mean([row[i] for row in onto if isfinite(row[i])]) for i in range(n)]
        for source in range(n):
            kept = []
            for row in onto:
                if not isfinite(row[source]):
                    continue
                kept.append(row[source] - (0.0 if average == "mean" else _common_term(row, means, target)))
            result[source, target] = slow_average_of_values(kept, average, trim)
    return result


def _common_term(row: list[float], means: list[float], target: int) -> float:
    """Returns what a complete step did to all sources; the target counts only if there is a single other source."""
    present = [i for i in range(len(row)) if isfinite(row[i])]
    others = [i for i in present if i != target]
    counted, known = present, [i for i in range(len(row)) if isfinite(means[i])]
    if len(others) > 1:
        counted, known = others, [i for i in known if i != target]
    if len(counted) < 2 or counted != known:
        return 0.0
    return _mean([row[i] for i in counted]) - _mean([means[i] for i in counted])


def slow_alignment(onto: Floats, null: Floats) -> list[list[float]]:
    """Returns the steps of one target, with raw steps shifted to the level of the relative ones."""
    rows = [list(map(float, row)) for row in onto]
    relative = [row for row, zero in zip(rows, null, strict=True) if isfinite(zero)]
    raw = [row for row, zero in zip(rows, null, strict=True) if not isfinite(zero)]
    gaps = []
    for source in range(onto.shape[1]):
        ours = [row[source] for row in relative if isfinite(row[source])]
        theirs = [row[source] for row in raw if isfinite(row[source])]
        if ours and theirs:
            gaps.append(_mean(ours) - _mean(theirs))
    shift = _mean(gaps) if gaps else 0.0
    return [row if isfinite(zero) else [value + shift for value in row] for row, zero in zip(rows, null, strict=True)]


def slow_average_of_values(values: list[float], average: str, trim: float) -> float:
    values = sorted(values)
    if average == "mean" or not values:
        return _mean(values)
    cut = floor(trim * len(values)) if average == "trimmed" else (len(values) - 1) // 2
    return _mean(values[cut : len(values) - cut])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else nan


def ar1(rng: np.random.Generator, steps: int, shape: tuple[int, ...], rho: float) -> Floats:
    """Returns stationary AR(1) series with variance one."""
    series = np.empty((steps, *shape))
    series[0] = rng.standard_normal(shape)
    for step in range(1, steps):
        series[step] = rho * series[step - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(shape)
    return series


def ar1_mean_deviation(steps: int, rho: float) -> float:
    """Returns the true standard deviation of the mean of an AR(1) series."""
    lags = np.arange(1, steps)
    return float(np.sqrt((1 + 2 * ((1 - lags / steps) * rho**lags).sum()) / steps))


values = st.floats(-100, 100, allow_subnormal=False).map(lambda value: round(value, 4))


@st.composite
def histories(draw: st.DrawFn, missing: bool = False, max_steps: int = 12) -> tuple[Floats, Floats]:
    """Draws a history and its null steps; steps that miss a source are relative, complete ones may be raw."""
    n = draw(st.integers(1, 4))
    steps = draw(st.integers(1, max_steps))
    history = draw(npst.arrays(np.float64, (steps, n, n), elements=values))
    null = np.full((steps, n), np.nan)
    if missing:
        absent = draw(npst.arrays(np.bool_, (steps, n, n)))
        null = np.where(draw(npst.arrays(np.bool_, (steps, n))), 0.0, np.nan)
        # Only relative steps may be incomplete, as the meter measures them.
        history = np.where(absent & np.isfinite(null)[:, None, :], np.nan, history)
    return history, null


def names(n: int) -> list[str]:
    return [f"task{i}" for i in range(n)]
