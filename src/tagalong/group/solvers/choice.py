"""Chooses a solver, by name or by the size of the problem."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tagalong.errors import InvalidInput

from ..selection_problem import Limits, SelectionProblem, Solution, Solver
from .column_generation import MAX_TASKS as MAX_COLUMNS
from .column_generation import solve_columns
from .compact import MAX_TASKS as MAX_COMPACT
from .compact import solve_compact
from .dynamic import MAX_LISTED, MAX_PAIRWISE, fits_exact, solve_exact
from .local_search import solve_listed_search, solve_search
from .partition import MAX_TASKS as MAX_PARTITION
from .partition import prove_or_improve, solve_partition

BY_NAME: dict[str, Solver] = {
    "exact": solve_exact,
    "lp": solve_partition,
    "columns": solve_columns,
    "milp": solve_compact,
    "search": solve_search,
}
HINT = "`solver='auto'` chooses a suitable one"
# Numbers of tasks up to which a solver is chosen, and nodes of the branch and bound of column generation.
EXACT_UP_TO = 12  # takes a tenth of a second; with more tasks the linear program is faster
PARTITION_UP_TO, TRIED_NODES = 20, 5e6  # takes seconds; with more tasks, column generation is tried first
MANY_NODES_UP_TO, MANY_NODES = 32, 1e7  # takes about ten seconds
FEW_NODES_UP_TO, FEW_NODES = 50, 5e5  # takes less than a second


def choose_solver(name: str, problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> tuple[str, Solver]:
    """Returns the name of a solver, and the solver.

    Without a deadline, column generation is limited by a number of nodes, not by time, so that the same call gives the
    same answer.

    Raises:
        InvalidInput: the solver of this name cannot solve the problem.
    """
    if problem.relaxed is not None:
        if name not in ("auto", "search"):
            expected = f"needs at most {MAX_LISTED} tasks with costs by group or `cannot_link`"
            raise InvalidInput(f"`solver={name!r}`", expected, str(problem.n), HINT)
        return "search", solve_listed_search
    if name == "auto":
        return _by_size(problem, budgets, limits)
    requirement = _unmet_requirement(name, problem, budgets)
    if requirement:
        raise InvalidInput(f"`solver={name!r}`", *requirement, hint=HINT)
    return name, BY_NAME[name]


def _by_size(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> tuple[str, Solver]:
    if problem.networks is not None:
        return ("exact", solve_exact) if fits_exact(problem, max(budgets)) else ("milp", solve_compact)
    if problem.n <= EXACT_UP_TO:
        return "exact", solve_exact
    if problem.n <= PARTITION_UP_TO:
        return "lp", solve_partition
    if problem.n <= MAX_PARTITION:
        return "lp", _columns_then_all
    if problem.n <= MAX_COLUMNS and np.isfinite(limits.deadline):
        return "columns", solve_columns
    if problem.n <= FEW_NODES_UP_TO:
        return "columns", partial(solve_columns, nodes=MANY_NODES if problem.n <= MANY_NODES_UP_TO else FEW_NODES)
    return "search", solve_search


def _columns_then_all(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """Tries a short column generation, then the table of all served sets if that is not enough."""
    return prove_or_improve(problem, budgets, solve_columns(problem, budgets, limits, TRIED_NODES), limits)


def _unmet_requirement(name: str, problem: SelectionProblem, budgets: Sequence[float]) -> tuple[str, str] | None:
    """Returns what the solver of this name needs, and what was found; None if it can solve the problem."""
    listed, n = problem.networks is not None, problem.n
    if name == "exact" and not fits_exact(problem, max(budgets)):
        largest = MAX_LISTED if listed else MAX_PAIRWISE
        return f"needs at most {largest} tasks and few different costs", f"{n} tasks"
    if name == "milp" and not listed and n > MAX_COMPACT:
        return f"lists all groups and needs at most {MAX_COMPACT} tasks", str(n)
    if name in ("lp", "columns", "search") and listed:
        return "needs scores by pair without costs by group and `cannot_link`", ""
    largest = {"lp": MAX_PARTITION, "columns": MAX_COLUMNS}.get(name, n)
    return (f"needs at most {largest} tasks", str(n)) if n > largest else None
