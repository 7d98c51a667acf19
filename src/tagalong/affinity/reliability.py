"""Whether an affinity can be relied on: do partners differ by more than noise, and have groups stopped changing?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from tagalong.errors import InvalidInput
from tagalong.rendering import TextTable

from .averaging import Average, Floats, averages

if TYPE_CHECKING:
    from .affinity import Affinity

SMALL = 0.25  # of the median spread; the paper's a8 has 0.13 of it, the next smallest task 0.52
PERCENTILE = 95.0  # of the spreads that come from noise alone
DRAWS = 200
NUMBERS = ("   spread", "    noise")  # headings as wide as the widest number, so that all tables look alike


@dataclass(frozen=True)
class Spread:
    """The difference between the best and the worst partner of each task.

    Attributes:
        values: highest minus lowest affinity onto each task, from the other tasks.
        noise: the 95th percentile of the spread that comes from noise alone; NaN if errors are not known.
        flagged: tasks for which no partner stands out: their spread is at most a quarter of the median spread over
            tasks, or at most `noise`.
        best: the partner with the highest affinity onto each task.
        worst: the partner with the lowest.
    """

    values: Mapping[str, float]
    noise: Mapping[str, float]
    flagged: tuple[str, ...]
    best: Mapping[str, str]
    worst: Mapping[str, str]

    def __str__(self) -> str:
        table = TextTable("task", *NUMBERS, "best / worst partner", numbers=NUMBERS)
        for task, value in self.values.items():
            partners = f"{self.best.get(task, '-')} / {self.worst.get(task, '-')}"
            mark = "  no partner stands out" if task in self.flagged else ""
            table.add_row(task, _short(value), _short(self.noise[task]), partners + mark)
        return str(table)


def spread(affinity: Affinity) -> Spread:
    """Returns the spread onto each task over the other sources, and the tasks for which no partner stands out."""
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
    """Returns spreads that come from errors alone: of resamples around the average, or of normal errors.

    Errors that all sources of a target have in common cancel in the spread of a resample.
    """
    n = len(affinity.tasks)
    if len(affinity.steps) > 1:
        errors = affinity.bootstrap(DRAWS, seed=0) - affinity.mean
    else:
        errors = np.random.default_rng(0).standard_normal((DRAWS, n, n)) * affinity.stderr
    errors[:, np.eye(n, dtype=bool) | ~np.isfinite(affinity.stderr)] = np.nan
    ranges = _range(errors)
    known = np.isfinite(ranges).all(axis=0)
    return np.where(known, np.percentile(np.where(known, ranges, 0.0), PERCENTILE, axis=0), np.nan)


def _range(matrices: Floats) -> Floats:
    """Returns the highest minus the lowest value over sources; NaN with fewer than two."""
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
    return f"{value:.3g}" if np.isfinite(value) else "-"


FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
AGREEING = 3  # prefixes that must agree; two consecutive ones agree too easily

Served = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Settled:
    """Whether the groups have stopped changing as the history grew. As a boolean it is `settled`.

    Attributes:
        settled: whether the last three prefixes of the history (80, 90 and 100 % by default) give the same groups, and
            every prefix is longer than the one before.
        since: the last step of the first prefix after which the groups did not change; None if they have not settled.
        groups: the tasks that are served together, for each share of the history; empty if a pair of tasks had not
            been measured yet.
    """

    settled: bool
    since: int | None
    groups: Mapping[float, Served]

    def __bool__(self) -> bool:
        return self.settled

    def __str__(self) -> str:
        verdict = f"groups unchanged since step {self.since}" if self.settled else "groups still changing"
        lines = [f"{share:>5.0%}  {_sentence(served)}" for share, served in self.groups.items()]
        return "\n".join([verdict, *lines])


def settle(affinity: Affinity, budget: int, fractions: Sequence[float]) -> Settled:
    """Selects groups on growing prefixes of the history."""
    shares = sorted(set(fractions))
    if len(shares) < 2 or not 0 < shares[0] <= shares[-1] <= 1:
        raise InvalidInput("fractions", "must be two or more shares in (0, 1]", repr(list(fractions)))
    ends = [ceil(share * len(affinity.steps)) for share in shares]
    groups = [_served_sets(affinity, end, budget) for end in ends]
    same = 1
    while same < len(groups) and groups[-same - 1] == groups[-1]:
        same += 1
    settled = bool(groups[-1]) and same >= min(AGREEING, len(groups)) and len({*ends}) == len(ends)
    since = int(affinity.steps[ends[-same] - 1]) if settled else None
    return Settled(settled, since, dict(zip(shares, groups, strict=True)))


def _served_sets(affinity: Affinity, steps: int, budget: int) -> Served:
    from tagalong.group import select_groups  # only here: an affinity is data, and loads without the solvers

    matrix = averages(affinity.history[:steps], affinity.null[:steps], Average.of(affinity.settings))
    if not np.isfinite(matrix[~np.eye(len(affinity.tasks), dtype=bool)]).all():
        return ()  # some pair has not been measured yet
    grouping = select_groups(type(affinity).from_matrix(matrix, affinity.tasks, settings=affinity.settings), budget)
    return tuple(sorted(tuple(sorted(group.serves)) for group in grouping.groups))


def _sentence(served: Served) -> str:
    return "  ".join("{" + ", ".join(group) + "}" for group in served)
