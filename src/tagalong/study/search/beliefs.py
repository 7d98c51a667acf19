"""Predicts the losses of untrained networks with a Gaussian process for each task.

The logarithm of a task's validation loss in a network is modeled as the following sum:

    level + shared trends + effect of the set of tasks + seed noise + network noise.

Sets that differ in few tasks have similar effects. The covariance decreases by a constant factor for each task that is
in only one of the two sets. This is a product kernel on the membership bits, so it includes main effects as well as
pairwise and higher-order interactions with decreasing weight. The trends are shared by all tasks. They include the
effects of affinity, of the number of omitted tasks, and of the omission of each task. The seed noise is common to all
networks with the same seed, which share initial weights and row order. Networks are therefore compared with other
networks that have the same seed. Thus, a poor result of the network for all tasks is not mistaken for a gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.intp]

LEVEL_VARIANCE = 100.0  # prior variance of the unknown level
PRIOR_SCALE = 0.03  # prior scale of effects on the logarithm of a loss
POOLED_SCALE_WEIGHT = 4.0  # number of observations that the scale pooled over tasks counts for
EARLY_VARIANCE = 1.5  # added for partial trainings, in units of the sum of the other variances


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of the covariance: fractions of the variance (which sum to 1) and a correlation.

    Attributes:
        smooth: the fraction due to effects that similar sets have in common.
        own: the fraction due to effects specific to a single set.
        seed: the fraction due to seed noise.
        luck: the fraction due to the noise of individual networks.
        alike: the correlation between sets that differ in one task.
    """

    smooth: float
    own: float
    seed: float
    luck: float
    alike: float


HYPERPARAMETER_GRID = (
    Hyperparameters(0.01, 0.01, 0.48, 0.5, 0.9),  # almost only noise
    *(
        Hyperparameters((1 - noise) * 0.85, (1 - noise) * 0.15, noise * 0.5, noise * 0.5, alike)
        for noise in (0.15, 0.4, 0.8)
        for alike in (0.7, 0.9)
    ),
)
MIN_RELATIVE_WEIGHT = 1e-3  # hyperparameters with a lower weight relative to the best are ignored


@dataclass(frozen=True, eq=False)
class TrialArrays:
    """The losses of all trials as arrays.

    Attributes:
        inside: an array of shape [trials, tasks] that indicates whether each network was trained on each task.
        seeds: an array of shape [trials] with the seed of each network.
        early: an array of shape [trials] that indicates whether each training run was partial.
        logs: an array of shape [trials, tasks] with the logarithms of the validation losses.
    """

    inside: Bools
    seeds: NDArray[np.int64]
    early: Bools
    logs: Array


