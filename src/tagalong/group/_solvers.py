"""Which solver answers: by name, or by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._compact import MOST_TASKS as MOST_COMPACT
from ._compact import solve_compact
from ._dynamic import MOST_LISTED, MOST_PAIRWISE, fits_exact, solve_exact
from ._partition import MOST_TASKS as MOST_PARTITION
from ._partition import solve_partition
from ._problem import Problem, Solver
from ._search import solve_search

BY_NAME: dict[str, Solver] = {
    "exact": solve_exact,
    "lp": solve_partition,
    "milp": solve_compact,
    "search": solve_search,
}
EXACT_UP_TO = 12  # tasks: a tenth of a second for any budget; above, the linear programme is faster
PARTITION_UP_TO = 20  # tasks: some seconds


def choose_solver(name: str, problem: Problem, budgets: Sequence[float]) -> tuple[str, Solver]:
    """The solver's name and itself.

    Raises:
        ValueError: the one asked for does not fit the problem.
    """
    chosen = _by_size(problem, budgets) if name == "auto" else name
    unfit = _UNFIT[chosen](problem, budgets)
    if unfit:
        raise ValueError(f"`solver={chosen!r}` {unfit}; solver='auto' chooses one that fits")
    return chosen, BY_NAME[chosen]


def _by_size(problem: Problem, budgets: Sequence[float]) -> str:
    if problem.networks is not None:
        return "exact" if fits_exact(problem, max(budgets)) else "milp"
    if problem.n <= EXACT_UP_TO:
        return "exact"
    return "lp" if problem.n <= PARTITION_UP_TO else "search"


def _exact(problem: Problem, budgets: Sequence[float]) -> str:
    if fits_exact(problem, max(budgets)):
        return ""
    most = MOST_PAIRWISE if problem.networks is None else MOST_LISTED
    return f"needs at most {most} tasks and few different costs, found {problem.n} tasks"


def _lp(problem: Problem, budgets: Sequence[float]) -> str:
    if problem.networks is not None:
        return "needs scores by pair without costs by group and `cannot_link`"
    return f"needs at most {MOST_PARTITION} tasks, found {problem.n}" if problem.n > MOST_PARTITION else ""


def _milp(problem: Problem, budgets: Sequence[float]) -> str:
    if problem.networks is None and problem.n > MOST_COMPACT:
        return f"lists all groups and needs at most {MOST_COMPACT} tasks, found {problem.n}"
    return ""


def _search(problem: Problem, budgets: Sequence[float]) -> str:
    return "needs scores by pair without costs by group and `cannot_link`" if problem.networks is not None else ""


_UNFIT: dict[str, Callable[[Problem, Sequence[float]], str]] = {
    "exact": _exact,
    "lp": _lp,
    "milp": _milp,
    "search": _search,
}
