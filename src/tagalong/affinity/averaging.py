"""Averages a history over its steps, with shifts that make the sources of a target comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, is_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
DEFAULT_TRIM = 0.05  # default fraction to drop at each end


@dataclass(frozen=True, eq=False)
class LevelHistory:
    """A history in which the sources of each target are comparable.

    Attributes:
        values: the measured values [steps, sources, targets]. Missing values are zero.
        present: which values were measured [steps, sources, targets].
        relative: which steps of each target are relative to the null step [steps, 1, targets]. The others are raw, i.e.
            they include the effect of an optimizer step with zero gradient.
        average: the type of average, "mean", "trimmed" or "median".
        trim: the fraction of values that "trimmed" drops at each end.
    """

    values: Floats
    present: Mask
    relative: Mask
    average: str
    trim: float

    @classmethod
    def align(cls, history: Floats, null: Floats, settings: Mapping[str, Any]) -> Self:
        """Shifts the raw steps of each target to the level of its relative steps.

        Raw steps include an effect common to all sources (momentum, weight decay), but relative steps do not. The
        fraction of relative steps varies between sources, so a plain average would include more of that effect for some
        sources than for others. Shifting all raw steps of a target by the same constant removes this imbalance.
        """
        average, trim = settings.get("average", "mean"), settings.get("trim", DEFAULT_TRIM)
        if average not in ("mean", "trimmed", "median") or not is_number(trim) or not 0 <= trim < 0.5:
            expected = "must be 'mean', 'trimmed' or 'median', and `trim` a fraction in [0, 0.5)"
            raise InvalidInput("average", expected, f"{average!r} and {trim!r}")
        present, relative = np.isfinite(history), np.isfinite(null)[:, None]
        measured = cls(np.nan_to_num(history), present, relative, average, trim)
        gaps = measured.means(relative) - measured.means(~relative)  # NaN for sources that do not have both
        shift = np.nan_to_num(gaps).sum(axis=0) / np.maximum(np.isfinite(gaps).sum(axis=0), 1)
        return replace(measured, values=measured.values + shift * (present & ~relative))

    def counts(self, steps: Mask | bool = True) -> NDArray[Any]:
        """Returns how many values each pair has in `steps`, a mask of the steps of each target."""
        return np.asarray((self.present & steps).sum(axis=0))

    def means(self, steps: Mask | bool = True) -> Floats:
        """Returns the mean of each pair over `steps`, or NaN for pairs without values."""
        return divide((self.values * steps).sum(axis=0), self.counts(steps))

    def trim_counts(self, counts: NDArray[Any]) -> Floats:
        """Returns the number of values to drop at each end, given the total number of values."""
        if self.average == "median":
            return np.maximum((counts - 1.0) // 2, 0.0)
        return np.asarray(np.floor(counts * self.trim))

    def deviations(self, steps: Mask | bool = True) -> Floats:
        """Returns the deviation of each value in `steps` from the mean over these steps, and 0 elsewhere."""
        return np.where(self.present & steps, self.values - np.nan_to_num(self.means(steps)), 0.0)


def divide(sums: Floats, counts: NDArray[Any]) -> Floats:
    # Without any value, the result is NaN.
    return np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)


def step_levels(history: LevelHistory) -> Floats:
    """Returns the part of each step that is common to a target's sources, relative to its level [steps, 1, targets].

    In a complete step, the common part is the mean over sources minus the target's level, which is the mean of all
    source means. In a raw step with missing sources, it is the mean deviation of the measured sources from their own
    means. In all other steps, it is zero. An incomplete relative step has no common part. If only one source was
    measured (round robin), its entire effect would be treated as common.

    The target itself is used as a source only in steps with at most one other source. Self-affinity is large and
    skewed, and would otherwise skew the values of all other sources.
    """
    others = ~np.eye(history.values.shape[1], dtype=bool)
    alone = (history.present & others).sum(axis=1, keepdims=True) < 2
    counted = others | alone
    sources = (history.present & counted).sum(axis=1, keepdims=True)
    complete = sources == (counted & (history.counts() > 0)).sum(axis=1, keepdims=True)
    common = (history.deviations() * counted).sum(axis=1, keepdims=True) / np.maximum(sources, 1)
    return np.where((complete | ~history.relative) & (sources > 1), common, 0.0)


def shift_influence(history: LevelHistory) -> Floats:
    """Returns the first-order effect of each step on the means, due to the shift that is added to raw steps."""
    raw = ~history.relative
    shared = (history.counts(raw) > 0) & (history.counts(~raw) > 0)  # sources with both raw and relative steps
    effect = np.zeros_like(history.relative, dtype=np.float64)
    for steps, sign in ((~raw, 1.0), (raw, -1.0)):
        per_source = history.deviations(steps) * shared / np.maximum(history.counts(steps), 1)
        effect += sign * per_source.sum(axis=1, keepdims=True) / np.maximum(shared.sum(axis=0), 1)
    return np.asarray(effect * history.counts(raw) / np.maximum(history.counts(), 1))
