"""Solves problems with too many tasks for a table of all served sets, using column generation.

A linear program over the known served sets determines the prices of the tasks and of a network. A set is profitable if
its value exceeds its price, i.e. the prices of its tasks plus the price of a network. Profitable sets are found by hill
climbing and then by branch and bound (`Pricing`), and are added to the linear program. Once there are no more
profitable sets, the prices prove a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..selection_problem import (
    TIE_TOLERANCE,
    Bools,
    Floats,
    Ints,
    Limits,
    SelectionProblem,
    Solution,
    choice_value,
    solution_value,
    tasks_in_mask,
)
from .linear_programs import DualPrices, Stabilization, best_choice, find_prices
from .local_search import solve_search
from .served_sets import best_values
from .ties import break_ties

MAX_TASKS = 64  # for which the tables used in pricing take about 100 MB
STABILIZATION_STRENGTHS = (0.01, 0.001)  # used one after the other
EXTRA_NETWORK_FRACTION = 0.01  # added to the number of networks in the linear program
SHORT_KICKS, FIRST_NODES = 20, 200_000  # kicks in the first search, and nodes in the first branch and bound
MAX_CLIMB_ROUNDS = 50  # rounds of hill climbing before branch and bound
MAX_SETS_PER_CLIMB = 2_000  # sets kept per round of hill climbing

MAX_CLIMB_STARTS = 60  # known sets from which to start climbing
MAX_CLIMB_STEPS = 12
MIN_GAIN = 1e-9  # surplus required to keep a set

NODES_PER_BATCH = 1 << 13  # branch-and-bound nodes per batch, few enough to fit into the CPU cache
MAX_FOUND_SETS = 200_000  # sets, including duplicates
SETS_PER_QUERY = 300  # sets to find before recomputing prices
ROUNDING_SLACK = 1e-12  # far above rounding errors, far below a tie


def solve_by_column_generation(
    problem: SelectionProblem, budgets: Sequence[float], limits: Limits, nodes: float = float("inf")
) -> list[Solution]:
    """Returns the best choice for each budget. It is proven optimal unless the time or node limit is reached."""
    pricing = Pricing(problem)
    return [_solve_budget(problem, int(budget), pricing, limits, NodeBudget(nodes)) for budget in budgets]


def _solve_budget(
    problem: SelectionProblem, networks: int, pricing: Pricing, limits: Limits, node_budget: NodeBudget
) -> Solution:
    """Tries a short search with few nodes first, followed by a long search with all nodes if necessary."""
    start = solve_search(problem, [networks], replace(limits, kicks=min(SHORT_KICKS, limits.kicks)))[0]
    first = NodeBudget(min(node_budget.left, FIRST_NODES))
    generation = _ColumnGeneration(problem, networks, start, pricing, limits, first)
    found = generation.solve()
    node_budget.left -= FIRST_NODES - max(first.left, 0)
    if not found.proven and limits.kicks > SHORT_KICKS:
        start = solve_search(problem, [networks], limits)[0]
        better = max(start, found, key=lambda solution: solution_value(problem, solution.choices))
        start = Solution(better.choices, min(start.bound, found.bound), False, prices=found.prices)
        generation = _ColumnGeneration(problem, networks, start, pricing, limits, node_budget)
        found = generation.solve()
    return generation.with_ties_broken(found)


class _ColumnGeneration:
    """The state of the column generation for one budget: the current served sets, prices and bound."""

    def __init__(
        self,
        problem: SelectionProblem,
        networks: int,
        start: Solution,
        pricing: Pricing,
        limits: Limits,
        node_budget: NodeBudget,
    ) -> None:
        self.problem, self.networks, self.start = problem, networks, start
        self.pricing, self.limits, self.node_budget = pricing, limits, node_budget
        self.known = solution_value(problem, start.choices)
        self.bound, self.dual = start.bound, None if start.prices is None else DualPrices.from_prices(start.prices)
        served = np.zeros((len(start.choices), problem.n), dtype=bool)
        for row, choice in enumerate(start.choices):
            served[row, list(tasks_in_mask(choice.serves))] = True
        self.members = neighbors(problem, served)
        self.values = best_values(problem, self.members)

    def solve(self) -> Solution:
        """Returns the solution. It is proven optimal unless the time or node limit is reached."""
        try:
            for strength in STABILIZATION_STRENGTHS:
                if self._has_gap:
                    self._add_profitable_sets(strength)
            if self._has_gap and self.dual is not None:
                return self._close_gap(self.dual)
        except TimeoutError:
            pass
        prices = None if self.dual is None else self.dual.prices
        return Solution(self.start.choices, self.bound, self.bound - self.known <= TIE_TOLERANCE, prices=prices)

    def with_ties_broken(self, solution: Solution) -> Solution:
        """Breaks ties between equally good choices, if there is enough time to list their sets."""
        if not solution.proven or solution.prices is None:
            return solution
        dual = DualPrices.from_prices(solution.prices)
        missing = solution_value(self.problem, solution.choices) - dual.bound(self.networks)
        query = PricingQuery(dual.tasks, dual.network + missing - 2 * TIE_TOLERANCE, every=True)
        try:
            sets = self.pricing.find(query, self.node_budget, self.limits)
        except TimeoutError:
            return solution
        return break_ties(self.problem, self.networks, solution, sets) or solution

    def _add_profitable_sets(self, strength: float) -> None:
        """Adds sets until no set is profitable, or until the bound equals the known value."""
        stabilization = Stabilization(self._central_prices() if self.dual is None else self.dual.tasks, strength)
        smallest = TIE_TOLERANCE / (10 * self.networks)
        min_surplus = initial = max((self.bound - self.known) / self.networks / 2, smallest)
        while True:
            dual = self._find_prices_by_climbing(stabilization)
            sets = self._find_profitable_sets(dual, min_surplus)
            while not len(sets) and min_surplus > smallest and self._has_gap:
                min_surplus = max(min_surplus / 4, smallest) if min_surplus > initial / 50 else smallest
                sets = self._find_profitable_sets(dual, min_surplus)
            if not len(sets) or not self._add_sets(sets):
                return

    def _find_profitable_sets(self, dual: DualPrices, min_surplus: float) -> Bools:
        """Returns sets with a surplus of more than `min_surplus`. If no such sets exist, the bound is updated."""
        sets = self.pricing.find(PricingQuery(dual.tasks, dual.network + min_surplus), self.node_budget, self.limits)
        raised = DualPrices(dual.tasks, dual.network + min_surplus)
        bound = raised.bound(self.networks)
        if not len(sets) and (self.dual is None or bound < self.dual.bound(self.networks)):
            self.bound, self.dual = min(bound, self.bound), raised
        return sets

    @property
    def _has_gap(self) -> bool:
        """Whether there is a gap between the best bound and the value of the known choice."""
        return self.dual is None or self.dual.bound(self.networks) - self.known > TIE_TOLERANCE

    def _find_prices_by_climbing(self, stabilization: Stabilization) -> DualPrices:
        """Returns prices for which hill climbing finds no profitable sets."""
        dual = self._find_prices(stabilization)
        for _ in range(MAX_CLIMB_ROUNDS):
            sets = climb_from_known_sets(self.problem, self.members, self.values, dual)
            if not len(sets) or not self._add_sets(sets, dual) or self.limits.should_stop:
                break
            dual = self._find_prices(stabilization)
        return dual

    def _find_prices(self, stabilization: Stabilization | None) -> DualPrices:
        """Returns optimal prices. Low network prices are preferred because they make large sets unprofitable."""
        networks = self.networks + EXTRA_NETWORK_FRACTION
        return find_prices(self.problem, self.members, self.values, networks, self.limits, stabilization)

    def _add_sets(self, sets: Bools, dual: DualPrices | None = None) -> int:
        """Adds the sets with the largest surplus and returns the number of new sets."""
        values = best_values(self.problem, sets)
        if dual is not None and len(sets) > MAX_SETS_PER_CLIMB:
            best = np.argsort(sets @ dual.tasks - values, kind="stable")[:MAX_SETS_PER_CLIMB]
            sets, values = sets[best], values[best]
        members, rows = np.unique(np.concatenate([self.members, sets]), axis=0, return_index=True)
        added = len(members) - len(self.members)
        self.members, self.values = members, np.concatenate([self.values, values])[rows]
        return added

    def _central_prices(self) -> Floats:
        """Returns the central prices: each network's value minus its price, divided equally among its served tasks."""
        dual = self._find_prices(None)
        center = np.zeros(self.problem.n)
        for choice in self.start.choices:
            served = list(tasks_in_mask(choice.serves))
            center[served] = (choice_value(self.problem, choice) - dual.network) / len(served)
        return center

    def _close_gap(self, dual: DualPrices) -> Solution:
        """Closes the gap with an integer program over all sets that could be part of a better choice."""
        least = dual.network + self.known - dual.bound(self.networks) - TIE_TOLERANCE
        sets = self.pricing.find(PricingQuery(dual.tasks, least, every=True), self.node_budget, self.limits)
        values = best_values(self.problem, sets)
        return best_choice(self.problem, sets, values, self.networks, self.start, dual, self.limits)


