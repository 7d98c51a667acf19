"""What solvers take and return: `SelectionProblem`, `Limits` and `Solution`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_LISTED = 14  # tasks for which all groups can be listed
TIE_TOLERANCE = 1e-9  # relative to the largest score, which is 1 after scaling
SECONDS_BETWEEN_REPORTS = 2.0

logger = logging.getLogger(__name__)


class Networks(NamedTuple):
    """A list of networks that may be chosen.

    Attributes:
        trains: whether each network is trained on each task [networks, tasks].
        values: the score of each task in each network [networks, tasks]; −inf if the network cannot serve the task.
        cost: the cost of each network.
        candidates: the index of each network in the list of candidates, if there is one.
    """

    trains: Bools
    values: Floats
    cost: Floats
    candidates: Ints


@dataclass(frozen=True)
class SelectionProblem:
    """The networks that may be chosen, and the scores of tasks in them, which are to be maximized.

    Attributes:
        scores: the pairwise scores [source, target]. The score of a task in a network is the mean over the other tasks.
            The diagonal has the scores of tasks trained alone, or −inf where that is not allowed. Not used if all
            networks that may be chosen are listed.
        networks: the networks that may be chosen, or None if every group up to `max_size` may be trained.
        units: the sets of tasks that must be served by the same network. Each task is in one of them.
        max_size: the maximum number of tasks per network.
        max_networks: the number of networks that `max_total_cost` allows if all networks have the same cost.
        max_total_cost: the maximum total cost of the networks in the list.
        list_more: returns the networks for further groups [groups, tasks], or None unless `networks` lists only some.
        scale: the number by which weighted scores were divided. It is negative if scores are minimized.
    """

    n: int
    scores: Floats
    networks: Networks | None
    units: tuple[tuple[int, ...], ...]
    max_size: int
    max_networks: int
    max_total_cost: float
    list_more: Callable[[Bools], Networks] | None
    scale: float

    @cached_property
    def pairwise_scores(self) -> Floats:
        """The matrix `scores` with zeros on the diagonal."""
        return np.where(np.eye(self.n, dtype=bool), 0.0, self.scores)

    @cached_property
    def single_task_scores(self) -> Floats:
        """The score of each task when trained alone."""
        return np.diag(self.scores)

    @property
    def listed(self) -> Networks:
        """The networks that may be chosen, where they are known to be listed."""
        assert self.networks is not None
        return self.networks

    @property
    def has_all_networks(self) -> bool:
        """Whether all networks that may be chosen are listed."""
        return self.networks is not None and self.list_more is None

    @cached_property
    def unit_values(self) -> Floats:
        """The score of each unit in each listed network [networks, units], or −inf where it cannot be served."""
        return np.stack([self.listed.values[:, list(unit)].sum(axis=1) for unit in self.units], axis=1)

    def value_of(self, choices: Iterable[NetworkChoice]) -> float:
        """Returns the sum of the scores of all served tasks."""
        value = 0.0
        for trains, serves, row in choices:
            if self.networks is not None:
                value += float(self.networks.values[row, list(serves)].sum())
            elif len(trains) == 1:
                value += float(self.single_task_scores[serves[0]])
            else:
                value += float(self.pairwise_scores[np.ix_(trains, serves)].sum()) / (len(trains) - 1)
        return value


class NetworkChoice(NamedTuple):
    """A chosen network: the tasks that it trains and serves, and its row in the list of networks (or −1)."""

    trains: tuple[int, ...]
    serves: tuple[int, ...]
    row: int = -1


@dataclass(frozen=True)
class Solution:
    """The result of a solver.

    Attributes:
        choices: the chosen networks.
        bound: an upper bound on the value of any choice.
        proven: whether the choice is proven optimal, up to ties.
        ties: other choices that are equally good.
    """

    choices: tuple[NetworkChoice, ...]
    bound: float
    proven: bool
    ties: tuple[tuple[NetworkChoice, ...], ...] = ()


@dataclass
class Limits:
    """The time limit, search effort and random seed of a solver.

    Attributes:
        deadline: the time at which to stop, on the monotonic clock.
        seed: the random seed.
        kicks: the maximum number of random changes from which a local search starts again.
        list_ties: whether to look for other choices that are equally good.
        stop: a function that is called regularly. The solver stops when it returns True.
        reported: the time of the last progress report.
    """

    deadline: float = float("inf")
    seed: int = 0
    kicks: int = 120
    list_ties: bool = True
    stop: Callable[[], bool] | None = None
    reported: float = field(default_factory=time.monotonic)

    @property
    def should_stop(self) -> bool:
        """Whether the solver must stop, because of the deadline or `stop`."""
        return time.monotonic() > self.deadline or (self.stop is not None and self.stop())

    @property
    def seconds_left(self) -> float:
        """The number of seconds until the deadline, or infinity if there is none."""
        return self.deadline - time.monotonic()

    def share(self, parts: float) -> Limits:
        """Returns limits with one part of the remaining time."""
        return replace(self, deadline=time.monotonic() + self.seconds_left / parts)

    def report(self, stage: str, total: float) -> None:
        """Logs progress, at most once every two seconds: the stage, and the best total so far."""
        if time.monotonic() - self.reported > SECONDS_BETWEEN_REPORTS:
            logger.info("%s, total %.6g", stage, total)
            self.reported = time.monotonic()


def membership(sets: Ints, n: int) -> Bools:
    """Returns whether each set, given as a bit mask, contains each task [sets, tasks]."""
    return np.asarray((sets[:, None] >> np.arange(n)) & 1, dtype=bool)


def best_values(
    problem: SelectionProblem, members: Bools, price: float = 0.0, contributions: Floats | None = None
) -> Floats:
    """Returns the value of the best network for each served set, minus its price, or −inf if there is none.

    With c(i) the sum of the scores of task i onto the served tasks, a network of m tasks is worth Σ c(i) / (m − 1). The
    best helpers for each m are therefore the tasks with the largest c(i), which are found by sorting.

    Args:
        problem: a problem with pairwise scores.
        members: the served sets [sets, tasks].
        price: the price per trained task.
        contributions: the sum of the scores of each task onto each served set [sets, tasks], if already known.
    """
    if contributions is None:
        contributions = members @ problem.pairwise_scores.T
    value = values_with_helpers(members, contributions, problem.max_size, price).max(axis=1)
    single = members.sum(axis=1) == 1
    value[single] = np.maximum(value[single], problem.single_task_scores[members[single].argmax(axis=1)] - price)
    return np.where(members.any(axis=1), value, -np.inf)


def values_with_helpers(members: Bools, contributions: Floats, max_size: int, price: float = 0.0) -> Floats:
    """Returns the value of each served set (row) with its best 0, 1, 2, … helpers (columns).

    The value of a group of one task is −inf.
    """
    inside = np.where(members, contributions, 0.0).sum(axis=1)
    offered = -np.sort(np.where(members, np.inf, -contributions), axis=1)
    gained = np.cumsum(np.concatenate([inside[:, None], offered], axis=1), axis=1)
    size = members.sum(axis=1)[:, None] + np.arange(members.shape[1] + 1)
    allowed = (size >= 2) & (size <= min(max_size, members.shape[1]))
    return np.where(allowed, gained / np.maximum(size - 1, 1) - price * size, -np.inf)
