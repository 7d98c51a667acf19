"""Why no choice of networks serves all tasks, and the smallest budget or cost limit that would do."""

from __future__ import annotations

import numpy as np

from .posing import Posed
from .problem import Floats, Problem
from .request import Request
from .solvers import MAX_LISTED, MAX_PAIRWISE, best_split, listed_values, served_values


def explain_infeasible(posed: Posed, request: Request, budget: float) -> ValueError:
    """One sentence that names the smallest feasible budget and limit, where they can be computed."""
    needed = _cheapest(posed.problem)
    start = f"`budget` of {budget:g} cannot serve all tasks under these constraints"
    cost = float(request.cost) if isinstance(request.cost, (int, float)) and posed.networks is None else 1.0
    if 0 <= needed * cost <= budget * (1 + 1e-9):
        return ValueError(
            f"`solver` found nothing within the `budget` of {budget:g}, though there is; try solver='exact'"
        )
    if 0 <= needed < np.inf:
        return ValueError(f"{start}; the smallest budget that can is {needed * cost:g}")
    limit = _smallest_limit(posed, budget) if request.max_cost is not None else None
    if limit is not None:
        return ValueError(
            f"`max_cost` of {request.max_cost:g} leaves tasks unserved; the smallest that works is {limit:g}"
        )
    why = "no budget can" if needed == np.inf else "allow more networks or relax a constraint"
    return ValueError(f"{start}; {why}: look at `max_size`, `must_link`, `cannot_link`, `max_cost` and `allow_single`")


def _smallest_limit(posed: Posed, budget: float) -> float | None:
    networks = posed.networks
    if networks is None or posed.problem.n > MAX_LISTED:
        return None
    limits = np.unique(networks.cost)
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        problem = posed.problem.with_networks(networks.only(networks.cost <= limits[middle]))
        low, high = (low, middle) if _cheapest(problem) <= budget * (1 + 1e-9) else (middle + 1, high)
    return float(limits[low]) if low < len(limits) else None


def _cheapest(problem: Problem) -> float:
    """What serving all tasks costs at least, infinite if nothing does; −1 if there are too many tasks to say."""
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
    return -float(_repeated(worth)[-1])


def _repeated(worth: Floats) -> Floats:
    """The best worth of each set when it may be split into any number of sets."""
    best = worth
    while True:
        better = best_split(worth, best)
        if (better <= best).all():
            return best
        best = better