def neighbors(problem: SelectionProblem, served: Bools) -> Bools:
    """Returns the given sets, the sets that differ from them by one unit, all single units, and all pairs of units."""
    pairs = (problem.units[:, None] | problem.units).reshape(-1, problem.n)
    near = (served[:, None] ^ problem.units).reshape(-1, problem.n)
    sets = np.unique(np.concatenate([served, near, pairs]), axis=0)
    return sets[np.isfinite(best_values(problem, sets))]


def climb_from_known_sets(problem: SelectionProblem, members: Bools, values: Floats, dual: DualPrices) -> Bools:
    """Finds profitable sets by repeatedly adding or dropping the best unit."""
    known_surplus = values - members @ dual.tasks
    start = np.argsort(-known_surplus, kind="stable")[:MAX_CLIMB_STARTS]
    here, worth, found = members[start], known_surplus[start], [members[:0]]
    for _ in range(MAX_CLIMB_STEPS):
        near = here[:, None] ^ problem.units
        flat = near.reshape(-1, problem.n)
        surplus = (best_values(problem, flat) - flat @ dual.tasks).reshape(len(here), -1)
        found.append(near[surplus > dual.network + MIN_GAIN])
        best = surplus.argmax(axis=1)
        climbing = surplus.max(axis=1) > worth + MIN_GAIN
        if not climbing.any():
            break
        here, worth = near[np.arange(len(here)), best][climbing], surplus.max(axis=1)[climbing]
    return np.unique(np.concatenate(found), axis=0)


