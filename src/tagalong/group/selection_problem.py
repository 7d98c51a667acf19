"""The inputs and outputs of every solver: `SelectionProblem`, `Limits` and `Solution`."""

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

TIE_TOLERANCE = 1e-9  # tolerance relative to the largest score, which is 1 after scaling
ROUNDING_TOLERANCE = 16 * np.finfo(np.float64).eps  # rounding error of a sum of scores, per task


@dataclass(frozen=True)
class Networks:
    """A list of networks that may be chosen.

    Attributes:
        trains: whether each network is trained on each task (networks × tasks).
        values: the score of each task in each network (networks × tasks), or −inf if the network cannot serve the task.
        cost: the cost of each network.
    """

    trains: Bools
    values: Floats
    cost: Floats

    def only(self, rows: Bools) -> Networks:
        """Returns the networks in the given rows."""
        return Networks(self.trains[rows], self.values[rows], self.cost[rows])

    def join(self, others: Networks) -> Networks:
        """Returns the concatenation of two lists of networks."""
        return Networks(
            np.concatenate([self.trains, others.trains]),
            np.concatenate([self.values, others.values]),
            np.concatenate([self.cost, others.cost]),
        )


@dataclass(frozen=True)
class SelectionProblem:
    """The networks that may be chosen, and the scores of their tasks.

    The score of a task is either the mean of `scores` over the other tasks in its network, or is listed in `networks`.
    If there are too many networks to list, `networks` contains only some of them.

    Attributes:
        n: the number of tasks. Tasks are in alphabetical order, and ties are broken in favor of lower indices.
        scores: the pairwise scores [source, target]. The diagonal contains the scores of tasks trained alone, or −inf
            if that is not allowed.
        networks: the list of networks, or None. If the list is given, `scores` is not used.
        links: the sets of tasks that must be served by the same network, as bit masks. Each task is in exactly one set.
        largest: the maximum number of tasks per network.
        relaxed: the problem without costs and constraints, which provides a valid bound. It is used only if `networks`
            is incomplete.
        cheapest: a lower bound on the cost of any network. It is used only if `networks` is incomplete.
        more: a function that returns the networks for the given sets of trained tasks (bit masks). It is used only if
            `networks` is incomplete.
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
    def pairwise_scores(self) -> Floats:
        """The matrix `scores` with zeros on the diagonal."""
        assert self.scores is not None
        matrix = self.scores.copy()
        np.fill_diagonal(matrix, 0.0)
        return matrix

    @cached_property
    def single_task_scores(self) -> Floats:
        """The score of each task when trained alone."""
        assert self.scores is not None
        return np.diag(self.scores).copy()

    @cached_property
    def units(self) -> Bools:
        """A mask of the tasks in each link (links × tasks). Most links contain a single task."""
        member = np.zeros((len(self.links), self.n), dtype=bool)
        for unit, link in enumerate(self.links):
            member[unit, list(tasks_in_mask(link))] = True
        return member

    @property
    def serves_all(self) -> bool:
        """Whether each task can be served by some network. This is necessary but not sufficient for feasibility."""
        return self.networks is None or bool(np.isfinite(self.networks.values).any(axis=0).all())

    def with_networks(self, networks: Networks) -> SelectionProblem:
        """Returns the problem with the given networks.

        A network must serve either all tasks of a link or none of them.
        """
        values = networks.values.copy()
        for link in self.links:
            tasks = list(tasks_in_mask(link))
            whole = np.isfinite(values[:, tasks]).all(axis=1, keepdims=True)
            values[:, tasks] = np.where(whole, values[:, tasks], -np.inf)
        return replace(self, networks=replace(networks, values=values))


class NetworkChoice(NamedTuple):
    """A chosen network: its trained and served tasks as bit masks, and its row in the list of networks (or −1)."""

    trains: int
    serves: int
    row: int = -1


@dataclass(frozen=True)
class Solution:
    """The result of a solver.

    Attributes:
        choices: the chosen networks.
        bound: an upper bound on the value of any choice.
        proven: whether the solution is proven optimal, up to ties.
        ties: other choices that are equally good.
    """

    choices: tuple[NetworkChoice, ...]
    bound: float
    proven: bool
    ties: tuple[tuple[NetworkChoice, ...], ...] = ()


class InfeasibleError(ValueError):
    """Raised if no choice of networks serves all tasks within the budget."""


class Solver(Protocol):
    """Solves a problem for several budgets at once."""

    def __call__(self, problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]: ...


@dataclass(frozen=True)
class Limits:
    """The time limit, search effort and random seed of a solver.

    Attributes:
        deadline: the time at which to stop, on the monotonic clock.
        seed: the random seed.
        kicks: the number of restarts of the local search.
        stop: a function that is called regularly. The solver stops when this function returns True.
    """

    deadline: float = float("inf")
    seed: int = 0
    kicks: int = 120
    stop: Callable[[], bool] | None = None

    @property
    def should_stop(self) -> bool:
        """Whether the solver must stop, because of the deadline or `stop`."""
        return time.monotonic() > self.deadline or (self.stop is not None and self.stop())

    @property
    def seconds_left(self) -> float:
        """The number of seconds until the deadline, or infinity if there is none."""
        return self.deadline - time.monotonic()


def tasks_in_mask(bit_mask: int) -> tuple[int, ...]:
    """Returns the indices of the tasks in a bit mask."""
    return tuple(i for i in range(bit_mask.bit_length()) if bit_mask >> i & 1)


def to_bit_mask(tasks: Sequence[int] | Ints) -> int:
    """Returns the given tasks as a bit mask."""
    return sum(1 << int(i) for i in tasks)


def membership(sets: Ints, n: int) -> Bools:
    """Returns whether each set contains each task (sets × tasks)."""
    member: Bools = ((sets[:, None] >> np.arange(n)) & 1).astype(bool)
    return member


def keeps_links_whole(sets: Ints, links: Sequence[int]) -> Bools:
    """Returns a mask of the sets that contain each link either entirely or not at all."""
    whole = np.ones(len(sets), dtype=bool)
    for link in links:
        if link & (link - 1):
            whole &= ((sets & link) == 0) | ((sets & link) == link)
    return whole


def choice_value(problem: SelectionProblem, choice: NetworkChoice) -> float:
    """Returns the total score of the tasks that the chosen network serves."""
    served = list(tasks_in_mask(choice.serves))
    if problem.networks is not None:
        return float(problem.networks.values[choice.row, served].sum())
    trained = tasks_in_mask(choice.trains)
    if len(trained) == 1:
        return float(problem.single_task_scores[served[0]])
    return float(problem.pairwise_scores[np.ix_(trained, served)].sum()) / (len(trained) - 1)


def solution_value(problem: SelectionProblem, choices: Sequence[NetworkChoice]) -> float:
    """Returns the sum of the scores of all tasks."""
    return sum(choice_value(problem, choice) for choice in choices)
