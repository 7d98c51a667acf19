"""Computes standard errors and resamples of a history with a block bootstrap of whole steps."""

from __future__ import annotations

from math import isqrt

import numpy as np

from .averaging import (
    Average,
    Floats,
    Ints,
    TargetHistory,
    center_values,
    safe_divide,
    shift_influence,
    step_levels,
    target_history,
)

STDERR_RESAMPLES = 200  # makes standard errors accurate to about 5%
RESAMPLES_PER_BATCH = 50  # resamples to compute at once, few enough for their weights to stay in the CPU cache
WEIGHTS_AT_ONCE = 2**25  # weights (resamples × steps) to keep in memory
MAX_RESAMPLES, MAX_RESAMPLED_BYTES = 100_000, 2**31  # shares of so many resamples are accurate to 0.2%
MAX_CORRELATION = 0.97  # above this, the block length would exceed any history


def standard_errors(history: Floats, null: Floats, average: Average, block_counts: Ints | None = None) -> Floats:
    """Returns standard errors [source, target].

    They are computed in closed form for the mean, and from resamples otherwise.
    """
    targets = [target_history(history, null, j, block_counts) for j in range(history.shape[1])]
    length = block_length(targets, len(history))
    if average.name == "mean":
        return np.stack([block_stderr(_mean_influence(t), t, length) for t in targets], axis=1)
    weights = block_weights(len(history), length, STDERR_RESAMPLES, seed=0)
    columns = [
        _standard_deviation(_resampled_averages(t, average, weights)) * np.sqrt(small_sample_correction(t, length))
        for t in targets
    ]
    return np.stack(columns, axis=1)