class NodeBudget:
    """A limit on the number of branch-and-bound nodes to visit."""

    def __init__(self, nodes: float) -> None:
        self.left = nodes

    def spend(self, nodes: int, limits: Limits) -> None:
        """Counts visited nodes.

        Raises:
            TimeoutError: If the time or node limit is reached.
        """
        self.left -= nodes
        if self.left < 0 or limits.should_stop:
            raise TimeoutError


@dataclass(frozen=True)
class PricingQuery:
    """A query for served sets whose value exceeds the prices of their tasks by more than `least`.

    Attributes:
        prices: the prices of the tasks.
        least: the minimum surplus. Only sets with a larger surplus are found.
        every: whether to find all such sets. If False, only the best of several similar sets is returned.
    """

    prices: Floats
    least: float
    every: bool = False


class _Nodes(NamedTuple):
    """Branch-and-bound nodes, i.e. partially decided networks.

    `gets` and `gives` have one column per undecided position.
    """

    first: Ints  # the first served task
    size: Ints  # the final number of trained tasks
    left: Ints  # the number of trained tasks still to be chosen
    worth: Floats  # the surplus so far, times size − 1
    gets: Floats  # the score that each undecided task would get from the trained ones, minus its price
    gives: Floats  # the score that each undecided task would give to the served ones, minus their prices
    served: Bools  # nodes × tasks

    def only(self, rows: Bools) -> _Nodes:
        return _Nodes._make(column[rows] for column in self)