class Beliefs:
    """Predictions based on the trials so far, averaged over hyperparameters, which are weighted by how well they fit.

    Args:
        trials: all trials, including those of the network for all tasks.
        hints: an array of shape [source, target] with prior estimates of how much each task helps another, e.g.
            affinities. If None, there is no prior.
        errors: the standard errors of the hints, or None if they are exact.
    """

    def __init__(
        self,
        trials: TrialArrays,
        hints: Array | None = None,
        errors: Array | None = None,
    ) -> None:
        self.seen, n = trials, trials.inside.shape[1]
        self._helps = None if hints is None else _standardize(hints, errors)
        rows = [np.flatnonzero(trials.inside[:, j]) for j in range(n)]
        self._data = [
            _TaskData(
                trials.inside[some],
                distances(trials.inside[some], trials.inside[some]),
                trials.seeds[some][:, None] == trials.seeds[some],
                trials.early[some],
                trials.logs[some, j] - trials.logs[some, j].mean(),
                self._trend_regressors(j, trials.inside[some]),
            )
            for j, some in enumerate(rows)
        ]
        fits = [_Fit(parameters, self._data, hints is not None) for parameters in HYPERPARAMETER_GRID]
        weights = np.exp([fit.evidence - max(other.evidence for other in fits) for fit in fits])
        self.fits = [(fit, weight) for fit, weight in zip(fits, weights, strict=True) if weight > MIN_RELATIVE_WEIGHT]
        self._predicted: dict[bytes, tuple[Array, Array]] = {}  # every budget asks for the same sets

    def predict(self, sets: Bools) -> tuple[Array, Array]:
        """Predicts the log losses of networks relative to one network for all tasks.

        Returns:
            Means and standard deviations of shape [networks, tasks], with NaN where a network is not trained on a task.
            The arrays are shared by all calls with the same sets and cannot be modified.
        """
        if (key := sets.tobytes()) not in self._predicted:
            self._predicted[key] = self._predict(sets)
        return self._predicted[key]

    def _predict(self, sets: Bools) -> tuple[Array, Array]:
        means, deviations = np.full(sets.shape, np.nan), np.full(sets.shape, np.nan)
        for j in range(sets.shape[1]):
            rows = np.flatnonzero(sets[:, j])
            means[rows, j], deviations[rows, j] = self._predict_task(j, sets[rows])
        means.flags.writeable = deviations.flags.writeable = False
        return means, deviations

    def _predict_task(self, j: int, sets: Bools) -> tuple[Array, Array]:
        everything = np.ones((1, sets.shape[1]), dtype=bool)
        seen = self._data[j].inside
        apart = distances(sets, seen), distances(everything, seen), distances(sets, everything)[:, 0]
        trends = self._trend_regressors(j, sets)
        weights = np.array([weight for _, weight in self.fits])
        weights = weights / weights.sum()
        found = [fit.contrast(j, *apart, trends) for fit, _ in self.fits]
        means, variances = (weights @ np.stack(some) for some in zip(*found, strict=True))
        between = weights @ np.stack([(mean - means) ** 2 for mean, _ in found])
        return means, np.sqrt(variances + between)

    def _trend_regressors(self, j: int, sets: Bools) -> Array:
        """Returns task j's regressors for each set: the number of omitted tasks, their identities, and the hints."""
        out = (~sets).astype(np.float64)
        columns = [out.sum(1) / max(1, sets.shape[1] - 1), *out.T]
        if self._helps is not None:
            columns.append(out @ self._helps[:, j])
        return np.stack(columns, 1)


@dataclass(frozen=True, eq=False)
class _TaskData:
    inside: Bools
    apart: Counts
    same_seed: Bools
    early: Bools
    logs: Array
    design: Array

    def covariance(self, parameters: Hyperparameters) -> Array:
        covariance = LEVEL_VARIANCE + _set_covariance(self.apart, parameters) + parameters.seed * self.same_seed
        covariance[np.diag_indices(len(self.logs))] += parameters.luck + 1e-6 + EARLY_VARIANCE * self.early
        return covariance


class _Fit:
    """The posterior for one set of hyperparameters.

    Task scales and shared trends are fixed at their most likely values.
    """

    def __init__(self, parameters: Hyperparameters, data: Sequence[_TaskData], has_hints: bool) -> None:
        self.parameters = parameters
        self.factors = [cho_factor(one.covariance(parameters), lower=True, check_finite=False) for one in data]
        solved = [
            cho_solve(factor, np.column_stack([one.logs, one.design]), check_finite=False)
            for factor, one in zip(self.factors, data, strict=True)
        ]
        squares = [
            np.column_stack([one.logs, one.design]).T @ some for one, some in zip(data, solved, strict=True)
        ]  # inner products of log losses and trends, weighted by the inverse covariance
        self.whitening = [
            solve_triangular(np.tril(factor), np.eye(len(factor)), lower=True, check_finite=False).T
            for factor, _ in self.factors
        ]
        counts = np.array([len(one.logs) for one in data])
        self.trends, self.scales = np.zeros(data[0].design.shape[1]), np.full(len(data), PRIOR_SCALE)
        for _ in range(3):
            self.scales = _estimate_scales(squares, counts, self.trends, self.scales)
            self.trends = _estimate_shared_trends(squares, self.scales, has_hints)
        self.weights = [
            some[:, 0] / scale - some[:, 1:] @ self.trends for some, scale in zip(solved, self.scales, strict=True)
        ]
        logs = sum(np.log(np.diag(factor[0])).sum() for factor in self.factors)
        misfit = sum(
            _squared_misfit(some, self.trends, scale) for some, scale in zip(squares, self.scales, strict=True)
        )
        self.evidence = float(-0.5 * misfit - logs - counts @ np.log(self.scales))

    def contrast(
        self, j: int, seen_distances: Counts, all_seen_distances: Counts, all_distances: Counts, trends: Array
    ) -> tuple[Array, Array]:
        """Returns the mean and variance of task j's log loss in each set, relative to the set of all tasks."""
        parameters, scale = self.parameters, self.scales[j]
        contrast = _set_covariance(seen_distances, parameters) - _set_covariance(all_seen_distances, parameters)
        mean = trends @ self.trends + contrast @ self.weights[j]
        prior = 2 * (parameters.smooth + parameters.own - _set_covariance(all_distances, parameters))
        explained = ((contrast @ self.whitening[j]) ** 2).sum(1)
        return scale * mean, scale**2 * np.maximum(prior - explained, 0)


