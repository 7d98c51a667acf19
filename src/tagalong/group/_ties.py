"""Other choices that are just as good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from ._problem import TIE, Choice, Floats, Problem, bits_of, choice_value, indices, solution_value

LISTED = 8
LOOKED_AT = 1_000  # partial choices; where more tie, some are not listed


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
    return tuple(found[:LISTED])


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
