"""Groups worth considering when there are too many to list and each has a cost or a rule of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ._problem import Bools, Floats, Limits, Networks, Problem, bits_of, indices
from ._search import solve_search

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of networks for which the plain problem is searched
QUICK = Limits(kicks=5)

Apart = Bools  # tasks × tasks: pairs that no network trains


def pool_networks(problem: Problem, apart: Apart, cost: Callable[[tuple[int, ...]], float]) -> Networks:
    """Pairs, each task with its nearest, and what the search chooses without costs, peeled to smaller groups."""
    return existing(problem, apart, cost, _suggested(problem, apart))


def existing(problem: Problem, apart: Apart, cost: Callable[[tuple[int, ...]], float], sets: set[int]) -> Networks:
    """These groups as networks, less those that train a forbidden pair, are too large or cost NaN."""
    kept = []
    for bits in sorted(sets):
        group = list(indices(bits))
        alone = len(group) == 1 and not np.isfinite(problem.alone[group[0]])
        if not alone and len(group) <= problem.largest and not apart[np.ix_(group, group)].any():
            kept.append((group, cost(tuple(group))))
    kept = [(group, spent) for group, spent in kept if not np.isnan(spent)]
    member = np.zeros((len(kept), problem.n), dtype=bool)
    for row, (group, _) in enumerate(kept):
        member[row, group] = True
    return Networks(member, _scores(problem, member), np.array([spent for _, spent in kept]))


def _scores(problem: Problem, member: Bools) -> Floats:
    size = member.sum(axis=1)[:, None]
    mean = np.where(size == 1, problem.alone, (member @ problem.pairwise) / np.maximum(size - 1, 1))
    return np.where(member, mean, -np.inf)


def _suggested(problem: Problem, apart: Apart) -> set[int]:
    near = problem.pairwise + problem.pairwise.T
    units = [list(indices(link)) for link in problem.links]
    found = {1 << task for task in range(problem.n) if np.isfinite(problem.alone[task])}
    found |= {1 << a | 1 << b for a in range(problem.n) for b in range(a)}
    for unit in units:
        found |= set(_ladder(unit, near, apart))
    for count in COUNTS:
        if count <= problem.n and problem.largest * count >= problem.n:
            for choice in solve_search(problem, [count], QUICK)[0].choices:
                found |= set(_peeled(list(indices(choice.trains)), near, apart))
    return found


def _ladder(unit: list[int], near: Floats, apart: Apart) -> Iterator[int]:
    """The unit, then with its nearest task, its two nearest, …; forbidden ones are passed over."""
    group = list(unit)
    yield bits_of(group)
    for task in np.argsort(-near[unit].sum(axis=0), kind="stable").tolist():
        if task not in group and not apart[task, group].any():
            group.append(task)
            yield bits_of(group)


def _peeled(group: list[int], near: Floats, apart: Apart) -> Iterator[int]:
    """The group without its loosest task, without its two loosest, …; tasks of forbidden pairs go first."""
    while group:
        yield bits_of(group)
        inside = np.ix_(group, group)
        loose = near[inside].sum(axis=1) - 1e6 * apart[inside].any(axis=1)
        group = [task for place, task in enumerate(group) if place != int(loose.argmin())]
