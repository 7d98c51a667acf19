"""Chooses a solver by name or by problem size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tagalong.errors import InvalidInput

from ..selection_problem import Limits, SelectionProblem, Solution, Solver
from .column_generation import MAX_TASKS as MAX_COLUMNS
from .column_generation import solve_by_column_generation
from .compact import MAX_TASKS as MAX_COMPACT
from .compact import solve_compact
from .dynamic_programming import MAX_LISTED, MAX_PAIRWISE, can_solve_exactly, solve_exact
from .local_search import solve_listed_search, solve_search
from .partition import MAX_TASKS as MAX_PARTITION
from .partition import prove_or_improve, solve_partition

BY_NAME: dict[str, Solver] = {
    "exact": solve_exact,
    "lp": solve_partition,
    "columns": solve_by_column_generation,
    "milp": solve_compact,
    "search": solve_search,
}
AUTO_SOLVER_HINT = "`solver='auto'` chooses a suitable one"
# The number of tasks up to which each solver is chosen, and the branch-and-bound nodes allowed in column generation.
MAX_EXACT_TASKS = 12  # takes about 0.1 seconds; with more tasks, the linear program is faster
MAX_PARTITION_TASKS, TRIED_NODES = 20, 5e6  # takes a few seconds; with more tasks, column generation is tried first
MAX_MANY_NODES_TASKS, MANY_NODES = 32, 1e7  # takes about 10 seconds
MAX_FEW_NODES_TASKS, FEW_NODES = 50, 5e5  # takes less than a second


def choose_solver(name: str, problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> tuple[str, Solver]:
    """Returns a solver and its name.

    Without a deadline, column generation is limited by the number of nodes instead of time, so results are
    reproducible.

    Raises:
        InvalidInput: If the requested solver cannot solve the problem.
    """
    if problem.relaxed is not None:
        if name not in ("auto", "search"):
            expected = f"supports at most {MAX_LISTED} tasks with `cannot_link` or per-group costs"
            raise InvalidInput(f"`solver={name!r}`", expected, str(problem.n), AUTO_SOLVER_HINT)
        return "search", solve_listed_search
    if name == "auto":
        return _choose_by_size(problem, budgets, limits)
    requirement = _unmet_requirement(name, problem, budgets)
    if requirement:
        raise InvalidInput(f"`solver={name!r}`", *requirement, hint=AUTO_SOLVER_HINT)
    return name, BY_NAME[name]


def _choose_by_size(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> tuple[str, Solver]:
    if problem.networks is not None:
        return ("exact", solve_exact) if can_solve_exactly(problem, max(budgets)) else ("milp", solve_compact)
    if problem.n <= MAX_EXACT_TASKS:
        return "exact", solve_exact
    if problem.n <= MAX_PARTITION_TASKS:
        return "lp", solve_partition
    if problem.n <= MAX_PARTITION:
        return "lp", _solve_columns_then_partition
    if problem.n <= MAX_COLUMNS and np.isfinite(limits.deadline):
        return "columns", solve_by_column_generation
    if problem.n <= MAX_FEW_NODES_TASKS:
        return "columns", partial(
            solve_by_column_generation, nodes=MANY_NODES if problem.n <= MAX_MANY_NODES_TASKS else FEW_NODES
        )
    return "search", solve_search


def _solve_columns_then_partition(
    problem: SelectionProblem, budgets: Sequence[float], limits: Limits
) -> list[Solution]:
    """Tries a short column generation first, and falls back to a table of all served sets."""
    return prove_or_improve(problem, budgets, solve_by_column_generation(problem, budgets, limits, TRIED_NODES), limits)


def _unmet_requirement(name: str, problem: SelectionProblem, budgets: Sequence[float]) -> tuple[str, str] | None:
    """Returns what the solver requires and what was found instead, or None if it can solve the problem."""
    listed, n = problem.networks is not None, problem.n
    if name == "exact" and not can_solve_exactly(problem, max(budgets)):
        largest = MAX_LISTED if listed else MAX_PAIRWISE
        return f"supports at most {largest} tasks and few distinct costs", f"{n} tasks"
    if name == "milp" and not listed and n > MAX_COMPACT:
        return f"supports at most {MAX_COMPACT} tasks because it lists all groups", str(n)
    if name in ("lp", "columns", "search") and listed:
        return "requires pairwise scores without `cannot_link` or costs per group", ""
    largest = {"lp": MAX_PARTITION, "columns": MAX_COLUMNS}.get(name, n)
    return (f"supports at most {largest} tasks", str(n)) if n > largest else None
