"""Predicts the losses of untrained networks with a Gaussian process for each task.

The logarithm of a task's validation loss in a network is modeled as the following sum:

    level + shared trends + effect of the set of tasks + seed noise + network noise.

Sets that differ in few tasks have similar effects. The covariance decreases by a constant factor for each task that is
in only one of the two sets. This is a product kernel on the membership bits, so it includes main effects as well as
pairwise and higher-order interactions with decreasing weight. The trends, which are shared by all tasks, are the
effects of the number of omitted tasks and of the omission of each task. The seed noise is common to all networks with
the same seed, which share initial weights and row order. Networks are therefore compared with other networks that have
the same seed. Thus, a poor result of the network for all tasks is not mistaken for a gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.intp]

LEVEL_VARIANCE = 100.0  # prior variance of the unknown level
PRIOR_SCALE = 0.03  # prior scale of effects on the logarithm of a loss
POOLED_SCALE_WEIGHT = 4.0  # number of observations that the scale pooled over tasks counts for
MIN_RELATIVE_WEIGHT = 1e-3  # hyperparameters with a lower weight relative to the best are ignored


class Hyperparameters(NamedTuple):
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

    def set_covariance(self, set_distances: Counts) -> Array:
        by_distance = self.smooth * self.alike ** np.arange(set_distances.max(initial=0) + 1)
        by_distance[0] += self.own
        return np.asarray(by_distance[set_distances])


HYPERPARAMETER_GRID = (
    Hyperparameters(0.01, 0.01, 0.48, 0.5, 0.9),  # almost only noise
    *(
        Hyperparameters((1 - noise) * 0.85, (1 - noise) * 0.15, noise * 0.5, noise * 0.5, alike)
        for noise in (0.15, 0.4, 0.8)
        for alike in (0.7, 0.9)
    ),
)


class Beliefs:
    """Predictions from the trained networks, averaged over hyperparameters, which are weighted by how well they fit.

    Args:
        inside: whether each network was trained on each task [networks, tasks], including networks for all tasks.
        seeds: the seed of each network.
        logs: the logarithms of the validation losses [networks, tasks].
    """

    def __init__(self, inside: Bools, seeds: NDArray[np.int64], logs: Array) -> None:
        self._data = []
        for task, trained in enumerate(inside.T):
            sets, own_seeds, own_logs = inside[trained], seeds[trained], logs[trained, task]
            same_seed = own_seeds[:, None] == own_seeds
            observed = np.column_stack([own_logs - own_logs.mean(), _trend_regressors(sets)])
            self._data.append(_TaskData(sets, distances(sets, sets), same_seed, observed))
        fits = [_Fit(parameters, self._data) for parameters in HYPERPARAMETER_GRID]
        weights = np.exp([fit.evidence - max(other.evidence for other in fits) for fit in fits])
        kept = weights > MIN_RELATIVE_WEIGHT
        self._fits = [fit for fit, keep in zip(fits, kept, strict=True) if keep]
        self._weights = weights[kept] / weights[kept].sum()
        self._predicted: dict[bytes, tuple[Array, Array]] = {}  # every budget asks for the same sets

    def predict(self, sets: Bools) -> tuple[Array, Array]:
        """Predicts the log losses of networks relative to one network for all tasks.

        Returns:
            Means and standard deviations of shape [networks, tasks], with NaN where a network is not trained on a task.
            The arrays are shared by all calls with the same sets and cannot be modified.
        """
        key = sets.tobytes()
        if key not in self._predicted:
            means, deviations = np.full(sets.shape, np.nan), np.full(sets.shape, np.nan)
            for task, trained in enumerate(sets.T):
                means[trained, task], deviations[trained, task] = self._predict_task(task, sets[trained])
            means.flags.writeable = deviations.flags.writeable = False
            self._predicted[key] = means, deviations
        return self._predicted[key]

    def _predict_task(self, task: int, sets: Bools) -> tuple[Array, Array]:
        everything, seen = np.ones((1, sets.shape[1]), dtype=bool), self._data[task].inside
        apart = distances(sets, seen), distances(everything, seen), distances(sets, everything)[:, 0]
        trends = _trend_regressors(sets)
        by_fit = [fit.contrast(task, *apart, trends) for fit in self._fits]
        fit_means, fit_variances = (np.stack(moments) for moments in zip(*by_fit, strict=True))
        means = self._weights @ fit_means
        return means, np.sqrt(self._weights @ (fit_variances + (fit_means - means) ** 2))


def _trend_regressors(sets: Bools) -> Array:
    """Returns the regressors of each set: the fraction of omitted tasks, and whether each task is omitted."""
    omitted = (~sets).astype(np.float64)
    return np.column_stack([omitted.sum(1) / max(1, sets.shape[1] - 1), omitted])


@dataclass(frozen=True, eq=False)
class _TaskData:
    inside: Bools
    apart: Counts
    same_seed: Bools
    observed: Array  # [networks, 1 + trends]: centered log losses, and the regressors of the trends

    def covariance(self, parameters: Hyperparameters) -> Array:
        covariance = LEVEL_VARIANCE + parameters.set_covariance(self.apart) + parameters.seed * self.same_seed
        covariance[np.diag_indices(len(covariance))] += parameters.luck + 1e-6
        return covariance


class _Fit:
    """The posterior for one set of hyperparameters.

    Task scales and shared trends are fixed at their most likely values.
    """

    def __init__(self, parameters: Hyperparameters, data: Sequence[_TaskData]) -> None:
        self.parameters = parameters
        factors = [cho_factor(own.covariance(parameters), lower=True, check_finite=False) for own in data]
        solved = [
            cho_solve(factor, own.observed, check_finite=False) for factor, own in zip(factors, data, strict=True)
        ]
        # Inner products of log losses and trends, weighted by the inverse covariance.
        squares = [own.observed.T @ inverse for own, inverse in zip(data, solved, strict=True)]
        self.whitening = [
            solve_triangular(np.tril(factor), np.eye(len(factor)), lower=True, check_finite=False).T
            for factor, _ in factors
        ]
        counts = np.array([len(own.inside) for own in data])
        self.trends, self.scales = np.zeros(squares[0].shape[1] - 1), np.full(len(data), PRIOR_SCALE)
        for _ in range(3):
            self.scales = _estimate_scales(squares, counts, self.trends, self.scales)
            self.trends = _estimate_shared_trends(squares, self.scales)
        self.weights = [
            inverse[:, 0] / scale - inverse[:, 1:] @ self.trends
            for inverse, scale in zip(solved, self.scales, strict=True)
        ]
        log_determinants = sum(np.log(np.diag(factor)).sum() for factor, _ in factors)
        misfit = _squared_misfits(squares, self.trends, self.scales).sum()
        self.evidence = float(-0.5 * misfit - log_determinants - counts @ np.log(self.scales))

    def contrast(
        self, task: int, seen_distances: Counts, all_seen_distances: Counts, all_distances: Counts, trends: Array
    ) -> tuple[Array, Array]:
        """Returns the mean and variance of a task's log loss in each set, relative to the set of all tasks."""
        parameters, scale = self.parameters, self.scales[task]
        contrast = parameters.set_covariance(seen_distances) - parameters.set_covariance(all_seen_distances)
        mean = trends @ self.trends + contrast @ self.weights[task]
        prior = 2 * (parameters.smooth + parameters.own - parameters.set_covariance(all_distances))
        explained = ((contrast @ self.whitening[task]) ** 2).sum(1)
        return scale * mean, scale**2 * np.maximum(prior - explained, 0)


