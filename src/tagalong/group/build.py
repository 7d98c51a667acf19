"""Converts scores and options to a problem for the solvers, with scaled scores to maximize and tasks as integers.

Solvers use pairwise scores if all groups up to a size may be trained. Otherwise, they use a list of all networks, or of
only the promising ones if there are too many to list. For many tasks, `solve` then chooses "search" or "milp".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from tagalong.errors import InvalidInput

from .groups import Group
from .problem import MAX_LISTED, Bools, Floats, Limits, NetworkChoice, Networks, SelectionProblem, membership
from .scores import Scores
from .solvers import can_solve_exactly, solve_search

Links = Collection[Collection[str]]
MAX_COMPLETE_PROGRAM = 10  # tasks for which an integer program can consider all groups
POOL_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # budgets of the searches for promising groups


def build_problem(
    scores: Scores,
    limits: Limits,
    *,
    list_networks: bool = False,
    max_size: int | None = None,
    max_cost: float | None = None,
    max_total_cost: float | None = None,
    must_link: Links = (),
    cannot_link: Links = (),
) -> SelectionProblem:
    """Builds the problem from checked scores and options. For most options, see `select_groups`.

    Args:
        limits: the limits on the search for promising groups.
        list_networks: whether to list the networks even if solvers could do with pairwise scores.
    """
    tasks, n = scores.tasks, len(scores.tasks)
    alone = n == 1 or scores.singles

    # If all networks have the same cost, a limit on the sum limits their number.
    same_cost = scores.candidates is None and isinstance(scores.cost, (int, float))
    affordable, limit = n, np.inf if max_total_cost is None else max_total_cost
    if same_cost:
        affordable, limit = int(min(n, limit * (1 + 1e-9) / scores.cost_of(frozenset()))), np.inf
        if max_cost is not None and scores.cost_of(frozenset()) > max_cost:
            raise InvalidInput("max_cost", "must be at least `cost`, the cost of every network", repr(max_cost))
    problem = SelectionProblem(
        n=n,
        scores=np.zeros((n, n)),
        networks=None,
        units=linked_units(tasks, must_link),
        max_size=min(n, max_size or n),
        max_networks=affordable,
        max_total_cost=limit,
        list_more=None,
        scale=1.0,
    )
    weights = np.array([float(scores.weights.get(task, 1.0)) for task in tasks])

    def allowed_networks(trains: Bools, values: Floats, cost: Floats) -> Networks:
        """Returns the networks that no option forbids. The option `cost` applies where the cost is NaN."""
        size = trains.sum(axis=1)
        allowed = (size <= problem.max_size) & (alone | (size > 1))
        for link in cannot_link:
            allowed &= trains[:, [tasks.index(task) for task in set(link)]].sum(axis=1) < 2
        cost = cost.copy()
        for row in np.flatnonzero(allowed & np.isnan(cost)):
            cost[row] = scores.cost_of(frozenset(tasks[i] for i in np.flatnonzero(trains[row])))
        if max_cost is not None:
            allowed &= cost <= max_cost * (1 + 1e-9)
        rows = np.flatnonzero(allowed & ~np.isnan(cost))  # networks that a mapping of costs does not list are left out
        return Networks(trains[rows], values[rows], cost[rows], rows)

    if scores.candidates is not None:
        trains = np.array([[task in candidate.trains for task in tasks] for candidate in scores.candidates])
        values = np.array([[c.values.get(task, np.nan) for task in tasks] for c in scores.candidates], dtype=np.float64)
        values *= weights
        scale = scores.sign * _largest(values)
        values = np.where(np.isnan(values), -np.inf, values / scale)
        cost = np.array([candidate.cost for candidate in scores.candidates], dtype=np.float64)
        return replace(problem, networks=allowed_networks(trains, values, cost), scale=scale)

    # Results of whole groups take precedence over pairwise scores.
    assert scores.matrix is not None
    forbidden_alone = np.eye(n, dtype=bool) & (not alone)
    pairs = weights * np.where(forbidden_alone, 0.0, np.nan_to_num(scores.matrix))
    group_scores = {
        group: weights * [results.get(task, np.nan) for task in tasks]
        for group, results in scores.group_results.items()
    }
    scale = scores.sign * _largest(np.array([*pairs, *group_scores.values()]))
    problem = replace(problem, scores=np.where(forbidden_alone, -np.inf, pairs / scale), scale=scale)

    # Pairwise scores are enough if every group up to a size may be trained, at a cost that does not matter.
    limited = not same_cost and (max_cost is not None or max_total_cost is not None)
    if not (limited or isinstance(scores.cost, Mapping) or cannot_link or scores.group_results or list_networks):
        return problem

    def list_groups(trains: Bools) -> Networks:
        size = trains.sum(axis=1, keepdims=True)
        values = np.where(
            size == 1, problem.single_task_scores, trains @ problem.pairwise_scores / np.maximum(size - 1, 1)
        )
        for group, results in group_scores.items():
            row = (trains == [task in group for task in tasks]).all(axis=1)
            values[row] = np.where(np.isnan(results), values[row], results / scale)
        return allowed_networks(trains, np.where(trains, values, -np.inf), np.full(len(trains), np.nan))

    if n <= MAX_LISTED:
        listed = replace(problem, networks=list_groups(membership(np.arange(1, 2**n), n)))
        if n <= MAX_COMPLETE_PROGRAM or scores.group_results or can_solve_exactly(listed):
            return listed
    if scores.group_results:
        expected = f"must have at most {MAX_LISTED} tasks if they include results for groups of three or more"
        raise InvalidInput("scores", expected, str(n), "omit some tasks, or list the networks as Candidates")
    forbidden = np.zeros((n, n), dtype=bool)
    for link in cannot_link:
        linked = np.isin(tasks, list(link))
        forbidden |= np.outer(linked, linked) & ~np.eye(n, dtype=bool)
    return replace(problem, networks=list_groups(_promising_groups(problem, forbidden, limits)), list_more=list_groups)


def to_group(scores: Scores, problem: SelectionProblem, choice: NetworkChoice) -> Group:
    """Converts a chosen network back to task names."""
    trains = frozenset(scores.tasks[i] for i in choice.trains)
    cost = scores.cost_of(trains)
    if scores.candidates is not None and problem.networks is not None:
        cost = float(problem.networks.cost[choice.row])
    return Group(trains, (scores.tasks[i] for i in choice.serves), cost)


def linked_units(tasks: tuple[str, ...], links: Iterable[Iterable[str]]) -> tuple[tuple[int, ...], ...]:
    """Returns the sets of tasks that links join, directly or indirectly, ordered by their first task."""
    unit_of = list(range(len(tasks)))
    for link in links:
        joined = {unit_of[tasks.index(task)] for task in link}
        unit_of = [min(joined) if unit in joined else unit for unit in unit_of]
    return tuple(tuple(i for i, other in enumerate(unit_of) if other == unit) for unit in sorted(set(unit_of)))


def _promising_groups(problem: SelectionProblem, forbidden: Bools, limits: Limits) -> Bools:
    """Returns all pairs, groups of tasks with high affinity, and groups found by a search that ignores costs.

    Args:
        problem: the problem, with pairwise scores.
        forbidden: the pairs of tasks that must not be trained in the same network.
        limits: the limits of the entire selection, of whose time the search takes a third at most.
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
    budgets = [budget for budget in POOL_BUDGETS if budget <= n]
    for solution in solve_search(problem, budgets, replace(limits.share(3), seed=0, kicks=5)):
        for choice in () if solution is None else solution.choices:
            trained = list(choice.trains)
            while trained:
                groups.append(np.isin(np.arange(n), trained))
                # Tasks in forbidden pairs are removed first, and then those with the lowest affinity.
                inside = np.ix_(trained, trained)
                fit = similarity[inside].sum(axis=1) - 1e6 * forbidden[inside].any(axis=1)
                trained.pop(int(fit.argmin()))
    return np.unique(groups, axis=0)


def _largest(values: Floats) -> float:
    """Returns the largest absolute score [networks or sources, tasks], or 1 if all are zero."""
    largest = float(np.abs(np.nan_to_num(values)).max()) or 1.0
    if not math.isfinite(2 * values.shape[1] * largest):
        raise InvalidInput("scores", "must have a finite sum", f"values up to {largest:.3g}")
    return largest
