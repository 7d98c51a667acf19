"""For which tasks does it matter at all with whom they train?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ._check import Floats

if TYPE_CHECKING:
    from ._affinity import Affinity

SMALL = 0.25  # of the median spread: the paper's a8 has 0.13 of it, the next smallest task 0.52
LEVEL = 95.0  # percent of the spreads that noise alone makes
DRAWS = 200


@dataclass(frozen=True)
class Spread:
    """How far apart the best and the worst partner of each task lie.

    Attributes:
        values: highest minus lowest affinity onto each task, from the other tasks.
        noise: the spread that noise alone stays below 95 times in 100; NaN where errors are not known.
        flagged: tasks for which no partner stands out. Their spread is at most a quarter of the median
            spread over tasks, or at most what noise makes.
        best: the partner with the highest affinity onto each task.
        worst: the partner with the lowest.
    """

    values: Mapping[str, float]
    noise: Mapping[str, float]
    flagged: tuple[str, ...]
    best: Mapping[str, str]
    worst: Mapping[str, str]

    def __str__(self) -> str:
        width = max(4, *map(len, self.values))
        lines = [f"{'task':<{width}}     spread      noise  best / worst partner"]
        for task, value in self.values.items():
            partners = f"{self.best.get(task, '-')} / {self.worst.get(task, '-')}"
            mark = "  no partner stands out" if task in self.flagged else ""
            lines.append(f"{task:<{width}} {_short(value)} {_short(self.noise[task])}  {partners}{mark}")
        return "\n".join(lines)


def spread(affinity: Affinity) -> Spread:
    """Spread onto each task over the other sources, and which spreads say nothing."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    values = _range(others[None])[0]
    noise = _noise(affinity)
    known = values[np.isfinite(values)]
    small = SMALL * float(np.median(known)) if known.size else np.nan
    limit = np.fmax(small, noise)
    flagged = tuple(task for task, low in zip(affinity.tasks, values <= limit, strict=True) if low)
    return Spread(
        values=_by_task(affinity, values),
        noise=_by_task(affinity, noise),
        flagged=flagged,
        best=_partners(affinity, others),
        worst=_partners(affinity, -others),
    )


def _noise(affinity: Affinity) -> Floats:
    """Spreads of errors alone: of resamples around the average, else of normal errors of the given size.

    Errors that hit all sources of a target alike cancel in the spread of a resample.
    """
    n = len(affinity.tasks)
    if len(affinity.steps) > 1:
        errors = affinity.bootstrap(DRAWS, seed=0) - affinity.mean
    else:
        errors = np.random.default_rng(0).standard_normal((DRAWS, n, n)) * affinity.stderr
    errors[:, np.eye(n, dtype=bool) | ~np.isfinite(affinity.stderr)] = np.nan
    ranges = _range(errors)
    known = np.isfinite(ranges).all(axis=0)
    return np.where(known, np.percentile(np.where(known, ranges, 0.0), LEVEL, axis=0), np.nan)


def _range(matrices: Floats) -> Floats:
    """Highest minus lowest over sources, NaN with fewer than two."""
    known = np.isfinite(matrices)
    high = np.where(known, matrices, -np.inf).max(axis=1)
    low = np.where(known, matrices, np.inf).min(axis=1)
    enough = known.sum(axis=1) > 1
    return np.where(enough, np.where(enough, high, 0.0) - np.where(enough, low, 0.0), np.nan)


def _by_task(affinity: Affinity, values: Floats) -> dict[str, float]:
    return dict(zip(affinity.tasks, values.tolist(), strict=True))


def _partners(affinity: Affinity, others: Floats) -> dict[str, str]:
    known = np.isfinite(others).sum(axis=0) > 0
    best = np.where(np.isfinite(others), others, -np.inf).argmax(axis=0)
    return {task: affinity.tasks[best[j]] for j, task in enumerate(affinity.tasks) if known[j]}


def _short(value: float) -> str:
    return f"{value:>10.3g}" if np.isfinite(value) else f"{'-':>10}"
