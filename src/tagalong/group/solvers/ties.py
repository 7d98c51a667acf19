"""Breaks ties between equally good choices of networks and lists the alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from ..selection_problem import (
    TIE_TOLERANCE,
    Floats,
    NetworkChoice,
    SelectionProblem,
    choice_value,
    solution_value,
    tasks_in_mask,
    to_bit_mask,
)

MAX_TIES = 8  # listed per solution
MAX_PARTIAL_CHOICES = 1_000  # partial choices to visit; if there are more, some ties are not listed


class ValueTable(Protocol):
    """The highest value of each set of tasks."""

    def __getitem__(self, remaining: int) -> float: ...


class SolvedProgram(Protocol):
    """A solved dynamic program: the values of sets of tasks at each level, and the possible next networks."""

    @property
    def tables(self) -> Sequence[ValueTable]: ...

    def continuations(self, remaining: int, level: int, slack: float) -> list[tuple[int, int, list[int]]]: ...


class _PartialChoice(NamedTuple):
    choices: tuple[NetworkChoice, ...]
    value: float
    left: int
    level: int


def find_ties(
    problem: SelectionProblem, program: SolvedProgram, chosen: tuple[NetworkChoice, ...], level: int
) -> tuple[tuple[NetworkChoice, ...], ...]:
    """Returns equally good choices with no more networks than the given one, ordered by size."""
    least = solution_value(problem, chosen) - TIE_TOLERANCE
    start = _PartialChoice((), 0.0, 2**problem.n - 1, level)
    networks = {tuple(sorted((choice.trains, choice.row) for choice in chosen))}
    found = []
    for partial in islice(_extend_choice(problem, program, start, least, len(chosen)), MAX_PARTIAL_CHOICES):
        key = tuple(sorted((choice.trains, choice.row) for choice in partial.choices))
        if not partial.left and key not in networks:
            networks.add(key)
            found.append(partial.choices)
    found.sort(key=lambda choices: (sum(choice.trains.bit_count() for choice in choices), _sort_key(choices)))
    return tuple(found[:MAX_TIES])


def _sort_key(choices: tuple[NetworkChoice, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return sorted((tasks_in_mask(choice.serves), tasks_in_mask(choice.trains)) for choice in choices)


def _extend_choice(
    problem: SelectionProblem,
    program: SolvedProgram,
    partial_choice: _PartialChoice,
    min_value: float,
    max_networks: int,
) -> Iterator[_PartialChoice]:
    """Yields partial choices that can still reach `min_value`. A partial choice is yielded before its extensions."""
    yield partial_choice
    if not partial_choice.left or len(partial_choice.choices) == max_networks:
        return
    costs = np.unique(problem.networks.cost) if problem.networks is not None else np.ones(1)
    slack = (
        max(program.tables[partial_choice.level][partial_choice.left] + partial_choice.value - min_value, 0.0)
        + TIE_TOLERANCE
    )
    for kind, rest, some in program.continuations(partial_choice.left, partial_choice.level, slack):
        for serves in some:
            after = program.tables[rest][partial_choice.left ^ serves]
            for choice in _matching_networks(problem, costs, kind, serves, min_value - partial_choice.value - after):
                value = partial_choice.value + choice_value(problem, choice)
                longer = _PartialChoice((*partial_choice.choices, choice), value, partial_choice.left ^ serves, rest)
                yield from _extend_choice(problem, program, longer, min_value, max_networks)


def _matching_networks(
    problem: SelectionProblem, costs: Floats, cost_index: int, served_tasks: int, min_value: float
) -> Iterator[NetworkChoice]:
    """Yields all networks with a given cost that serve a set with a value of at least `min_value`, up to a tie."""
    min_value -= TIE_TOLERANCE / 2  # prices reduce the remaining values by up to this much
    if problem.networks is not None:
        value = problem.networks.values[:, list(tasks_in_mask(served_tasks))].sum(axis=1)
        rows = np.flatnonzero((problem.networks.cost == costs[cost_index]) & (value >= min_value))
        yield from (
            NetworkChoice(to_bit_mask(np.flatnonzero(problem.networks.trains[row])), served_tasks, int(row))
            for row in rows
        )
        return
    yield from (NetworkChoice(trains, served_tasks) for trains in _matching_supersets(problem, served_tasks, min_value))


def _matching_supersets(problem: SelectionProblem, served_tasks: int, min_value: float) -> Iterator[int]:
    """Yields the groups that serve the given tasks with a value of at least `min_value`, ordered by size."""
    served = list(tasks_in_mask(served_tasks))
    if len(served) == 1 and problem.single_task_scores[served[0]] >= min_value:
        yield served_tasks
    given = problem.pairwise_scores[:, served].sum(axis=1)
    inside = float(given[served].sum())
    others = sorted((i for i in range(problem.n) if not served_tasks >> i & 1), key=lambda i: -given[i])
    descending = [float(given[i]) for i in others]
    for size in range(max(len(served), 2), problem.largest + 1):
        number = size - len(served)
        for some in _subsets_with_sum(descending, number, min_value * (size - 1) - inside, 0):
            yield served_tasks | to_bit_mask([others[i] for i in some])


def _subsets_with_sum(values: list[float], count: int, min_value: float, start: int) -> Iterator[tuple[int, ...]]:
    """Yields the indices of all combinations of `count` values, beginning at `start`, that sum to at least `min_value`.

    Values are descending.
    """
    if not count:
        if min_value <= 0:
            yield ()
        return
    for place in range(start, len(values) - count + 1):
        if sum(values[place : place + count]) < min_value:
            return
        for rest in _subsets_with_sum(values, count - 1, min_value - values[place], place + 1):
            yield (place, *rest)
