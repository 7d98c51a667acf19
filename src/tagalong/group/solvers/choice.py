"""Which solver answers: by name, or by size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..problem import Limits, Problem, Solution, Solver
from .columns import MOST_TASKS as MOST_COLUMNS
from .columns import solve_columns
from .compact import MOST_TASKS as MOST_COMPACT
from .compact import solve_compact
from .dynamic import MOST_LISTED, MOST_PAIRWISE, fits_exact, solve_exact
from .local_search import solve_listed_search, solve_search
from .partition import MOST_TASKS as MOST_PARTITION
from .partition import improve, solve_partition

BY_NAME: dict[str, Solver] = {
    "exact": solve_exact,
    "lp": solve_partition,
    "columns": solve_columns,
    "milp": solve_compact,
    "search": solve_search,
}
EXACT_UP_TO = 12  # tasks: a tenth of a second for any budget; above, the linear programme is faster
PARTITION_UP_TO, TRIED_NODES = 20, 5e6  # tasks: some seconds for the table of all sets; above, that many first
PATIENT_UP_TO, MANY_NODES = 32, 1e7  # tasks, and nodes of the branch and bound: some ten seconds
BRIEF_UP_TO, FEW_NODES = 50, 5e5  # less than a second


def choose_solver(name: str, problem: Problem, budgets: Sequence[float], limits: Limits) -> tuple[str, Solver]:
    """The solver's name and itself. How long column generation may take by itself is counted in nodes, not seconds,
    so that the same call gives the same answer; with a deadline it takes all the time there is.

    Raises:
        ValueError: the one asked for does not fit the problem.
    """
    if problem.relaxed is not None:
        if name not in ("auto", "search"):
            raise ValueError(
                f"`solver={name!r}` needs at most {MOST_LISTED} tasks with costs by group or `cannot_link`, "
                f"found {problem.n}; solver='auto' chooses one that fits"
            )
        return "search", solve_listed_search
    if name == "auto":
        return _by_size(problem, budgets, limits)
    unfit = _unfit(name, problem, budgets)
    if unfit:
        raise ValueError(f"`solver={name!r}` {unfit}; solver='auto' chooses one that fits")
    return name, BY_NAME[name]


def _by_size(problem: Problem, budgets: Sequence[float], limits: Limits) -> tuple[str, Solver]:
    if problem.networks is not None:
        return ("exact", solve_exact) if fits_exact(problem, max(budgets)) else ("milp", solve_compact)
    if problem.n <= EXACT_UP_TO:
        return "exact", solve_exact
    if problem.n <= PARTITION_UP_TO:
        return "lp", solve_partition
    if problem.n <= MOST_PARTITION:
        return "lp", _columns_then_all
    if problem.n <= MOST_COLUMNS and np.isfinite(limits.deadline):
        return "columns", solve_columns
    if problem.n <= BRIEF_UP_TO:
        return "columns", partial(solve_columns, nodes=MANY_NODES if problem.n <= PATIENT_UP_TO else FEW_NODES)
    return "search", solve_search


def _columns_then_all(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The table of all served sets only where a short column generation has not settled it."""
    return improve(problem, budgets, solve_columns(problem, budgets, limits, TRIED_NODES), limits)


def _unfit(name: str, problem: Problem, budgets: Sequence[float]) -> str:
    """What the solver of this name needs and the problem does not have; nothing if it fits."""
    listed, n = problem.networks is not None, problem.n
    if name == "exact" and not fits_exact(problem, max(budgets)):
        return (
            f"needs at most {MOST_LISTED if listed else MOST_PAIRWISE} tasks and few different costs, found {n} tasks"
        )
    if name == "milp" and not listed and n > MOST_COMPACT:
        return f"lists all groups and needs at most {MOST_COMPACT} tasks, found {n}"
    if name in ("lp", "columns", "search") and listed:
        return "needs scores by pair without costs by group and `cannot_link`"
    most = {"lp": MOST_PARTITION, "columns": MOST_COLUMNS}.get(name, n)
    return f"needs at most {most} tasks, found {n}" if n > most else ""