def bootstrap_averages(
    history: Floats, null: Floats, average: Average, n: int, seed: int, block_counts: Ints | None = None
) -> Floats:
    """Returns the averages over each of `n` resamples of the steps (n × sources × targets)."""
    targets = [target_history(history, null, j, block_counts) for j in range(history.shape[1])]
    length, draw = block_length(targets, len(history)), np.random.default_rng(seed)
    some = max(1, WEIGHTS_AT_ONCE // len(history))
    parts = []
    for start in range(0, n, some):
        weights = block_weights(len(history), length, min(some, n - start), draw)
        parts.append(np.stack([_resampled_averages(target, average, weights) for target in targets], axis=2))
    return np.concatenate(parts)


def draw_within_errors(mean: Floats, stderr: Floats, n: int, seed: int) -> Floats:
    """Returns `n` matrices drawn from normal distributions with the given means and standard errors.

    Pairs are drawn independently, but a symmetric matrix stays symmetric. A pair whose standard error is unknown,
    because it was measured once, varies as much as the least certain pair.
    """
    largest = np.nanmax(stderr[~np.eye(len(stderr), dtype=bool)])
    errors = np.where(np.isfinite(stderr), stderr, largest)
    noise = np.random.default_rng(seed).standard_normal((n, *mean.shape))
    if all(np.array_equal(matrix, matrix.T, equal_nan=True) for matrix in (mean, errors)):
        upper = np.triu(noise)
        noise = upper + np.triu(noise, 1).swapaxes(1, 2)
    return np.asarray(mean + errors * noise)


def max_resamples(tasks: int) -> int:
    """Returns the largest number of resamples that `Affinity.bootstrap` draws at once.

    Example:
        >>> max_resamples(9), max_resamples(1000)
        (100000, 268)
    """
    return max(1, min(MAX_RESAMPLES, MAX_RESAMPLED_BYTES // (8 * tasks**2)))


def _resampled_averages(history: TargetHistory, average: Average, weights: Floats) -> Floats:
    """Returns the average of each source in each resample (resamples × sources)."""
    if average.name == "mean":
        return _weighted_means(history, weights)
    # Levels contribute to every average but are not trimmed, so they are resampled separately.
    return _trimmed_means(center_values(history), average, weights) + weights @ _level_influence(history)


def _weighted_means(history: TargetHistory, weights: Floats) -> Floats:
    sums, counts = weights @ history.weighted_values, weights @ history.weights
    if not history.is_mixed:
        return safe_divide(sums, counts)
    raw = weights * ~history.relative
    raw_sums, raw_counts = raw @ history.weighted_values, raw @ history.weights
    # As in the full history, the raw steps of each resample are shifted to the level of its relative steps.
    gap = safe_divide(sums - raw_sums, counts - raw_counts) - safe_divide(raw_sums, raw_counts)
    known = np.isfinite(gap)
    shift = safe_divide(np.where(known, gap, 0.0).sum(axis=1), known.sum(axis=1))
    return safe_divide(sums + np.nan_to_num(shift)[:, None] * raw_counts, counts)


def _mean_influence(history: TargetHistory) -> Floats:
    deviations = (history.values - np.nan_to_num(history.means())) * history.weights
    return np.asarray(deviations / np.maximum(history.counts(), 1) + shift_influence(history))


def _level_influence(history: TargetHistory) -> Floats:
    counts = np.maximum(history.entries(), 1)
    levels = step_levels(history)[:, None] * history.present
    deviations = (levels - levels.sum(axis=0) / counts) * history.present
    return np.asarray(deviations / counts + shift_influence(history))


def _trimmed_means(values: Floats, average: Average, weights: Floats) -> Floats:
    """Returns the trimmed mean of each source in each resample (resamples × sources)."""
    steps, sources = values.shape
    # The additional row of zeros stands for missing values, which are never drawn.
    draws = np.concatenate([weights.T, np.zeros((1, len(weights)))])
    batches = [
        np.ascontiguousarray(draws[:, i : i + RESAMPLES_PER_BATCH]) for i in range(0, len(weights), RESAMPLES_PER_BATCH)
    ]
    chunk = isqrt(steps) + 1
    means = np.empty((len(weights), sources))
    for i in range(sources):
        order = np.argsort(values[:, i])[: np.isfinite(values[:, i]).sum()]
        rows = np.full(-(-max(len(order), 1) // chunk) * chunk, steps)
        rows[: len(order)] = order
        ordered = np.append(values[:, i], 0.0)[rows].reshape(-1, chunk)
        drawn = (batch.take(rows, axis=0).reshape(*ordered.shape, -1) for batch in batches)
        means[:, i] = np.concatenate([_trimmed_mean(ordered, some, average) for some in drawn])
    return means


def _trimmed_mean(sorted_values: Floats, draw_counts: Floats, average: Average) -> Floats:
    """Returns the trimmed mean of each resample, given the sorted values and how many times each was drawn.

    Values are first summed per chunk. Only the chunks in which trimming starts or ends are searched value by value.
    """
    per_chunk = np.stack([np.ones_like(sorted_values), sorted_values], axis=1) @ draw_counts
    cumulative = np.concatenate([np.zeros_like(per_chunk[:1]), np.cumsum(per_chunk, axis=0)])
    counts = cumulative[-1, 0]
    cut = average.trim_counts(counts)
    middle = _sum_of_smallest(sorted_values, draw_counts, cumulative, counts - cut) - _sum_of_smallest(
        sorted_values, draw_counts, cumulative, cut
    )
    return safe_divide(middle, counts - 2 * cut)


def _sum_of_smallest(sorted_values: Floats, draw_counts: Floats, cumulative_sums: Floats, rank: Floats) -> Floats:
    """Returns the sum of the `rank` smallest values drawn in each resample."""
    resample = np.arange(len(rank))
    chunk = np.minimum((cumulative_sums[1:, 0] <= rank).sum(axis=0), len(sorted_values) - 1)
    room = rank - cumulative_sums[chunk, 0, resample]
    taken = np.minimum(np.cumsum(draw_counts[chunk, :, resample], axis=1), room[:, None])
    within = (np.diff(taken, axis=1, prepend=0.0) * sorted_values[chunk]).sum(axis=1)
    return np.asarray(cumulative_sums[chunk, 1, resample] + within)


def _standard_deviation(values: Floats) -> Floats:
    """Returns the standard deviation of each source over the resamples in which it has values."""
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    residuals = np.where(known, values - safe_divide(np.where(known, values, 0.0).sum(axis=0), counts), 0.0)
    return np.sqrt(safe_divide((residuals**2).sum(axis=0), np.maximum(counts - 1, 0)))


def block_length(targets: list[TargetHistory], steps: int) -> int:
    """Returns the block length, which is at least 1 and at most a quarter of the number of measured steps.

    The formula is given in the documentation of `Affinity.stderr`. If pairs have missing values, T is the median number
    of values per pair, and the resulting length is converted to steps.
    """
    series = [target.values[target.present[:, i], i] for target in targets for i in range(len(targets))]
    known = [(lag_one_autocorrelation(one), len(one)) for one in series if len(one) > 2 and np.ptp(one) > 0]
    if not known or steps < 4:
        return 1
    rho = float(np.clip(np.median([correlation for correlation, _ in known]), 0.0, MAX_CORRELATION))
    values = float(np.median([count for _, count in known]))
    length = (2 * rho / (1 - rho**2)) ** (2 / 3) * values ** (1 / 3) * steps / values
    return int(np.clip(round(length), 1, steps // 4))


def lag_one_autocorrelation(series: Floats) -> float:
    """Returns the lag-one autocorrelation of a non-constant series."""
    residuals = series - series.mean()
    residuals /= np.abs(residuals).max()  # squares of tiny values would underflow
    return float(residuals[1:] @ residuals[:-1]) / float(residuals @ residuals)


def block_weights(steps: int, length: int, n: int, seed: int | np.random.Generator) -> Floats:
    """Returns how many times each step is drawn in each resample (n × steps)."""
    starts = np.random.default_rng(seed).integers(steps, size=(n, -(-steps // length)))
    drawn = (starts[:, :, None] + np.arange(length)) % steps
    drawn = drawn.reshape(n, -1)[:, :steps] + steps * np.arange(n)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * steps).reshape(n, steps).astype(np.float64)


def block_stderr(influence: Floats, history: TargetHistory, length: int) -> Floats:
    """Returns the first-order standard error of each source's mean, in the limit of infinitely many resamples.

    `influence` (steps × sources) is the change in the mean if a step is drawn once more. A resample consists of T / b
    blocks, so its variance is T / b times the variance of one block sum.
    """
    variance = (_block_sums(influence, length) ** 2).sum(axis=0) / length
    return np.asarray(np.sqrt(variance * small_sample_correction(history, length)))


def small_sample_correction(history: TargetHistory, length: int) -> Floats:
    """Returns the factor that corrects the variance for the bias caused by using the sample mean.

    For blocks of one step, the factor is N / (N − 1). The factor is NaN for sources with fewer than two values.
    """
    counts, enough = history.counts(), history.entries() > 1
    blocks = _block_sums(history.weights.astype(np.float64), length)
    lost = (blocks**2).sum(axis=0) / (length * np.maximum(counts, 1.0) ** 2)
    return np.where(enough, 1 / (1 - np.where(enough, lost, 0.0)), np.nan)


def _block_sums(series: Floats, length: int) -> Floats:
    if length == 1:
        return series
    total = np.cumsum(np.concatenate([np.zeros_like(series[:1]), series, series[: length - 1]]), axis=0)
    return np.asarray(total[length:] - total[:-length])
