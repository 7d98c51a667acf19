"""Set partition as a linear programme over all served sets, with a certificate; n up to about 24.

Maximise Σ h(S) y(S) over served sets S, each task in exactly one, at most k sets. Columns enter when their reduced
cost says so; the dual vector bounds every choice, and columns that it rules out are dropped before the integer
programme over the few that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import csc_matrix, vstack

from ._highs import integer_programme, linear_programme
from ._problem import (
    TIE,
    Choice,
    Floats,
    Infeasible,
    Ints,
    Limits,
    Problem,
    Solution,
    bits_of,
    membership,
    solution_value,
)
from ._search import solve_search
from ._served import best_network, served_values

SHARP = 1e5  # the solver stops at 1e-6 of its units: 1e-11 of the largest score
MOST_TASKS = 24  # 2^24 values of eight bytes
ADDED = 400  # columns per round
MOST_COLUMNS = 50_000  # in the integer programme


@dataclass(frozen=True)
class Dual:
    """Prices of the tasks and of a network, and what they prove."""

    tasks: Floats
    network: float

    def bound(self, networks: int) -> float:
        return float(self.tasks.sum() + networks * self.network)


def solve_partition(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The best choice for each budget, proven unless time runs out or too many columns stay in doubt."""
    found = solve_search(problem, budgets, limits)
    try:
        values = served_values(problem, limits=limits)
    except TimeoutError:
        return found
    return [_improved(problem, values, int(k), start, limits) for k, start in zip(budgets, found, strict=True)]


def _improved(problem: Problem, values: Floats, networks: int, start: Solution, limits: Limits) -> Solution:
    try:
        return _fewest(problem, values, networks, start, limits)
    except TimeoutError:
        return start


def _fewest(problem: Problem, values: Floats, networks: int, start: Solution, limits: Limits) -> Solution:
    """The best choice, and among equals one of the fewest networks: they can tie only where a network is free."""
    best = found = _proven(problem, values, networks, start, limits)
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
    dual = _solve_dual(values, columns, problem.n, networks, limits)
    prices = np.append(dual.tasks, dual.network)
    bound = dual.bound(networks)
    if bound - known <= TIE:
        return Solution(start.choices, bound, True, prices=prices)
    # Any choice better than the known one uses only columns whose reduced cost is within the gap.
    reduced = values - subset_sums(dual.tasks) - dual.network
    left = np.flatnonzero(reduced >= known - bound - TIE)
    left = left[left > 0]
    if len(left) > MOST_COLUMNS or limits.over:
        return Solution(start.choices, bound, False, prices=prices)
    chosen, best = _best_partition(values, left, problem.n, networks, limits)
    choices = _networks(problem, chosen) if chosen is not None else start.choices
    if solution_value(problem, choices) < known:
        choices = start.choices
    value = solution_value(problem, choices)
    proven = best - value <= TIE
    return Solution(choices, max(value, min(best, bound)) if proven else bound, proven, prices=prices)


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


def _solve_dual(values: Floats, columns: Ints, n: int, networks: int, limits: Limits) -> Dual:
    """Column generation until no set is worth more than its price; every set has been looked at."""
    while True:
        dual = _restricted(values, columns, n, networks, limits)
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


def _restricted(values: Floats, columns: Ints, n: int, networks: int, limits: Limits) -> Dual:
    covers = csc_matrix(membership(columns, n).T.astype(np.float64))
    one_each = csc_matrix(np.ones((1, len(columns))))
    result = linear_programme(
        limits,
        -SHARP * values[columns],
        A_ub=one_each,
        b_ub=[networks],
        A_eq=covers,
        b_eq=np.ones(n),
        bounds=(0, None),
    )
    if result.status == 2:
        raise Infeasible
    return Dual(-result.eqlin.marginals / SHARP, max(float(-result.ineqlin.marginals[0]) / SHARP, 0.0))


def subset_sums(prices: Floats) -> Floats:
    """The sum of prices over every set, as bits."""
    sums = np.zeros(1)
    for price in prices:
        sums = np.concatenate([sums, sums + price])
    return sums


def _best_partition(values: Floats, columns: Ints, n: int, networks: int, limits: Limits) -> tuple[Ints | None, float]:
    """The best choice of these sets and the bound that the integer solver proves."""
    covers = csc_matrix(membership(columns, n).T.astype(np.float64))
    rows = vstack([covers, csc_matrix(np.ones((1, len(columns))))])
    low, high = np.append(np.ones(n), 0), np.append(np.ones(n), networks)
    result = integer_programme(
        limits,
        -SHARP * values[columns],
        constraints=LinearConstraint(rows, low, high),
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
    )
    if result.x is None:
        return None, np.inf if result.status == 1 else -np.inf
    bound = -result.mip_dual_bound / SHARP if result.mip_dual_bound is not None else np.inf
    return columns[result.x > 0.5], float(bound)


def _networks(problem: Problem, served: Ints) -> tuple[Choice, ...]:
    price = TIE / (2 * problem.n**2)
    choices = []
    for bits in sorted(served.tolist()):
        tasks = np.flatnonzero(membership(np.array([bits]), problem.n)[0])
        trains, _ = best_network(problem, tasks, price, price / (4 * problem.n))
        choices.append(Choice(bits_of(trains), bits))
    return tuple(choices)
