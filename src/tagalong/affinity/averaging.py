"""Averages a history over its steps, with shifts that make the sources of a target comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
ALL_STEPS = slice(None)


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
        return cls(settings.get("average", "mean"), settings.get("trim", DEFAULT_TRIM))

    @property
    def settings(self) -> dict[str, Any]:
        """The affinity settings that describe this average."""
        settings: dict[str, Any] = {"average": self.name}
        if self.name == "trimmed":
            settings["trim"] = self.trim
        return settings

    def trim_counts(self, counts: Floats) -> Floats:
        """Returns the number of values to drop at each end, given the total number of values."""
        if self.name == "median":
            return np.maximum((counts - 1.0) // 2, 0.0)
        return np.floor(counts * self.trim)


@dataclass(frozen=True, eq=False)
class TargetHistory:
    """The measured affinities of all sources onto one target.

    Attributes:
        target: the number of the target, which is also one of the sources.
        values: the measured values [steps, sources]. Missing values are zero.
        weights: the number of measured values behind each entry [steps, sources]: 0 or 1, or more for the mean over a
            block of steps.
        relative: a mask of the steps whose values are relative to the null step. The other steps are raw, i.e. they
            include the effect of an optimizer step with zero gradient.
    """

    target: int
    values: Floats
    weights: Floats
    relative: Mask

    @property
    def present(self) -> Mask:
        return np.asarray(self.weights > 0)

    @property
    def is_mixed(self) -> bool:
        """Whether the history contains both raw and relative steps."""
        relative = self.relative[self.present.any(axis=1)]
        return bool(relative.any() and not relative.all())

    def counts(self, steps: slice | Mask = ALL_STEPS) -> Floats:
        """Returns how many values each source has in `steps`."""
        return np.asarray(self.weights[steps].sum(axis=0))

    def means(self, steps: slice | Mask = ALL_STEPS) -> Floats:
        """Returns the mean of each source over `steps`, or NaN for sources without values."""
        return divide((self.values * self.weights)[steps].sum(axis=0), self.counts(steps))

    def deviations(self, steps: slice | Mask = ALL_STEPS) -> Floats:
        """Returns how much each value deviates from the mean of its source over `steps`, or 0 for missing values."""
        return np.where(self.present, self.values - np.nan_to_num(self.means(steps)), 0.0)[steps]


def divide(sums: Floats, counts: Floats) -> Floats:
    """Divides sums by counts. Returns NaN for counts of zero."""
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)


def target_histories(history: Floats, null: Floats, block_counts: Ints | None = None) -> list[TargetHistory]:
    """Returns the history of each target, with raw steps shifted to the level of the relative steps.

    Raw steps include an effect common to all sources (momentum, weight decay), but relative steps do not. The fraction
    of relative steps varies between sources, so a plain average would include more of that effect for some sources than
    for others. Shifting all raw steps of a target by the same constant removes this imbalance.
    """
    targets = []
    for j in range(history.shape[1]):
        column = np.ascontiguousarray(history[:, :, j])
        weights = np.isfinite(column) if block_counts is None else block_counts[:, :, j]
        target = TargetHistory(j, np.nan_to_num(column), weights.astype(np.float64), np.isfinite(null[:, j]))
        if target.is_mixed:
            gaps = target.means(target.relative) - target.means(~target.relative)
            gap = np.nan_to_num(gaps).sum() / max(np.isfinite(gaps).sum(), 1)
            raw = target.present & ~target.relative[:, None]
            target = TargetHistory(j, target.values + gap * raw, target.weights, target.relative)
        targets.append(target)
    return targets


def averages(targets: Sequence[TargetHistory], average: Average) -> Floats:
    """Returns the matrix [source, target] of averages over a history."""
    if average.name == "mean":
        return np.stack([target.means() for target in targets], axis=1)
    columns = []
    for target in targets:
        ordered = np.sort(center_values(target), axis=0)  # missing values come last
        counts = target.present.sum(axis=0).astype(np.float64)
        cut = average.trim_counts(counts)
        rank = np.arange(len(ordered))[:, None]
        kept = (rank >= cut) & (rank < counts - cut)
        columns.append(divide(np.where(kept, ordered, 0.0).sum(axis=0), counts - 2 * cut))
    return np.stack(columns, axis=1)


def center_values(history: TargetHistory) -> Floats:
    """Subtracts from each value the part that is common to all sources of its step. Missing values are NaN.

    The common part can be much larger than the differences between sources. Trimmed means and medians are nonlinear, so
    they must be computed from these differences alone.
    """
    return np.where(history.present, history.values - step_levels(history)[:, None], np.nan)


def step_levels(history: TargetHistory) -> Floats:
    """Returns the part of each step's values that is common to all sources, relative to the target's level (steps,).

    In a complete step, the common part is the mean over sources minus the target's level, which is the mean of all
    source means. In a raw step with missing sources, it is the mean deviation of the measured sources from their own
    means. In all other steps, it is zero. An incomplete relative step has no common part. If only one source was
    measured (round robin), its entire effect would be treated as common.

    The target itself is used as a source only in steps with at most one other source. Self-affinity is large and
    skewed, and would otherwise skew the values of all other sources.
    """
    others = np.arange(history.values.shape[1]) != history.target
    alone = (history.present & others).sum(axis=1) < 2
    counted = others | alone[:, None]
    sources = (history.present & counted).sum(axis=1)
    complete = sources == (counted & (history.counts() > 0)).sum(axis=1)
    is_centered = (complete | ~history.relative) & (sources > 1)
    common = (history.deviations() * counted).sum(axis=1) / np.maximum(sources, 1)
    return np.where(is_centered, common, 0.0)


def shift_influence(history: TargetHistory) -> Floats:
    """Returns the first-order effect of each step on the means, due to the shift that is added to raw steps."""
    if not history.is_mixed:
        return np.zeros_like(history.values)
    raw = ~history.relative
    shared = (history.counts(raw) > 0) & (history.counts(~raw) > 0)
    effect = np.zeros(len(raw))
    for steps, sign in ((~raw, 1.0), (raw, -1.0)):
        deviations = history.deviations(steps) * history.weights[steps]
        per_source = deviations[:, shared] / history.counts(steps)[shared]
        effect[steps] = sign * per_source.sum(axis=1) / max(shared.sum(), 1)
    return np.asarray(effect[:, None] * (history.counts(raw) / np.maximum(history.counts(), 1)))
