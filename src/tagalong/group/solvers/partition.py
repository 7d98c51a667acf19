"""Set partition as a linear programme over all served sets, with a certificate; n up to about 24.

Maximise Σ h(S) y(S) over served sets S, each task in exactly one, at most k sets. Columns enter when their reduced
cost says so; the dual vector bounds every choice, and columns that it rules out are dropped before the integer
programme over the few that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..problem import TIE, Bools, Floats, Infeasible, Ints, Limits, Problem, Solution, membership, solution_value
from .local_search import solve_search
from .programmes import Dual, best_choice, find_prices
from .served_sets import served_values
from .ties import first_in_order

MOST_TASKS = 24  # 2^24 values of eight bytes
ADDED = 400  # columns per round
MOST_COLUMNS = 50_000  # in the integer programme


def solve_partition(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The best choice for each budget, proven unless time runs out or too many columns stay in doubt."""
    return improve(problem, budgets, solve_search(problem, budgets, limits), limits)


def improve(problem: Problem, budgets: Sequence[float], found: list[Solution], limits: Limits) -> list[Solution]:
    """The same, where something is known already."""
    if all(solution.proven and solution.prices is not None for solution in found):
        return found
    try:
        values = served_values(problem, limits=limits)
    except TimeoutError:
        return found
    return [_improved(problem, values, int(k), start, limits) for k, start in zip(budgets, found, strict=True)]


def _improved(problem: Problem, values: Floats, networks: int, start: Solution, limits: Limits) -> Solution:
    try:
        found = _proven(problem, values, networks, start, limits)
        if not found.proven or found.prices is None:
            return found
        ordered = first_in_order(problem, networks, found, _in_question(problem, values, networks, found))
        return ordered or _fewest(problem, values, found, limits)
    except TimeoutError:
        return start


def _in_question(problem: Problem, values: Floats, networks: int, found: Solution) -> Bools:
    """Every served set that a choice within a tie of this one can use."""
    assert found.prices is not None
    dual = Dual.of(found.prices)
    reduced = values - subset_sums(dual.tasks) - dual.network
    missing = solution_value(problem, found.choices) - dual.bound(networks)
    rows = np.flatnonzero(reduced >= missing - 2 * TIE)
    return membership(rows[rows > 0], problem.n)


def _fewest(problem: Problem, values: Floats, best: Solution, limits: Limits) -> Solution:
    """Among equals one of the fewest networks: they can tie only where a network is free."""
    found = best
    least = solution_value(problem, best.choices) - TIE / 2
    while found.proven and found.prices is not None and found.prices[-1] <= TIE and len(best.choices) > 1:
        fewer = len(best.choices) - 1
        try:
            found = _proven(problem, values, fewer, solve_search(problem, [fewer], limits)[0], limits)
        except Infeasible:
            break
        if solution_value(problem, found.choices) < least:
            break
        best = replace(best, choices=found.choices)
    return best


def _proven(problem: Problem, values: Floats, networks: int, start: Solution, limits: Limits) -> Solution:
    known = solution_value(problem, start.choices)
    columns = _first_columns(values, problem, start)
    dual = _solve_dual(problem, values, columns, networks, limits)
    bound = dual.bound(networks)
    if bound - known <= TIE:
        return Solution(start.choices, bound, True, prices=dual.prices)
    # Any choice better than the known one uses only columns whose reduced cost is within the gap.
    reduced = values - subset_sums(dual.tasks) - dual.network
    left = np.flatnonzero(reduced >= known - bound - TIE)
    left = left[left > 0]
    if bound > start.bound or len(left) > MOST_COLUMNS or limits.over:
        return start if bound > start.bound else Solution(start.choices, bound, False, prices=dual.prices)
    return best_choice(problem, membership(left, problem.n), values[left], networks, start, dual, limits)


def _first_columns(values: Floats, problem: Problem, start: Solution) -> Ints:
    """The known choice and the most valuable sets, whatever they are: any start will do."""
    n = problem.n
    links = np.array(problem.links, dtype=np.int64)
    known = np.array([choice.serves for choice in start.choices], dtype=np.int64)
    per_task = np.where(np.arange(2**n) > 0, values, -np.inf)
    best = np.argpartition(-per_task, min(ADDED, 2**n - 1))[:ADDED]
    columns: Ints = np.unique(np.concatenate([links, known, best, [2**n - 1]]))
    useful: Ints = columns[(columns > 0) & np.isfinite(values[columns])]
    return useful


def _solve_dual(problem: Problem, values: Floats, columns: Ints, networks: int, limits: Limits) -> Dual:
    """Column generation until no set is worth more than its price; every set has been looked at."""
    while True:
        dual = find_prices(problem, membership(columns, problem.n), values[columns], networks, limits)
        reduced = values - subset_sums(dual.tasks) - dual.network
        reduced[0] = -np.inf
        worst = float(reduced.max())
        if worst <= TIE / (10 * networks) or limits.over:
            return Dual(dual.tasks, dual.network + max(worst, 0.0))  # dearer networks: now no set is worth more
        wanted = np.argpartition(-reduced, min(ADDED, len(reduced) - 1))[:ADDED]
        wanted = wanted[reduced[wanted] > 0]
        new = np.setdiff1d(wanted, columns)
        if not len(new):  # the last digits of the solver
            return Dual(dual.tasks, dual.network + max(worst, 0.0))
        columns = np.concatenate([columns, new])


def subset_sums(prices: Floats) -> Floats:
    """The sum of prices over every set, as bits."""
    sums = np.zeros(1)
    for price in prices:
        sums = np.concatenate([sums, sums + price])
    return sums
