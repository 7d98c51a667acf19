"""Computes averages of a history, and their standard errors with a block bootstrap of whole steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .averaging import Floats, LevelHistory, divide, shift_influence, step_levels

STDERR_RESAMPLES = 200  # makes standard errors accurate to about 5%
VALUES_AT_ONCE = 2**18  # resamples times steps, few enough to stay in the CPU cache
MAX_CORRELATION = 0.97  # above this, the block length would exceed any history


def averages(history: LevelHistory) -> Floats:
    """Returns the averages over all steps [sources, targets]."""
    if history.average == "mean":
        return history.means()
    return _trimmed_means(history, np.ones((1, len(history.values)))).squeeze(axis=0)


def standard_errors(history: LevelHistory) -> Floats:
    """Returns standard errors [source, target].

    They are computed in closed form for the mean, and from resamples otherwise.
    """
    length, counts = block_length(history), np.maximum(history.counts(), 1)
    if history.average == "mean":
        influence = history.deviations() / counts + shift_influence(history)
        # A resample consists of T / b blocks, so its variance is T / b times the variance of one block sum.
        variance = (_block_sums(influence, length) ** 2).sum(axis=0) / length
    else:
        resamples = bootstrap_averages(history, STDERR_RESAMPLES, seed=0)
        variance = np.ma.masked_invalid(resamples).var(axis=0, ddof=1).filled(np.nan)

    # The sample mean is closer to the values than the true mean. For blocks of one step, this factor is N / (N − 1).
    lost = (_block_sums(history.present, length) ** 2).sum(axis=0) / (length * counts**2)
    enough = history.counts() > 1
    return np.sqrt(np.where(enough, variance / (1 - np.where(enough, lost, 0.0)), np.nan))


def bootstrap_averages(history: LevelHistory, n: int, seed: int) -> Floats:
    """Returns the averages over each of `n` resamples of the steps [resamples, sources, targets]."""
    length, rng = block_length(history), np.random.default_rng(seed)
    steps, n_sources, n_targets = history.values.shape
    batch = max(1, VALUES_AT_ONCE // max(steps, n_sources * n_targets))
    resampled_means = _weighted_means if history.average == "mean" else _trimmed_means
    resamples = []
    for start in range(0, n, batch):
        size = min(batch, n - start)
        starts = rng.integers(steps, size=(size, -(-steps // length)))
        drawn = (starts[:, :, None] + np.arange(length)) % steps  # the last step is followed by the first
        drawn = drawn.reshape(size, -1)[:, :steps] + steps * np.arange(size)[:, None]
        # How many times each step is drawn in each resample [resamples, steps].
        weights = np.bincount(drawn.ravel(), minlength=size * steps).reshape(size, steps).astype(np.float64)
        resamples.append(resampled_means(history, weights))
    return np.concatenate(resamples)


def draw_within_errors(mean: Floats, stderr: Floats, n: int, seed: int) -> Floats:
    # A pair whose standard error is unknown, because it was measured once, varies as much as the least certain pair.
    largest = np.nanmax(stderr[~np.eye(len(stderr), dtype=bool)])
    errors = np.where(np.isfinite(stderr), stderr, largest)
    noise = np.random.default_rng(seed).standard_normal((n, *mean.shape))
    if np.array_equal(mean, mean.T, equal_nan=True) and np.array_equal(errors, errors.T):
        noise = np.triu(noise) + np.triu(noise, 1).swapaxes(1, 2)
    return np.asarray(mean + errors * noise)


def block_length(history: LevelHistory) -> int:
    """Returns the block length, which is at least 1 and at most a quarter of the number of measured steps.

    The formula is given in the documentation of `Affinity.stderr`. If pairs have missing values, T is the median number
    of values per pair, and the resulting length is converted to steps.
    """
    steps, present = len(history.values), history.present
    correlations, counts = [], []
    for i, j in np.ndindex(*history.values.shape[1:]):
        series = history.values[present[:, i, j], i, j]
        if len(series) > 2 and np.ptp(series) > 0:
            residuals = series - series.mean()
            residuals /= np.abs(residuals).max()  # squares of tiny values would underflow
            correlations.append(residuals[1:] @ residuals[:-1] / (residuals @ residuals))
            counts.append(len(series))
    if not counts or steps < 4:
        return 1
    rho, values_per_pair = np.clip(np.median(correlations), 0.0, MAX_CORRELATION), np.median(counts)
    length = (2 * rho / (1 - rho**2)) ** (2 / 3) * values_per_pair ** (1 / 3) * steps / values_per_pair
    return int(np.clip(np.round(length), 1, steps // 4))


def _weighted_means(history: LevelHistory, weights: Floats) -> Floats:
    raw = ~history.relative
    sums, counts = _total(weights, history.values), _total(weights, history.present)
    raw_sums, raw_counts = _total(weights, history.values * raw), _total(weights, history.present & raw)
    # As in the full history, the raw steps of each resample are shifted to the level of its relative steps.
    gaps = divide(sums - raw_sums, counts - raw_counts) - divide(raw_sums, raw_counts)
    shift = np.nan_to_num(gaps).sum(axis=1, keepdims=True) / np.maximum(np.isfinite(gaps).sum(axis=1, keepdims=True), 1)
    return divide(sums + shift * raw_counts, counts)


def _trimmed_means(history: LevelHistory, weights: Floats) -> Floats:
    # The part of a step that is common to all sources can be much larger than their differences. It contributes to
    # every average but is not trimmed: trimmed means and medians are nonlinear, so they are those of the differences.
    entries = np.maximum(history.counts(), 1)
    levels = step_levels(history) * history.present
    deviations = (levels - levels.sum(axis=0) / entries) * history.present
    means = _total(weights, deviations / entries + shift_influence(history))

    values = np.where(history.present, history.values - levels, np.nan)
    draws = weights.astype(np.int64)  # cumulative sums of integers are fast
    counts = _total(weights, history.present)
    first = history.trim_counts(counts)
    last, sums = counts - first, np.zeros_like(counts)
    for i, j in np.ndindex(*values.shape[1:]):
        order = np.argsort(values[:, i, j])[: history.present[:, i, j].sum()]  # missing values come last
        ranks = np.cumsum(draws.take(order, axis=1), axis=1)  # draws up to and including each value
        kept = np.clip(ranks, first[:, i, j, None], last[:, i, j, None])
        # Each value counts as often as `kept` increases, starting from `first` (summed by parts).
        ordered = values[order, i, j]
        sums[:, i, j] = kept @ -np.diff(ordered, append=0.0) - first[:, i, j] * ordered[:1].sum()
    return means + divide(sums, last - first)


def _total(weights: Floats, values: NDArray[Any]) -> Floats:
    # [resamples, steps] times [steps, sources, targets]
    return np.tensordot(weights, values, axes=1)


def _block_sums(series: NDArray[Any], length: int) -> Floats:
    """Returns the sum of the `length` steps that begin at each step, where the last step is followed by the first."""
    cyclic = np.concatenate([np.zeros_like(series[:1]), series, series[: length - 1]])
    totals = np.cumsum(cyclic, axis=0, dtype=np.float64)
    return np.asarray(totals[length:] - totals[:-length])
