"""Makes what was measured onto one target comparable between its sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._check import Floats

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Onto:
    """The history onto one target (steps × sources).

    Attributes:
        values: what was measured, 0 elsewhere, so that sums need no mask.
        present: where something was measured.
        relative: steps whose values are relative to the null step; the others, raw, still hold what the
            optimiser does without any gradient.
        others: sources other than the target itself.
    """

    values: Floats
    present: Mask
    relative: Mask
    others: Mask

    @property
    def mixed(self) -> bool:
        """Whether raw and relative steps both occur."""
        measured = self.present.any(axis=1)
        return bool(self.relative[measured].any() and not self.relative[measured].all())

    def counts(self, steps: Mask | None = None) -> NDArray[Any]:
        """How many values each source has among `steps`."""
        present = self.present if steps is None else self.present[steps]
        return np.asarray(np.count_nonzero(present, axis=0))

    def means(self, steps: Mask | None = None) -> Floats:
        """Mean of each source over `steps`, NaN without any value."""
        counts = self.counts(steps)
        sums = (self.values if steps is None else self.values[steps]).sum(axis=0)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def onto(history: Floats, null: Floats, target: int) -> Onto:
    """The history onto `target`, its raw steps shifted to the level of the relative ones.

    Raw steps hold a term common to all sources (momentum, weight decay), relative steps do not. Sources
    differ in how many relative steps they have, so averaging both kinds as they are would mix that term in
    by different shares. All sources occur in all complete steps, so one constant added there keeps them
    comparable.
    """
    column = np.ascontiguousarray(history[:, :, target])
    present = np.isfinite(column)
    relative = np.isfinite(null[:, target])
    others = np.arange(present.shape[1]) != target
    measured = Onto(np.where(present, column, 0.0), present, relative, others)
    if not measured.mixed:
        return measured
    raw = present & ~relative[:, None]
    return Onto(measured.values + level_gap(measured) * raw, present, relative, others)


def levelled(history: Floats, null: Floats) -> Floats:
    """The whole history with raw steps at the level of relative ones, NaN where nothing was measured."""
    targets = (onto(history, null, j) for j in range(history.shape[1]))
    return np.stack([np.where(target.present, target.values, np.nan) for target in targets], axis=2)


def level_gap(measured: Onto) -> float:
    """How far the relative steps lie above the raw ones, over the sources that occur in both."""
    gap = measured.means(measured.relative) - measured.means(~measured.relative)
    shared = np.isfinite(gap)
    return float(gap[shared].mean()) if shared.any() else 0.0


def step_levels(aligned: Onto) -> Floats:
    """What each step did to all sources alike, as a distance from the target's level (steps,).

    In a complete step this is the mean over sources minus the target's level, the mean over sources of
    their means. In a raw step with fewer sources, the mean of what goes beyond these sources' own means.
    Zero elsewhere: an incomplete relative step has lost its common term already, and in a step with one
    source (round robin) all of its effect would be taken for common.

    The target itself counts as a source only in steps with a single other one: self-affinity is large and
    skewed, and would carry its skew into all the others.
    """
    alone = (aligned.present & aligned.others).sum(axis=1) < 2
    counted = aligned.others | alone[:, None]
    present = aligned.present & counted
    sources = present.sum(axis=1)
    beyond = np.where(present, aligned.values - np.nan_to_num(aligned.means()), 0.0)
    complete = sources == (counted & (aligned.counts() > 0)).sum(axis=1)
    centred = (complete | ~aligned.relative) & (sources > 1)
    return np.where(centred, beyond.sum(axis=1) / np.maximum(sources, 1), 0.0)


def shift_influence(aligned: Onto) -> Floats:
    """First-order effect of one more draw of each step on the means, through the shift of raw steps alone."""
    if not aligned.mixed:
        return np.zeros_like(aligned.values)
    raw = ~aligned.relative
    shared = (aligned.counts(raw) > 0) & (aligned.counts(~raw) > 0)
    effect = np.zeros(len(raw))
    for steps, sign in ((~raw, 1.0), (raw, -1.0)):
        beyond = (aligned.values[steps] - np.nan_to_num(aligned.means(steps))) * aligned.present[steps]
        per_source = beyond[:, shared] / aligned.counts(steps)[shared]
        effect[steps] = sign * per_source.sum(axis=1) / max(int(shared.sum()), 1)
    return np.asarray(effect[:, None] * (aligned.counts(raw) / np.maximum(aligned.counts(), 1)))
