"""A bound that is cheap for any number of tasks."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from ._problem import Floats, Problem


def simple_bound(problem: Problem, networks: int) -> float:
    """No choice of at most `networks` networks is worth more.

    A task in a served set of s tasks is trained with s − 1 others or more, so it scores at most u(s), the mean of
    its s − 1 largest affinities. And Σ 1/s over all tasks is the number of served sets, at most k. So for every
    λ ≥ 0 the value is at most λk + Σ max over s of u(s) − λ/s; the best λ is searched, any is valid.
    """
    best = score_by_size(problem)
    sizes = np.arange(1, best.shape[1] + 1)

    def bound(price: float) -> float:
        return float(price * networks + (best - price / sizes).max(axis=1).sum())

    span = float(best[np.isfinite(best)].max() - best[np.isfinite(best)].min())
    high = max(span, 1e-12) * problem.n**2  # beyond it every task chooses the largest set
    found = minimize_scalar(bound, bounds=(0.0, high), method="bounded", options={"xatol": 1e-9 * high})
    return min(bound(0.0), float(found.fun)) * 1.0 + 1e-12 * problem.n


def score_by_size(problem: Problem) -> Floats:
    """For each task the most it can score in a served set of 1, 2, … tasks, falling."""
    n, alone = problem.n, problem.alone
    if n == 1:
        return alone[:, None]
    assert problem.scores is not None
    others = np.sort(-problem.scores.T[~np.eye(n, dtype=bool)].reshape(n, n - 1), axis=1)
    means = -np.cumsum(others, axis=1) / np.arange(1, n)
    first = np.maximum(means[:, 0] if problem.largest > 1 else -np.inf, alone)
    return np.concatenate([first[:, None], means], axis=1)[:, : problem.largest]
