"""The best networks for a budget, exactly: a dynamic programme over sets of served tasks.

A solution is a partition of the tasks into served sets, each served by the best network for it. Whatever is
spent on one served set is not left for the others, so the programme runs over what may be spent, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..problem import ROUNDING, TIE, Choice, Floats, Infeasible, Limits, Problem, Solution, bits_of, indices
from .local_search import solve_search
from .served_sets import UNLIMITED, best_listed, best_network, best_split, listed_values, served_values
from .ties import tied

MOST_LEVELS = 400  # different sums of costs
MOST_WORK = 10**8  # sums of two values: a few seconds
MOST_PAIRWISE, MOST_LISTED = 16, 14  # tasks, with scores by pair and with listed networks


def solve_exact(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The proven best choice for each budget; where time runs out, what the search finds."""
    if problem.networks is not None:
        return _solved(problem, budgets, served_listed(problem), UNLIMITED)  # seconds at most, and no search to turn to
    try:
        return _solved(problem, budgets, served_pairwise(problem, limits), limits)
    except TimeoutError:
        return solve_search(problem, budgets, limits)


def _solved(problem: Problem, budgets: Sequence[float], served: Served, limits: Limits) -> list[Solution]:
    levels = spending_levels(served.costs, max(budgets))
    assert levels is not None
    plan = Plan.of(served, levels, limits)
    return [_solution(problem, plan, budget) for budget in budgets]


def fits_exact(problem: Problem, budget: float) -> bool:
    """Whether the programme is small enough for memory and patience."""
    if problem.networks is None:
        return problem.n <= MOST_PAIRWISE
    costs = np.unique(problem.networks.cost)
    levels = spending_levels(costs, budget) if problem.n <= MOST_LISTED else None
    return levels is not None and len(levels) * len(costs) * 3**problem.n <= MOST_WORK


@dataclass(frozen=True)
class Served:
    """What the best networks for each served set are worth.

    Attributes:
        costs: the distinct costs of networks, rising.
        values: costs × sets of tasks, less a tiny price that lets few and small groups win ties.
        network: the network behind a cost and a set.
        slack: values that differ by less are equal, up to rounding.
    """

    costs: Floats
    values: Floats
    network: Callable[[int, int], Choice]
    slack: float


def served_pairwise(problem: Problem, limits: Limits) -> Served:
    """Of networks whose scores are means over pairs; each costs 1."""
    price = TIE / (2 * problem.n**2)  # of one trained task: all prices are half a tie at most
    slack = _slack(problem.n, price)

    def network(_: int, serves: int) -> Choice:
        trains, _value = best_network(problem, np.array(indices(serves)), price, slack)
        return Choice(bits_of(trains), serves)

    return Served(np.ones(1), served_values(problem, price, limits)[None], network, slack)


def served_listed(problem: Problem) -> Served:
    """Of networks that are listed."""
    networks, n = problem.networks, problem.n
    assert networks is not None
    one_cost = len(np.unique(networks.cost)) == 1
    group = 0.0 if one_cost else TIE / (4 * n)  # with one cost, the fewest groups are the lowest level
    task = TIE / (2 * n**2) if one_cost else group / (2 * n**2)
    prices, slack = group + task * networks.trains.sum(axis=1), _slack(n, task)
    costs, values = listed_values(problem, prices)

    def network(kind: int, serves: int) -> Choice:
        row = best_listed(problem, costs[kind], list(indices(serves)), prices, slack)
        return Choice(bits_of(np.flatnonzero(networks.trains[row])), serves, row)

    return Served(costs, values, network, slack)


def _slack(n: int, price: float) -> float:
    """Below the price of one trained task, and never below rounding."""
    return max(price / (4 * n), n * ROUNDING / 2)


def spending_levels(costs: Floats, budget: float) -> Floats | None:
    """All sums of costs within the budget, from nothing on; None if they are too many."""
    allowed = budget * (1 + 1e-9)
    if len(costs) == 1:
        count = int(allowed / costs[0])
        return np.arange(count + 1) * costs[0] if count < MOST_LEVELS else None
    levels = found = np.zeros(1)
    while len(found):
        sums = (found[:, None] + costs).ravel()
        sums = np.unique(np.round(sums[sums <= allowed] / costs[0], 9)) * costs[0]
        if len(sums) > MOST_LEVELS:
            return None
        found = sums[~np.isclose(sums[:, None], levels, rtol=1e-9, atol=0).any(axis=1)]
        levels = np.union1d(levels, found)
        if len(levels) > MOST_LEVELS:
            return None
    return levels


@dataclass(frozen=True)
class Plan:
    """For every level what each set of tasks is worth at most, spending no more than that."""

    served: Served
    levels: Floats
    tables: list[Floats]

    @classmethod
    def of(cls, served: Served, levels: Floats, limits: Limits) -> Plan:
        """Runs the programme, from nothing spent to the highest level."""
        nothing = np.full(served.values.shape[1], -np.inf)
        nothing[0] = 0.0
        plan = cls(served, levels, [nothing])
        for level in levels[1:]:
            if limits.over:
                raise TimeoutError
            best = plan.tables[-1].copy()
            for cost, values in zip(served.costs, served.values, strict=True):
                rest = plan.level_at(level - cost)
                if rest >= 0:
                    np.maximum(best, best_split(values, plan.tables[rest]) if rest else values, out=best)
            plan.tables.append(best)
        return plan

    def level_at(self, spent: float) -> int:
        """The highest level within `spent`, −1 if there is none."""
        return int(np.searchsorted(self.levels, spent + 1e-9 * self.levels[-1], side="right")) - 1

    def continuations(self, left: int, level: int, slack: float) -> list[tuple[int, int, list[int]]]:
        """Kinds of network, the levels left after them, and the sets that they serve without losing value.

        The sets hold the lowest task left, so that each partition is met once.
        """
        sets = np.arange(self.served.values.shape[1])
        some = sets[((sets & ~left) == 0) & ((sets & left & -left) > 0)]
        found = []
        for kind, cost in enumerate(self.served.costs):
            rest = self.level_at(self.levels[level] - cost)
            if rest >= 0:
                value = self.served.values[kind][some] + self.tables[rest][left ^ some]
                found.append((kind, rest, some[value >= self.tables[level][left] - slack].tolist()))
        return found

    def traced(self, top: int) -> tuple[Choice, ...]:
        """The networks behind a value; among equals, those that serve the first tasks come first."""
        left, level, choices = self.served.values.shape[1] - 1, top, []
        while left:
            steps = self.continuations(left, level, self.served.slack)
            first, kind, level = min((indices(serves), kind, rest) for kind, rest, some in steps for serves in some)
            choices.append(self.served.network(kind, bits_of(first)))
            left ^= bits_of(first)
        return tuple(choices)


def _solution(problem: Problem, plan: Plan, budget: float) -> Solution:
    top = plan.level_at(budget)
    best = float(plan.tables[top][-1])
    if best == -np.inf:
        raise Infeasible
    if len(plan.served.costs) == 1:
        top = next(k for k, table in enumerate(plan.tables) if table[-1] >= best - TIE / 2)
    choices = plan.traced(top)
    return Solution(choices, best + TIE / 2, True, tied(problem, plan, choices, top))
