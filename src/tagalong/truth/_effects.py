"""What helped truly: effects of one task on another, by the test losses of a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._table import TruthTable

Array = NDArray[np.float64]


def pair_gains(table: TruthTable) -> Array:
    """[source, target]: by how much a partner lowers the log loss of a task that was alone; NaN on the diagonal."""
    return pair_gains_of(table.test.mean(0))


def pair_gains_of(logs: Array) -> Array:
    """The same of log losses [subsets, tasks]."""
    n = logs.shape[1]
    gains = np.full((n, n), np.nan)
    for source in range(n):
        for target in range(n):
            if source != target:
                alone, pair = (1 << target) - 1, (1 << source | 1 << target) - 1
                gains[source, target] = logs[alone, target] - logs[pair, target]
    return gains


def marginal_effects(table: TruthTable) -> Array:
    """[source, target]: by how much a task lowers another's log loss, averaged over all sets it may join."""
    return marginal_effects_of(table.test.mean(0))


def marginal_effects_of(logs: Array) -> Array:
    """The same of log losses [subsets, tasks]."""
    inside, n = ~np.isnan(logs), logs.shape[1]
    effects = np.full((n, n), np.nan)
    for source in range(n):
        for target in range(n):
            if source != target:
                without = inside[:, target] & ~inside[:, source]
                joined = np.flatnonzero(without) + (1 << source)
                effects[source, target] = np.mean(logs[without, target] - logs[joined, target])
    return effects


def correlation(estimate: Array, truth: Array) -> float:
    """Pearson's, of what stands out onto each target: a constant per target changes no grouping.

    Example:
        >>> round(correlation(np.array([[np.nan, 2, 0], [1, np.nan, 5], [0, 1, np.nan]]), np.eye(3) * np.nan), 2)
        nan
    """
    off = ~np.eye(len(truth), dtype=bool)
    mine, theirs = (_around_targets(np.where(off, some, np.nan))[off] for some in (estimate, truth))
    size = np.sqrt(np.sum(mine**2) * np.sum(theirs**2))
    return float(np.sum(mine * theirs) / size) if size > 0 else float("nan")


def _around_targets(effects: Array) -> Array:
    """Effects less their mean onto each target; the diagonal is left out."""
    n = len(effects)
    means = np.where(np.eye(n, dtype=bool), 0, effects).sum(0) / (n - 1)
    return np.asarray(effects - means)
