"""Checks whether partners differ by more than noise, and whether the groups have stopped changing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from tagalong.rendering import TextTable

from .averaging import Floats, LevelHistory
from .bootstrap import averages

if TYPE_CHECKING:
    from .affinity import Affinity

SMALL_SPREAD_RATIO = 0.25  # relative to the median spread: the paper's task a8 has 0.13, the next smallest 0.52
NOISE_PERCENTILE = 95.0  # of the spreads due to noise alone
NOISE_DRAWS = 200


@dataclass(frozen=True)
class Spread:
    """The difference between the best and the worst partner of each task.

    Attributes:
        values: the spread of each task, i.e. the difference between the highest and lowest affinities of other tasks
            onto it.
        noise: the 95th percentile of the spread due to noise alone, or NaN if standard errors are unknown.
        flagged: the tasks for which no partner stands out. Their spread is at most `noise`, or at most a quarter of the
            median spread.
        best: the partner with the highest affinity onto each task.
        worst: the partner with the lowest affinity onto each task.
    """

    values: Mapping[str, float]
    noise: Mapping[str, float]
    flagged: tuple[str, ...]
    best: Mapping[str, str]
    worst: Mapping[str, str]

    def __str__(self) -> str:
        table = TextTable("task", "spread", "noise", "best / worst partner", numbers=("spread", "noise"))
        for task in self.values:
            numbers = [f"{value:.3g}".replace("nan", "-") for value in (self.values[task], self.noise[task])]
            mark = "  no partner stands out" if task in self.flagged else ""
            table.add_row(task, *numbers, f"{self.best.get(task, '-')} / {self.worst.get(task, '-')}{mark}")
        return str(table)


def compute_spread(affinity: Affinity) -> Spread:
    tasks, diagonal = affinity.tasks, np.eye(len(affinity.tasks), dtype=bool)
    others = np.where(diagonal, np.nan, affinity.mean)
    spreads = value_ranges(others)

    # The spread that noise alone would cause. Errors that are common to all sources of a target cancel out.
    noise = np.full(len(tasks), np.nan)
    if affinity.has_errors:
        errors = affinity.bootstrap(NOISE_DRAWS, seed=0) - affinity.mean
        ranges = value_ranges(np.where(diagonal | np.isnan(affinity.stderr), np.nan, errors))
        noise = np.percentile(ranges, NOISE_PERCENTILE, axis=0)

    known = spreads[np.isfinite(spreads)]
    small = SMALL_SPREAD_RATIO * np.median(known) if known.size else np.nan
    limit = np.fmax(small, noise)
    partnered = np.flatnonzero(np.isfinite(others).any(axis=0))
    return Spread(
        values=dict(zip(tasks, spreads.tolist(), strict=True)),
        noise=dict(zip(tasks, noise.tolist(), strict=True)),
        flagged=tuple(tasks[j] for j in np.flatnonzero(spreads <= limit)),
        best={tasks[j]: tasks[np.nanargmax(others[:, j])] for j in partnered},
        worst={tasks[j]: tasks[np.nanargmin(others[:, j])] for j in partnered},
    )


def value_ranges(matrices: Floats) -> Floats:
    # Over sources. With fewer than two values, the range is NaN.
    ranges = np.fmax.reduce(matrices, axis=-2) - np.fmin.reduce(matrices, axis=-2)
    return np.where(np.isfinite(matrices).sum(axis=-2) > 1, ranges, np.nan)


PREFIX_FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIN_AGREEING_PREFIXES = 3  # prefixes that must agree; two consecutive ones agree too easily

ServedSets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Settled:
    """Whether the groups stopped changing as the history grew. Its truth value is that of `settled`.

    Attributes:
        settled: whether the last three prefixes of the history (80, 90 and 100%) give the same groups. Every
            prefix must also be longer than the previous one.
        since: the step after which the groups no longer changed, or None if they have not settled.
        groups: the sets of tasks served together, for each fraction of the history. There are no sets for a fraction if
            some pair of tasks had not been measured by that point.
    """

    settled: bool
    since: int | None
    groups: Mapping[float, ServedSets]

    def __bool__(self) -> bool:
        return self.settled

    def __str__(self) -> str:
        lines = [f"groups unchanged since step {self.since}" if self.settled else "groups still changing"]
        for fraction, groups in self.groups.items():
            sets = ["{" + ", ".join(group) + "}" for group in groups]
            lines.append(f"{fraction:>5.0%}  {'  '.join(sets)}")
        return "\n".join(lines)


def check_settled(affinity: Affinity, budget: int) -> Settled:
    from tagalong.group import select_groups  # here because an affinity is data and must load without the solvers

    tasks = affinity.tasks
    groups: dict[float, ServedSets] = {}
    ends = [ceil(fraction * len(affinity.steps)) for fraction in PREFIX_FRACTIONS]
    for fraction, end in zip(PREFIX_FRACTIONS, ends, strict=True):
        matrix = averages(LevelHistory.align(affinity.history[:end], affinity.null[:end], affinity.settings))
        groups[fraction] = ()
        if np.isfinite(matrix[~np.eye(len(tasks), dtype=bool)]).all():
            prefix = type(affinity).from_matrix(matrix, tasks, settings=affinity.settings)
            served = [tuple(sorted(group.serves)) for group in select_groups(prefix, budget).groups]
            groups[fraction] = tuple(sorted(served))

    # How many of the longest prefixes have the same groups?
    last = groups[1.0]
    same = len(list(takewhile(lambda served: served == last, reversed(groups.values()))))
    settled = last != () and same >= MIN_AGREEING_PREFIXES and len(set(ends)) == len(ends)
    return Settled(settled, int(affinity.steps[ends[-same] - 1]) if settled else None, groups)
