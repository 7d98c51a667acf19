"""Solves set partitioning for up to 24 tasks as a linear program over all served sets, with a certificate.

The program maximizes Σ h(S) y(S) over served sets S. Each task is in exactly one set, and there are at most k sets.
Columns are added based on their reduced costs. The dual prices bound the value of any choice. Sets that cannot be part
of a better choice are dropped, and an integer program over the remaining sets finds the best choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..selection_problem import (
    TIE_TOLERANCE,
    Bools,
    Floats,
    InfeasibleError,
    Ints,
    Limits,
    SelectionProblem,
    Solution,
    membership,
    solution_value,
)
from .linear_programs import DualPrices, best_choice, find_prices
from .local_search import solve_search
from .served_sets import served_values
from .ties import break_ties

MAX_TASKS = 24  # needs 2^24 values of eight bytes
COLUMNS_PER_ROUND = 400
MAX_COLUMNS = 50_000  # in the integer program


def solve_partition(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """Returns the best choice for each budget. It is proven optimal unless time runs out or too many sets remain."""
    return prove_or_improve(problem, budgets, solve_search(problem, budgets, limits), limits)


def prove_or_improve(
    problem: SelectionProblem, budgets: Sequence[float], solutions: list[Solution], limits: Limits
) -> list[Solution]:
    """Proves or improves the solution found so far for each budget."""
    if all(solution.proven and solution.prices is not None for solution in solutions):
        return solutions
    try:
        values = served_values(problem, limits=limits)
    except TimeoutError:
        return solutions
    return [
        _improve_solution(problem, values, int(k), start, limits) for k, start in zip(budgets, solutions, strict=True)
    ]


def _improve_solution(
    problem: SelectionProblem, values: Floats, networks: int, start: Solution, limits: Limits
) -> Solution:
    try:
        found = _prove_solution(problem, values, networks, start, limits)
        if not found.proven or found.prices is None:
            return found
        ordered = break_ties(problem, networks, found, _usable_sets(problem, values, networks, found))
        return ordered or _with_fewest_networks(problem, values, found, limits)
    except TimeoutError:
        return start


def _usable_sets(problem: SelectionProblem, values: Floats, networks: int, solution: Solution) -> Bools:
    """Returns every served set that could be part of an equally good choice."""
    assert solution.prices is not None
    dual = DualPrices.from_prices(solution.prices)
    reduced = values - subset_sums(dual.tasks) - dual.network
    missing = solution_value(problem, solution.choices) - dual.bound(networks)
    rows = np.flatnonzero(reduced >= missing - 2 * TIE_TOLERANCE)
    return membership(rows[rows > 0], problem.n)


def _with_fewest_networks(problem: SelectionProblem, values: Floats, best: Solution, limits: Limits) -> Solution:
    """Returns an equally good solution with the fewest networks.

    The returned solution can differ from `best` only if a network's price is 0.
    """
    found = best
    least = solution_value(problem, best.choices) - TIE_TOLERANCE / 2
    while found.proven and found.prices is not None and found.prices[-1] <= TIE_TOLERANCE and len(best.choices) > 1:
        fewer = len(best.choices) - 1
        try:
            found = _prove_solution(problem, values, fewer, solve_search(problem, [fewer], limits)[0], limits)
        except InfeasibleError:
            break
        if solution_value(problem, found.choices) < least:
            break
        best = replace(best, choices=found.choices)
    return best


def _prove_solution(
    problem: SelectionProblem, values: Floats, networks: int, start: Solution, limits: Limits
) -> Solution:
    known = solution_value(problem, start.choices)
    columns = _initial_columns(values, problem, start)
    dual = _solve_dual(problem, values, columns, networks, limits)
    bound = dual.bound(networks)
    if bound - known <= TIE_TOLERANCE:
        return Solution(start.choices, bound, True, prices=dual.prices)
    # A choice that improves on the known one uses only columns whose reduced cost is within the gap.
    reduced = values - subset_sums(dual.tasks) - dual.network
    left = np.flatnonzero(reduced >= known - bound - TIE_TOLERANCE)
    left = left[left > 0]
    if bound > start.bound or len(left) > MAX_COLUMNS or limits.should_stop:
        return start if bound > start.bound else Solution(start.choices, bound, False, prices=dual.prices)
    return best_choice(problem, membership(left, problem.n), values[left], networks, start, dual, limits)


def _initial_columns(values: Floats, problem: SelectionProblem, start: Solution) -> Ints:
    """Returns the initial columns: the sets of the known choice and the most valuable sets."""
    n = problem.n
    links = np.array(problem.links, dtype=np.int64)
    known = np.array([choice.serves for choice in start.choices], dtype=np.int64)
    per_task = np.where(np.arange(2**n) > 0, values, -np.inf)
    best = np.argpartition(-per_task, min(COLUMNS_PER_ROUND, 2**n - 1))[:COLUMNS_PER_ROUND]
    columns: Ints = np.unique(np.concatenate([links, known, best, [2**n - 1]]))
    useful: Ints = columns[(columns > 0) & np.isfinite(values[columns])]
    return useful


def _solve_dual(problem: SelectionProblem, values: Floats, columns: Ints, networks: int, limits: Limits) -> DualPrices:
    """Generates columns until no set is profitable."""
    while True:
        dual = find_prices(problem, membership(columns, problem.n), values[columns], networks, limits)
        reduced = values - subset_sums(dual.tasks) - dual.network
        reduced[0] = -np.inf
        worst = float(reduced.max())
        if worst <= TIE_TOLERANCE / (10 * networks) or limits.should_stop:
            # At this network price, no set is profitable.
            return DualPrices(dual.tasks, dual.network + max(worst, 0.0))
        wanted = np.argpartition(-reduced, min(COLUMNS_PER_ROUND, len(reduced) - 1))[:COLUMNS_PER_ROUND]
        wanted = wanted[reduced[wanted] > 0]
        new = np.setdiff1d(wanted, columns)
        if not len(new):  # only rounding errors of HiGHS remain
            return DualPrices(dual.tasks, dual.network + max(worst, 0.0))
        columns = np.concatenate([columns, new])


def subset_sums(prices: Floats) -> Floats:
    """Returns the sum of prices for every set of tasks, indexed by bit mask."""
    sums = np.zeros(1)
    for price in prices:
        sums = np.concatenate([sums, sums + price])
    return sums
