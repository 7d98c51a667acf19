"""The input and output of every solver: `SelectionProblem`, `Solution`, `Limits`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TIE = 1e-9  # of the largest score, which is 1 after scaling
ROUNDING = 16 * np.finfo(np.float64).eps  # of a sum of scores, per task


@dataclass(frozen=True)
class Networks:
    """Networks that exist, one by one.

    Attributes:
        trains: networks × tasks.
        values: networks × tasks, the score of each task; −inf where the network does not serve it.
        cost: what each takes of the budget.
    """

    trains: Bools
    values: Floats
    cost: Floats

    def only(self, rows: Bools) -> Networks:
        """These rows alone."""
        return Networks(self.trains[rows], self.values[rows], self.cost[rows])

    def joined(self, others: Networks) -> Networks:
        """These and after them the others."""
        return Networks(
            np.concatenate([self.trains, others.trains]),
            np.concatenate([self.values, others.values]),
            np.concatenate([self.cost, others.cost]),
        )


@dataclass(frozen=True)
class SelectionProblem:
    """Which networks may be chosen, and what each served task scores in them.

    Either `scores` says it, as the mean over the other members of a group, or `networks` lists them.

    Attributes:
        n: number of tasks, in alphabetical order: lower numbers win ties.
        scores: [source, target]; the diagonal is the score of a task alone, −inf where that is not allowed.
        networks: the list, if there is one; it is then complete and `scores` is not used.
        links: sets of tasks that are served by the same network, as bits; every task is in one of them.
        largest: how many tasks a network may train.
        relaxed: set where `networks` are only some of those that exist: the problem without costs and rules, whose
            bound holds.
        cheapest: what any network costs at least, where that is so.
        more: the networks that train these sets of tasks, as bits, where that is so.
    """

    n: int
    scores: Floats | None
    networks: Networks | None
    links: tuple[int, ...]
    largest: int
    relaxed: SelectionProblem | None = None
    cheapest: float = 1.0
    more: Callable[[set[int]], Networks] | None = None

    @cached_property
    def pairwise(self) -> Floats:
        """The scores with zeros on the diagonal."""
        assert self.scores is not None
        off = self.scores.copy()
        np.fill_diagonal(off, 0.0)
        return off

    @cached_property
    def alone(self) -> Floats:
        """The score of each task on its own."""
        assert self.scores is not None
        return np.diag(self.scores).copy()

    @cached_property
    def units(self) -> Bools:
        """Links × tasks: units of tasks that are served together, most of them of one."""
        member = np.zeros((len(self.links), self.n), dtype=bool)
        for unit, link in enumerate(self.links):
            member[unit, list(indices(link))] = True
        return member

    @property
    def serves_all(self) -> bool:
        """Whether every task has a network that serves it, whatever the budget; more may stand in the way."""
        return self.networks is None or bool(np.isfinite(self.networks.values).any(axis=0).all())

    def with_networks(self, networks: Networks) -> SelectionProblem:
        """The same tasks with these networks; one that cannot serve a whole link serves none of its tasks."""
        values = networks.values.copy()
        for link in self.links:
            tasks = list(indices(link))
            whole = np.isfinite(values[:, tasks]).all(axis=1, keepdims=True)
            values[:, tasks] = np.where(whole, values[:, tasks], -np.inf)
        return replace(self, networks=replace(networks, values=values))


class NetworkChoice(NamedTuple):
    """One network: what it trains and serves, as bits, and its row in the list of networks, −1 without one."""

    trains: int
    serves: int
    row: int = -1


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    Attributes:
        choices: the networks.
        bound: no choice is worth more.
        proven: whether nothing is better by more than a tie.
        ties: other choices that are as good.
        prices: of the tasks, then of a network: the dual vector that proves `bound`.
    """

    choices: tuple[NetworkChoice, ...]
    bound: float
    proven: bool
    ties: tuple[tuple[NetworkChoice, ...], ...] = ()
    prices: Floats | None = None


class Infeasible(ValueError):
    """No choice of networks serves all tasks within the budget."""


class Solver(Protocol):
    """Answers for several budgets at once, so that work is shared."""

    def __call__(self, problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]: ...


@dataclass(frozen=True)
class Limits:
    """How long a solver may work, how hard it should search, and where its random numbers start.

    Attributes:
        deadline: on the monotonic clock.
        seed: of random numbers.
        kicks: of the local search.
        stop: asked now and then; once it says yes, time is up.
    """

    deadline: float = float("inf")
    seed: int = 0
    kicks: int = 120
    stop: Callable[[], bool] | None = None

    @property
    def over(self) -> bool:
        """Whether time is up, by the clock or because somebody said so."""
        return time.monotonic() > self.deadline or (self.stop is not None and self.stop())

    @property
    def seconds_left(self) -> float:
        """Until the deadline; infinite without one."""
        return self.deadline - time.monotonic()


def indices(bits: int) -> tuple[int, ...]:
    """The tasks in a set."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


def bits_of(tasks: Sequence[int] | Ints) -> int:
    """The set of these tasks."""
    return sum(1 << int(i) for i in tasks)


def membership(sets: Ints, n: int) -> Bools:
    """Sets × tasks."""
    member: Bools = ((sets[:, None] >> np.arange(n)) & 1).astype(bool)
    return member


def splits_no_link(sets: Ints, links: Sequence[int]) -> Bools:
    """Returns whether each set contains every link entirely or not at all."""
    whole = np.ones(len(sets), dtype=bool)
    for link in links:
        if link & (link - 1):
            whole &= ((sets & link) == 0) | ((sets & link) == link)
    return whole


def choice_value(problem: SelectionProblem, choice: NetworkChoice) -> float:
    """What the tasks served by this network score together."""
    served = list(indices(choice.serves))
    if problem.networks is not None:
        return float(problem.networks.values[choice.row, served].sum())
    trained = indices(choice.trains)
    if len(trained) == 1:
        return float(problem.alone[served[0]])
    return float(problem.pairwise[np.ix_(trained, served)].sum()) / (len(trained) - 1)


def solution_value(problem: SelectionProblem, choices: Sequence[NetworkChoice]) -> float:
    """What all tasks score together."""
    return sum(choice_value(problem, choice) for choice in choices)
