"""Chooses a solver by name or by problem size."""

from __future__ import annotations

from collections.abc import Sequence

from tagalong.errors import InvalidInput

from ..selection_problem import SelectionProblem, Solver
from .compact import MAX_TASKS as MAX_COMPACT
from .compact import solve_compact
from .dynamic_programming import MAX_LISTED, MAX_PAIRWISE, can_solve_exactly, solve_exact
from .local_search import solve_listed_search, solve_search

BY_NAME: dict[str, Solver] = {
    "exact": solve_exact,
    "milp": solve_compact,
    "search": solve_search,
}
AUTO_SOLVER_HINT = "`solver='auto'` chooses a suitable one"


def choose_solver(name: str, problem: SelectionProblem, budgets: Sequence[float]) -> tuple[str, Solver]:
    """Returns a solver and its name.

    Raises:
        InvalidInput: If the requested solver cannot solve the problem.
    """
    if problem.relaxed is not None:
        if name not in ("auto", "search"):
            expected = f"supports at most {MAX_LISTED} tasks with `cannot_link` or per-group costs"
            raise InvalidInput(f"`solver={name!r}`", expected, str(problem.n), AUTO_SOLVER_HINT)
        return "search", solve_listed_search
    if name == "auto" and can_solve_exactly(problem, max(budgets)):
        name = "exact"
    elif name == "auto":
        name = "milp" if problem.networks is not None else "search"
    requirement = _unmet_requirement(name, problem, budgets)
    if requirement:
        raise InvalidInput(f"`solver={name!r}`", *requirement, hint=AUTO_SOLVER_HINT)
    return name, BY_NAME[name]


def _unmet_requirement(name: str, problem: SelectionProblem, budgets: Sequence[float]) -> tuple[str, str] | None:
    """Returns what the solver requires and what was found instead, or None if it can solve the problem."""
    listed, n = problem.networks is not None, problem.n
    if name == "exact" and not can_solve_exactly(problem, max(budgets)):
        largest = MAX_LISTED if listed else MAX_PAIRWISE
        return f"supports at most {largest} tasks and few distinct costs", f"{n} tasks"
    if name == "milp" and not listed and n > MAX_COMPACT:
        return f"supports at most {MAX_COMPACT} tasks because it lists all groups", str(n)
    if name == "search" and listed:
        return "requires pairwise scores without `cannot_link` or costs per group", ""
    return None
