"""What trainings so far let one expect of networks that were not trained: a Gaussian process for each task.

The logarithm of a task's validation loss in a network is

    level + shared trends + own effect of the set of tasks + luck of the seed + luck of the network.

Own effects are alike for sets that differ in few tasks: the covariance falls by a factor with each task in which two sets
differ (a product kernel on the bits, so that main effects, pairs and higher orders are all there, in falling weight).
Trends are shared by all tasks: how affinity, the number of tasks left out, and each single one left out matter. The
luck of a seed hits all its networks alike (they share first weights and the order of rows), so that networks of one
seed are compared in pairs, and the luck of the network of all tasks is not taken for a gain of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEVEL = 100.0  # variance of the level: nothing is known of it
USUAL_SCALE = 0.03  # of effects on a logarithm of a loss, before anything was seen
SCALE_WEIGHT = 4.0  # observations that the scale of the other tasks is worth
EARLY = 1.5  # variance that an early look adds, in units of all others


@dataclass(frozen=True)
class Shape:
    """Shares of the variance, which sum to 1, and how alike neighbours are.

    Attributes:
        smooth: of effects that similar sets share.
        own: of effects of one set alone.
        seed: of the luck of a seed.
        luck: of the luck of a network.
        alike: the correlation of sets that differ in one task.
    """

    smooth: float
    own: float
    seed: float
    luck: float
    alike: float


SHAPES = tuple(
    Shape((1 - noise) * 0.85, (1 - noise) * 0.15, noise * seed, noise * (1 - seed), alike)
    for noise in (0.1, 0.3, 0.6, 0.9)
    for seed in (0.3, 0.7)
    for alike in (0.7, 0.9)
)


@dataclass(frozen=True, eq=False)
class Seens:
    """Everything seen, as arrays.

    Attributes:
        inside: [trials, tasks], which tasks were trained.
        seeds: [trials].
        early: [trials], whether it was an early look.
        logs: [trials, tasks], logarithms of validation losses.
    """

    inside: Bools
    seeds: NDArray[np.int64]
    early: Bools
    logs: Array


@dataclass(eq=False)
class Beliefs:
    """Expectations from what was seen.

    Args:
        seen: all trials, that of all tasks among them.
        hints: [source, target], how helpful a task is for another before anything was trained; None: no idea.
        shapes: to choose from, by what fits best.
    """

    seen: Seens
    hints: Array | None = None
    shapes: Sequence[Shape] = SHAPES
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        n = self.seen.inside.shape[1]
        self._rows = [np.flatnonzero(self.seen.inside[:, j]) for j in range(n)]
        self._apart = [_distances(self.seen.inside[rows], self.seen.inside[rows]) for rows in self._rows]
        self._helps = None if self.hints is None else _standard(self.hints)
        self._fits = max((self._fit(shape) for shape in self.shapes), key=lambda fit: fit.evidence)
        self.shape, self.scales = self._fits.shape, self._fits.scales

    def expect(self, pool: Bools) -> tuple[Array, Array]:
        """Means and standard deviations of log losses against all tasks together, [networks, tasks].

        NaN where a network lacks a task.
        """
        means, deviations = np.full(pool.shape, np.nan), np.full(pool.shape, np.nan)
        for j in range(pool.shape[1]):
            rows = np.flatnonzero(pool[:, j])
            means[rows, j], deviations[rows, j] = self._expect(j, pool[rows])
        return means, deviations

    def _expect(self, j: int, sets: Bools) -> tuple[Array, Array]:
        fit, shape = self._fits, self.shape
        everything = np.ones((1, sets.shape[1]), dtype=bool)
        seen = self.seen.inside[self._rows[j]]
        contrast = _alike(_distances(sets, seen), shape) - _alike(_distances(everything, seen), shape)
        trend = self._trends(j, sets) @ fit.trends
        mean = trend + contrast @ fit.weights[j]
        away = _alike(_distances(sets, everything), shape)[:, 0]
        before = 2 * (shape.smooth + shape.own - away)
        variance = before - (contrast * cho_solve(fit.factors[j], contrast.T).T).sum(1)
        scale = fit.scales[j]
        return scale * mean, scale * np.sqrt(np.maximum(variance, 0))

    def _trends(self, j: int, sets: Bools) -> Array:
        """What may matter for task j in each set: hints, how many are left out, and who."""
        out = (~sets).astype(np.float64)
        columns = [out.sum(1) / max(1, sets.shape[1] - 1), *out.T]
        if self._helps is not None:
            columns.append(out @ self._helps[:, j])
        return np.stack(columns, 1)

    def _fit(self, shape: Shape) -> _Fit:
        n = self.seen.inside.shape[1]
        scales = np.full(n, USUAL_SCALE)
        factors = [cho_factor(self._covariance(j, shape), lower=True) for j in range(n)]
        logs = [self.seen.logs[rows, j] - self.seen.logs[rows, j].mean() for j, rows in enumerate(self._rows)]
        designs = [self._trends(j, self.seen.inside[rows]) for j, rows in enumerate(self._rows)]
        trends = np.zeros(designs[0].shape[1])
        for _ in range(3):
            scales = _scales(logs, designs, trends, scales, factors)
            trends = _shared_trends(logs, designs, scales, factors, self._helps is not None)
        rests = [log / scale - design @ trends for log, scale, design in zip(logs, scales, designs, strict=True)]
        weights = [cho_solve(factor, rest) for factor, rest in zip(factors, rests, strict=True)]
        evidence = sum(
            -0.5 * rest @ weight - np.log(np.diag(factor[0])).sum() - len(rest) * np.log(scale)
            for rest, weight, factor, scale in zip(rests, weights, factors, scales, strict=True)
        )
        return _Fit(shape, scales, factors, weights, trends, float(evidence))

    def _covariance(self, j: int, shape: Shape) -> Array:
        rows, apart = self._rows[j], self._apart[j]
        seeds = self.seen.seeds[rows]
        same_seed = seeds[:, None] == seeds
        covariance = LEVEL + _alike(apart, shape) + shape.seed * same_seed
        covariance[np.diag_indices(len(rows))] += shape.luck + 1e-6 + EARLY * self.seen.early[rows]
        return covariance


@dataclass(eq=False)
class _Fit:
    shape: Shape
    scales: Array
    factors: list[tuple[Array, bool]]
    weights: list[Array]
    trends: Array
    evidence: float


def _distances(some: Bools, others: Bools) -> Array:
    """How many tasks two sets differ in."""
    left, right = some.astype(np.float64), others.astype(np.float64)
    return left.sum(1)[:, None] + right.sum(1) - 2 * left @ right.T


def _alike(apart: Array, shape: Shape) -> Array:
    return np.asarray(shape.smooth * shape.alike**apart + shape.own * (apart == 0))


def _standard(hints: Array) -> Array:
    """Hints onto each target around zero, of one size; no opinion of a task about itself."""
    helps = np.where(np.eye(len(hints), dtype=bool), np.nan, hints)
    helps = helps - np.nanmean(helps, axis=0)
    size = np.nanstd(helps, axis=0)
    return np.nan_to_num(helps / np.where(size > 0, size, 1))


def _scales(logs: list[Array], designs: list[Array], trends: Array, scales: Array, factors: list[tuple[Array, bool]]) -> Array:
    """How large effects are on each task; where little was seen, as large as on others."""
    rests = [log / scale - design @ trends for log, scale, design in zip(logs, scales, designs, strict=True)]
    sums = np.array([rest @ cho_solve(factor, rest) for rest, factor in zip(rests, factors, strict=True)]) * scales**2
    counts = np.array([max(len(rest) - 1, 1) for rest in rests])
    pooled = (USUAL_SCALE**2 * 2 + np.exp(np.mean(np.log(sums / counts + 1e-12))) * len(logs)) / (2 + len(logs))
    return np.sqrt((SCALE_WEIGHT * pooled + sums) / (SCALE_WEIGHT + counts))


def _shared_trends(
    logs: list[Array], designs: list[Array], scales: Array, factors: list[tuple[Array, bool]], hinted: bool
) -> Array:
    """Trends that all tasks share, shrunk towards none, and hints towards a little help."""
    width = designs[0].shape[1]
    precision, expected = np.full(width, 1 / 0.15**2), np.zeros(width)
    precision[0] = 1.0
    if hinted:
        precision[-1], expected[-1] = 1 / 0.1**2, 0.1
    normal, right = np.diag(precision), precision * expected
    for log, design, scale, factor in zip(logs, designs, scales, factors, strict=True):
        solved = cho_solve(factor, design)
        normal = normal + design.T @ solved
        right = right + solved.T @ (log / scale)
    return np.asarray(np.linalg.solve(normal, right))
