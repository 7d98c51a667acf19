"""Local search over listed networks: add one, drop one, or swap, within the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._bound import simple_bound
from ._problem import TIE, Choice, Floats, Ints, Limits, Networks, Problem, Solution, bits_of, indices, solution_value

UNSERVED = -1e6  # far below any score, so that serving everybody comes first
KICKS = 100  # at most
MOST_VALUES = 600_000  # networks × units in the list; then it grows no more, and the search ends


def solve_listed_search(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The best choice found for each budget, with a bound.

    Raises:
        ValueError: nothing was found that serves all tasks, which does not mean that there is nothing.
    """
    return [_searched(problem, budget, limits) for budget in budgets]


def _searched(problem: Problem, budget: float, limits: Limits) -> Solution:
    search = _Search(problem, budget)
    chosen = search.run(np.random.default_rng(limits.seed), limits)
    if search.value(chosen) <= UNSERVED / 2:
        raise ValueError(
            f"`solver='search'` found no networks within the `budget` of {budget:g} that serve all tasks under these "
            "constraints; allow more, relax one, or list the networks as Candidates"
        )
    choices = search.choices(chosen)
    value = solution_value(search.problem, choices)
    return Solution(choices, max(_bound(problem, budget), value), False)


def _bound(problem: Problem, budget: float) -> float:
    """Every task in its best network, or what the problem without costs and rules allows."""
    assert problem.networks is not None
    if problem.relaxed is None:
        return float(problem.networks.values.max(axis=0).sum())
    most = min(budget, problem.n * problem.cheapest) / problem.cheapest
    return simple_bound(problem.relaxed, max(int(most * (1 + 1e-9)), 1))


class _Search:
    """Chosen rows of the list; every unit (tasks served together) takes the best of them."""

    def __init__(self, problem: Problem, budget: float) -> None:
        assert problem.networks is not None
        self.problem, self.cost, self.budget = problem, problem.networks.cost, budget * (1 + 1e-9)
        self.units = [list(indices(link)) for link in problem.links]
        self.known = {bits_of(np.flatnonzero(row)) for row in problem.networks.trains} if problem.more else set()
        self.worth = self._worth(problem.networks)

    def _worth(self, networks: Networks) -> Floats:
        worth: Floats = np.stack([networks.values[:, unit].sum(axis=1) for unit in self.units], axis=1)
        worth = np.maximum(worth, UNSERVED)
        return worth

    def grow(self, chosen: list[int]) -> None:
        """Adds the chosen groups changed by one unit to the list."""
        networks = self.problem.networks
        assert networks is not None
        if self.problem.more is None or self.worth.size > MOST_VALUES:
            return
        sets = {bits_of(np.flatnonzero(networks.trains[row])) for row in chosen}
        near = {group & ~unit if group & unit else group | unit for group in sets for unit in self.problem.links}
        new = near - self.known - {0}
        self.known |= new
        self.problem = self.problem.with_networks(networks.joined(self.problem.more(new)))
        assert self.problem.networks is not None
        self.cost, before = self.problem.networks.cost, len(self.worth)
        added = self.problem.networks.only(np.arange(len(self.cost)) >= before)
        self.worth = np.concatenate([self.worth, self._worth(added)])

    def value(self, chosen: list[int]) -> float:
        return float(self._reached(chosen).sum())

    def _reached(self, chosen: list[int]) -> Floats:
        """What each unit has in the best chosen network."""
        reached: Floats = self.worth[chosen].max(axis=0, initial=UNSERVED)
        return reached

    def run(self, random: np.random.Generator, limits: Limits) -> list[int]:
        best = self._settled([], limits)
        for _ in range(KICKS):
            if limits.over or self.worth.size > MOST_VALUES:
                break
            other = self._settled(self._kicked(best, random), limits)
            if self.value(other) > self.value(best) + TIE / 10:
                best = other
        return best

    def _kicked(self, chosen: list[int], random: np.random.Generator) -> list[int]:
        """Some of the chosen networks, and one or two of those that serve somebody better, as far as they fit."""
        kept = [row for row in chosen if random.random() < 0.5]
        better = np.flatnonzero((self.worth > self._reached(chosen) + TIE).any(axis=1))
        for row in random.permutation(better)[: random.integers(1, 3)].tolist():
            if row not in kept and self.cost[[*kept, row]].sum() <= self.budget:
                kept.append(row)
        return kept

    def _settled(self, chosen: list[int], limits: Limits) -> list[int]:
        """Improved until groups changed by one unit do not help either."""
        while True:
            better = self._improved(chosen, limits)
            if self.value(better) <= self.value(chosen) + TIE / 10:
                return better
            chosen = better
            self.grow(chosen)

    def _improved(self, chosen: list[int], limits: Limits) -> list[int]:
        """Additions and swaps, the best first, until none helps; adding is a swap against nothing."""
        value = self.value(chosen)
        while True:
            moves = [self._best_addition([row for row in chosen if row != out]) for out in [None, *chosen]]
            after, found = max(moves, key=lambda move: move[0])
            if after <= value + TIE / 10 or (limits.over and value > UNSERVED / 2):
                return self._needed(chosen)
            chosen, value = found, after

    def _best_addition(self, kept: list[int]) -> tuple[float, list[int]]:
        fits = np.flatnonzero(self.cost <= self.budget - self.cost[kept].sum())
        if not len(fits):
            return -np.inf, kept
        # Costs count a little, or dear networks would use up the budget before everybody is served.
        reached = self._reached(kept)
        gain = np.maximum(self.worth[fits], reached).sum(axis=1)
        unserved = (reached <= UNSERVED).any()
        rate = (gain - reached.sum()) / self.cost[fits] if unserved else gain
        row = int(fits[rate.argmax()])
        return float(np.maximum(self.worth[row], reached).sum()), [*kept, row]

    def _needed(self, chosen: list[int]) -> list[int]:
        """Without networks that add nothing."""
        for row in sorted(chosen, key=lambda row: -self.cost[row]):
            rest = [other for other in chosen if other != row]
            if self.value(rest) >= self.value(chosen) - TIE / 10:
                chosen = rest
        return chosen

    def choices(self, chosen: list[int]) -> tuple[Choice, ...]:
        serving: Ints = np.array(chosen)[self.worth[chosen].argmax(axis=0)]
        networks = self.problem.networks
        assert networks is not None
        found = []
        for row in sorted(set(serving.tolist())):
            served = [task for unit, by in zip(self.units, serving.tolist(), strict=True) if by == row for task in unit]
            found.append(Choice(bits_of(np.flatnonzero(networks.trains[row])), bits_of(served), row))
        return tuple(found)
