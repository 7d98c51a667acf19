"""Finds the optimal networks by dynamic programming over sets of served tasks.

A solution is a partition of the tasks into served sets. Each set is served by the best network for it. The served sets
share the budget, so a state consists of a set of tasks and the cost so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..selection_problem import (
    ROUNDING_TOLERANCE,
    TIE_TOLERANCE,
    Floats,
    InfeasibleError,
    Limits,
    NetworkChoice,
    SelectionProblem,
    Solution,
    tasks_in_mask,
    to_bit_mask,
)
from .local_search import solve_search
from .served_sets import NO_LIMITS, best_listed, best_network, best_split, listed_values, served_values
from .ties import find_ties

MAX_LEVELS = 400  # distinct sums of costs
MAX_ADDITIONS = 10**8  # additions, which take a few seconds
MAX_PAIRWISE, MAX_LISTED = 16, 14  # tasks with pairwise scores and with listed networks, respectively


def solve_exact(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """Returns the optimal choice for each budget, or the result of a local search if time runs out."""
    if problem.networks is not None:
        return _solve_budgets(
            problem, budgets, listed_table(problem), NO_LIMITS
        )  # takes only seconds, and there is no search to fall back on
    try:
        return _solve_budgets(problem, budgets, pairwise_table(problem, limits), limits)
    except TimeoutError:
        return solve_search(problem, budgets, limits)


def _solve_budgets(
    problem: SelectionProblem, budgets: Sequence[float], served_table: ServedTable, limits: Limits
) -> list[Solution]:
    levels = spending_levels(served_table.costs, max(budgets))
    assert levels is not None
    plan = DynamicProgram.solve(served_table, levels, limits)
    return [_make_solution(problem, plan, budget) for budget in budgets]


def can_solve_exactly(problem: SelectionProblem, budget: float) -> bool:
    """Returns whether the program is small enough to solve in acceptable time and memory."""
    if problem.networks is None:
        return problem.n <= MAX_PAIRWISE
    costs = np.unique(problem.networks.cost)
    levels = spending_levels(costs, budget) if problem.n <= MAX_LISTED else None
    return levels is not None and len(levels) * len(costs) * 3**problem.n <= MAX_ADDITIONS


@dataclass(frozen=True)
class ServedTable:
    """The value of the best network for each cost and served set.

    Attributes:
        costs: the distinct costs of networks, in ascending order.
        values: the values (costs × sets of tasks), minus a tiny price that breaks ties in favor of fewer and smaller
            groups.
        network: a function that returns the network for a cost and a set.
        slack: the difference below which values are considered equal.
    """

    costs: Floats
    values: Floats
    network: Callable[[int, int], NetworkChoice]
    slack: float


def pairwise_table(problem: SelectionProblem, limits: Limits) -> ServedTable:
    """Returns the table for pairwise scores, where each network costs 1."""
    price = TIE_TOLERANCE / (2 * problem.n**2)  # per trained task; all prices add up to at most half a tie
    slack = _tie_tolerance(problem.n, price)

    def network(_: int, served_tasks: int) -> NetworkChoice:
        trains, _value = best_network(problem, np.array(tasks_in_mask(served_tasks)), price, slack)
        return NetworkChoice(to_bit_mask(trains), served_tasks)

    return ServedTable(np.ones(1), served_values(problem, price, limits)[None], network, slack)


def listed_table(problem: SelectionProblem) -> ServedTable:
    """Returns the table for listed networks."""
    networks, n = problem.networks, problem.n
    assert networks is not None
    one_cost = len(np.unique(networks.cost)) == 1
    group = 0.0 if one_cost else TIE_TOLERANCE / (4 * n)  # with one cost, the lowest level has the fewest groups
    task = TIE_TOLERANCE / (2 * n**2) if one_cost else group / (2 * n**2)
    prices, slack = group + task * networks.trains.sum(axis=1), _tie_tolerance(n, task)
    costs, values = listed_values(problem, prices)

    def network(cost_index: int, served_tasks: int) -> NetworkChoice:
        row = best_listed(problem, costs[cost_index], list(tasks_in_mask(served_tasks)), prices, slack)
        return NetworkChoice(to_bit_mask(np.flatnonzero(networks.trains[row])), served_tasks, row)

    return ServedTable(costs, values, network, slack)


def _tie_tolerance(n: int, price: float) -> float:
    """Returns a tolerance that is smaller than the price of one trained task but larger than rounding errors."""
    return max(price / (4 * n), n * ROUNDING_TOLERANCE / 2)


def spending_levels(costs: Floats, budget: float) -> Floats | None:
    """Returns all sums of costs within the budget, starting with 0, or None if there are too many."""
    allowed = budget * (1 + 1e-9)
    if len(costs) == 1:
        count = int(allowed / costs[0])
        return np.arange(count + 1) * costs[0] if count < MAX_LEVELS else None
    levels = found = np.zeros(1)
    while len(found):
        sums = (found[:, None] + costs).ravel()
        sums = np.unique(np.round(sums[sums <= allowed] / costs[0], 9)) * costs[0]
        if len(sums) > MAX_LEVELS:
            return None
        found = sums[~np.isclose(sums[:, None], levels, rtol=1e-9, atol=0).any(axis=1)]
        levels = np.union1d(levels, found)
        if len(levels) > MAX_LEVELS:
            return None
    return levels


@dataclass(frozen=True)
class DynamicProgram:
    """A solved dynamic program: the highest value of each set of tasks at every spending level."""

    served: ServedTable
    levels: Floats
    tables: list[Floats]

    @classmethod
    def solve(cls, served_table: ServedTable, levels: Floats, limits: Limits) -> DynamicProgram:
        """Solves the program, from the lowest to the highest level."""
        nothing = np.full(served_table.values.shape[1], -np.inf)
        nothing[0] = 0.0
        plan = cls(served_table, levels, [nothing])
        for level in levels[1:]:
            if limits.should_stop:
                raise TimeoutError
            best = plan.tables[-1].copy()
            for cost, values in zip(served_table.costs, served_table.values, strict=True):
                rest = plan.level_at(level - cost)
                if rest >= 0:
                    np.maximum(best, best_split(values, plan.tables[rest]) if rest else values, out=best)
            plan.tables.append(best)
        return plan

    def level_at(self, spent: float) -> int:
        """Returns the highest level that does not exceed `spent`, or −1 if there is none."""
        return int(np.searchsorted(self.levels, spent + 1e-9 * self.levels[-1], side="right")) - 1

    def continuations(self, remaining: int, level: int, slack: float) -> list[tuple[int, int, list[int]]]:
        """Returns, for each network cost, the remaining level and the sets that can be served without loss.

        All sets contain the lowest remaining task, so each partition is found only once.
        """
        sets = np.arange(self.served.values.shape[1])
        some = sets[((sets & ~remaining) == 0) & ((sets & remaining & -remaining) > 0)]
        found = []
        for kind, cost in enumerate(self.served.costs):
            rest = self.level_at(self.levels[level] - cost)
            if rest >= 0:
                value = self.served.values[kind][some] + self.tables[rest][remaining ^ some]
                found.append((kind, rest, some[value >= self.tables[level][remaining] - slack].tolist()))
        return found

    def trace_choices(self, top_level: int) -> tuple[NetworkChoice, ...]:
        """Returns the networks that achieve the value at a level.

        Ties are broken in favor of networks that serve the first tasks.
        """
        left, level, choices = self.served.values.shape[1] - 1, top_level, []
        while left:
            steps = self.continuations(left, level, self.served.slack)
            first, kind, level = min(
                (tasks_in_mask(serves), kind, rest) for kind, rest, some in steps for serves in some
            )
            choices.append(self.served.network(kind, to_bit_mask(first)))
            left ^= to_bit_mask(first)
        return tuple(choices)


def _make_solution(problem: SelectionProblem, program: DynamicProgram, budget: float) -> Solution:
    top = program.level_at(budget)
    best = float(program.tables[top][-1])
    if best == -np.inf:
        raise InfeasibleError
    if len(program.served.costs) == 1:
        top = next(k for k, table in enumerate(program.tables) if table[-1] >= best - TIE_TOLERANCE / 2)
    choices = program.trace_choices(top)
    return Solution(choices, best + TIE_TOLERANCE / 2, True, find_ties(problem, program, choices, top))
