"""Averages a history over its steps, with shifts that make the sources of a target comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, is_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
AVERAGES = ("mean", "trimmed", "median")
DEFAULT_TRIM = 0.05  # default fraction to drop at each end


@dataclass(frozen=True)
class Average:
    """A type of average: "mean", "trimmed" (which drops a fraction `trim` of the values at each end) or "median"."""

    name: str = "mean"
    trim: float = DEFAULT_TRIM

    def __post_init__(self) -> None:
        if self.name not in AVERAGES:
            raise InvalidInput("average", f"must be one of {', '.join(map(repr, AVERAGES))}", repr(self.name))
        if not is_number(self.trim) or not 0 <= self.trim < 0.5:
            raise InvalidInput("trim", "must be a fraction in [0, 0.5)", repr(self.trim))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Average:
        """Returns the type of average specified in the settings of an affinity."""
        if not isinstance(settings, Mapping):
            raise InvalidInput("settings", "must be a mapping from names to values", repr(settings))
        return cls(settings.get("average", "mean"), settings.get("trim", DEFAULT_TRIM))

    @property
    def settings(self) -> dict[str, Any]:
        """The affinity settings that describe this average."""
        return {"average": self.name, **({"trim": self.trim} if self.name == "trimmed" else {})}

    def trim_counts(self, counts: NDArray[Any]) -> Floats:
        """Returns the number of values to drop at each end, given the total number of values."""
        if self.name == "median":
            return np.maximum((counts - 1.0) // 2, 0.0)
        return np.asarray(np.floor(counts * (self.trim if self.name == "trimmed" else 0.0)))


def averages(history: Floats, null: Floats, average: Average, block_counts: Ints | None = None) -> Floats:
    """Returns the matrix [source, target] of averages over a history."""
    targets = (target_history(history, null, j, block_counts) for j in range(history.shape[1]))
    return np.stack([_target_averages(target, average) for target in targets], axis=1)


def _target_averages(history: TargetHistory, average: Average) -> Floats:
    if average.name == "mean":
        return history.means()
    ordered = np.sort(center_values(history), axis=0)
    counts = history.entries()
    cut = average.trim_counts(counts)
    rank = np.arange(len(ordered))[:, None]
    kept = (rank >= cut) & (rank < counts - cut)
    return safe_divide(np.where(kept, ordered, 0.0).sum(axis=0), counts - 2 * cut)


def center_values(history: TargetHistory) -> Floats:
    """Subtracts from each value the part that is common to all sources of its step. Missing values are NaN.

    The common part can be much larger than the differences between sources. Trimmed means and medians are nonlinear, so
    they must be computed from these differences alone.
    """
    return np.where(history.present, history.values - step_levels(history)[:, None], np.nan)


def safe_divide(sums: Floats, counts: NDArray[Any]) -> Floats:
    """Divides sums by counts. Returns NaN for counts of zero."""
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)


@dataclass(frozen=True, eq=False)
class TargetHistory:
    """The measured affinities of all sources onto one target (steps × sources).

    Attributes:
        values: the measured values. Missing values are zero, so sums need no mask.
        present: a mask of the measured values.
        relative: a mask of the steps whose values are relative to the null step. The other steps are raw, i.e. they
            include the effect of an optimizer step with zero gradient.
        others: a mask of the sources other than the target itself.
        block_counts: the number of measured values behind each entry, or None if each entry is one value.
    """

    values: Floats
    present: Mask
    relative: Mask
    others: Mask
    block_counts: Ints | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether the history contains both raw and relative steps."""
        measured = self.present.any(axis=1)
        return bool(self.relative[measured].any() and not self.relative[measured].all())

    @property
    def weights(self) -> NDArray[Any]:
        """The weight of each entry in a mean: the number of values behind it."""
        return self.present if self.block_counts is None else self.block_counts

    @property
    def weighted_values(self) -> Floats:
        return self.values if self.block_counts is None else np.asarray(self.values * self.block_counts)

    def entries(self) -> NDArray[Any]:
        """Returns how many entries each source has, where the mean over a block of steps is one entry."""
        return np.asarray(np.count_nonzero(self.present, axis=0))

    def counts(self, steps: Mask | None = None) -> NDArray[Any]:
        """Returns how many values each source has in `steps`."""
        weights = self.weights if steps is None else self.weights[steps]
        return np.asarray(weights.sum(axis=0))

    def means(self, steps: Mask | None = None) -> Floats:
        """Returns the mean of each source over `steps`, or NaN for sources without values."""
        counts = self.counts(steps)
        values = self.weighted_values
        sums = (values if steps is None else values[steps]).sum(axis=0)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def target_history(history: Floats, null: Floats, target: int, block_counts: Ints | None = None) -> TargetHistory:
    """Returns the history of one target, with raw steps shifted to the level of the relative steps.

    Raw steps include an effect common to all sources (momentum, weight decay), but relative steps do not. The fraction
    of relative steps varies between sources, so a plain average would include more of that effect for some sources than
    for others. Shifting all raw steps by the same constant removes this imbalance.
    """
    column = np.ascontiguousarray(history[:, :, target])
    present = np.isfinite(column)
    relative = np.isfinite(null[:, target])
    others = np.arange(present.shape[1]) != target
    counts = None if block_counts is None else np.ascontiguousarray(block_counts[:, :, target])
    measured = TargetHistory(np.where(present, column, 0.0), present, relative, others, counts)
    if not measured.is_mixed:
        return measured
    raw = present & ~relative[:, None]
    return TargetHistory(measured.values + level_gap(measured) * raw, present, relative, others, counts)


