"""The problem that solvers take, with scaled scores to maximize and tasks as integers, and the solution they return.

Solvers use pairwise scores if all groups up to a size may be trained. Otherwise, they use a list of all networks, or of
only the promising ones if there are too many to list.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tagalong.errors import InvalidInput

from .completion import Bools, Floats, Ints
from .grouping import Group
from .scores import MAX_LISTED, Scores

Links = Collection[Collection[str]]
MAX_COMPLETE_PROGRAM = 10  # tasks for which an integer program can consider all groups
MAX_PAIRWISE = 16  # tasks whose pairwise scores dynamic programming solves in a few seconds
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
        # The matrix `scores` with zeros on the diagonal.
        return np.where(np.eye(self.n, dtype=bool), 0.0, self.scores)

    @cached_property
    def single_task_scores(self) -> Floats:
        return np.diag(self.scores)

    @property
    def listed(self) -> Networks:
        assert self.networks is not None
        return self.networks

    @property
    def has_all_networks(self) -> bool:
        return self.networks is not None and self.list_more is None

    @property
    def can_be_exact(self) -> bool:
        # Whether dynamic programming applies and takes at most a few seconds.
        if self.networks is None:
            return self.n <= MAX_PAIRWISE
        return self.n <= MAX_LISTED and self.has_all_networks and self.max_total_cost == np.inf

    @cached_property
    def unit_values(self) -> Floats:
        # The score of each unit in each listed network [networks, units], or −inf where it cannot be served.
        return np.stack([self.listed.values[:, list(unit)].sum(axis=1) for unit in self.units], axis=1)

    def value_of(self, choices: Iterable[NetworkChoice]) -> float:
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
        return time.monotonic() > self.deadline or (self.stop is not None and self.stop())

    def share(self, parts: float) -> Limits:
        # Returns limits with one part of the remaining time.
        now = time.monotonic()
        return replace(self, deadline=now + (self.deadline - now) / parts)

    def report(self, stage: str, total: float) -> None:
        """Logs progress, at most once every two seconds: the stage, and the best total so far."""
        if time.monotonic() - self.reported > SECONDS_BETWEEN_REPORTS:
            logger.info("%s, total %.6g", stage, total)
            self.reported = time.monotonic()


def membership(sets: Ints, n: int) -> Bools:
    # Returns whether each set, given as a bit mask, contains each task [sets, tasks].
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
    # For each served set (row), with its best 0, 1, 2, … helpers (columns). The value of one task alone is −inf.
    inside = np.where(members, contributions, 0.0).sum(axis=1)
    offered = -np.sort(np.where(members, np.inf, -contributions), axis=1)
    gained = np.cumsum(np.concatenate([inside[:, None], offered], axis=1), axis=1)
    size = members.sum(axis=1)[:, None] + np.arange(members.shape[1] + 1)
    allowed = (size >= 2) & (size <= min(max_size, members.shape[1]))
    return np.where(allowed, gained / np.maximum(size - 1, 1) - price * size, -np.inf)


@dataclass(frozen=True)
class Constraints:
    """The networks that may be chosen. For the attributes, see `select_groups`."""

    max_size: int | None
    max_cost: float | None
    max_total_cost: float | None
    must_link: Links
    cannot_link: Links

    def allowed_networks(self, scores: Scores, trains: Bools, values: Floats, cost: Floats) -> Networks:
        # Returns the networks that no constraint forbids. The option `cost` applies where the cost is NaN.
        size = trains.sum(axis=1)
        allowed = (size <= (self.max_size or len(scores.tasks))) & (size > 1 - scores.allows_single)
        for link in self.cannot_link:
            allowed &= trains[:, np.isin(scores.tasks, list(link))].sum(axis=1) < 2
        cost = cost.copy()
        for row in np.flatnonzero(allowed & np.isnan(cost)):
            cost[row] = scores.cost_of(frozenset(scores.tasks[i] for i in np.flatnonzero(trains[row])))
        if self.max_cost is not None:
            allowed &= cost <= self.max_cost * (1 + 1e-9)
        rows = np.flatnonzero(allowed & ~np.isnan(cost))  # networks that a mapping of costs does not list are left out
        return Networks(trains[rows], values[rows], cost[rows], rows)

    def forbidden_pairs(self, tasks: tuple[str, ...]) -> Bools:
        # Returns the pairs of tasks that must not be trained in the same network.
        forbidden = np.zeros((len(tasks), len(tasks)), dtype=bool)
        for link in self.cannot_link:
            linked = np.isin(tasks, list(link))
            forbidden |= np.outer(linked, linked)
        return forbidden & ~np.eye(len(tasks), dtype=bool)


def build_problem(scores: Scores, constraints: Constraints, list_networks: bool = False) -> SelectionProblem:
    """Builds the problem from checked scores and options.

    Args:
        scores: the scores.
        constraints: the networks that may be chosen.
        list_networks: whether to list the networks even if solvers could do with pairwise scores.
    """
    tasks, n = scores.tasks, len(scores.tasks)

    # If all networks have the same cost, a limit on the sum limits their number.
    max_networks, max_total_cost = n, constraints.max_total_cost or np.inf
    has_same_cost = scores.candidates is None and not isinstance(scores.cost, Mapping) and not callable(scores.cost)
    if has_same_cost:
        same_cost = scores.cost_of(frozenset())
        if constraints.max_cost is not None and same_cost > constraints.max_cost:
            found = repr(constraints.max_cost)
            raise InvalidInput("max_cost", "must be at least `cost`, the cost of every network", found)
        max_networks, max_total_cost = int(min(n, max_total_cost * (1 + 1e-9) / same_cost)), np.inf

    # The scores are weighted, and divided by the largest one.
    weights = np.array([float(scores.weights.get(task, 1.0)) for task in tasks])
    weighted = weights * scores.table
    largest = float(np.abs(np.nan_to_num(weighted)).max()) or 1.0
    if not math.isfinite(2 * n * largest):
        raise InvalidInput("scores", "must have a finite sum", f"values up to {largest:.3g}")
    scale = scores.sign * largest
    values = np.where(np.isnan(weighted), -np.inf, weighted / scale)
    problem = SelectionProblem(
        n=n,
        scores=values,
        networks=None,
        units=linked_units(tasks, constraints.must_link),
        max_size=min(n, constraints.max_size or n),
        max_networks=max_networks,
        max_total_cost=max_total_cost,
        list_more=None,
        scale=scale,
    )
    if scores.candidates is not None:
        trains = np.array([[task in candidate.trains for task in tasks] for candidate in scores.candidates])
        cost = np.array([candidate.cost for candidate in scores.candidates], dtype=np.float64)
        return replace(problem, networks=constraints.allowed_networks(scores, trains, values, cost))

    # Pairwise scores are enough if every group up to a size may be trained, at a cost that does not matter.
    limited = not has_same_cost and (constraints.max_cost or constraints.max_total_cost)
    if not (limited or isinstance(scores.cost, Mapping) or constraints.cannot_link or list_networks):
        return problem

    def list_groups(trains: Bools) -> Networks:
        size = trains.sum(axis=1, keepdims=True)
        means = trains @ problem.pairwise_scores / np.maximum(size - 1, 1)
        group_values = np.where(size == 1, problem.single_task_scores, means)
        unknown_cost = np.full(len(trains), np.nan)
        return constraints.allowed_networks(scores, trains, np.where(trains, group_values, -np.inf), unknown_cost)

    if n <= MAX_LISTED:
        listed = replace(problem, networks=list_groups(membership(np.arange(1, 2**n), n)))
        if n <= MAX_COMPLETE_PROGRAM or listed.can_be_exact:
            return listed
    promising = _promising_groups(problem, constraints.forbidden_pairs(tasks))
    return replace(problem, networks=list_groups(promising), list_more=list_groups)


def to_group(scores: Scores, problem: SelectionProblem, choice: NetworkChoice) -> Group:
    trains = frozenset(scores.tasks[i] for i in choice.trains)
    cost = scores.cost_of(trains) if scores.candidates is None else float(problem.listed.cost[choice.row])
    return Group(trains, (scores.tasks[i] for i in choice.serves), cost)


def linked_units(tasks: tuple[str, ...], links: Iterable[Iterable[str]]) -> tuple[tuple[int, ...], ...]:
    # Returns the sets of tasks that links join, directly or indirectly, ordered by their first task.
    unit_of = list(range(len(tasks)))
    for link in links:
        joined = {unit_of[tasks.index(task)] for task in link}
        unit_of = [min(joined) if unit in joined else unit for unit in unit_of]
    return tuple(tuple(i for i, other in enumerate(unit_of) if other == unit) for unit in sorted(set(unit_of)))


def _promising_groups(problem: SelectionProblem, forbidden: Bools) -> Bools:
    # All pairs, and for each unit the groups with the tasks that fit it best. Forbidden pairs are not joined.
    n = problem.n
    similarity = problem.pairwise_scores + problem.pairwise_scores.T
    alone = np.eye(n, dtype=bool)
    first, second = np.triu_indices(n, 1)
    groups = [*alone, *(alone[first] | alone[second])]
    for unit in problem.units:
        group = np.isin(np.arange(n), unit)
        groups.append(group.copy())
        for task in np.argsort(-similarity[list(unit)].sum(axis=0), kind="stable"):
            if not group[task] and not forbidden[task, group].any():
                group[task] = True
                groups.append(group.copy())
    return np.unique(groups, axis=0)
