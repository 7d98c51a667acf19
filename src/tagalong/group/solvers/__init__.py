"""Solvers that find the best networks for a problem, with a proof of optimality or a bound.

`exact` is a dynamic program over sets of tasks, `milp` an integer program over listed networks, and `search` a local
search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tagalong.errors import InvalidInput

from ..problem import MAX_PAIRWISE, Limits, SelectionProblem, Solution
from ..scores import MAX_LISTED
from .exact import solve_exact
from .milp import is_small_program, solve_milp
from .search import solve_search

MAX_KICKS = 320  # in total over all budgets
SOLVER_HINT = "`solver='auto'` chooses a suitable one"


def solve(
    problem: SelectionProblem, budgets: Sequence[int], solver: str, limits: Limits
) -> tuple[str, list[Solution | None]]:
    """Returns the name of the solver and its solution for each budget, or None where the budget is too small.

    Raises:
        InvalidInput: If the requested solver cannot solve the problem.
    """
    budgets = [min(budget, problem.max_networks) for budget in budgets]
    if solver == "auto":
        solver = "milp" if problem.networks is not None and is_small_program(problem) else "search"
        if problem.can_be_exact:
            solver = "exact"
    if solver == "exact" and not problem.can_be_exact:
        size = MAX_PAIRWISE if problem.networks is None else MAX_LISTED
        expected = f"supports at most {size} tasks without `max_total_cost`"
        raise InvalidInput("`solver='exact'`", expected, f"{problem.n} tasks", SOLVER_HINT)
    if solver == "milp" and not problem.has_all_networks:
        raise InvalidInput("`solver='milp'`", "requires few tasks, or listed networks", hint=SOLVER_HINT)

    if solver == "exact":
        try:
            return solver, solve_exact(problem, budgets, limits)
        except TimeoutError:
            solver = "search"

    # The budgets share the time, and the random changes from which a local search starts again.
    kicks = min(limits.kicks, -(-MAX_KICKS // len(budgets)))
    solve_budget = solve_milp if solver == "milp" else solve_search
    solutions = []
    for i, budget in enumerate(budgets):
        share = replace(limits.share(len(budgets) - i), kicks=kicks)
        solutions.append(solve_budget(problem, budget, share))
    return solver, solutions