def level_history(history: Floats, null: Floats, block_counts: Ints | None = None) -> Floats:
    """Returns the entire history, with raw steps shifted to the level of the relative steps."""
    targets = (target_history(history, null, j, block_counts) for j in range(history.shape[1]))
    return np.stack([np.where(target.present, target.values, np.nan) for target in targets], axis=2)


def level_gap(history: TargetHistory) -> float:
    """Returns the average difference between relative and raw steps, over the sources that have both."""
    gap = history.means(history.relative) - history.means(~history.relative)
    shared = np.isfinite(gap)
    return float(gap[shared].mean()) if shared.any() else 0.0


def step_levels(history: TargetHistory) -> Floats:
    """Returns the part of each step's values that is common to all sources, relative to the target's level (steps,).

    In a complete step, the common part is the mean over sources minus the target's level, which is the mean of all
    source means. In a raw step with missing sources, it is the mean deviation of the measured sources from their own
    means. In all other steps, it is zero. An incomplete relative step has no common part. If only one source was
    measured (round robin), its entire effect would be treated as common.

    The target itself is used as a source only in steps with at most one other source. Self-affinity is large and
    skewed, and would otherwise skew the values of all other sources.
    """
    alone = (history.present & history.others).sum(axis=1) < 2
    counted = history.others | alone[:, None]
    present = history.present & counted
    sources = present.sum(axis=1)
    deviations = np.where(present, history.values - np.nan_to_num(history.means()), 0.0)
    complete = sources == (counted & (history.counts() > 0)).sum(axis=1)
    is_centered = (complete | ~history.relative) & (sources > 1)
    return np.where(is_centered, deviations.sum(axis=1) / np.maximum(sources, 1), 0.0)


def shift_influence(history: TargetHistory) -> Floats:
    """Returns the first-order effect of each step on the means, due to the shift that is added to raw steps."""
    if not history.is_mixed:
        return np.zeros_like(history.values)
    raw = ~history.relative
    shared = (history.counts(raw) > 0) & (history.counts(~raw) > 0)
    effect = np.zeros(len(raw))
    for steps, sign in ((~raw, 1.0), (raw, -1.0)):
        deviations = (history.values[steps] - np.nan_to_num(history.means(steps))) * history.weights[steps]
        per_source = deviations[:, shared] / history.counts(steps)[shared]
        effect[steps] = sign * per_source.sum(axis=1) / max(int(shared.sum()), 1)
    return np.asarray(effect[:, None] * (history.counts(raw) / np.maximum(history.counts(), 1)))