def distances(sets: Bools, other_sets: Bools) -> Counts:
    """Returns, for each pair of sets, the number of tasks that are in exactly one of them."""
    left, right = sets.astype(np.float64), other_sets.astype(np.float64)
    return np.asarray(left.sum(1)[:, None] + right.sum(1) - 2 * left @ right.T, dtype=np.intp)


def _squared_misfits(squares: Sequence[Array], trends: Array, scales: Array) -> Array:
    """Returns each task's squared distance between the scaled log losses and the trends."""
    return np.array(
        [
            own[0, 0] / scale**2 - 2 * own[0, 1:] @ trends / scale + trends @ own[1:, 1:] @ trends
            for own, scale in zip(squares, scales, strict=True)
        ]
    )


def _estimate_scales(squares: Sequence[Array], counts: NDArray[np.int64], trends: Array, scales: Array) -> Array:
    """Estimates the scale of the effects on each task, with shrinkage toward the scale pooled over tasks."""
    sums = scales**2 * _squared_misfits(squares, trends, scales)
    dof = np.maximum(counts - 1, 1)
    pooled = (2 * PRIOR_SCALE**2 + len(sums) * np.exp(np.mean(np.log(sums / dof + 1e-12)))) / (2 + len(sums))
    return np.asarray(np.sqrt((POOLED_SCALE_WEIGHT * pooled + sums) / (POOLED_SCALE_WEIGHT + dof)))


def _estimate_shared_trends(squares: Sequence[Array], scales: Array) -> Array:
    """Estimates the trends shared by all tasks, with shrinkage toward zero."""
    precision = np.full(len(squares[0]) - 1, 1 / 0.15**2)
    precision[0] = 1.0
    normal = np.diag(precision) + sum(own[1:, 1:] for own in squares)
    right = sum(own[1:, 0] / scale for own, scale in zip(squares, scales, strict=True))
    return np.asarray(np.linalg.solve(normal, right))
