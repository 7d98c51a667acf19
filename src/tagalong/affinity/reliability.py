"""Checks whether partners differ by more than noise, and whether the groups have stopped changing."""

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

SMALL_SPREAD_RATIO = 0.25  # relative to the median spread: the paper's task a8 has 0.13, the next smallest 0.52
NOISE_PERCENTILE = 95.0  # of the spreads due to noise alone
NOISE_DRAWS = 200
NUMBER_HEADINGS = ("   spread", "    noise")  # padded to the width of the widest number, so all tables look alike


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
        table = TextTable("task", *NUMBER_HEADINGS, "best / worst partner", numbers=NUMBER_HEADINGS)
        for task, value in self.values.items():
            partners = f"{self.best.get(task, '-')} / {self.worst.get(task, '-')}"
            mark = "  no partner stands out" if task in self.flagged else ""
            table.add_row(task, _format_number(value), _format_number(self.noise[task]), partners + mark)
        return str(table)


def compute_spread(affinity: Affinity) -> Spread:
    """Computes the spread of each task and flags the tasks for which no partner stands out."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    values = _value_range(others[None])[0]
    noise = _noise_spread(affinity)
    known = values[np.isfinite(values)]
    small = SMALL_SPREAD_RATIO * float(np.median(known)) if known.size else np.nan
    limit = np.fmax(small, noise)
    flagged = tuple(task for task, low in zip(affinity.tasks, values <= limit, strict=True) if low)
    return Spread(
        values=_keyed_by_task(affinity, values),
        noise=_keyed_by_task(affinity, noise),
        flagged=flagged,
        best=_best_partners(affinity, others),
        worst=_best_partners(affinity, -others),
    )


def _noise_spread(affinity: Affinity) -> Floats:
    """Returns the spread due to noise alone, estimated from resamples or, without a history, from normal errors.

    Errors that are common to all sources of a target cancel out.
    """
    n = len(affinity.tasks)
    if len(affinity.steps) > 1:
        errors = affinity.bootstrap(NOISE_DRAWS, seed=0) - affinity.mean
    else:
        errors = np.random.default_rng(0).standard_normal((NOISE_DRAWS, n, n)) * affinity.stderr
    errors[:, np.eye(n, dtype=bool) | ~np.isfinite(affinity.stderr)] = np.nan
    ranges = _value_range(errors)
    known = np.isfinite(ranges).all(axis=0)
    return np.where(known, np.percentile(np.where(known, ranges, 0.0), NOISE_PERCENTILE, axis=0), np.nan)


def _value_range(matrices: Floats) -> Floats:
    """Returns the difference between the highest and lowest values over sources, or NaN for fewer than two values."""
    known = np.isfinite(matrices)
    high = np.where(known, matrices, -np.inf).max(axis=1)
    low = np.where(known, matrices, np.inf).min(axis=1)
    enough = known.sum(axis=1) > 1
    return np.where(enough, np.where(enough, high, 0.0) - np.where(enough, low, 0.0), np.nan)


def _keyed_by_task(affinity: Affinity, values: Floats) -> dict[str, float]:
    return dict(zip(affinity.tasks, values.tolist(), strict=True))


def _best_partners(affinity: Affinity, off_diagonal: Floats) -> dict[str, str]:
    known = np.isfinite(off_diagonal).sum(axis=0) > 0
    best = np.where(np.isfinite(off_diagonal), off_diagonal, -np.inf).argmax(axis=0)
    return {task: affinity.tasks[best[j]] for j, task in enumerate(affinity.tasks) if known[j]}


def _format_number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


PREFIX_FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MIN_AGREEING_PREFIXES = 3  # prefixes that must agree; two consecutive ones agree too easily

ServedSets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Settled:
    """Whether the groups stopped changing as the history grew. Its truth value is that of `settled`.

    Attributes:
        settled: whether the last three prefixes of the history (80, 90 and 100% by default) give the same groups. Every
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
        verdict = f"groups unchanged since step {self.since}" if self.settled else "groups still changing"
        lines = [f"{fraction:>5.0%}  {_format_sets(served)}" for fraction, served in self.groups.items()]
        return "\n".join([verdict, *lines])


def check_settled(affinity: Affinity, budget: int, fractions: Sequence[float]) -> Settled:
    """Selects groups from increasingly long prefixes of the history."""
    unique_fractions = sorted(set(fractions))
    if len(unique_fractions) < 2 or not 0 < unique_fractions[0] <= unique_fractions[-1] <= 1:
        raise InvalidInput("fractions", "must contain at least two distinct fractions in (0, 1]", repr(list(fractions)))
    ends = [ceil(fraction * len(affinity.steps)) for fraction in unique_fractions]
    groups = [_select_served_sets(affinity, end, budget) for end in ends]
    same = 1
    while same < len(groups) and groups[-same - 1] == groups[-1]:
        same += 1
    settled = bool(groups[-1]) and same >= min(MIN_AGREEING_PREFIXES, len(groups)) and len({*ends}) == len(ends)
    since = int(affinity.steps[ends[-same] - 1]) if settled else None
    return Settled(settled, since, dict(zip(unique_fractions, groups, strict=True)))


def _select_served_sets(affinity: Affinity, steps: int, budget: int) -> ServedSets:
    from tagalong.group import (
        select_groups,
    )  # imported here because an affinity is data and must load without the solvers

    counts = None if affinity.block_counts is None else affinity.block_counts[:steps]
    average = Average.from_settings(affinity.settings)
    matrix = averages(affinity.history[:steps], affinity.null[:steps], average, counts)
    if not np.isfinite(matrix[~np.eye(len(affinity.tasks), dtype=bool)]).all():
        return ()  # some pair has not been measured yet
    grouping = select_groups(type(affinity).from_matrix(matrix, affinity.tasks, settings=affinity.settings), budget)
    return tuple(sorted(tuple(sorted(group.serves)) for group in grouping.groups))


def _format_sets(served_sets: ServedSets) -> str:
    return "  ".join("{" + ", ".join(group) + "}" for group in served_sets)
