"""Other choices that are just as good."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ._problem import TIE, Choice, Floats, Ints, Problem, bits_of, choice_value, indices, membership, solution_value

if TYPE_CHECKING:
    from ._dynamic import Plan

LISTED = 8
LOOKED_AT = 1_000  # partial choices; where more tie, some are not listed


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
    slack = max(plan.tables[partial.level][partial.left] + partial.value - least, 0.0) + TIE
    for kind, rest, some in plan.continuations(partial.left, partial.level, slack):
        for serves in some:
            after = plan.tables[rest][partial.left ^ serves]
            for choice in _networks(problem, plan, kind, serves, least - partial.value - after):
                value = partial.value + choice_value(problem, choice)
                longer = _Partial((*partial.choices, choice), value, partial.left ^ serves, rest)
                yield from _walk(problem, plan, longer, least, groups)


def _networks(problem: Problem, plan: Plan, kind: int, serves: int, least: float) -> Iterator[Choice]:
    """All networks of one cost that serve a set and are worth at least `least`, up to a tie's price."""
    served = list(indices(serves))
    least -= TIE / 2  # what the prices may have taken off the values after it
    if problem.networks is not None:
        value = problem.networks.values[:, served].sum(axis=1)
        rows = np.flatnonzero((problem.networks.cost == plan.served.costs[kind]) & (value >= least))
        yield from (Choice(bits_of(np.flatnonzero(problem.networks.trains[row])), serves, int(row)) for row in rows)
        return
    trains, value = _supersets(problem, serves)
    yield from (Choice(int(bits), serves) for bits in trains[value >= least])


def _supersets(problem: Problem, serves: int) -> tuple[Ints, Floats]:
    sets = np.arange(2**problem.n)
    sets = sets[(sets & serves) == serves]
    served = list(indices(serves))
    members = membership(sets, problem.n)
    size = members.sum(axis=1)
    value = (members @ problem.pairwise[:, served].sum(axis=1)) / np.maximum(size - 1, 1)
    if len(served) == 1:
        value = np.where(size == 1, problem.alone[served[0]], value)
    return sets, np.where((size <= problem.largest) & ((size > 1) | (len(served) == 1)), value, -np.inf)
