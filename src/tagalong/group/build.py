"""Converts scores and options to a problem for the solvers, with scaled scores to maximize and tasks as integers.

Solvers use pairwise scores if all groups up to a size may be trained. Otherwise, they use a list of all networks, or of
only the promising ones if there are too many to list.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tagalong.errors import InvalidInput

from .groups import Group
from .problem import MAX_LISTED, Bools, Floats, NetworkChoice, Networks, SelectionProblem, membership
from .scores import Scores
from .solvers import can_solve_exactly

Links = Collection[Collection[str]]
MAX_COMPLETE_PROGRAM = 10  # tasks for which an integer program can consider all groups


@dataclass(frozen=True)
class Constraints:
    """The networks that may be chosen. For the attributes, see `select_groups`."""

    max_size: int | None
    max_cost: float | None
    max_total_cost: float | None
    must_link: Links
    cannot_link: Links

    def allowed_networks(self, scores: Scores, trains: Bools, values: Floats, cost: Floats) -> Networks:
        """Returns the networks that no constraint forbids. The option `cost` applies where the cost is NaN."""
        size = trains.sum(axis=1)
        allowed = (size <= (self.max_size or len(scores.tasks))) & ((size > 1) | scores.allows_single)
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
        """Returns the pairs of tasks that must not be trained in the same network."""
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
    same_cost = scores.cost if scores.candidates is None and isinstance(scores.cost, (int, float)) else None
    if same_cost is not None:
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
    limited = same_cost is None and (constraints.max_cost or constraints.max_total_cost)
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
        if n <= MAX_COMPLETE_PROGRAM or can_solve_exactly(listed):
            return listed
    promising = _promising_groups(problem, constraints.forbidden_pairs(tasks))
    return replace(problem, networks=list_groups(promising), list_more=list_groups)


def to_group(scores: Scores, problem: SelectionProblem, choice: NetworkChoice) -> Group:
    """Converts a chosen network back to task names."""
    trains = frozenset(scores.tasks[i] for i in choice.trains)
    cost = scores.cost_of(trains) if scores.candidates is None else float(problem.listed.cost[choice.row])
    return Group(trains, (scores.tasks[i] for i in choice.serves), cost)


def linked_units(tasks: tuple[str, ...], links: Iterable[Iterable[str]]) -> tuple[tuple[int, ...], ...]:
    """Returns the sets of tasks that links join, directly or indirectly, ordered by their first task."""
    unit_of = list(range(len(tasks)))
    for link in links:
        joined = {unit_of[tasks.index(task)] for task in link}
        unit_of = [min(joined) if unit in joined else unit for unit in unit_of]
    return tuple(tuple(i for i, other in enumerate(unit_of) if other == unit) for unit in sorted(set(unit_of)))


def _promising_groups(problem: SelectionProblem, forbidden: Bools) -> Bools:
    """Returns all pairs, and for each unit the groups with the tasks that fit it best.

    Args:
        problem: the problem, with pairwise scores.
        forbidden: the pairs of tasks that must not be trained in the same network.
    """
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
