"""Predicts the scores of unmeasured pairs from the measured ones.

The model is score[i, j] = aᵢ + bⱼ + uᵢ·vⱼ: some tasks help more than others, some are helped more than others, and a
low-rank term describes which ones go together. It is fitted by alternating ridge regressions. The rank and the ridge
are those that predict held-out pairs best, and the error on held-out pairs is the uncertainty of the predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

MAX_RANK = 8
PAIRS_PER_PARAMETER = 2  # tasks need twice as many measured pairs as parameters, or the low-rank term is left out
NO_RIDGE = 1e-6
RIDGES = (NO_RIDGE, 0.3, 3.0)  # the number of pairs with which the mean over all tasks counts in the regression of each
MANY_PAIRS = 100  # measured pairs per task, which need no ridge
FOLDS = 5
ENOUGH_HELD_OUT = 4000  # pairs; with more, one fold is sufficient
MAX_SWEEPS, TOLERANCE = 200, 1e-9
HELD_OUT_SWEEPS, HELD_OUT_TOLERANCE = 40, 1e-3  # sufficient to compare ranks
SWEEPS_TIMES_TASKS = 15_000  # a limit for large tables, whose first directions are found at once
EXACT = 1e-6  # a mean squared error, relative to the variance of the scores, that cannot be improved
POWER_ITERATIONS = 15


def complete_pairs(matrix: Floats) -> tuple[Floats, Floats]:
    """Predicts the pairs that are NaN, if any pair was measured. Without any measured pair, a task is average.

    Args:
        matrix: the scores [source, target]. The diagonal is ignored.

    Returns:
        The completed table, and the standard deviation of each prediction, which is zero for measured pairs.

    Example:
        >>> nan = float("nan")
        >>> table = np.array([[0, 1, 2, 3], [2, 0, 3, nan], [3, nan, 0, 5], [4, 4, 5, 0]])
        >>> completed, stderr = complete_pairs(table)
        >>> completed[[1, 2], [3, 1]].round(3).tolist()
        [4.0, 3.0]
    """
    pairs = ~np.eye(len(matrix), dtype=bool)
    measured, missing = pairs & np.isfinite(matrix), pairs & np.isnan(matrix)
    if not missing.any() or not measured.any():
        return matrix, np.zeros_like(matrix)

    # Standardize the scores. They are sorted first, so that the order of the tasks does not affect rounding.
    scores = np.sort(matrix[measured])
    center, spread = float(scores.mean()), float(scores.std())
    spread = spread or abs(center) or 1.0  # one score alone shows only its magnitude
    values = (np.where(measured, matrix, 0.0) - center) / spread

    # Measured pairs have variance 1, so a prediction for a task about which little is known is not less certain than
    # that, unless even held-out pairs were predicted worse.
    fit, residual_variance = _choose_fit(values, measured)
    variances = np.minimum(residual_variance * (1.0 + fit.leverages()), max(1.0, residual_variance))
    predictions = center + spread * fit.predictions()
    errors = spread * np.sqrt(variances)
    return np.where(missing, predictions, matrix), np.where(missing, errors, 0.0)


class _Fit(NamedTuple):
    """A fitted model, in standardized units.

    Attributes:
        sources: the level and the factors of each source, aᵢ and uᵢ (tasks × (1 + rank)).
        targets: the level and the factors of each target, bⱼ and vⱼ.
        source_inverses: the inverse of the regularized normal matrix of each source's regression. Times the variance of
            the residuals, this is the covariance of the source's parameters.
        target_inverses: the same for targets.
    """

    sources: Floats
    targets: Floats
    source_inverses: Floats
    target_inverses: Floats

    def predictions(self) -> Floats:
        factors: Floats = self.sources[:, 1:] @ self.targets[:, 1:].T
        return self.sources[:, :1] + self.targets[:, 0] + factors

    def leverages(self) -> Floats:
        # Returns the variance of each prediction that is due to the parameters, relative to that of the residuals.
        x, y = _regressors(self.targets), _regressors(self.sources)
        of_sources = np.einsum("ikl,jk,jl->ij", self.source_inverses, x, x, optimize=True)
        of_targets = np.einsum("jkl,ik,il->ij", self.target_inverses, y, y, optimize=True)
        return np.asarray(of_sources + of_targets)


def _regressors(parameters: Floats) -> Floats:
    return np.column_stack([np.ones(len(parameters)), parameters[:, 1:]])


def _choose_fit(values: Floats, measured: Bools) -> tuple[_Fit, float]:
    # Returns the fit whose rank and ridge predict held-out pairs best, and the variance of its residuals.
    count = int(measured.sum())
    if count < FOLDS:
        return next(_fits(values, measured, ridge=1.0, max_rank=0)), 1.0

    # Distribute the pairs over the folds in the order of their scores.
    at = np.flatnonzero(measured)
    ties = np.random.default_rng(0).permutation(count)
    fold = np.full(measured.size, -1)
    fold[at[np.lexsort((ties, values.ravel()[at]))]] = np.arange(count) % FOLDS
    used_folds = 1 if count >= FOLDS * ENOUGH_HELD_OUT else FOLDS
    splits = [(fold == k).reshape(measured.shape) for k in range(used_folds)]

    # Choose the first trial, with the weakest ridge and the lowest rank, that is about as good as the best one.
    pairs_per_task = float(min(np.median(measured.sum(axis=0)), np.median(measured.sum(axis=1))))
    max_rank = int(np.clip(pairs_per_task // PAIRS_PER_PARAMETER - 1, 0, MAX_RANK))
    trials = []  # (mean squared error of held-out pairs, variance of residuals that explains it, ridge, rank)
    for ridge in RIDGES if pairs_per_task < MANY_PAIRS else RIDGES[:1]:
        paths = [_fits(values, measured & ~s, ridge, max_rank, HELD_OUT_SWEEPS, HELD_OUT_TOLERANCE) for s in splits]
        errors: list[float] = []
        for rank, fits in enumerate(zip(*paths, strict=True)):
            squares = [((fit.predictions() - values) ** 2)[s] for fit, s in zip(fits, splits, strict=True)]
            unexplained = [squares[k] / (1.0 + fit.leverages()[splits[k]]) for k, fit in enumerate(fits)]
            errors.append(float(np.concatenate(squares).mean()))
            trials.append((errors[-1], float(np.concatenate(unexplained).mean()), ridge, rank))
            # Stop when two ranks in a row are no better than a lower one.
            if errors[-1] <= EXACT or min(errors) < min(errors[-2:]):
                break
    accepted = max(1.01 * min(error for error, *_ in trials), EXACT)
    _, residual_variance, ridge, rank = next(trial for trial in trials if trial[0] <= accepted)
    *_, fit = _fits(values, measured, ridge, rank)
    return fit, residual_variance


def _fits(
    values: Floats,
    measured: Bools,
    ridge: float,
    max_rank: int,
    sweeps: int = MAX_SWEEPS,
    tolerance: float = TOLERANCE,
) -> Iterator[_Fit]:
    # Yields fits of increasing rank. Each starts from the previous one.
    weights, n = measured.astype(np.float64), len(values)
    values = values * weights
    targets = np.zeros((n, 1))
    for rank in range(max_rank + 1):
        # Fit the parameters of sources and of targets in turn, until the predictions no longer change.
        diagonal = np.zeros(n)  # stands for all predictions
        for _ in range(min(sweeps, max(10, SWEEPS_TIMES_TASKS // n))):
            before = diagonal
            sources, source_inverses = _regress(values, weights, targets, ridge)
            targets, target_inverses = _regress(values.T, weights.T, sources, ridge)
            diagonal = sources[:, 0] + targets[:, 0] + (sources[:, 1:] * targets[:, 1:]).sum(axis=1)
            if np.abs(diagonal - before).max() <= tolerance:
                break
        fit = _Fit(sources, targets, source_inverses, target_inverses)
        yield fit
        if rank == max_rank:
            return

        # The next factor starts at the main direction of the residuals, found by power iteration.
        residuals = values - fit.predictions() * weights
        direction = residuals[np.argmax((residuals**2).sum(axis=1))]
        for _ in range(POWER_ITERATIONS):
            direction = (residuals @ direction) @ residuals
            direction = direction / (np.linalg.norm(direction) or 1.0)
        targets = np.column_stack([targets, direction * n**0.5])


def _regress(values: Floats, weights: Floats, others: Floats, ridge: float) -> tuple[Floats, Floats]:
    """Regresses each row, less the levels of the other side's tasks, on a constant and their factors.

    Returns:
        The parameters (tasks × (1 + rank)), and the inverses of the normal matrices.
    """
    x = _regressors(others)
    k = x.shape[1]
    upper = np.triu_indices(k)
    normal = np.empty((len(values), k, k))
    normal[:, upper[0], upper[1]] = normal[:, upper[1], upper[0]] = weights @ (x[:, upper[0]] * x[:, upper[1]])
    inverses = np.asarray(np.linalg.inv(normal + ridge * np.eye(k)), dtype=np.float64)
    parameters = np.einsum("ikl,il->ik", inverses, values @ x - weights @ (others[:, :1] * x))
    return parameters, inverses
