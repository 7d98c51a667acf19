"""Column generation for more tasks than a table of all served sets could hold.

The linear set-partition programme starts with a few served sets. Its prices say which others would pay, and a branch
and bound finds those or proves that there are none. That no set earns more than `earning` above its prices bounds
every choice, so the bound falls step by step as `earning` does. Where the last prices leave a gap to the best known
choice, all sets that could still close it are listed and an integer programme decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ._climb import climb, neighbours
from ._master import Dual, Pull, best_choice, find_prices
from ._pricing import Pricing, Question, Work
from ._problem import TIE, Bools, Floats, Limits, Problem, Solution, choice_value, indices, solution_value
from ._search import solve_search
from ._served import values_of
from ._tight import first_in_order

MOST_TASKS = 64  # the tables of the pricing: 100 megabytes
STRENGTHS = (0.01, 0.001)  # of the pull on prices, one after the other
MORE = 0.01  # of a network, in the programme that finds prices
SHORT, FIRST_NODES = 20, 200_000  # kicks of the first search, and nodes after it
CLIMBS = 50  # rounds of climbing before the branch and bound is asked
SAVED = 2_000  # climbed sets kept per round


def solve_columns(
    problem: Problem, budgets: Sequence[float], limits: Limits, nodes: float = float("inf")
) -> list[Solution]:
    """The best choice for each budget, proven unless time or work (nodes of the branch and bound) runs out."""
    pricing = Pricing(problem)
    return [_solved(problem, int(budget), pricing, limits, Work(nodes)) for budget in budgets]


def _solved(problem: Problem, networks: int, pricing: Pricing, limits: Limits, work: Work) -> Solution:
    """A short search and few nodes first, which is enough where groups are clear; then a long search and the rest."""
    start = solve_search(problem, [networks], replace(limits, kicks=min(SHORT, limits.kicks)))[0]
    first = Work(min(work.left, FIRST_NODES))
    generation = _Generation(problem, networks, start, pricing, limits, first)
    found = generation.solved()
    work.left -= FIRST_NODES - max(first.left, 0)
    if not found.proven and limits.kicks > SHORT:
        start = solve_search(problem, [networks], limits)[0]
        better = max(start, found, key=lambda solution: solution_value(problem, solution.choices))
        start = Solution(better.choices, min(start.bound, found.bound), False, prices=found.prices)
        generation = _Generation(problem, networks, start, pricing, limits, work)
        found = generation.solved()
    return generation.ordered(found)


class _Generation:
    """The served sets, prices and bound so far, for one budget."""

    def __init__(
        self, problem: Problem, networks: int, start: Solution, pricing: Pricing, limits: Limits, work: Work
    ) -> None:
        self.problem, self.networks, self.start = problem, networks, start
        self.pricing, self.limits, self.work = pricing, limits, work
        self.known = solution_value(problem, start.choices)
        self.bound, self.dual = start.bound, None if start.prices is None else Dual(start.prices[:-1], start.prices[-1])
        served = np.zeros((len(start.choices), problem.n), dtype=bool)
        for row, choice in enumerate(start.choices):
            served[row, list(indices(choice.serves))] = True
        self.members = neighbours(problem, served)
        self.values = values_of(problem, self.members)

    def solved(self) -> Solution:
        """The proof, or as far as it got."""
        try:
            for strength in STRENGTHS:
                if self._open:
                    self._converge(strength)
            if self._open and self.dual is not None:
                return self._decided(self.dual)
        except TimeoutError:
            pass
        prices = None if self.dual is None else self.dual.prices
        return Solution(self.start.choices, self.bound, self.bound - self.known <= TIE, prices=prices)

    def ordered(self, found: Solution) -> Solution:
        """The first of equal choices, where time allows to list the sets that they can use."""
        if not found.proven or found.prices is None:
            return found
        dual = Dual(found.prices[:-1], float(found.prices[-1]))
        missing = solution_value(self.problem, found.choices) - dual.bound(self.networks)
        question = Question(dual.tasks, dual.network + missing - 2 * TIE, every=True)
        try:
            sets = self.pricing.find(question, self.work, self.limits)
        except TimeoutError:
            return found
        return first_in_order(self.problem, self.networks, found, sets) or found

    def _converge(self, strength: float) -> None:
        """Until no set is worth more than its prices, or the bound meets the known choice."""
        pull = Pull(self._center() if self.dual is None else self.dual.tasks, strength)
        last = TIE / (10 * self.networks)
        earning = first = max((self.bound - self.known) / self.networks / 2, last)
        while True:
            dual = self._climbed(pull)
            sets = self._paying(dual, earning)
            while not len(sets) and earning > last and self._open:
                earning = max(earning / 4, last) if earning > first / 50 else last
                sets = self._paying(dual, earning)
            if not len(sets) or not self._add(sets):
                return

    def _paying(self, dual: Dual, earning: float) -> Bools:
        """Sets that earn more than `earning`; if there are none, that proves a bound."""
        sets = self.pricing.find(Question(dual.tasks, dual.network + earning), self.work, self.limits)
        dearer = Dual(dual.tasks, dual.network + earning)
        bound = dearer.bound(self.networks)
        if not len(sets) and (self.dual is None or bound < self.dual.bound(self.networks)):
            self.bound, self.dual = min(bound, self.bound), dearer
        return sets

    @property
    def _open(self) -> bool:
        """Whether the prices so far leave a gap to the known choice."""
        return self.dual is None or self.dual.bound(self.networks) - self.known > TIE

    def _climbed(self, pull: Pull) -> Dual:
        """Prices that no climb beats."""
        dual = self._priced(pull)
        for _ in range(CLIMBS):
            sets = climb(self.problem, self.members, self.values, dual)
            if not len(sets) or not self._add(sets, dual) or self.limits.over:
                break
            dual = self._priced(pull)
        return dual

    def _priced(self, pull: Pull | None) -> Dual:
        """Of the optimal prices those where a network is cheap and tasks are dear: then large sets do not pay."""
        networks = self.networks + MORE
        return find_prices(self.problem, self.members, self.values, networks, self.limits, pull)

    def _add(self, sets: Bools, dual: Dual | None = None) -> int:
        """How many of the sets are new; of very many those that earn most are kept."""
        values = values_of(self.problem, sets)
        if dual is not None and len(sets) > SAVED:
            best = np.argsort(sets @ dual.tasks - values, kind="stable")[:SAVED]
            sets, values = sets[best], values[best]
        members, rows = np.unique(np.concatenate([self.members, sets]), axis=0, return_index=True)
        added = len(members) - len(self.members)
        self.members, self.values = members, np.concatenate([self.values, values])[rows]
        return added

    def _center(self) -> Floats:
        """What the tasks score in the known choice, less an even share of what one network more would bring."""
        dual = self._priced(None)
        center = np.zeros(self.problem.n)
        for choice in self.start.choices:
            served = list(indices(choice.serves))
            center[served] = (choice_value(self.problem, choice) - dual.network) / len(served)
        return center

    def _decided(self, dual: Dual) -> Solution:
        """Any choice better than the known one uses only sets that miss their prices by less than the gap."""
        least = dual.network + self.known - dual.bound(self.networks) - TIE
        sets = self.pricing.find(Question(dual.tasks, least, every=True), self.work, self.limits)
        values = values_of(self.problem, sets)
        return best_choice(self.problem, sets, values, self.networks, self.start, dual, self.limits)
