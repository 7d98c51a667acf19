"""Chooses committees: a few trained networks whose answers are averaged, and the networks that teach others.

A task is answered by the mean of the committee's networks that were trained on it. Copies of one network and groups are
special cases. Choosing on the rows that also judge flatters the choice, so committees can be chosen on one half of the
validation rows and judged on the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .answers import ALL, FIRST, SECOND, Answers, Array, Members

HALVES = ((FIRST, SECOND), (SECOND, FIRST))
MIN_GAIN = 1e-12


@dataclass(frozen=True)
class Committee:
    """Networks and the tasks that each of them answers.

    Attributes:
        members: the numbers of the networks, sorted.
        answers: for each task, the members whose answers are averaged.
    """

    members: Members
    answers: tuple[Members, ...]


def select_committee(
    answers: Answers, size: int, base: Array, *, pool: Collection[int], part: int = ALL, passes: int | None = None
) -> Committee:
    """Returns the networks that are best together, found by a local search that replaces one network at a time.

    Args:
        answers: the answers of all networks.
        size: the maximum number of networks.
        base: the losses [tasks, parts] that losses are divided by, usually those of one network for all tasks.
        pool: the networks to choose from. Some of them must together be trained on all tasks.
        part: the part of the rows to choose on.
        passes: the maximum number of networks that answer a task, or None for all that were trained on it.
    """
    candidates = sorted(pool)
    passes = None if passes is None or passes >= size else passes
    starts = _starting_points(answers, base[:, part], candidates, part)
    found = [_climb(answers, start, min(size, len(candidates)), base[:, part], candidates, part, passes) for start in starts]
    _, members = min(found, key=lambda one: (round(one[0], 12), len(one[1]), one[1]))
    return Committee(members, _serving(answers, members, base, part, passes))


def committee_losses(answers: Answers, committee: Committee) -> Array:
    """Returns the losses [tasks, parts] of a committee."""
    return np.stack([answers.losses([chosen])[0, task] for task, chosen in enumerate(committee.answers)])


def cross_fitted_change(
    answers: Answers, size: int, base: Array, *, pool: Collection[int], passes: int | None = None
) -> Array:
    """Returns the relative change [halves, tasks] of committees that are chosen on one half and judged on the other."""
    changes = []
    for choosing, judging in HALVES:
        chosen = select_committee(answers, size, base, pool=pool, part=choosing, passes=passes)
        changes.append(committee_losses(answers, chosen)[:, judging] / base[:, judging] - 1)
    return np.array(changes)


def select_teachers(answers: Answers, size: int, base: Array, *, pool: Collection[int], part: int = ALL) -> Members:
    """Returns the networks whose average teaches best: each is added because it lowers the loss of the average most.

    A network may be added more than once, and then counts more (Caruana et al., 2004, Ensemble selection from libraries
    of models). The smallest average that is best on the rows is returned.
    """
    candidates, members = sorted(pool), ()
    best, chosen = np.inf, ()
    for _ in range(size):
        values = _mean_ratio(answers.losses_with(members, candidates)[:, :, part], base[:, part])
        members = (*members, candidates[int(np.argmin(values))])
        if values.min() < best - MIN_GAIN:
            best, chosen = float(values.min()), members
    return tuple(sorted(chosen))


def _mean_ratio(losses: Array, base: Array) -> Array:
    """Returns losses [averages, tasks] relative to the base, averaged over tasks."""
    return np.asarray((losses / base).mean(-1))


def _starting_points(answers: Answers, base: Array, candidates: Sequence[int], part: int) -> list[Members]:
    """Returns the best network for all tasks and the empty committee."""
    everything = [one for one in candidates if answers.trained[one].all()]
    if not everything:
        return [()]
    values = _mean_ratio(answers.losses_with((), everything)[:, :, part], base)
    return [(), (everything[int(np.argmin(values))],)]


def _climb(
    answers: Answers,
    members: Members,
    size: int,
    base: Array,
    candidates: Sequence[int],
    part: int,
    passes: int | None,
) -> tuple[float, Members]:
    """Adds networks up to the given number, then replaces one at a time while the value improves."""

    def best_addition(others: Members) -> tuple[float, Members]:
        left = [one for one in candidates if one not in others]
        values = _values_with(answers, others, left, base, part, passes)
        at = int(np.argmin(values))
        return float(values[at]), tuple(sorted((*others, left[at])))

    value = np.inf
    while len(members) < size:
        value, members = best_addition(members)
    if not np.isfinite(value) and len(members) == size:
        value = float(_values_with(answers, members[:-1], members[-1:], base, part, passes)[0])
    improved = True
    while improved:
        improved = False
        for member in members:
            better, changed = best_addition(tuple(one for one in members if one != member))
            if better < value - MIN_GAIN:
                value, members, improved = better, changed, True
                break
    return value, members


def _values_with(
    answers: Answers, members: Members, candidates: Sequence[int], base: Array, part: int, passes: int | None
) -> Array:
    """Returns the value of `members` together with each candidate."""
    if passes is None:
        return _filled_ratio(answers.losses_with(members, candidates)[:, :, part], base)
    lowest = np.full((len(candidates), len(answers.tasks)), np.inf)
    for count in range(passes + 1):
        for some in combinations(members, count):
            if 0 < count <= passes:
                lowest = np.minimum(lowest, answers.losses([some])[0, :, part])
            if count < passes:
                lowest = np.minimum(lowest, answers.losses_with(some, candidates)[:, :, part])
    return _filled_ratio(lowest, base)


def _filled_ratio(losses: Array, base: Array) -> Array:
    """Like `_mean_ratio`, but missing tasks count as much worse than any other loss, so that they are added first."""
    ratios = losses / base
    known = ratios[np.isfinite(ratios)]
    worst = 1000 * (1 + np.abs(known).max(initial=0.0))
    return np.asarray(np.where(np.isfinite(ratios), ratios, worst).mean(-1))


def _serving(
    answers: Answers, members: Members, base: Array, part: int, passes: int | None
) -> tuple[Members, ...]:
    """Returns, for each task, the members that answer it: all that were trained on it, or the best few."""
    chosen = []
    for task in range(len(answers.tasks)):
        able = tuple(member for member in members if answers.trained[member, task])
        if passes is None:
            chosen.append(able)
            continue
        sets = [some for count in range(1, passes + 1) for some in combinations(able, count)]
        losses = answers.losses(sets)[:, task, part]
        chosen.append(sets[int(np.argmin(losses))])
    return tuple(chosen)
