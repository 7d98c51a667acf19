"""Solves a compact binary program that decides which networks are chosen and which of them serves each task.

This is the formulation of Standley et al. (2020) that Fifty et al. (2021) cite for network selection. This solver works
for any list of candidates and any number of tasks. It is slow when there are many groups and is therefore mainly used
as a cross-check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_matrix, hstack, vstack

from ..selection_problem import (
    TIE_TOLERANCE,
    InfeasibleError,
    Ints,
    Limits,
    NetworkChoice,
    Networks,
    SelectionProblem,
    Solution,
    solution_value,
    tasks_in_mask,
    to_bit_mask,
)
from .local_search import solve_search
from .served_sets import all_networks

TIME_LIMIT_MESSAGE = "`time_limit` was too short to find any choice of networks; increase it"
OBJECTIVE_SCALE = 1e5  # turns the HiGHS tolerance of 1e-6 into 1e-11 of the largest score
POLL_SECONDS = 0.05  # between calls of `stop`
MAX_TASKS = 10  # with pairwise scores, for which all groups have to be listed


def solve_compact(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """Returns the best choice for each budget, found by branch and cut."""
    listed = problem if problem.networks is not None else problem.with_networks(all_networks(problem))
    if not listed.serves_all:
        raise InfeasibleError
    if problem.networks is not None:
        return [_solve_budget(listed, budget, limits) for budget in budgets]
    try:
        found = [_solve_budget(listed, budget, limits) for budget in budgets]
    except TimeoutError:
        return solve_search(problem, budgets, limits)
    return [
        Solution(tuple(choice._replace(row=-1) for choice in solution.choices), solution.bound, solution.proven)
        for solution in found
    ]


def _solve_budget(problem: SelectionProblem, budget: float, limits: Limits) -> Solution:
    networks = problem.networks
    assert networks is not None
    row, task = np.nonzero(np.isfinite(networks.values))
    count = len(networks.cost) + len(row)
    price = np.full(len(networks.cost), TIE_TOLERANCE / (2 * problem.n))  # eliminates networks that add nothing
    options: dict[str, float] = {"mip_rel_gap": 0.0}
    if np.isfinite(limits.deadline):
        options["time_limit"] = max(limits.seconds_left, 0.01)
    result = _run_stoppable(
        limits,
        lambda: milp(
            -OBJECTIVE_SCALE * np.append(-price, networks.values[row, task]),
            constraints=_make_constraints(problem, networks, row, task, budget),
            integrality=np.ones(count),
            bounds=Bounds(0, 1),
            options=options,
        ),
    )
    if result.status == 2:
        raise InfeasibleError
    if result.x is None:
        raise TimeoutError(TIME_LIMIT_MESSAGE)
    return _read_solution(problem, networks, row, task, result)


def _read_solution(
    problem: SelectionProblem, networks: Networks, rows: Ints, tasks: Ints, result: OptimizeResult
) -> Solution:
    serving = result.x[len(networks.cost) :] > 0.5
    serves: dict[int, list[int]] = {}
    for which, served in zip(rows[serving].tolist(), tasks[serving].tolist(), strict=True):
        serves.setdefault(which, []).append(served)
    choices = tuple(
        NetworkChoice(to_bit_mask(np.flatnonzero(networks.trains[which])), to_bit_mask(served), which)
        for which, served in sorted(serves.items())
    )
    value = solution_value(problem, choices)
    most = float(networks.values.max(axis=0).sum())  # with every task in its best network
    proven = (
        most
        if result.mip_dual_bound is None
        else min(most, float(-result.mip_dual_bound) / OBJECTIVE_SCALE + TIE_TOLERANCE / 2)
    )
    bound = max(proven, value)
    return Solution(choices, bound, bound - value <= TIE_TOLERANCE)


def _make_constraints(
    problem: SelectionProblem, networks: Networks, rows: Ints, tasks: Ints, budget: float
) -> list[LinearConstraint]:
    """Returns the constraints: the budget is respected, each task is served by one network, and links are not split."""
    pairs, count = len(rows), len(networks.cost)
    number = np.arange(pairs)
    cost = coo_matrix(np.append(networks.cost, np.zeros(pairs))[None])
    once = coo_matrix((np.ones(pairs), (tasks, count + number)), shape=(problem.n, count + pairs))
    exists = hstack(
        [
            coo_matrix((-np.ones(pairs), (number, rows)), shape=(pairs, count)),
            coo_matrix((np.ones(pairs), (number, number)), shape=(pairs, pairs)),
        ]
    )
    constraints = [
        LinearConstraint(cost, -np.inf, budget * (1 + 1e-9)),
        LinearConstraint(once, 1, 1),
        LinearConstraint(exists, -np.inf, 0),
    ]
    linked = _linked_variables(problem, rows, tasks)
    if linked:
        equalities = [
            coo_matrix(([1.0, -1.0], ([0, 0], [count + a, count + b])), shape=(1, count + pairs)) for a, b in linked
        ]
        constraints.append(LinearConstraint(vstack(equalities), 0, 0))
    return constraints


def _linked_variables(problem: SelectionProblem, rows: Ints, tasks: Ints) -> list[tuple[int, int]]:
    """Returns pairs of variables that must be equal because they refer to linked tasks in the same network."""
    where = {pair: i for i, pair in enumerate(zip(rows.tolist(), tasks.tolist(), strict=True))}
    neighbors = {one: other for link in map(tasks_in_mask, problem.links) for one, other in pairwise(link)}
    return [(i, where[which, neighbors[one]]) for (which, one), i in where.items() if one in neighbors]


def _run_stoppable(limits: Limits, function: Callable[[], OptimizeResult]) -> OptimizeResult:
    """Runs a function in a thread and polls `stop`.

    HiGHS cannot be interrupted, so the thread is abandoned if the solver must stop.
    """
    if limits.stop is None:
        return function()
    outcome: list[OptimizeResult | BaseException] = []

    def run_function() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # re-raised below
            outcome.append(error)

    worker = threading.Thread(target=run_function, daemon=True)
    worker.start()
    while not outcome:
        if limits.stop():
            raise TimeoutError("stopped before any grouping was found")
        worker.join(POLL_SECONDS)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
