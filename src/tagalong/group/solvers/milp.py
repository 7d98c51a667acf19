"""An integer program that decides which of the listed networks are chosen and which of them serves each task.

This is the formulation of Standley et al. (2020) that Fifty et al. (2021) cite for network selection. It can take any
constraint and any number of listed networks, but is slow if there are many.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from ..problem import TIE_TOLERANCE, Limits, SelectionProblem, Solution
from .search import exchange_networks, to_solution, total_value

OBJECTIVE_SCALE = 1e5  # turns the HiGHS tolerance of 1e-6 into 1e-11 of the largest score
MAX_VARIABLES = 50_000  # with more, HiGHS does not end on time


def is_small_program(problem: SelectionProblem) -> bool:
    # Returns whether the integer program applies and ends about on time.
    return problem.has_all_networks and np.isfinite(problem.listed.values).sum() <= MAX_VARIABLES


def solve_milp(problem: SelectionProblem, budget: int, limits: Limits) -> Solution | None:
    # A first choice, in case HiGHS finds no better one in time.
    rows = exchange_networks(problem, budget, [], limits)
    limits.report(f"integer program, {budget} networks", problem.scale * total_value(problem, rows))
    highs_rows, bound = _branch_and_cut(problem, budget, limits)
    if highs_rows and total_value(problem, highs_rows) >= total_value(problem, rows) - TIE_TOLERANCE:
        rows = highs_rows
    return to_solution(problem, rows, bound)


def _branch_and_cut(problem: SelectionProblem, budget: int, limits: Limits) -> tuple[list[int], float]:
    # Returns the rows of the best networks found in time, if any, and a bound, which is −inf if there are none.
    costs, unit_values = problem.listed.cost, problem.unit_values
    if not len(costs):
        return [], -np.inf
    bound = float(unit_values.max(axis=0).sum())  # with every unit in its best network
    if limits.should_stop:
        return [], bound

    # Variables: whether each network is chosen, and whether it serves a unit, for each unit that it can serve.
    rows, units = np.nonzero(np.isfinite(unit_values))
    count, pairs = len(costs), np.arange(len(rows))
    price = TIE_TOLERANCE / (2 * problem.n)  # eliminates networks that add nothing
    objective = -OBJECTIVE_SCALE * np.append(np.full(count, -price), unit_values[rows, units])

    # At most `budget` networks within the total cost; each unit is served once, by a network that is chosen.
    spent = np.zeros((2, count + len(pairs)))
    spent[0, :count] = 1.0
    if problem.max_total_cost < np.inf:
        spent[1, :count] = costs / problem.max_total_cost
    once = coo_matrix((np.ones(len(pairs)), (units, count + pairs)), shape=(len(problem.units), count + len(pairs)))
    signs = np.repeat([1.0, -1.0], len(pairs))
    columns = np.concatenate([count + pairs, rows])
    chosen = coo_matrix((signs, (np.tile(pairs, 2), columns)), shape=(len(pairs), count + len(pairs)))
    constraints = [
        LinearConstraint(spent, -np.inf, [budget, 1 + 1e-9]),
        LinearConstraint(once, 1, 1),
        LinearConstraint(chosen, -np.inf, 0),
    ]
    result = milp(
        objective,
        constraints=constraints,
        integrality=np.ones(len(objective)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "time_limit": max(limits.deadline - time.monotonic(), 0.01)},
    )
    if result.status == 2:  # infeasible
        return [], -np.inf
    if result.mip_dual_bound is not None:
        bound = min(bound, -result.mip_dual_bound / OBJECTIVE_SCALE + TIE_TOLERANCE / 2)
    if result.x is None:
        return [], bound
    return np.unique(rows[result.x[count:] > 0.5]).tolist(), bound
