"""How sure a change is: what few seeds, finitely many rows and the choice among groupings leave open."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import ndtri, stdtrit

from ._change import mean, stderr

CONFIDENCE = 0.95


def half_width(seeds: float, rows: float, confidence: float = CONFIDENCE) -> float:
    """Half the interval from two independent doubts.

    Args:
        seeds: half the interval that the seeds alone give, see `seed_half_width`.
        rows: the standard error from finitely many test rows.
        confidence: of the interval.

    Example:
        >>> round(half_width(3.0, 2.0), 2)
        4.94
    """
    return math.hypot(seeds, ndtri((1 + confidence) / 2) * rows)


def seed_half_width(
    chosen: Sequence[float], tried: Sequence[Sequence[float]] = (), confidence: float = CONFIDENCE
) -> float:
    """Half the interval of a mean over seeds, also where it is the best of several.

    Student's t with the few seeds of the chosen grouping. Where others were tried with the same seeds, lucky networks
    have a better chance of being chosen, and their luck shows on test rows as well; so the interval is at least as wide
    as Bonferroni's for so many comparisons, with a variance pooled over all of them.

    Args:
        chosen: the change of the chosen grouping with each seed.
        tried: the changes of every grouping that could have been chosen, this one among them.
        confidence: of the interval.

    Example:
        >>> round(seed_half_width([-1.0, 0.0, 1.0]), 2)  # the standard error 0.58 times 4.3
        2.48
    """
    tail = (1 - confidence) / 2
    alone = float(stdtrit(len(chosen) - 1, 1 - tail)) * stderr(chosen)
    if len(tried) < 2:
        return alone
    pooled = math.sqrt(mean([stderr(changes) ** 2 for changes in tried]))
    freedom = sum(len(changes) - 1 for changes in tried)
    return max(alone, float(stdtrit(freedom, 1 - tail / len(tried))) * pooled)
