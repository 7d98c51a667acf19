"""Chooses committees: a few trained networks whose answers are averaged, and the networks that teach others.

A task is answered by the mean of the committee's networks that were trained on it. Copies of one network and groups are
special cases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from .answers import ALL, FIRST, SECOND, Answers, Array, Members

MIN_GAIN = 1e-12
MAX_SUBSETS = 256  # of a committee's members that are compared for each task; above this, members are added greedily
MISSING_TASK_FACTOR = 1000.0  # how much worse than any other loss a task without an answer is


@dataclass(frozen=True)
class Committee:
    """Networks and the tasks that each of them answers.

    Attributes:
        members: the numbers of the networks, sorted.
        answers: for each task, the members whose answers are averaged.
        value: the mean over tasks of the losses relative to the base, on the rows that chose the networks.
    """

    members: Members
    answers: tuple[Members, ...]
    value: float


def select_committee(
    answers: Answers,
    budget: int,
    base: Array,
    *,
    pool: Collection[int],
    sizes: Sequence[int] | None = None,
    part: int = ALL,
    passes: int | None = None,
    fewer: bool = False,
) -> Committee:
    """Returns the networks that are best together, found by a local search that replaces one network at a time.

    The value of a committee is the mean over tasks of its losses relative to `base`. The search starts from the best
    single network for all tasks and from nothing, so the optimum may be missed. The networks of a committee have the
    same size.

    Args:
        answers: the answers of all networks.
        budget: the number of networks of size 1. A larger network uses as much of it as its size.
        base: the losses [tasks, parts] that losses are divided by, usually those of one network for all tasks.
        pool: the networks to choose from. Together, some of them must be trained on all tasks.
        sizes: the size of each network, or None if all have size 1. Some in the pool must not exceed the budget.
        part: the part of the rows to choose on.
        passes: the maximum number of networks that answer a task, or None for all that were trained on it.
        fewer: whether to use fewer networks than the budget allows if they are better. Among networks that are about
            equally good, more are better.
    """
    by_size: dict[int, list[int]] = {}
    for number in sorted(pool):
        by_size.setdefault(1 if sizes is None else sizes[number], []).append(number)
    found = [
        _best_of_one_size(answers, count, base, some, part, passes)
        for size, some in sorted(by_size.items())
        if size <= budget
        for count in (range(1, budget // size + 1) if fewer else [budget // size])
    ]
    return min(found, key=lambda one: round(one.value, 12))


def _best_of_one_size(
    answers: Answers, count: int, base: Array, pool: Sequence[int], part: int, passes: int | None
) -> Committee:
    limit = None if passes is None or passes >= count else passes
    climb = _Climb(answers, pool, base[:, part], part, limit)
    found = [climb.run(start, min(count, len(pool))) for start in climb.starts()]
    value, members = min(found, key=lambda one: (round(one[0], 12), one[1]))
    return Committee(members, _answering(answers, members, part, limit), value)


def cross_fitted_rows(
    answers: Answers,
    budget: int,
    base: Array,
    *,
    pool: Collection[int],
    sizes: Sequence[int] | None = None,
    passes: int | None = None,
    fewer: bool = False,
    flattery: Sequence[float] | None = None,
) -> dict[str, Array]:
    """Returns the losses of each row, by task, from committees that were chosen without this row.

    Choosing on the rows that also judge flatters the choice. So one committee is chosen on each half of the rows, and
    judged on the other half.

    Args:
        answers: see `select_committee`.
        budget: see `select_committee`.
        base: see `select_committee`.
        pool: see `select_committee`.
        sizes: see `select_committee`.
        passes: see `select_committee`.
        fewer: see `select_committee`.
        flattery: by how much the relative losses of each network are too low on all rows (see `teachers_flattery`), or
            None if they are not. It is added to the losses.
    """
    added = np.zeros(len(answers)) if flattery is None else np.asarray(flattery)
    chosen = [
        select_committee(answers, budget, base, pool=pool, sizes=sizes, part=part, passes=passes, fewer=fewer)
        for part in (SECOND, FIRST)
    ]
    return {
        task.name: np.where(
            answers.first,
            *(
                answers.row_losses(number, some) + added[[*some]].mean() * np.abs(base[number, ALL])
                for some in (committee.answers[number] for committee in chosen)
            ),
        )
        for number, task in enumerate(answers.tasks)
    }


def select_teachers(answers: Answers, size: int, base: Array, *, pool: Collection[int], part: int = ALL) -> Members:
    """Returns the networks whose average has the lowest loss, where each is added because it helps the most.

    A network may be added more than once, and then counts more (Caruana et al., Ensemble selection from libraries of
    models, 2004).

    Args:
        answers: the answers of all networks.
        size: the maximum number of networks, counted with repetitions.
        base: see `select_committee`.
        pool: see `select_committee`.
        part: see `select_committee`.
    """
    candidates = sorted(pool)
    members: Members = ()
    best, chosen = np.inf, members
    for _ in range(size):
        values = mean_relative_loss(answers.losses_with(members, candidates)[:, :, part], base[:, part])
        members = (*members, candidates[int(np.argmin(values))])
        if values.min() < best - MIN_GAIN:
            best, chosen = float(values.min()), members
    return tuple(sorted(chosen))


def teachers_flattery(answers: Answers, size: int, base: Array, *, pool: Collection[int]) -> float:
    """Returns how much lower the relative loss of selected teachers is on the rows that selected them than on others.

    Students imitate their teachers, so theirs is too low by about as much, even if nobody selects among the students.
    It is estimated with teachers that one half of the rows selects: they are better on this half than those that the
    other half selects. Half of that remains if there are twice as many rows.

    Args:
        answers: see `select_teachers`.
        size: see `select_teachers`.
        base: see `select_teachers`.
        pool: see `select_teachers`.
    """
    selected = [select_teachers(answers, size, base, pool=pool, part=part) for part in (FIRST, SECOND)]
    losses = answers.losses(selected)
    values = np.stack([mean_relative_loss(losses[:, :, part], base[:, part]) for part in (FIRST, SECOND)], axis=1)
    lower = float(values[1, 0] - values[0, 0] + values[0, 1] - values[1, 1]) / 2
    return max(0.0, lower / 2) if np.isfinite(lower) else 0.0


@dataclass(frozen=True)
class _Climb:
    answers: Answers
    candidates: Sequence[int]
    base: Array
    part: int
    passes: int | None

    def starts(self) -> list[Members]:
        """Returns the committees to start from: none, and the best network for all tasks."""
        whole = [one for one in self.candidates if self.answers.trained[one].all()]
        if not whole:
            return [()]
        return [(), (whole[int(np.argmin(self.values((), whole)))],)]

    def run(self, members: Members, size: int) -> tuple[float, Members]:
        """Adds networks until there are enough, then replaces one at a time while the value improves."""
        value = float(self.values((), members)[0]) if members else np.inf
        while len(members) < size:
            value, members = self._with_best(members)
        improved = True
        while improved:
            improved = False
            for member in members:
                better, changed = self._with_best(tuple(one for one in members if one != member))
                if better < value - MIN_GAIN:
                    value, members, improved = better, changed, True
                    break
        return value, members

    def _with_best(self, others: Members) -> tuple[float, Members]:
        left = [one for one in self.candidates if one not in others]
        values = self.values(others, left)
        best = int(np.argmin(values))
        return float(values[best]), tuple(sorted((*others, left[best])))

    def values(self, members: Members, candidates: Sequence[int]) -> Array:
        """Returns the value of `members` together with each candidate."""
        if self.passes == 1:
            losses = self._single_losses[[*candidates]]
            losses = np.minimum(losses, self._single_losses[[*members]].min(0)) if members else losses
        elif self.passes is not None and members:
            losses = self._lowest_losses(members, candidates)
        else:
            losses = self.answers.losses_with(members, candidates)[:, :, self.part]
        return mean_relative_loss(losses, self.base)

    @cached_property
    def _single_losses(self) -> Array:
        """The losses [networks, tasks] of all networks alone, which are all that matters if one answers each task."""
        return self.answers.losses_with((), range(len(self.answers)))[:, :, self.part]

    def _lowest_losses(self, members: Members, candidates: Sequence[int]) -> Array:
        """Returns the losses if the best few of `members` and a candidate answer each task."""
        assert self.passes is not None
        if _is_too_many(len(members), self.passes):
            return self._nearly_lowest_losses(members, candidates, self.passes)
        sets = _subsets(members, self.passes)
        lowest = np.repeat(self.answers.losses(sets)[:, :, self.part].min(0)[None], len(candidates), axis=0)
        for some in [(), *(one for one in sets if len(one) < self.passes)]:
            lowest = np.minimum(lowest, self.answers.losses_with(some, candidates)[:, :, self.part])
        return lowest

    def _nearly_lowest_losses(self, members: Members, candidates: Sequence[int], passes: int) -> Array:
        """Returns the losses if a candidate joins the members that answer each task, or replaces the last of them."""
        found = np.empty((len(candidates), len(self.answers.tasks)))
        for task, some in enumerate(_answering(self.answers, members, self.part, passes)):
            kept = [some, some[:-1]] if len(some) < passes else [some[:-1]]
            losses = [self.answers.task_losses_with(task, one, candidates)[:, self.part] for one in kept]
            alone = [self.answers.task_losses_with(task, some[:-1], some[-1:])[:, self.part]] if some else []
            found[:, task] = np.min(np.stack(np.broadcast_arrays(*losses, *alone)), axis=0)
        return found


def mean_relative_loss(losses: Array, base: Array) -> Array:
    """Returns losses [averages, tasks] relative to the base, averaged over tasks. Lower is better for any sign.

    Tasks that no network answers (whose losses are infinite) count as much worse than any answer, so that networks for
    them are added first. Tasks without labels (whose losses are NaN if answered) say nothing.
    """
    ratios = np.where(np.isnan(losses), 1.0, 1 + (losses - base) / np.where(base == 0, 1, np.abs(base)))
    known = np.abs(ratios[np.isfinite(ratios)])
    return np.asarray(np.where(np.isfinite(ratios), ratios, MISSING_TASK_FACTOR * (1 + known.max(initial=0))).mean(-1))


def _answering(answers: Answers, members: Members, part: int, passes: int | None) -> tuple[Members, ...]:
    """Returns, for each task, the members that answer it: all that were trained on it, or the best few."""
    chosen = []
    for task in range(len(answers.tasks)):
        able = tuple(member for member in members if answers.trained[member, task])
        if passes is not None and _is_too_many(len(able), passes):
            able = _add_greedily(answers, able, task, part, passes)
        elif passes is not None and able:
            sets = _subsets(able, passes)
            able = sets[int(np.argmin(answers.losses(sets)[:, task, part]))]
        chosen.append(able)
    return tuple(chosen)


def _subsets(members: Members, largest: int) -> list[Members]:
    return [some for count in range(1, largest + 1) for some in combinations(members, count)]


def _is_too_many(members: int, largest: int) -> bool:
    return sum(comb(members, count) for count in range(1, min(largest, members) + 1)) > MAX_SUBSETS


def _add_greedily(answers: Answers, able: Members, task: int, part: int, passes: int) -> Members:
    """Returns the members that answer a task, each of which is added because it helps the most, if it helps."""
    chosen: Members = ()
    best = np.inf
    while len(chosen) < passes and (left := [one for one in able if one not in chosen]):
        losses = answers.task_losses_with(task, chosen, left)[:, part]
        if chosen and not losses.min() < best - MIN_GAIN:
            break
        best, chosen = losses.min(), (*chosen, left[int(np.argmin(losses))])
    return chosen
