"""Local search for any number of tasks, with a cheap bound.

`solve_search` moves tasks between served sets, where scores are means over pairs. `solve_listed_search` adds, swaps and
drops networks of a list, where they have costs or rules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import Bounds, LinearConstraint, milp, minimize_scalar
from scipy.sparse import block_diag, hstack, identity
from scipy.spatial.distance import squareform

from ..problem import (
    TIE,
    Choice,
    Floats,
    Infeasible,
    Ints,
    Limits,
    Networks,
    Problem,
    Solution,
    bits_of,
    indices,
    solution_value,
)
from .served_sets import network_for, values_of

WORK = 2e8  # numbers sorted in all kicks together; a few seconds at most
OVERFULL = 1e6  # for each task too many: far beyond any score, so that sweeps repair it first

KICKS = 100  # of the search over a list, at most
UNSERVED = -1e6  # far below any score, so that serving everybody comes first
MOST_VALUES = 600_000  # networks × units in the list; then it grows no more, and the search ends


def solve_search(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The best choice found for each budget, with a bound; proven only where the two meet."""
    return [_search_partitions(problem, min(int(budget), problem.n), limits) for budget in budgets]


def _search_partitions(problem: Problem, networks: int, limits: Limits) -> Solution:
    search = _PartitionSearch(problem, networks, np.random.default_rng(limits.seed))
    place = search.run(limits)
    choices = search.choices(place)
    value = solution_value(problem, choices)
    bound = max(simple_bound(problem, networks), value)
    return Solution(choices, bound, bound - value <= TIE)


class _PartitionSearch:
    """A partition into served sets: units (tasks that are served together) are moved between `networks` places."""

    def __init__(self, problem: Problem, networks: int, random: np.random.Generator) -> None:
        self.problem, self.networks, self.random = problem, networks, random
        self.units = problem.units
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
        value = values_of(self.problem, sets, given=given)
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


def packed(sizes: Sequence[int], places: int, room: int) -> Ints | None:
    """A place for each unit so that no place holds more than `room` tasks; None if there is no such way.

    Largest first into the emptiest place, which spreads units evenly; where that fails, fullest place that still
    has room; where that fails too, an integer programme decides.
    """
    if max(sizes) > room or sum(sizes) > places * room:
        return None
    for fullest in (False, True):
        place = _packed_greedily(sizes, places, room, fullest)
        if place is not None:
            return place
    return _packed_exactly(sizes, places, room)


def _packed_greedily(sizes: Sequence[int], places: int, room: int, fullest: bool) -> Ints | None:
    place, load = np.zeros(len(sizes), dtype=np.int64), np.zeros(places, dtype=np.int64)
    for unit in np.argsort(-np.array(sizes), kind="stable"):
        fits = load + sizes[unit] <= room
        if not fits.any():
            return None
        order = np.where(fits, -load if fullest else load, np.iinfo(np.int64).max)
        place[unit] = order.argmin()
        load[place[unit]] += sizes[unit]
    return place


def _packed_exactly(sizes: Sequence[int], places: int, room: int) -> Ints | None:
    """How many units of each size every place holds."""
    kinds, number = np.unique(sizes, return_counts=True)
    limits = block_diag([kinds[None]] * places)
    totals = hstack([identity(len(kinds))] * places)
    result = milp(
        np.zeros(places * len(kinds)),
        constraints=[LinearConstraint(limits, -np.inf, room), LinearConstraint(totals, number, number)],
        integrality=np.ones(places * len(kinds)),
        bounds=Bounds(0, np.tile(number, places)),
    )
    if result.x is None:
        return None
    held = np.round(result.x).astype(np.int64).reshape(places, len(kinds))
    place = np.zeros(len(sizes), dtype=np.int64)
    for kind, size in enumerate(kinds):
        place[np.flatnonzero(np.array(sizes) == size)] = np.repeat(np.arange(places), held[:, kind])
    return place


def simple_bound(problem: Problem, networks: int) -> float:
    """No choice of at most `networks` networks is worth more.

    A task in a served set of s tasks is trained with s − 1 others or more, so it scores at most u(s), the mean of
    its s − 1 largest affinities. And Σ 1/s over all tasks is the number of served sets, at most k. So for every
    λ ≥ 0 the value is at most λk + Σ max over s of u(s) − λ/s; the best λ is searched, any is valid.
    """
    best = score_by_size(problem)
    sizes = np.arange(1, best.shape[1] + 1)

    def bound(price: float) -> float:
        return float(price * networks + (best - price / sizes).max(axis=1).sum())

    span = float(best[np.isfinite(best)].max() - best[np.isfinite(best)].min())
    high = max(span, 1e-12) * problem.n**2  # beyond it every task chooses the largest set
    found = minimize_scalar(bound, bounds=(0.0, high), method="bounded", options={"xatol": 1e-9 * high})
    return min(bound(0.0), float(found.fun)) * 1.0 + 1e-12 * problem.n


def score_by_size(problem: Problem) -> Floats:
    """For each task the most it can score in a served set of 1, 2, … tasks, falling."""
    n, alone = problem.n, problem.alone
    if n == 1:
        return alone[:, None]
    assert problem.scores is not None
    others = np.sort(-problem.scores.T[~np.eye(n, dtype=bool)].reshape(n, n - 1), axis=1)
    means = -np.cumsum(others, axis=1) / np.arange(1, n)
    first = np.maximum(means[:, 0] if problem.largest > 1 else -np.inf, alone)
    return np.concatenate([first[:, None], means], axis=1)[:, : problem.largest]


def solve_listed_search(problem: Problem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """The best choice found for each budget, with a bound.

    Raises:
        ValueError: nothing was found that serves all tasks, which does not mean that there is nothing.
    """
    return [_search_selections(problem, budget, limits) for budget in budgets]


def _search_selections(problem: Problem, budget: float, limits: Limits) -> Solution:
    search = _SelectionSearch(problem, budget)
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


class _SelectionSearch:
    """A selection of networks: rows of the list; every unit (tasks served together) takes the best of them."""

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