class Pricing:
    """Finds profitable served sets by branch and bound."""

    def __init__(self, problem: SelectionProblem) -> None:
        n = problem.n
        self.problem, self.order = problem, task_orders(problem)
        self.scores = problem.pairwise_scores[self.order[:, :, None], self.order[:, None, :]]
        unit = np.zeros(n, dtype=np.int64)
        for number, link in enumerate(problem.links):
            unit[list(tasks_in_mask(link))] = number
        self.together = unit[:, None] == unit
        self.linked = self.together.sum(axis=1) > 1
        self.firsts = np.unique(unit, return_index=True)[1]  # first task of each unit; earlier units are not served
        self.barred = unit[self.order] < unit[:, None]
        place = np.argsort(self.order, axis=1)
        partners = np.where(self.together & ~np.eye(n, dtype=bool), place[:, None, :], n).min(axis=2)
        self.begun = np.take_along_axis(partners, self.order, axis=1) < np.arange(n)  # first × position

    def find(self, query: PricingQuery, node_budget: NodeBudget, limits: Limits) -> Bools:
        """Returns sets (rows) that match a query. If the result is empty, no such sets exist.

        Raises:
            TimeoutError: If the time or node limit is reached, or there are too many sets.
        """
        bounds = PricingBounds(self.scores - query.prices[self.order][:, None], self.barred)
        stack, found, count = [(1, self._root_nodes(bounds))], [self._single_task_sets(query)], 0
        while stack and (query.every or count < SETS_PER_QUERY):
            depth, nodes = stack.pop()
            if len(nodes.first) > NODES_PER_BATCH:
                half = np.arange(len(nodes.first)) < len(nodes.first) // 2
                stack += [(depth, nodes.only(half)), (depth, nodes.only(~half))]
                continue
            node_budget.spend(len(nodes.first), limits)
            done = nodes.left == 0
            if count > MAX_FOUND_SETS:
                raise TimeoutError
            if done.any():
                found.append(self._completed_sets(nodes.only(done), query))
                count += len(found[-1])
                nodes = nodes.only(~done)
            if len(nodes.first) and depth < self.problem.n:
                stack.append((depth + 1, self._expand_nodes(nodes, depth, bounds, query)))
        sets: Bools = np.unique(np.concatenate(found), axis=0)
        return sets

    def _single_task_sets(self, query: PricingQuery) -> Bools:
        """Returns the single-task sets that match the query."""
        worth = np.where(self.linked, -np.inf, self.problem.single_task_scores) - query.prices
        return np.eye(self.problem.n, dtype=bool)[worth > query.least + ROUNDING_SLACK]

    def _root_nodes(self, bounds: PricingBounds) -> _Nodes:
        sizes = np.arange(2, min(self.problem.largest, self.problem.n) + 1)
        first, size = np.repeat(self.firsts, len(sizes)), np.tile(sizes, len(self.firsts))
        served = np.eye(self.problem.n, dtype=bool)[first]
        gets, gives = bounds.surplus[first, 0, 1:], bounds.surplus[first, 1:, 0]
        return _Nodes(first, size, size - 1, np.zeros(len(first)), gets, gives, served)

    def _completed_sets(self, nodes: _Nodes, query: PricingQuery) -> Bools:
        good = nodes.worth > (query.least + ROUNDING_SLACK) * (nodes.size - 1)
        if self.linked.any():
            good &= (nodes.served == ((nodes.served[:, None] & self.together).any(axis=2))).all(axis=1)
        return nodes.served[good]

    def _expand_nodes(self, nodes: _Nodes, depth: int, bounds: PricingBounds, query: PricingQuery) -> _Nodes:
        """Creates a branch for each role of the next task: omitted, trained as a helper, or served.

        Drops hopeless nodes.
        """
        nodes = nodes.only(self._is_promising(nodes, depth, bounds, query))
        task, which = self.order[nodes.first, depth], (nodes.first, depth, nodes.left - 1)
        serves = ~self.barred[nodes.first, depth]
        # In the best network for a served set, every helper contributes at least the mean, which is the set's surplus.
        helps = (nodes.gives[:, 0] + bounds.gives[which] > query.least - ROUNDING_SLACK) | (nodes.size == 2)
        spare = nodes.left < self.problem.n - depth
        if not query.every:  # dropping a task that is not worth its price makes a set better
            serves &= self.linked[task] | (nodes.gets[:, 0] + bounds.gets[which] > -ROUNDING_SLACK)
        if self.linked.any():
            joined = (nodes.served & self.together[task]).any(axis=1)
            serves &= joined | ~self.begun[nodes.first, depth]
            helps, spare = helps & ~joined, spare & ~joined
        left_out = nodes._replace(gets=nodes.gets[:, 1:], gives=nodes.gives[:, 1:]).only(spare)
        helped = _with_next_as_helper(nodes.only(helps), depth, bounds)
        served = _with_next_served(nodes.only(serves), depth, bounds, task[serves])
        return _Nodes._make(np.concatenate(columns) for columns in zip(left_out, helped, served, strict=True))

    def _is_promising(self, nodes: _Nodes, depth: int, bounds: PricingBounds, query: PricingQuery) -> Bools:
        """Returns a mask of the nodes that could reach the required surplus with the best undecided tasks."""
        served, helping = (table[nodes.first, nodes.left - 1] for table in bounds.max_contributions(depth))
        gain = nodes.gives + np.maximum(nodes.gets + served, helping)
        best = np.cumsum(-np.sort(-gain, axis=1), axis=1)[np.arange(len(gain)), nodes.left - 1]
        enough: Bools = nodes.worth + best > query.least * (nodes.size - 1)
        return enough


