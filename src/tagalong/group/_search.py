"""Local search on served sets, for any number of tasks: sweeps of single moves, then kicks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from ._bound import simple_bound
from ._packing import packed
from ._problem import TIE, Choice, Floats, Infeasible, Ints, Limits, Problem, Solution, indices, solution_value
from ._served import network_for, superset_values

WORK = 2e8  # numbers sorted in all kicks together; a few seconds at most
OVERFULL = 1e6  # for each task too many: far beyond any score, so that sweeps repair it first


def solve_search(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The best choice found for each budget, with a bound; proven only where the two meet."""
    return [_searched(problem, min(int(budget), problem.n), limits) for budget in budgets]


def _searched(problem: Problem, networks: int, limits: Limits) -> Solution:
    search = _Search(problem, networks, np.random.default_rng(limits.seed))
    place = search.run(limits)
    choices = search.choices(place)
    value = solution_value(problem, choices)
    bound = max(simple_bound(problem, networks), value)
    return Solution(choices, bound, bound - value <= TIE)


class _Search:
    """Units (tasks that are served together) are moved between `networks` places."""

    def __init__(self, problem: Problem, networks: int, random: np.random.Generator) -> None:
        self.problem, self.networks, self.random = problem, networks, random
        self.units = np.zeros((len(problem.links), problem.n), dtype=bool)
        for unit, link in enumerate(problem.links):
            self.units[unit, list(indices(link))] = True
        self.given = self.units @ problem.pairwise.T  # what each task (column) gives to each unit (row)

    def run(self, limits: Limits) -> Ints:
        """Average linkage first, then kicks: as many as the work allows, whatever the clock says."""
        best = self.swept(self._linked(), limits)
        value = self.value(best)
        if self.problem.largest < self.problem.n:
            best, value = self._better(best, value, self.swept(self._packed(), limits))  # moves never overfill
        sorted_per_sweep = len(self.units) * (self.networks + 2) * self.problem.n
        for kick in range(min(limits.kicks, int(WORK / sorted_per_sweep / 4))):
            if limits.over:
                break
            place = self.swept(self._shuffled() if kick % 10 == 9 else self._kicked(best), limits)
            best, value = self._better(best, value, place)
        return best

    def _better(self, best: Ints, value: float, place: Ints) -> tuple[Ints, float]:
        other = self.value(place)
        return (place, other) if other > value + TIE / 10 else (best, value)

    def values(self, members: Floats | Ints, given: Floats) -> Floats:
        """What each served set (row) is worth; nothing for an empty one."""
        sets = members.astype(bool)
        size = sets.sum(axis=1)
        value = superset_values(sets, given, self.problem.largest).max(axis=1)
        single = size == 1
        value[single] = np.maximum(value[single], self.problem.alone[sets[single].argmax(axis=1)])
        value = np.where(np.isfinite(value), value, -OVERFULL * np.maximum(size - self.problem.largest, 1))
        return np.where(size > 0, value, 0.0)

    def value(self, place: Ints) -> float:
        return float(self.values(*self._sets(place)).sum())

    def swept(self, place: Ints, limits: Limits) -> Ints:
        """Moves single units to where they are worth most, until none moves."""
        place = place.copy()
        members, given = self._sets(place)
        value = self.values(members, given)
        moved = True
        while moved and not limits.over:
            moved = False
            for unit in self.random.permutation(len(self.units)):
                if limits.over:
                    break
                here = place[unit]
                sign = np.where(np.arange(self.networks) == here, -1, 1)[:, None]  # leaves here, joins elsewhere
                after_members, after_given = members + sign * self.units[unit], given + sign * self.given[unit]
                after = self.values(after_members, after_given)
                gain = after - value + after[here] - value[here]
                gain[here] = 0.0
                there = int(gain.argmax())
                if gain[there] > TIE / 100:
                    changed = [here, there]
                    members[changed], given[changed] = after_members[changed], after_given[changed]
                    value[changed] = after[changed]
                    place[unit], moved = there, True
        return place

    def choices(self, place: Ints) -> tuple[Choice, ...]:
        """The best network for each place; places that train the same tasks are one network."""
        serves: dict[int, int] = {}
        for which in np.unique(place):
            served = np.flatnonzero(self.units[place == which].any(axis=0))
            choice = network_for(self.problem, served)
            serves[choice.trains] = serves.get(choice.trains, 0) | choice.serves
        return tuple(Choice(trains, served) for trains, served in serves.items())

    def _sets(self, place: Ints) -> tuple[Ints, Floats]:
        inside = (np.arange(self.networks)[:, None] == place).astype(np.float64)
        return (inside @ self.units).astype(np.int64), inside @ self.given

    def _linked(self) -> Ints:
        """Average linkage of the symmetric affinity between units: planted groups come out at once."""
        if len(self.units) < 3:
            return np.arange(len(self.units)) % self.networks
        near = self.given @ self.units.T
        near = (near + near.T) / np.outer(self.units.sum(axis=1), self.units.sum(axis=1))
        far = near.max() - near
        np.fill_diagonal(far, 0.0)
        tree = linkage(squareform(far, checks=False), method="average")
        place: Ints = fcluster(tree, self.networks, criterion="maxclust").astype(np.int64) - 1
        return place

    def _packed(self) -> Ints:
        """A way to fit under the limit on sizes."""
        place = packed(self.units.sum(axis=1).tolist(), self.networks, self.problem.largest)
        if place is None:
            raise Infeasible
        return place

    def _shuffled(self) -> Ints:
        return self.random.integers(self.networks, size=len(self.units))

    def _kicked(self, place: Ints) -> Ints:
        """A few units thrown elsewhere, or two sets poured together and parted at random."""
        place = place.copy()
        if self.random.random() < 0.5:
            some = self.random.choice(len(place), size=max(2, len(place) // 10), replace=len(place) < 2)
            place[some] = self.random.integers(self.networks, size=len(some))
        else:
            pair = self.random.integers(self.networks, size=2)
            both = np.isin(place, pair)
            place[both] = self.random.choice(pair, size=int(both.sum()))
        return place
