"""Computes standard errors and resamples of a history with a block bootstrap of whole steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .averaging import Average, Floats, TargetHistory, center_values, divide, shift_influence, step_levels

STDERR_RESAMPLES = 200  # makes standard errors accurate to about 5%
WEIGHTS_AT_ONCE = 2**22  # weights (steps × resamples) to keep in memory
MAX_RESAMPLES, MAX_RESAMPLED_BYTES = 100_000, 2**31  # shares of so many resamples are accurate to 0.2%
MAX_CORRELATION = 0.97  # above this, the block length would exceed any history


def standard_errors(targets: Sequence[TargetHistory], average: Average) -> Floats:
    """Returns standard errors [source, target].

    They are computed in closed form for the mean, and from resamples otherwise.
    """
    length = block_length(targets)
    if average.name == "mean":
        columns = []
        for target in targets:
            influence = target.deviations() * target.weights / np.maximum(target.counts(), 1) + shift_influence(target)
            # A resample consists of T / b blocks, so its variance is T / b times the variance of one block sum.
            columns.append((_block_sums(influence, length) ** 2).sum(axis=0) / length)
        variances = np.stack(columns, axis=1)
    else:
        resamples = bootstrap_averages(targets, average, STDERR_RESAMPLES, seed=0)
        variances = np.ma.masked_invalid(resamples).var(axis=0, ddof=1).filled(np.nan)
    corrections = [small_sample_correction(target, length) for target in targets]
    return np.asarray(np.sqrt(variances * np.stack(corrections, axis=1)))


def bootstrap_averages(targets: Sequence[TargetHistory], average: Average, n: int, seed: int) -> Floats:
    """Returns the averages over each of `n` resamples of the steps (n × sources × targets)."""
    steps = len(targets[0].values)
    length, rng = block_length(targets), np.random.default_rng(seed)
    batch = max(1, WEIGHTS_AT_ONCE // steps)
    resamples = []
    for start in range(0, n, batch):
        weights = block_weights(steps, length, min(batch, n - start), rng)
        resamples.append(_resampled_averages(targets, average, weights))
    return np.concatenate(resamples)


def draw_within_errors(mean: Floats, stderr: Floats, n: int, seed: int) -> Floats:
    """Returns `n` matrices drawn from normal distributions with the given means and standard errors.

    Pairs are drawn independently, but a symmetric matrix stays symmetric. A pair whose standard error is unknown,
    because it was measured once, varies as much as the least certain pair.
    """
    largest = np.nanmax(stderr[~np.eye(len(stderr), dtype=bool)])
    errors = np.where(np.isfinite(stderr), stderr, largest)
    noise = np.random.default_rng(seed).standard_normal((n, *mean.shape))
    if np.array_equal(mean, mean.T, equal_nan=True) and np.array_equal(errors, errors.T):
        noise = np.triu(noise) + np.triu(noise, 1).swapaxes(1, 2)
    return np.asarray(mean + errors * noise)


def max_resamples(tasks: int) -> int:
    """Returns the largest number of resamples that `Affinity.bootstrap` draws at once.

    Example:
        >>> max_resamples(9), max_resamples(1000)
        (100000, 268)
    """
    return max(1, min(MAX_RESAMPLES, MAX_RESAMPLED_BYTES // (8 * tasks**2)))


def block_length(targets: Sequence[TargetHistory]) -> int:
    """Returns the block length, which is at least 1 and at most a quarter of the number of measured steps.

    The formula is given in the documentation of `Affinity.stderr`. If pairs have missing values, T is the median number
    of values per pair, and the resulting length is converted to steps.
    """
    steps = len(targets[0].values)
    correlations, counts = [], []
    for target in targets:
        for values, present in zip(target.values.T, target.present.T, strict=True):
            series = values[present]
            if len(series) > 2 and np.ptp(series) > 0:
                correlations.append(lag_one_autocorrelation(series))
                counts.append(len(series))
    if not counts or steps < 4:
        return 1
    rho = np.clip(np.median(correlations), 0.0, MAX_CORRELATION)
    values_per_pair = np.median(counts)
    length = (2 * rho / (1 - rho**2)) ** (2 / 3) * values_per_pair ** (1 / 3) * steps / values_per_pair
    return int(np.clip(np.round(length), 1, steps // 4))


def lag_one_autocorrelation(series: Floats) -> float:
    """Returns the lag-one autocorrelation of a non-constant series."""
    residuals = series - series.mean()
    residuals /= np.abs(residuals).max()  # squares of tiny values would underflow
    return float(residuals[1:] @ residuals[:-1] / (residuals @ residuals))


def block_weights(steps: int, length: int, n: int, rng: np.random.Generator) -> Floats:
    """Returns how many times each step is drawn in each resample (n × steps)."""
    starts = rng.integers(steps, size=(n, -(-steps // length)))
    drawn = (starts[:, :, None] + np.arange(length)) % steps
    drawn = drawn.reshape(n, -1)[:, :steps] + steps * np.arange(n)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * steps).reshape(n, steps).astype(np.float64)


def _resampled_averages(targets: Sequence[TargetHistory], average: Average, weights: Floats) -> Floats:
    """Returns the averages in each resample (resamples × sources × targets)."""
    if average.name == "mean":
        return np.stack([_weighted_means(target, weights) for target in targets], axis=2)
    columns = []
    for target in targets:
        # Levels contribute to every average but are not trimmed, so they are resampled separately.
        entries = np.maximum(target.present.sum(axis=0), 1)
        levels = step_levels(target)[:, None] * target.present
        deviations = (levels - levels.sum(axis=0) / entries) * target.present
        influence = deviations / entries + shift_influence(target)
        columns.append(_trimmed_means(center_values(target), average, weights) + weights @ influence)
    return np.stack(columns, axis=2)


def _weighted_means(target: TargetHistory, weights: Floats) -> Floats:
    """Returns the mean of each source in each resample (resamples × sources)."""
    values = target.values * target.weights
    sums, counts = weights @ values, weights @ target.weights
    if not target.is_mixed:
        return divide(sums, counts)
    # As in the full history, the raw steps of each resample are shifted to the level of its relative steps.
    raw = weights * ~target.relative
    raw_sums, raw_counts = raw @ values, raw @ target.weights
    gaps = divide(sums - raw_sums, counts - raw_counts) - divide(raw_sums, raw_counts)
    shift = np.nan_to_num(gaps).sum(axis=1) / np.maximum(np.isfinite(gaps).sum(axis=1), 1)
    return divide(sums + shift[:, None] * raw_counts, counts)


def _trimmed_means(values: Floats, average: Average, weights: Floats) -> Floats:
    """Returns the trimmed mean of each source in each resample (resamples × sources)."""
    means = np.empty((len(weights), values.shape[1]))
    for i in range(values.shape[1]):
        order = np.argsort(values[:, i])[: np.isfinite(values[:, i]).sum()]  # missing values come last
        ranks = np.cumsum(weights.T[order], axis=0)  # [sorted steps, resamples]: draws up to and including each step
        counts = weights[:, order].sum(axis=1)
        cut = average.trim_counts(counts)
        kept = np.diff(np.clip(ranks, cut, counts - cut), axis=0, prepend=cut[None])
        means[:, i] = divide(values[order, i] @ kept, counts - 2 * cut)
    return means


def small_sample_correction(target: TargetHistory, length: int) -> Floats:
    """Returns the factor that corrects the variance for the bias caused by using the sample mean.

    For blocks of one step, the factor is N / (N − 1). The factor is NaN for sources with fewer than two values.
    """
    blocks = _block_sums(target.weights, length)
    enough = target.present.sum(axis=0) > 1
    lost = (blocks**2).sum(axis=0) / (length * np.maximum(target.counts(), 1.0) ** 2)
    return np.where(enough, 1 / (1 - np.where(enough, lost, 0.0)), np.nan)


def _block_sums(series: Floats, length: int) -> Floats:
    """Returns the sum of the `length` steps that begin at each step, where the last step is followed by the first."""
    cyclic = np.concatenate([np.zeros_like(series[:1]), series, series[: length - 1]])
    totals = np.cumsum(cyclic, axis=0)
    return np.asarray(totals[length:] - totals[:-length])
