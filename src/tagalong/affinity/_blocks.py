"""Resampling whole steps in blocks: neighbouring steps are alike, so steps are not independent draws.

The circular block bootstrap (Politis and Romano, 1992) draws blocks of `b` neighbouring steps, the last
step being followed by the first. The block length is the AR(1) plug-in rule (Carlstein, 1986; Lahiri, 2003)
b = (2ρ / (1 − ρ²))^(2/3) · T^(1/3).
"""

from __future__ import annotations

import numpy as np

from ._check import Floats
from ._level import Onto

MAX_CORRELATION = 0.97  # beyond it the rule asks for more blocks than any history has steps


def block_length(targets: list[Onto], steps: int) -> int:
    """Block length in measured steps, at least 1 and at most a quarter of them.

    ρ is the median over pairs of the lag-one autocorrelation of each pair's present values, clipped to
    [0, 0.97]. Where pairs lack values, T is the usual number of values of a pair, and the length is
    stretched from values to steps.
    """
    series = [target.values[target.present[:, i], i] for target in targets for i in range(len(targets))]
    known = [(lag_one(one), len(one)) for one in series if len(one) > 2 and np.ptp(one) > 0]
    if not known or steps < 4:
        return 1
    rho = float(np.clip(np.median([correlation for correlation, _ in known]), 0.0, MAX_CORRELATION))
    values = float(np.median([count for _, count in known]))
    length = (2 * rho / (1 - rho**2)) ** (2 / 3) * values ** (1 / 3) * steps / values
    return int(np.clip(round(length), 1, steps // 4))


def lag_one(series: Floats) -> float:
    """Lag-one autocorrelation of a series that is not constant."""
    rest = series - series.mean()
    rest /= np.abs(rest).max()  # squares of tiny values would vanish
    return float(rest[1:] @ rest[:-1]) / float(rest @ rest)


def block_weights(steps: int, length: int, n: int, seed: int) -> Floats:
    """How often each resample drew each step (n × steps)."""
    starts = np.random.default_rng(seed).integers(steps, size=(n, -(-steps // length)))
    drawn = (starts[:, :, None] + np.arange(length)) % steps
    drawn = drawn.reshape(n, -1)[:, :steps] + steps * np.arange(n)[:, None]
    return np.bincount(drawn.ravel(), minlength=n * steps).reshape(n, steps).astype(np.float64)


def block_stderr(influence: Floats, target: Onto, length: int) -> Floats:
    """Standard error of each source's mean: what infinitely many resamples would give, to first order.

    `influence` (steps × sources) is what one more draw of a step adds to the mean. A resample draws
    T / b blocks, so the variance is that of one block sum, times T / b.
    """
    variance = (_block_sums(influence, length) ** 2).sum(axis=0) / length
    return np.asarray(np.sqrt(variance * small_sample(target, length)))


def small_sample(target: Onto, length: int) -> Floats:
    """What residuals lose because they are taken from their own mean; N / (N − 1) for blocks of one.

    NaN where a source has fewer than two values: one value says nothing about its error.
    """
    counts = target.counts()
    blocks = _block_sums(target.present.astype(np.float64), length)
    lost = (blocks**2).sum(axis=0) / (length * np.maximum(counts, 1.0) ** 2)
    return np.where(counts > 1, 1 / (1 - np.where(counts > 1, lost, 0.0)), np.nan)


def _block_sums(series: Floats, length: int) -> Floats:
    if length == 1:
        return series
    total = np.cumsum(np.concatenate([np.zeros_like(series[:1]), series, series[: length - 1]]), axis=0)
    return np.asarray(total[length:] - total[:-length])
