"""Explains why no choice of networks serves all tasks, and what budget or cost limit would be sufficient."""

from __future__ import annotations

import numpy as np

from tagalong.errors import InvalidInput

from .problem_building import ScaledProblem
from .selection_problem import Floats, SelectionProblem
from .selection_request import SelectionRequest
from .solvers import MAX_LISTED, MAX_PAIRWISE, best_split, listed_values, served_values


def explain_infeasible(scaled_problem: ScaledProblem, request: SelectionRequest, budget: float) -> InvalidInput:
    """Returns an error that suggests the smallest feasible budget or cost limit, if it can be computed."""
    needed = _min_total_cost(scaled_problem.problem)
    limited = f"no grouping with a `budget` of {budget:g}"
    expected = "can serve all tasks under these constraints"
    cost = float(request.cost) if isinstance(request.cost, (int, float)) and scaled_problem.networks is None else 1.0
    if 0 <= needed * cost <= budget * (1 + 1e-9):
        failed = f"found no grouping within the `budget` of {budget:g}, although one exists"
        return InvalidInput("the solver", failed, hint="try `solver='exact'`")
    if 0 <= needed < np.inf:
        return InvalidInput(limited, expected, hint=f"the smallest feasible budget is {needed * cost:g}")
    limit = _smallest_cost_limit(scaled_problem, budget) if request.max_cost is not None else None
    if limit is not None:
        hint = f"the smallest feasible value is {limit:g}"
        return InvalidInput(f"a `max_cost` of {request.max_cost:g}", "leaves some tasks unserved", hint=hint)
    constraints = "`max_size`, `must_link`, `cannot_link`, `max_cost` and `allow_single`"
    if needed == np.inf:
        return InvalidInput(limited, expected, hint=f"no budget is large enough, so check {constraints}")
    return InvalidInput(limited, expected, hint=f"allow more networks, or relax one of {constraints}")


def _smallest_cost_limit(scaled_problem: ScaledProblem, budget: float) -> float | None:
    networks = scaled_problem.networks
    if networks is None or scaled_problem.problem.n > MAX_LISTED:
        return None
    limits = np.unique(networks.cost)
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        problem = scaled_problem.problem.with_networks(networks.only(networks.cost <= limits[middle]))
        low, high = (low, middle) if _min_total_cost(problem) <= budget * (1 + 1e-9) else (middle + 1, high)
    return float(limits[low]) if low < len(limits) else None


def _min_total_cost(problem: SelectionProblem) -> float:
    """Returns the minimum cost of serving all tasks (infinity if impossible), or −1 if there are too many tasks."""
    if not problem.serves_all:
        return float("inf")
    if problem.networks is None:
        if problem.n > MAX_PAIRWISE:
            return -1.0
        worth = np.where(np.isfinite(served_values(problem)), -1.0, -np.inf)
    elif problem.n > MAX_LISTED:
        return -1.0
    else:
        costs, table = listed_values(problem, np.zeros(len(problem.networks.cost)))
        worth = np.where(np.isfinite(table), -costs[:, None], -np.inf).max(axis=0)
    worth[0] = 0.0
    return -float(_best_partition_values(worth)[-1])


def _best_partition_values(values: Floats) -> Floats:
    """Returns the best value of each set over all of its partitions."""
    best = values
    while True:
        better = best_split(values, best)
        if (better <= best).all():
            return best
        best = better