def _with_next_as_helper(nodes: _Nodes, depth: int, bounds: PricingBounds) -> _Nodes:
    """Returns the nodes in which the next task is a helper."""
    gets = nodes.gets[:, 1:] + bounds.surplus[nodes.first, depth, depth + 1 :]
    worth = nodes.worth + nodes.gives[:, 0]
    return nodes._replace(left=nodes.left - 1, worth=worth, gets=gets, gives=nodes.gives[:, 1:])


def _with_next_served(nodes: _Nodes, depth: int, bounds: PricingBounds, task: Ints) -> _Nodes:
    """Returns the nodes in which the next task is served."""
    trained, served = _with_next_as_helper(nodes, depth, bounds), nodes.served.copy()
    served[np.arange(len(task)), task] = True
    gives = trained.gives + bounds.surplus[nodes.first, depth + 1 :, depth]
    return trained._replace(worth=trained.worth + nodes.gets[:, 0], gives=gives, served=served)


class PricingBounds:
    """Upper bounds for branch and bound, computed as sums of the largest surpluses of undecided tasks.

    Attributes:
        surplus: the score of a source for a target, minus the target's price [first task, source position, target
            position].
        gets: the maximum score that a served task can receive from later tasks [first task, position, number of tasks].
        gives: the maximum score that a task can contribute to later served tasks [first task, position, number of
            tasks].
    """

    def __init__(self, surplus: Floats, excluded: Bools) -> None:
        self.surplus, self.barred = surplus, excluded
        self.given = np.where(excluded[:, None], 0.0, np.maximum(surplus, 0.0))
        self.gives = _largest_sums(np.triu(self.given, 1), axis=2)
        later = np.where(np.tri(surplus.shape[1], k=0, dtype=bool).T, -np.inf, surplus)  # sources after the target
        self.gets = _largest_sums(later, axis=1).transpose(0, 2, 1)
        self._max_contributions: dict[int, tuple[Floats, Floats]] = {}

    def max_contributions(self, depth: int) -> tuple[Floats, Floats]:
        """Returns the maximum contribution of a served task and of a helper [first task, number, undecided position].

        The contribution includes the pairs that the task forms with a given number of other undecided tasks. Each task
        in a pair is credited with half of the score from source to target, so a pair counts fully only if both tasks
        are chosen.
        """
        if depth not in self._max_contributions:
            given = self.given[:, depth:, depth:].transpose(0, 2, 1)
            served = self.surplus[:, depth:, depth:] + given
            self._max_contributions[depth] = (
                _sums_over_others(served / 2, self.barred[:, depth:]),
                _sums_over_others(given / 2),
            )
        return self._max_contributions[depth]


def _largest_sums(values: Floats, axis: int) -> Floats:
    """Returns the sums of the 0, 1, 2, … largest values."""
    sums = np.cumsum(-np.sort(-values, axis=axis), axis=axis)
    return np.concatenate([np.zeros_like(np.take(sums, [0], axis=axis)), sums], axis=axis)


def _sums_over_others(values: Floats, excluded: Bools | None = None) -> Floats:
    """Returns the sums of the 0, 1, 2, … largest values over all other tasks, or −inf for excluded positions."""
    same = np.arange(values.shape[1])
    values[:, same, same] = -np.inf
    sums = _largest_sums(values, axis=1)[:, : len(same)]
    return sums if excluded is None else np.where(excluded[:, None], -np.inf, sums)


def task_orders(problem: SelectionProblem) -> Ints:
    """Returns an order of all tasks for each first task: nearest tasks first, with linked tasks next to each other."""
    return np.array([_nearest_first(problem, first) for first in range(problem.n)])


def _nearest_first(problem: SelectionProblem, first_task: int) -> Ints:
    both = problem.pairwise_scores[first_task] + problem.pairwise_scores[:, first_task]
    links = [np.array(tasks_in_mask(link)) for link in problem.links]
    links.sort(key=lambda link: np.inf if first_task in link else both[link].max(), reverse=True)
    order: Ints = np.concatenate(links)
    return np.concatenate([[first_task], order[order != first_task]])
