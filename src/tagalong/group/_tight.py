"""Which of equal choices wins, and which others tie, where a dual has left only a few served sets in doubt.

A choice within a tie of the best uses only served sets that miss their prices by no more than the dual's gap and a tie.
Over these few the dynamic programme of `_dynamic` runs again, on the sets of tasks that it meets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ._problem import ROUNDING, TIE, Bools, Problem, Solution, bits_of, indices
from ._served import network_for, superset_values
from ._ties import tied

MOST_SETS = 2_000
MOST_STATES = 100_000


class _TooMany(Exception):
    """More sets of tasks than are worth looking at."""


class _Level:
    """What each set of tasks is worth at most, in so many networks."""

    def __init__(self, plan: _Plan, networks: int) -> None:
        self.plan, self.networks, self.known = plan, networks, {0: 0.0}

    def __getitem__(self, left: int) -> float:
        if left not in self.known and self.plan.needs_more(left, self.networks):
            self.known[left] = -np.inf
        if left not in self.known:
            self.plan.count()
            below = self.plan.tables[self.networks - 1] if self.networks else None
            some = self.plan.inside(left) if below is not None else []
            worth = (value + below[left ^ serves] for serves, value in some if below is not None)
            self.known[left] = max(worth, default=-np.inf)
        return self.known[left]


class _Plan:
    """Like `_dynamic.Plan`, over some served sets."""

    def __init__(self, problem: Problem, members: Bools, networks: int) -> None:
        price = TIE / (2 * problem.n**2)
        self.slack = max(price / (4 * problem.n), problem.n * ROUNDING / 2)
        values = superset_values(members, members @ problem.pairwise.T, problem.largest, price).max(axis=1)
        single = members.sum(axis=1) == 1
        values[single] = np.maximum(values[single], problem.alone[members[single].argmax(axis=1)] - price)
        self.by_lowest: dict[int, list[tuple[int, float]]] = {}
        sets = [bits_of(np.flatnonzero(row)) for row in members]
        for serves, value in sorted(zip(sets, values.tolist(), strict=True)):
            self.by_lowest.setdefault(serves & -serves, []).append((serves, value))
        self.near = {
            1 << task: sum(1 << i for i in np.flatnonzero(members[members[:, task]].any(axis=0)).tolist())
            for task in range(problem.n)
        }
        self.tables = [_Level(self, number) for number in range(networks + 1)]
        self.states = 0

    def count(self) -> None:
        self.states += 1
        if self.states > MOST_STATES:
            raise _TooMany

    def needs_more(self, left: int, networks: int) -> bool:
        """Whether there are more tasks of which no two share a served set than networks."""
        number = 0
        while left and number <= networks:
            left &= ~self.near.get(left & -left, 0)
            number += 1
        return number > networks

    def inside(self, left: int) -> list[tuple[int, float]]:
        """The served sets within these tasks that hold the lowest of them."""
        return [entry for entry in self.by_lowest.get(left & -left, []) if not entry[0] & ~left]

    def continuations(self, left: int, level: int, slack: float) -> list[tuple[int, int, list[int]]]:
        """As in `_dynamic.Plan`; there is one kind of network."""
        if not level:
            return []
        least, below = self.tables[level][left] - slack, self.tables[level - 1]
        return [
            (0, level - 1, [serves for serves, value in self.inside(left) if value + below[left ^ serves] >= least])
        ]


def first_in_order(problem: Problem, networks: int, found: Solution, members: Bools) -> Solution | None:
    """The proven choice that comes first: fewest groups, then smallest, then by name; and what ties with it.

    Args:
        problem: scores by pair.
        networks: how many there may be.
        found: a proven choice.
        members: every served set (rows) that a choice within a tie of it can use.

    Returns:
        None where too many choices are in question.
    """
    if len(members) > MOST_SETS:
        return None
    try:
        plan = _Plan(problem, members, networks)
        everything = (1 << problem.n) - 1
        best = plan.tables[networks][everything]
        top = next(k for k in range(1, networks + 1) if plan.tables[k][everything] >= best - TIE / 2)
        left, choices = everything, []
        for level in range(top, 0, -1):
            if left:
                (_, _, some), *_ = plan.continuations(left, level, plan.slack)
                first = min(some, key=indices)
                choices.append(network_for(problem, np.array(indices(first))))
                left ^= first
        chosen = tuple(choices)
        return replace(found, choices=chosen, ties=tied(problem, plan, chosen, top))
    except _TooMany:
        return None