def distances(sets: Bools, other_sets: Bools) -> Counts:
    """Returns, for each pair of sets, the number of tasks that are in exactly one of them."""
    left, right = sets.astype(np.float64), other_sets.astype(np.float64)
    return np.asarray(left.sum(1)[:, None] + right.sum(1) - 2 * left @ right.T, dtype=np.intp)


def _set_covariance(set_distances: Counts, parameters: Hyperparameters) -> Array:
    by_distance = parameters.smooth * parameters.alike ** np.arange(set_distances.max(initial=0) + 1)
    by_distance[0] += parameters.own
    return np.asarray(by_distance[set_distances])


def _standardize(hints: Array, errors: Array | None) -> Array:
    """Standardizes the hints for each target, shrinks noisy hints, and sets the diagonal to zero."""
    n, own = len(hints), np.eye(len(hints), dtype=bool)
    helps = np.where(own, 0.0, np.nan_to_num(hints - np.where(own, 0.0, hints).sum(0) / max(1, n - 1)))
    size = np.sqrt((helps**2).sum(0) / max(1, n - 1))
    noise = np.zeros_like(helps) if errors is None else np.where(own, 0.0, np.nan_to_num(errors))
    reliable = 1 - np.minimum(1, (noise**2).sum(0) / max(1, n - 1) / np.where(size > 0, size, 1) ** 2)
    return np.asarray(helps / np.where(size > 0, size, 1) * reliable)


def _squared_misfit(inner_products: Array, trends: Array, scale: float) -> float:
    """Returns the squared distance between the scaled log losses and the trends."""
    return float(
        inner_products[0, 0] / scale**2
        - 2 * inner_products[0, 1:] @ trends / scale
        + trends @ inner_products[1:, 1:] @ trends
    )


def _estimate_scales(inner_products: Sequence[Array], counts: NDArray[np.int64], trends: Array, scales: Array) -> Array:
    """Estimates the scale of the effects on each task, with shrinkage toward the scale pooled over tasks."""
    sums = scales**2 * [
        _squared_misfit(some, trends, scale) for some, scale in zip(inner_products, scales, strict=True)
    ]
    dof = np.maximum(counts - 1, 1)
    pooled = (2 * PRIOR_SCALE**2 + len(sums) * np.exp(np.mean(np.log(sums / dof + 1e-12)))) / (2 + len(sums))
    return np.asarray(np.sqrt((POOLED_SCALE_WEIGHT * pooled + sums) / (POOLED_SCALE_WEIGHT + dof)))


def _estimate_shared_trends(inner_products: Sequence[Array], scales: Array, has_hints: bool) -> Array:
    """Estimates the trends shared by all tasks, with shrinkage toward zero: hints count once networks confirm them."""
    width = len(inner_products[0]) - 1
    precision = np.full(width, 1 / 0.15**2)
    precision[0] = 1.0
    if has_hints:
        precision[-1] = 1 / 0.1**2
    normal = np.diag(precision) + sum(some[1:, 1:] for some in inner_products)
    right = sum(some[1:, 0] / scale for some, scale in zip(inner_products, scales, strict=True))
    return np.asarray(np.linalg.solve(normal, right))
