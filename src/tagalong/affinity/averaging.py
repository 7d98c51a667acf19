"""Averages over the steps of a history, and the shifts that make the sources of a target comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
AVERAGES = ("mean", "trimmed", "median")
TRIM = 0.05  # default fraction to drop at each end


@dataclass(frozen=True)
class Average:
    """A kind of average: "mean", "trimmed" (a fraction `trim` of the values is dropped at each end) or "median"."""

    name: str = "mean"
    trim: float = TRIM

    def __post_init__(self) -> None:
        if self.name not in AVERAGES:
            raise InvalidInput("average", f"must be one of {', '.join(map(repr, AVERAGES))}", repr(self.name))
        if not 0 <= self.trim < 0.5:
            raise InvalidInput("trim", "must be a fraction in [0, 0.5)", repr(self.trim))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Average:
        """Returns the kind of average specified in the settings of an affinity."""
        return cls(settings.get("average", "mean"), settings.get("trim", TRIM))

    @property
    def settings(self) -> dict[str, Any]:
        """The affinity settings that specify this average."""
        return {"average": self.name, **({"trim": self.trim} if self.name == "trimmed" else {})}

    def cut(self, counts: NDArray[Any]) -> Floats:
        """Returns how many of `counts` values are dropped at each end."""
        if self.name == "median":
            return np.maximum((counts - 1.0) // 2, 0.0)
        return np.asarray(np.floor(counts * (self.trim if self.name == "trimmed" else 0.0)))


def averages(history: Floats, null: Floats, average: Average) -> Floats:
    """Returns the averaged matrix [source, target] of a history and its null steps."""
    targets = (history_onto(history, null, j) for j in range(history.shape[1]))
    return np.stack([_average(target, average) for target in targets], axis=1)


def _average(aligned: TargetHistory, average: Average) -> Floats:
    if average.name == "mean":
        return aligned.means()
    ordered = np.sort(center(aligned), axis=0)
    counts = aligned.counts()
    cut = average.cut(counts)
    rank = np.arange(len(ordered))[:, None]
    kept = (rank >= cut) & (rank < counts - cut)
    return ratio(np.where(kept, ordered, 0.0).sum(axis=0), counts - 2 * cut)


def center(aligned: TargetHistory) -> Floats:
    """Subtracts from each value the part of its step that is common to all sources. NaN where nothing was measured.

    The common part can be many times larger than the differences between sources. Trimming and medians are nonlinear,
    so they must be applied to these differences alone.
    """
    return np.where(aligned.present, aligned.values - step_levels(aligned)[:, None], np.nan)


def ratio(sums: Floats, counts: NDArray[Any]) -> Floats:
    """Divides sums by counts. NaN where there is nothing to average."""
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)


@dataclass(frozen=True, eq=False)
class TargetHistory:
    """The history onto one target (steps × sources).

    Attributes:
        values: the measured values. Zero elsewhere, so sums need no mask.
        present: marks the measured values.
        relative: marks the steps whose values are relative to the null step. The others are raw and include the effect
            of an optimizer step with zero gradient.
        others: marks the sources other than the target itself.
    """

    values: Floats
    present: Mask
    relative: Mask
    others: Mask

    @property
    def mixed(self) -> bool:
        """Whether there are both raw and relative steps."""
        measured = self.present.any(axis=1)
        return bool(self.relative[measured].any() and not self.relative[measured].all())

    def counts(self, steps: Mask | None = None) -> NDArray[Any]:
        """Returns the number of values per source in `steps`."""
        present = self.present if steps is None else self.present[steps]
        return np.asarray(np.count_nonzero(present, axis=0))

    def means(self, steps: Mask | None = None) -> Floats:
        """Returns the mean of each source over `steps`. NaN for sources without values."""
        counts = self.counts(steps)
        sums = (self.values if steps is None else self.values[steps]).sum(axis=0)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def history_onto(history: Floats, null: Floats, target: int) -> TargetHistory:
    """Returns the history onto a target, with raw steps shifted to the level of the relative ones.

    Raw steps include a term common to all sources (momentum, weight decay); relative steps do not. Sources differ in
    how many relative steps they have, so averaging both kinds unchanged would include that term to a different extent
    for each source. Every source occurs in every complete step, so shifting these steps by one constant keeps sources
    comparable.
    """
    column = np.ascontiguousarray(history[:, :, target])
    present = np.isfinite(column)
    relative = np.isfinite(null[:, target])
    others = np.arange(present.shape[1]) != target
    measured = TargetHistory(np.where(present, column, 0.0), present, relative, others)
    if not measured.mixed:
        return measured
    raw = present & ~relative[:, None]
    return TargetHistory(measured.values + level_gap(measured) * raw, present, relative, others)


def level_history(history: Floats, null: Floats) -> Floats:
    """Returns the entire history, with raw steps shifted to the level of the relative ones."""
    targets = (history_onto(history, null, j) for j in range(history.shape[1]))
    return np.stack([np.where(target.present, target.values, np.nan) for target in targets], axis=2)


def level_gap(measured: TargetHistory) -> float:
    """Returns how much higher the relative steps are than the raw ones, on average over the sources in both."""
    gap = measured.means(measured.relative) - measured.means(~measured.relative)
    shared = np.isfinite(gap)
    return float(gap[shared].mean()) if shared.any() else 0.0


def step_levels(aligned: TargetHistory) -> Floats:
    """Returns the part of each step that is common to all sources, relative to the target's level (steps,).

    In a complete step, this is the mean over sources minus the target's level, which is the mean of all source means.
    In a raw step with fewer sources, it is the mean deviation of these sources from their own means. It is zero
    elsewhere: an incomplete relative step no longer has a common term, and with a single source (round robin) the
    entire effect would count as common.

    The target itself counts as a source only in steps with at most one other source. Self-affinity is large and skewed,
    and its skew would carry over to all other sources.
    """
    alone = (aligned.present & aligned.others).sum(axis=1) < 2
    counted = aligned.others | alone[:, None]
    present = aligned.present & counted
    sources = present.sum(axis=1)
    deviations = np.where(present, aligned.values - np.nan_to_num(aligned.means()), 0.0)
    complete = sources == (counted & (aligned.counts() > 0)).sum(axis=1)
    is_centered = (complete | ~aligned.relative) & (sources > 1)
    return np.where(is_centered, deviations.sum(axis=1) / np.maximum(sources, 1), 0.0)


def shift_influence(aligned: TargetHistory) -> Floats:
    """Returns how drawing each step once more changes the means through the shift of raw steps, to first order."""
    if not aligned.mixed:
        return np.zeros_like(aligned.values)
    raw = ~aligned.relative
    shared = (aligned.counts(raw) > 0) & (aligned.counts(~raw) > 0)
    effect = np.zeros(len(raw))
    for steps, sign in ((~raw, 1.0), (raw, -1.0)):
        deviations = (aligned.values[steps] - np.nan_to_num(aligned.means(steps))) * aligned.present[steps]
        per_source = deviations[:, shared] / aligned.counts(steps)[shared]
        effect[steps] = sign * per_source.sum(axis=1) / max(int(shared.sum()), 1)
    return np.asarray(effect[:, None] * (aligned.counts(raw) / np.maximum(aligned.counts(), 1)))
