"""Solvers that find the best networks for a problem, with a proof of optimality or a bound.

`exact` is a dynamic program over sets of tasks, `milp` an integer program over listed networks, and `search` a local
search over partitions of the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from tagalong.errors import InvalidInput

from ..problem import MAX_LISTED, Limits, SelectionProblem, Solution
from .exact import MAX_PAIRWISE
from .exact import MAX_TIES as MAX_TIES
from .exact import can_solve_exactly as can_solve_exactly
from .exact import solve_exact as solve_exact
from .milp import solve_milp
from .search import solve_search as solve_search

SOLVER_HINT = "`solver='auto'` chooses a suitable one"
SOLVERS = {"exact": solve_exact, "milp": solve_milp, "search": solve_search}


def solve(
    problem: SelectionProblem, budgets: Sequence[int], solver: str, limits: Limits
) -> tuple[str, list[Solution | None]]:
    """Returns the name of the solver and its solution for each budget, or None where the budget is too small.

    Raises:
        InvalidInput: If the requested solver cannot solve the problem.
        TimeoutError: If nothing was found in time.
    """
    budgets = [min(budget, problem.max_networks) for budget in budgets]
    can_be_exact = can_solve_exactly(problem)
    if solver == "auto" and can_be_exact:
        solver = "exact"
    elif solver == "auto":
        solver = "search" if problem.networks is None else "milp"
    if solver == "exact" and not can_be_exact:
        size = MAX_PAIRWISE if problem.networks is None else MAX_LISTED
        expected = f"supports at most {size} tasks without `max_total_cost`"
        raise InvalidInput("`solver='exact'`", expected, f"{problem.n} tasks", SOLVER_HINT)
    if solver == "search" and problem.networks is not None:
        expected = "requires pairwise scores without `cannot_link` or costs per group"
        raise InvalidInput("`solver='search'`", expected, hint=SOLVER_HINT)
    try:
        return solver, SOLVERS[solver](problem, budgets, limits)
    except TimeoutError:
        if solver == "milp":
            raise
        solver = "search" if problem.networks is None else "milp"
        return solver, SOLVERS[solver](problem, budgets, limits)
