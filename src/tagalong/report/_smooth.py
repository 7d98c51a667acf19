"""Means of a history over a moving window."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

Floats = NDArray[np.float64]

SHARE = 10  # windows beside each other in a history
ENOUGH = 5  # values of the usual pair in a window
OVERLAP = 4  # windows that hold a step: smooth lines without a point per step
POINTS = 200  # more than a panel can show


@dataclass(frozen=True)
class Smooth:
    """One mean per window (windows × n × n), its standard error, and the middle of the window's steps."""

    steps: Floats
    mean: Floats
    stderr: Floats
    window: int


def smoothed(affinity: Affinity, window: int | None) -> Smooth:
    """Averages moving windows of `window` measured steps, about 200 windows at most."""
    length = len(affinity.steps)
    window = _usual(affinity) if window is None else window
    if window < 1:
        raise ValueError(f"`smooth` must be a number of measured steps, at least 1, found {window!r}")
    window = min(window, length)
    level = affinity.levelled()  # once, not window by window
    last = length - window
    starts = [*range(0, last, max(1, window // OVERLAP, -(-last // POINTS))), last]
    parts = [level.between(int(level.steps[s]), int(level.steps[s + window - 1]) + 1) for s in starts]
    return Smooth(
        steps=np.array([part.steps.mean() for part in parts]),
        mean=np.stack([part.mean for part in parts]),
        stderr=np.stack([part.stderr for part in parts]),
        window=window,
    )


def _usual(affinity: Affinity) -> int:
    length, counts = len(affinity.steps), affinity.count[affinity.count > 0]
    turns = length / float(np.median(counts)) if counts.size else 1.0
    return max(1, ceil(length / SHARE), ceil(ENOUGH * turns))
