"""Which of equal choices wins, and which others are just as good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from ..problem import (
    ROUNDING,
    TIE,
    Bools,
    Choice,
    Floats,
    Problem,
    Solution,
    bits_of,
    choice_value,
    indices,
    solution_value,
)
from .served_sets import network_for, values_of

MOST_TIES = 8  # listed
LOOKED_AT = 1_000  # partial choices; where more tie, some are not listed
MOST_SETS, MOST_STATES = 2_000, 100_000  # served sets in question, and sets of tasks left, before giving up


class Worth(Protocol):
    """What each set of tasks is worth at most."""

    def __getitem__(self, left: int) -> float: ...


class Plan(Protocol):
    """A dynamic programme that has run: for every level what sets of tasks are worth, and how to go on."""

    @property
    def tables(self) -> Sequence[Worth]: ...

    def continuations(self, left: int, level: int, slack: float) -> list[tuple[int, int, list[int]]]: ...


class _Partial(NamedTuple):
    choices: tuple[Choice, ...]
    value: float
    left: int
    level: int


def tied(problem: Problem, plan: Plan, chosen: tuple[Choice, ...], top: int) -> tuple[tuple[Choice, ...], ...]:
    """Choices of no more networks that are worth as much, up to a tie; smallest first."""
    least = solution_value(problem, chosen) - TIE
    start = _Partial((), 0.0, 2**problem.n - 1, top)
    networks = {tuple(sorted((choice.trains, choice.row) for choice in chosen))}
    found = []
    for partial in islice(_walk(problem, plan, start, least, len(chosen)), LOOKED_AT):
        key = tuple(sorted((choice.trains, choice.row) for choice in partial.choices))
        if not partial.left and key not in networks:
            networks.add(key)
            found.append(partial.choices)
    found.sort(key=lambda choices: (sum(choice.trains.bit_count() for choice in choices), _order(choices)))
    return tuple(found[:MOST_TIES])


def _order(choices: tuple[Choice, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return sorted((indices(choice.serves), indices(choice.trains)) for choice in choices)


def _walk(problem: Problem, plan: Plan, partial: _Partial, least: float, groups: int) -> Iterator[_Partial]:
    """Partial choices that can still reach `least`, each before those that extend it."""
    yield partial
    if not partial.left or len(partial.choices) == groups:
        return
    costs = np.unique(problem.networks.cost) if problem.networks is not None else np.ones(1)
    slack = max(plan.tables[partial.level][partial.left] + partial.value - least, 0.0) + TIE
    for kind, rest, some in plan.continuations(partial.left, partial.level, slack):
        for serves in some:
            after = plan.tables[rest][partial.left ^ serves]
            for choice in _networks(problem, costs, kind, serves, least - partial.value - after):
                value = partial.value + choice_value(problem, choice)
                longer = _Partial((*partial.choices, choice), value, partial.left ^ serves, rest)
                yield from _walk(problem, plan, longer, least, groups)


def _networks(problem: Problem, costs: Floats, kind: int, serves: int, least: float) -> Iterator[Choice]:
    """All networks of one cost that serve a set and are worth at least `least`, up to a tie's price."""
    least -= TIE / 2  # what the prices may have taken off the values after it
    if problem.networks is not None:
        value = problem.networks.values[:, list(indices(serves))].sum(axis=1)
        rows = np.flatnonzero((problem.networks.cost == costs[kind]) & (value >= least))
        yield from (Choice(bits_of(np.flatnonzero(problem.networks.trains[row])), serves, int(row)) for row in rows)
        return
    yield from (Choice(trains, serves) for trains in _supersets(problem, serves, least))


def _supersets(problem: Problem, serves: int, least: float) -> Iterator[int]:
    """Groups that serve these tasks for at least `least`; small ones first."""
    served = list(indices(serves))
    if len(served) == 1 and problem.alone[served[0]] >= least:
        yield serves
    given = problem.pairwise[:, served].sum(axis=1)
    inside = float(given[served].sum())
    others = sorted((i for i in range(problem.n) if not serves >> i & 1), key=lambda i: -given[i])
    falling = [float(given[i]) for i in others]
    for size in range(max(len(served), 2), problem.largest + 1):
        number = size - len(served)
        for some in _subsets_reaching(falling, number, least * (size - 1) - inside, 0):
            yield serves | bits_of([others[i] for i in some])


def _subsets_reaching(falling: list[float], number: int, least: float, start: int) -> Iterator[tuple[int, ...]]:
    """Places of so many values, from `start` on, whose sum is at least `least`; the values fall."""
    if not number:
        if least <= 0:
            yield ()
        return
    for place in range(start, len(falling) - number + 1):
        if sum(falling[place : place + number]) < least:
            return
        for rest in _subsets_reaching(falling, number - 1, least - falling[place], place + 1):
            yield (place, *rest)


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
        plan = _SparsePlan(problem, members, networks)
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


class _TooMany(Exception):
    """More sets of tasks than are worth looking at."""


class _Level:
    """What each set of tasks is worth at most, in so many networks."""

    def __init__(self, plan: _SparsePlan, networks: int) -> None:
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


class _SparsePlan:
    """Like the plan of the dynamic programme, but over some served sets, and computed as far as it is asked."""

    def __init__(self, problem: Problem, members: Bools, networks: int) -> None:
        price = TIE / (2 * problem.n**2)
        self.slack = max(price / (4 * problem.n), problem.n * ROUNDING / 2)
        values = values_of(problem, members, price)
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
        """As in the dynamic programme; there is one kind of network."""
        if not level:
            return []
        least, below = self.tables[level][left] - slack, self.tables[level - 1]
        return [
            (0, level - 1, [serves for serves, value in self.inside(left) if value + below[left ^ serves] >= least])
        ]
