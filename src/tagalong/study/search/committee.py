"""Chooses committees: a few trained networks whose answers are averaged, and the networks that teach others.

A task is answered by the mean of the committee's networks that were trained on it. Copies of one network and groups are
special cases. Committees are chosen by their mean skill (see `tagalong.learn.mean_skill`), i.e. by the weighted sum of
their losses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from .answers import ALL, FIRST, SECOND, Answers, Array, Members

MIN_GAIN = 1e-12  # exchanges that change the value by rounding errors would never end
MAX_ENUMERATED = 2_000  # sets, which is more than all pairs of 60 networks
Values = Callable[[Members, Sequence[int]], Array]  # the value of members together with each candidate; lower is better


@dataclass(frozen=True)
class Committee:
    """Networks and the tasks that each of them answers.

    Attributes:
        members: the numbers of the networks, sorted.
        answers: for each task, the members whose answers are averaged.
        value: the weighted sum of the losses on the rows that chose the networks.
    """

    members: Members
    answers: tuple[Members, ...]
    value: float


def select_committee(
    answers: Answers,
    pool: Collection[int],
    count: int,
    passes: int | None = None,
    fewer: bool = False,
    *,
    part: int = ALL,
) -> Committee:
    """Returns the networks that are best together.

    Args:
        answers: the answers of all networks.
        pool: the networks to choose from. Together, some of them must be trained on all tasks.
        count: the number of networks.
        passes: 1 if a single network answers each task, or None if all that were trained on it do.
        fewer: whether to use fewer networks if they are better. Among networks that are about equally good, more are
            better.
        part: the part of the rows to choose on.
    """
    candidates = sorted(pool)
    alone = answers.losses_with((), candidates)[:, :, part]
    single = np.full((len(answers), len(answers.tasks)), np.inf)
    single[candidates] = alone

    def values(members: Members, others: Sequence[int]) -> Array:
        if passes == 1:
            lowest = single[[*members]].min(0) if members else np.inf
            return answers.weigh(np.minimum(single[[*others]], lowest))
        return answers.weigh(answers.losses_with(members, others)[:, :, part])

    whole = [place for place, losses in enumerate(alone) if not np.isinf(losses).any()]
    best_alone = [(candidates[whole[int(np.argmin(answers.weigh(alone[whole])))]],)] if whole else []
    counts = range(1, count + 1) if fewer else [count]
    found = [best_set(values, candidates, min(some, len(candidates)), best_alone) for some in counts]
    value, members = min(found, key=lambda one: round(one[0], 12))
    answering = []
    for task in range(len(answers.tasks)):
        able = tuple(member for member in members if answers.trained[member, task])
        if passes == 1:
            able = (able[int(np.argmin(single[[*able], task]))],)
        answering.append(able)
    return Committee(members, tuple(answering), value)


def cross_fitted_rows(
    answers: Answers,
    pool: Collection[int],
    count: int,
    passes: int | None = None,
    fewer: bool = False,
    *,
    flattery: Array | None = None,
) -> dict[str, Array]:
    """Returns the losses of each row, by task, from committees that were chosen without this row.

    Choosing on the rows that also judge flatters the choice. So one committee is chosen on each half of the rows, and
    judged on the other half.

    Args:
        answers: see `select_committee`.
        pool: see `select_committee`.
        count: see `select_committee`.
        passes: see `select_committee`.
        fewer: see `select_committee`.
        flattery: by how much the losses [networks, tasks] of each network are too low on all rows (see
            `teachers_flattery`), or None if they are not. It is added to the losses.
    """
    rows: dict[str, list[Array]] = {task.name: [] for task in answers.tasks}
    for part in (SECOND, FIRST):
        committee = select_committee(answers, pool, count, part=part, passes=passes, fewer=fewer)
        for number, task in enumerate(answers.tasks):
            members = committee.answers[number]
            added = 0.0 if flattery is None else flattery[[*members], number].mean()
            rows[task.name].append(answers.row_losses(number, members) + added)
    return {task: np.where(answers.first, *halves) for task, halves in rows.items()}


def select_teachers(answers: Answers, pool: Collection[int], size: int, part: int = ALL) -> Members:
    """Returns the networks whose average has the lowest loss, where each is added because it helps the most.

    A network may be added more than once, and then counts more (Caruana et al., Ensemble selection from libraries of
    models, 2004).

    Args:
        answers: the answers of all networks.
        pool: see `select_committee`.
        size: the maximum number of networks, counted with repetitions.
        part: see `select_committee`.
    """
    candidates = sorted(pool)
    members: Members = ()
    best, chosen = np.inf, members
    for _ in range(size):
        values = answers.weigh(answers.losses_with(members, candidates)[:, :, part])
        members = (*members, candidates[int(np.argmin(values))])
        if values.min() < best - MIN_GAIN:
            best, chosen = float(values.min()), members
    return tuple(sorted(chosen))


def teachers_flattery(answers: Answers, pool: Collection[int], size: int) -> float:
    """Returns how much lower the value of selected teachers is on the rows that selected them than on others.

    Students imitate their teachers, so theirs is too low by about as much, even if nobody selects among the students.
    It is estimated with teachers that one half of the rows selects: they are better on this half than those that the
    other half selects. Half of that remains if there are twice as many rows.

    Args:
        answers: see `select_teachers`.
        pool: see `select_teachers`.
        size: see `select_teachers`.
    """
    losses = answers.losses([select_teachers(answers, pool, size, part) for part in (FIRST, SECOND)])
    on_first, on_second = answers.weigh(losses[:, :, FIRST]), answers.weigh(losses[:, :, SECOND])
    lower = float(on_first[1] - on_first[0] + on_second[0] - on_second[1]) / 2
    return max(0.0, lower / 2) if np.isfinite(lower) else 0.0


def best_set(values: Values, pool: Sequence[int], count: int, starts: Sequence[Members] = ()) -> tuple[float, Members]:
    """Finds the set with the lowest value, and returns its value and members.

    All sets are compared if there are few. Otherwise, the candidate that is best together with those before it is added
    until the set is complete, and then members are replaced, one at a time, while the value improves.

    Args:
        values: a function that returns the value of some members together with each of several candidates.
        pool: the candidates.
        count: the number of members.
        starts: sets to start from, in addition to the empty one.

    Example:
        >>> weights = np.array([5.0, 1.0, 4.0, 2.0])
        >>> best_set(lambda members, others: weights[[*members]].sum() + weights[[*others]], range(4), count=2)
        (3.0, (1, 3))
    """

    def with_best(members: Members) -> tuple[float, Members]:
        others = [other for other in pool if other not in members]
        together = values(members, others)
        best = int(np.argmin(together))
        return float(together[best]), tuple(sorted((*members, others[best])))

    found = []
    if comb(len(pool), count) <= MAX_ENUMERATED:
        for first in combinations(range(len(pool) - 1), count - 1):
            members = tuple(pool[place] for place in first)
            others = pool[first[-1] + 1 :] if first else pool
            together = values(members, others)
            best = int(np.argmin(together))
            found.append((float(together[best]), (*members, others[best])))
        return min(found, key=lambda one: round(one[0], 12))
    for members in [(), *starts]:
        value = np.inf
        while len(members) < count:
            value, members = with_best(members)
        improved = True
        while improved:
            improved = False
            for member in members:
                better, changed = with_best(tuple(other for other in members if other != member))
                if better < value - MIN_GAIN:
                    value, members, improved = better, changed, True
                    break
        found.append((value, members))
    return min(found, key=lambda one: (round(one[0], 12), one[1]))
