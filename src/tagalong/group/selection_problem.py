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

TIE = 1e-9  # relative to the largest score, which is 1 after scaling
ROUNDING = 16 * np.finfo(np.float64).eps  # rounding error of a sum of scores, per task


@dataclass(frozen=True)
class Networks:
    """A list of the networks that may be chosen.

    Attributes:
        trains: networks × tasks, whether the network trains the task.
        values: networks × tasks, the score of each task; −inf if the network cannot serve it.
        cost: the cost of each network.
    """

    trains: Bools
    values: Floats
    cost: Floats

    def only(self, rows: Bools) -> Networks:
        """Returns only these rows."""
        return Networks(self.trains[rows], self.values[rows], self.cost[rows])

    def join(self, others: Networks) -> Networks:
        """Returns these networks followed by the others."""
        return Networks(
            np.concatenate([self.trains, others.trains]),
            np.concatenate([self.values, others.values]),
            np.concatenate([self.cost, others.cost]),
        )


@dataclass(frozen=True)
class SelectionProblem:
    """The networks that may be chosen, and the score of each served task in them.

    A task either scores the mean of `scores` over the other tasks of its network, or `networks` lists all scores.

    Attributes:
        n: the number of tasks, which are in alphabetical order; lower numbers win ties.
        scores: [source, target]; the diagonal is the score of a task alone, −inf if that is not allowed.
        networks: the list of networks, if there is one; it is then complete and `scores` is not used.
        links: sets of tasks that must be served by the same network, as bits; every task is in one of them.
        largest: the largest number of tasks that a network may train.
        relaxed: the problem without costs and constraints, whose bound is valid; only if `networks` are some of many.
        cheapest: a lower bound on the cost of any network; only if `networks` are some of many.
        more: returns the networks that train the given sets of tasks, as bits; only if `networks` are some of many.
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
        """`scores` with zeros on the diagonal."""
        assert self.scores is not None
        off = self.scores.copy()
        np.fill_diagonal(off, 0.0)
        return off

    @cached_property
    def alone(self) -> Floats:
        """The score of each task in a network of its own."""
        assert self.scores is not None
        return np.diag(self.scores).copy()

    @cached_property
    def units(self) -> Bools:
        """Links × tasks: which tasks must be served together; most links contain one task."""
        member = np.zeros((len(self.links), self.n), dtype=bool)
        for unit, link in enumerate(self.links):
            member[unit, list(indices(link))] = True
        return member

    @property
    def serves_all(self) -> bool:
        """Whether some network serves each task, regardless of the budget; this alone does not make it feasible."""
        return self.networks is None or bool(np.isfinite(self.networks.values).any(axis=0).all())

    def with_networks(self, networks: Networks) -> SelectionProblem:
        """Returns the problem with these networks; one that cannot serve all of a link serves none of its tasks."""
        values = networks.values.copy()
        for link in self.links:
            tasks = list(indices(link))
            whole = np.isfinite(values[:, tasks]).all(axis=1, keepdims=True)
            values[:, tasks] = np.where(whole, values[:, tasks], -np.inf)
        return replace(self, networks=replace(networks, values=values))


class NetworkChoice(NamedTuple):
    """A chosen network: the tasks it trains and serves, as bits, and its row in the list of networks, or −1."""

    trains: int
    serves: int
    row: int = -1


@dataclass(frozen=True)
class Solution:
    """The result of a solver.

    Attributes:
        choices: the chosen networks.
        bound: an upper bound on the value of any choice.
        proven: whether no choice is better by more than a tie.
        ties: other choices that are as good.
        prices: the dual vector that proves `bound`: prices of the tasks, then of a network.
    """

    choices: tuple[NetworkChoice, ...]
    bound: float
    proven: bool
    ties: tuple[tuple[NetworkChoice, ...], ...] = ()
    prices: Floats | None = None


class Infeasible(ValueError):
    """No choice of networks serves all tasks within the budget."""


class Solver(Protocol):
    """Solves a problem for several budgets at once, which share work."""

    def __call__(self, problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]: ...


@dataclass(frozen=True)
class Limits:
    """Limits of a solver: its time, the effort of its search, and its seed.

    Attributes:
        deadline: the time on the monotonic clock at which to stop.
        seed: the seed of random numbers.
        kicks: the number of restarts of the local search.
        stop: called regularly; the solver stops once it returns True.
    """

    deadline: float = float("inf")
    seed: int = 0
    kicks: int = 120
    stop: Callable[[], bool] | None = None

    @property
    def over(self) -> bool:
        """Whether to stop, because of the deadline or `stop`."""
        return time.monotonic() > self.deadline or (self.stop is not None and self.stop())

    @property
    def seconds_left(self) -> float:
        """Returns the seconds until the deadline; infinite without one."""
        return self.deadline - time.monotonic()


def indices(bits: int) -> tuple[int, ...]:
    """Returns the tasks in a set of bits."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


def bits_of(tasks: Sequence[int] | Ints) -> int:
    """Returns the set of these tasks as bits."""
    return sum(1 << int(i) for i in tasks)


def membership(sets: Ints, n: int) -> Bools:
    """Returns whether each set contains each task (sets × tasks)."""
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
    """Returns the total score of the tasks that this network serves."""
    served = list(indices(choice.serves))
    if problem.networks is not None:
        return float(problem.networks.values[choice.row, served].sum())
    trained = indices(choice.trains)
    if len(trained) == 1:
        return float(problem.alone[served[0]])
    return float(problem.pairwise[np.ix_(trained, served)].sum()) / (len(trained) - 1)


def solution_value(problem: SelectionProblem, choices: Sequence[NetworkChoice]) -> float:
    """Returns the total score of all tasks."""
    return sum(choice_value(problem, choice) for choice in choices)
