"""Predicts the scores of unmeasured pairs from the measured ones.

The model is score[i, j] = μ + aᵢ + bⱼ + uᵢ·vⱼ: some tasks help more than others, some are helped more than others, and
a low-rank term describes which ones go together. It is fitted by alternating ridge regressions. The rank and the ridge
are those that predict held-out pairs best, and the error on held-out pairs is the uncertainty of the predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .selection_problem import Floats

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

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Completion:
    """A square table [source, target] whose unmeasured pairs have been predicted.

    Attributes:
        matrix: the table. A task without any measured pair is predicted to be like the average task.
        stderr: the standard deviation of each prediction, and zero for measured pairs.
        predicted: which pairs have been predicted.
    """

    matrix: Floats
    stderr: Floats
    predicted: Bools
    _fit: _Fit

    @property
    def unmeasured(self) -> float:
        """The fraction of pairs that have been predicted."""
        n = len(self.matrix)
        return float(self.predicted.sum() / (n * (n - 1)))

    def draw(self, matrix: Floats, random: np.random.Generator) -> Floats:
        """Returns a copy of a table in which predicted pairs are drawn from their distribution.

        The errors of two predictions are correlated if they have the source or the target in common.
        """
        errors = self._fit.draw_errors(random) * self.stderr
        return np.where(self.predicted, self.matrix + errors, matrix)


def complete_pairs(matrix: Floats) -> Completion | None:
    """Predicts pairs that are NaN, or returns None if no pair is missing or none is known.

    Args:
        matrix: the scores [source, target]. The diagonal is ignored.

    Example:
        >>> nan = float("nan")
        >>> table = np.array([[0, 1, 2, 3], [2, 0, 3, nan], [3, nan, 0, 5], [4, 4, 5, 0]])
        >>> completion = complete_pairs(table)
        >>> completion.matrix[[1, 2], [3, 1]].round(3).tolist(), round(completion.unmeasured, 3)
        ([4.0, 3.0], 0.167)
    """
    pairs = ~np.eye(len(matrix), dtype=bool)
    measured = pairs & np.isfinite(matrix)
    predicted = pairs & np.isnan(matrix)
    if not predicted.any() or not measured.any():
        return None
    scaled = _Standardized.of(matrix, measured)
    fit, variance = _choose_fit(scaled.values, measured)
    means = scaled.to_scores(fit.predictions())
    errors = scaled.to_differences(np.sqrt(_prediction_variances(fit, variance)))
    return Completion(np.where(predicted, means, matrix), np.where(predicted, errors, 0.0), predicted, fit)


def _prediction_variances(fit: _Fit, variance: float) -> Floats:
    """Returns the variance of each prediction, in standardized units.

    Measured pairs have variance 1, so a prediction for a task about which little is known is not less certain than that
    unless even held-out pairs were predicted worse.
    """
    return np.minimum(variance * (1.0 + fit.leverages()), max(1.0, variance))


@dataclass(frozen=True)
class _Standardized:
    """Scores with mean 0 and standard deviation 1. Unmeasured pairs are zero.

    Attributes:
        values: the standardized scores.
        center: the mean, divided by two to the power of `exponent`, which prevents overflow.
        spread: the standard deviation, divided in the same way.
        exponent: the exponent of the scores' magnitude.
    """

    values: Floats
    center: float
    spread: float
    exponent: int

    @classmethod
    def of(cls, matrix: Floats, measured: Bools) -> _Standardized:
        known = matrix[measured]
        exponent = int(np.frexp(np.abs(known).max())[1])
        known = np.sort(np.ldexp(known, -exponent))  # sorted, so that the order of the tasks does not matter
        center = float(known.mean())
        spread = float(known.std()) or abs(center) or 1.0  # one score alone shows only its magnitude
        values = (np.ldexp(np.where(measured, matrix, 0.0), -exponent) - center) / spread
        return cls(np.where(measured, values, 0.0), center, spread, exponent)

    def to_scores(self, values: Floats) -> Floats:
        return np.asarray(np.ldexp(self.center + self.spread * values, self.exponent))

    def to_differences(self, values: Floats) -> Floats:
        return np.asarray(np.ldexp(self.spread * values, self.exponent))


@dataclass(frozen=True)
class _Fit:
    """A fitted model, in standardized units.

    Attributes:
        effects: the effects of sources and of targets.
        factors: the factors of sources and of targets (tasks × rank).
        inverses: the inverse of each source's and of each target's regularized normal matrix. Times the variance of the
            residuals, this is the covariance of the source's (or target's) parameters.
    """

    effects: tuple[Floats, Floats]
    factors: tuple[Floats, Floats]
    inverses: tuple[Floats, Floats]

    @property
    def rank(self) -> int:
        return int(self.factors[0].shape[1])

    def predictions(self) -> Floats:
        (sources, targets), (u, v) = self.effects, self.factors
        return np.asarray(sources[:, None] + targets + u @ v.T)

    def leverages(self) -> Floats:
        """Returns the variance of each prediction that is due to the parameters, relative to that of the residuals."""
        of_sources = _quadratic_forms(self.inverses[0], _with_constant(self.factors[1]))
        of_targets = _quadratic_forms(self.inverses[1], _with_constant(self.factors[0]))
        return of_sources + of_targets.T

    def draw_errors(self, random: np.random.Generator) -> Floats:
        """Draws errors of all predictions, with variance 1."""
        n, k = len(self.effects[0]), self.rank + 1
        of_sources, of_targets = (
            np.einsum("ikl,il->ik", np.linalg.cholesky(inverse), random.standard_normal((n, k)))
            for inverse in self.inverses
        )
        errors = of_sources @ _with_constant(self.factors[1]).T + _with_constant(self.factors[0]) @ of_targets.T
        return np.asarray((errors + random.standard_normal((n, n))) / np.sqrt(1.0 + self.leverages()))


def _quadratic_forms(matrices: Floats, vectors: Floats) -> Floats:
    """Returns xⱼᵀ Aᵢ xⱼ for each matrix i and vector j."""
    products = (vectors[:, :, None] * vectors[:, None, :]).reshape(len(vectors), -1)
    return np.asarray(matrices.reshape(len(matrices), -1) @ products.T)


def _with_constant(factors: Floats) -> Floats:
    return np.concatenate([np.ones((len(factors), 1)), factors], axis=1)


def _choose_fit(values: Floats, measured: Bools) -> tuple[_Fit, float]:
    """Returns the fit whose rank and ridge predict held-out pairs best, and the variance of its residuals."""
    splits, pairs = _splits(values, measured), _pairs_per_task(measured)
    if not splits:
        return next(_fits(values, measured, 1.0, 0)), 1.0
    tried = [
        (error, ridge, rank, variance)
        for ridge in (RIDGES if pairs < MANY_PAIRS else (NO_RIDGE,))
        for rank, (error, variance) in enumerate(_held_out_errors(values, measured, splits, ridge))
    ]
    least = min(error for error, *_ in tried)
    _, ridge, rank, variance = next(one for one in tried if one[0] <= max(1.01 * least, EXACT))
    *_, fit = _fits(values, measured, ridge, rank)
    return fit, variance


def _held_out_errors(
    values: Floats, measured: Bools, splits: list[Bools], ridge: float
) -> Iterator[tuple[float, float]]:
    """Yields the errors of increasing ranks until two in a row are no better than a lower one."""
    max_rank = int(np.clip(_pairs_per_task(measured) // PAIRS_PER_PARAMETER - 1, 0, MAX_RANK))
    paths = [
        _fits(values, measured & ~held_out, ridge, max_rank, HELD_OUT_SWEEPS, HELD_OUT_TOLERANCE) for held_out in splits
    ]
    errors: list[float] = []
    for fits in zip(*paths, strict=True):
        error, variance = _held_out_error(values, splits, fits)
        yield error, variance
        errors.append(error)
        if error <= EXACT or min(errors) < min(errors[-2:]):
            return


def _pairs_per_task(measured: Bools) -> float:
    return float(min(np.median(measured.sum(axis=0)), np.median(measured.sum(axis=1))))


def _splits(values: Floats, measured: Bools) -> list[Bools]:
    """Returns the pairs to hold out in each fold. Pairs are distributed over the folds in the order of their scores."""
    number = int(measured.sum())
    if number < FOLDS:
        return []
    at = np.flatnonzero(measured)
    ties = np.random.default_rng(0).permutation(number)
    fold = np.full(measured.size, -1)
    fold[at[np.lexsort((ties, values.ravel()[at]))]] = np.arange(number) % FOLDS
    folds = 1 if number >= FOLDS * ENOUGH_HELD_OUT else FOLDS
    return [(fold == k).reshape(measured.shape) for k in range(folds)]


def _held_out_error(values: Floats, splits: list[Bools], fits: tuple[_Fit, ...]) -> tuple[float, float]:
    """Returns the mean squared error of held-out pairs, and the variance of the residuals that explains it."""
    squares = [((fit.predictions() - values) ** 2)[held_out] for held_out, fit in zip(splits, fits, strict=True)]
    leverages = [fit.leverages()[held_out] for held_out, fit in zip(splits, fits, strict=True)]
    error, leverage = np.concatenate(squares), np.concatenate(leverages)
    return float(error.mean()), float(np.mean(error / (1.0 + leverage)))


def _fits(
    values: Floats,
    measured: Bools,
    ridge: float,
    max_rank: int,
    sweeps: int = MAX_SWEEPS,
    tolerance: float = TOLERANCE,
) -> Iterator[_Fit]:
    """Yields fits of increasing rank. Each starts from the previous one and the main direction of its residuals."""
    weights, n = measured.astype(np.float64), len(values)
    values = values * weights
    targets, v = np.zeros(n), np.zeros((n, 0))
    for rank in range(max_rank + 1):
        fit = _alternate(values, weights, ridge, targets, v, sweeps, tolerance)
        yield fit
        if rank < max_rank:
            direction = _main_direction(values - fit.predictions() * weights)
            targets, v = fit.effects[1], np.column_stack([fit.factors[1], direction])


def _alternate(
    values: Floats, weights: Floats, ridge: float, targets: Floats, v: Floats, sweeps: int, tolerance: float
) -> _Fit:
    """Fits the parameters of sources and of targets in turn, until the predictions no longer change."""
    before = np.zeros(len(values))
    for _ in range(min(sweeps, max(10, SWEEPS_TIMES_TASKS // len(values)))):
        sources, u, of_sources = _regress(values, weights, targets, v, ridge)
        targets, v, of_targets = _regress(values.T, weights.T, sources, u, ridge)
        diagonal = sources + targets + (u * v).sum(axis=1)  # stands for all predictions
        if np.abs(diagonal - before).max() <= tolerance:
            break
        before = diagonal
    return _Fit((sources, targets), (u, v), (of_sources, of_targets))


def _regress(
    values: Floats, weights: Floats, offsets: Floats, factors: Floats, ridge: float
) -> tuple[Floats, Floats, Floats]:
    """Regresses each row, less the offsets of the columns, on a constant and the factors.

    Returns:
        The constants, the slopes, and the inverses of the normal matrices.
    """
    x = _with_constant(factors)
    k = x.shape[1]
    upper = np.triu_indices(k)
    normal = np.empty((len(values), k, k))
    normal[:, upper[0], upper[1]] = normal[:, upper[1], upper[0]] = weights @ (x[:, upper[0]] * x[:, upper[1]])
    inverses = np.asarray(np.linalg.inv(normal + ridge * np.eye(k)), dtype=np.float64)
    found = np.einsum("ikl,il->ik", inverses, values @ x - weights @ (offsets[:, None] * x))
    return found[:, 0], found[:, 1:], inverses


def _main_direction(residuals: Floats) -> Floats:
    """Returns the first right singular vector of the residuals, with mean square 1, by power iteration."""
    v = residuals[np.argmax((residuals**2).sum(axis=1))]
    for _ in range(POWER_ITERATIONS):
        v = (residuals @ v) @ residuals
        v = v / (np.linalg.norm(v) or 1.0)
    return np.asarray(v * len(v) ** 0.5)
