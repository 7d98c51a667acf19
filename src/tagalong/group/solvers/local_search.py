"""Local search for any number of tasks, with a bound that is cheap to compute.

`solve_search` moves tasks between served sets and needs pairwise scores. `solve_listed_search` adds, swaps and drops
listed networks, which may have different costs or constraints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import Bounds, LinearConstraint, milp, minimize_scalar
from scipy.sparse import block_diag, hstack, identity
from scipy.spatial.distance import squareform

from tagalong.errors import InvalidInput

from ..selection_problem import (
    TIE_TOLERANCE,
    Floats,
    InfeasibleError,
    Ints,
    Limits,
    NetworkChoice,
    Networks,
    SelectionProblem,
    Solution,
    solution_value,
    tasks_in_mask,
    to_bit_mask,
)
from .served_sets import best_values, network_for

MAX_SORTED_VALUES = 2e8  # total over all kicks; sorting takes a few seconds
SIZE_PENALTY = 1e6  # per task above the size limit; far above any score, so sweeps first restore the limit

LIST_SEARCH_KICKS = 100  # random restarts of the search over a list
UNSERVED_VALUE = -1e6  # far below any score, so serving all tasks comes first
MAX_LISTED_VALUES = 600_000  # networks × units; the search ends if the list exceeds this size


def solve_search(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """Returns the best choice found for each budget, with a bound.

    A choice is proven optimal only if its value equals the bound.
    """
    return [_search_partitions(problem, min(int(budget), problem.n), limits) for budget in budgets]


def _search_partitions(problem: SelectionProblem, networks: int, limits: Limits) -> Solution:
    search = _PartitionSearch(problem, networks, np.random.default_rng(limits.seed))
    place = search.run(limits)
    choices = search.to_choices(place)
    value = solution_value(problem, choices)
    bound = max(simple_bound(problem, networks), value)
    return Solution(choices, bound, bound - value <= TIE_TOLERANCE)


class _PartitionSearch:
    """Improves a partition into served sets by moving units (tasks that are served together) between sets."""

    def __init__(self, problem: SelectionProblem, networks: int, rng: np.random.Generator) -> None:
        self.problem, self.networks, self.random = problem, networks, rng
        self.units = problem.units
        self.given = (
            self.units @ problem.pairwise_scores.T
        )  # the total score from each task (column) to each unit (row)

    def run(self, limits: Limits) -> Ints:
        """Starts from average linkage and then applies a fixed number of kicks (random changes)."""
        best = self.sweep(self._average_linkage(), limits)
        value = self.total_value(best)
        if self.problem.largest < self.problem.n:
            # Moves from a packing never exceed the size limit.
            best, value = self._keep_better(best, value, self.sweep(self._pack_assignment(), limits))
        sorted_per_sweep = len(self.units) * (self.networks + 2) * self.problem.n
        for kick in range(min(limits.kicks, int(MAX_SORTED_VALUES / sorted_per_sweep / 4))):
            if limits.should_stop:
                break
            place = self.sweep(self._shuffle() if kick % 10 == 9 else self._kick(best), limits)
            best, value = self._keep_better(best, value, place)
        return best

    def _keep_better(self, best: Ints, value: float, assignment: Ints) -> tuple[Ints, float]:
        other = self.total_value(assignment)
        return (assignment, other) if other > value + TIE_TOLERANCE / 10 else (best, value)

    def set_values(self, members: Floats | Ints, contributions: Floats) -> Floats:
        """Returns the value of each served set (row). The value of an empty set is 0."""
        sets = members.astype(bool)
        size = sets.sum(axis=1)
        value = best_values(self.problem, sets, contributions=contributions)
        value = np.where(np.isfinite(value), value, -SIZE_PENALTY * np.maximum(size - self.problem.largest, 1))
        return np.where(size > 0, value, 0.0)

    def total_value(self, assignment: Ints) -> float:
        return float(self.set_values(*self._sets_from_assignment(assignment)).sum())

    def sweep(self, assignment: Ints, limits: Limits) -> Ints:
        """Moves units one by one to the best set, until no move improves the value."""
        assignment = assignment.copy()
        members, given = self._sets_from_assignment(assignment)
        value = self.set_values(members, given)
        moved = True
        while moved and not limits.should_stop:
            moved = False
            for unit in self.random.permutation(len(self.units)):
                if limits.should_stop:
                    break
                here = assignment[unit]
                sign = np.where(np.arange(self.networks) == here, -1, 1)[
                    :, None
                ]  # the unit leaves `here` or joins another set
                after_members, after_given = members + sign * self.units[unit], given + sign * self.given[unit]
                after = self.set_values(after_members, after_given)
                gain = after - value + after[here] - value[here]
                gain[here] = 0.0
                there = int(gain.argmax())
                if gain[there] > TIE_TOLERANCE / 100:
                    changed = [here, there]
                    members[changed], given[changed] = after_members[changed], after_given[changed]
                    value[changed] = after[changed]
                    assignment[unit], moved = there, True
        return assignment

    def to_choices(self, assignment: Ints) -> tuple[NetworkChoice, ...]:
        """Returns the best network for each served set.

        Sets with the same trained tasks are merged into one network.
        """
        serves: dict[int, int] = {}
        for which in np.unique(assignment):
            served = np.flatnonzero(self.units[assignment == which].any(axis=0))
            choice = network_for(self.problem, served)
            serves[choice.trains] = serves.get(choice.trains, 0) | choice.serves
        return tuple(NetworkChoice(trains, served) for trains, served in serves.items())

    def _sets_from_assignment(self, assignment: Ints) -> tuple[Ints, Floats]:
        inside = (np.arange(self.networks)[:, None] == assignment).astype(np.float64)
        return (inside @ self.units).astype(np.int64), inside @ self.given

    def _average_linkage(self) -> Ints:
        """Clusters units by average linkage of their symmetrized affinities.

        If groups are clearly separated, this finds them immediately.
        """
        if len(self.units) < 3:
            return np.arange(len(self.units)) % self.networks
        near = self.given @ self.units.T
        near = (near + near.T) / np.outer(self.units.sum(axis=1), self.units.sum(axis=1))
        far = near.max() - near
        np.fill_diagonal(far, 0.0)
        tree = linkage(squareform(far, checks=False), method="average")
        place: Ints = fcluster(tree, self.networks, criterion="maxclust").astype(np.int64) - 1
        return place

    def _pack_assignment(self) -> Ints:
        """Returns a partition that satisfies the size limit."""
        place = pack_units(self.units.sum(axis=1).tolist(), self.networks, self.problem.largest)
        if place is None:
            raise InfeasibleError
        return place

    def _shuffle(self) -> Ints:
        return self.random.integers(self.networks, size=len(self.units))

    def _kick(self, assignment: Ints) -> Ints:
        """Moves a few random units, or randomly redistributes the units of two sets."""
        assignment = assignment.copy()
        if self.random.random() < 0.5:
            some = self.random.choice(len(assignment), size=max(2, len(assignment) // 10), replace=len(assignment) < 2)
            assignment[some] = self.random.integers(self.networks, size=len(some))
        else:
            pair = self.random.integers(self.networks, size=2)
            both = np.isin(assignment, pair)
            assignment[both] = self.random.choice(pair, size=int(both.sum()))
        return assignment


def pack_units(sizes: Sequence[int], bins: int, capacity: int) -> Ints | None:
    """Packs units into bins of at most `capacity` tasks. Returns the bin of each unit, or None if this is impossible.

    Units are placed in descending order of size. Each unit first goes to the emptiest bin, which spreads units
    evenly. If that fails, each unit goes to the fullest bin with enough room. If that also fails, an integer program
    is solved.
    """
    if max(sizes) > capacity or sum(sizes) > bins * capacity:
        return None
    for fullest in (False, True):
        place = _pack_greedily(sizes, bins, capacity, fullest)
        if place is not None:
            return place
    return _pack_exactly(sizes, bins, capacity)


def _pack_greedily(sizes: Sequence[int], bins: int, capacity: int, prefer_fullest: bool) -> Ints | None:
    place, load = np.zeros(len(sizes), dtype=np.int64), np.zeros(bins, dtype=np.int64)
    for unit in np.argsort(-np.array(sizes), kind="stable"):
        fits = load + sizes[unit] <= capacity
        if not fits.any():
            return None
        order = np.where(fits, -load if prefer_fullest else load, np.iinfo(np.int64).max)
        place[unit] = order.argmin()
        load[place[unit]] += sizes[unit]
    return place


def _pack_exactly(sizes: Sequence[int], bins: int, capacity: int) -> Ints | None:
    """Solves an integer program for the number of units of each size in every bin."""
    kinds, number = np.unique(sizes, return_counts=True)
    limits = block_diag([kinds[None]] * bins)
    totals = hstack([identity(len(kinds))] * bins)
    result = milp(
        np.zeros(bins * len(kinds)),
        constraints=[LinearConstraint(limits, -np.inf, capacity), LinearConstraint(totals, number, number)],
        integrality=np.ones(bins * len(kinds)),
        bounds=Bounds(0, np.tile(number, bins)),
    )
    if result.x is None:
        return None
    unit_counts = np.round(result.x).astype(np.int64).reshape(bins, len(kinds))
    place = np.zeros(len(sizes), dtype=np.int64)
    for kind, size in enumerate(kinds):
        place[np.flatnonzero(np.array(sizes) == size)] = np.repeat(np.arange(bins), unit_counts[:, kind])
    return place


def simple_bound(problem: SelectionProblem, networks: int) -> float:
    """Returns an upper bound on the value of at most `networks` networks.

    A task in a served set of s tasks is trained with at least s − 1 other tasks. Its score is therefore at most u(s),
    the mean of its s − 1 largest affinities. The sum of 1/s over all tasks is the number of served sets, which is at
    most k. For every λ ≥ 0, the value is therefore at most λk + Σ max(u(s) − λ/s), with the sum over tasks and the
    maximum over s. Every λ yields a valid bound, and a one-dimensional search finds the lowest bound.
    """
    best = max_scores_by_size(problem)
    sizes = np.arange(1, best.shape[1] + 1)

    def bound(price: float) -> float:
        return float(price * networks + (best - price / sizes).max(axis=1).sum())

    span = float(best[np.isfinite(best)].max() - best[np.isfinite(best)].min())
    high = max(span, 1e-12) * problem.n**2  # above this, every task prefers the largest set
    found = minimize_scalar(bound, bounds=(0.0, high), method="bounded", options={"xatol": 1e-9 * high})
    return min(bound(0.0), float(found.fun)) + 1e-12 * problem.n


def max_scores_by_size(problem: SelectionProblem) -> Floats:
    """Returns the highest possible score of each task (row) in served sets of 1, 2, … tasks (columns)."""
    n, alone = problem.n, problem.single_task_scores
    if n == 1:
        return alone[:, None]
    assert problem.scores is not None
    others = np.sort(-problem.scores.T[~np.eye(n, dtype=bool)].reshape(n, n - 1), axis=1)
    means = -np.cumsum(others, axis=1) / np.arange(1, n)
    first = np.maximum(means[:, 0] if problem.largest > 1 else -np.inf, alone)
    return np.concatenate([first[:, None], means], axis=1)[:, : problem.largest]


def solve_listed_search(problem: SelectionProblem, budgets: Sequence[float], limits: Limits) -> list[Solution]:
    """Returns the best choice found for each budget, with a bound.

    Raises:
        InvalidInput: If the search finds no choice that serves all tasks, although one may exist.
    """
    return [_search_selections(problem, budget, limits) for budget in budgets]


def _search_selections(problem: SelectionProblem, budget: float, limits: Limits) -> Solution:
    search = _SelectionSearch(problem, budget)
    chosen = search.run(np.random.default_rng(limits.seed), limits)
    if search.total_value(chosen) <= UNSERVED_VALUE / 2:
        raise InvalidInput(
            "`solver='search'`",
            f"found no networks within the `budget` of {budget:g} that serve all tasks under these constraints",
            hint="raise `budget`, relax a constraint, or list the networks as Candidates",
        )
    choices = search.to_choices(chosen)
    value = solution_value(search.problem, choices)
    return Solution(choices, max(_upper_bound(problem, budget), value), False)


def _upper_bound(problem: SelectionProblem, budget: float) -> float:
    """Returns an upper bound, based on the best network for each task or on the problem without constraints."""
    assert problem.networks is not None
    if problem.relaxed is None:
        return float(problem.networks.values.max(axis=0).sum())
    most = min(budget, problem.n * problem.cheapest) / problem.cheapest
    return simple_bound(problem.relaxed, max(int(most * (1 + 1e-9)), 1))


class _SelectionSearch:
    """Searches for the best selection of listed networks.

    Each unit (a set of tasks served together) is served by the best selected network.
    """

    def __init__(self, problem: SelectionProblem, budget: float) -> None:
        assert problem.networks is not None
        self.problem, self.cost, self.budget = problem, problem.networks.cost, budget * (1 + 1e-9)
        self.units = [list(tasks_in_mask(link)) for link in problem.links]
        self.known = {to_bit_mask(np.flatnonzero(row)) for row in problem.networks.trains} if problem.more else set()
        self.values_by_unit = self._unit_values(problem.networks)

    def _unit_values(self, networks: Networks) -> Floats:
        values_by_unit: Floats = np.stack([networks.values[:, unit].sum(axis=1) for unit in self.units], axis=1)
        values_by_unit = np.maximum(values_by_unit, UNSERVED_VALUE)
        return values_by_unit

    def add_neighbors(self, selected: list[int]) -> None:
        """Adds to the list all groups that differ from a selected group by a single unit."""
        networks = self.problem.networks
        assert networks is not None
        if self.problem.more is None or self.values_by_unit.size > MAX_LISTED_VALUES:
            return
        sets = {to_bit_mask(np.flatnonzero(networks.trains[row])) for row in selected}
        near = {group & ~unit if group & unit else group | unit for group in sets for unit in self.problem.links}
        new = near - self.known - {0}
        self.known |= new
        self.problem = self.problem.with_networks(networks.join(self.problem.more(new)))
        assert self.problem.networks is not None
        self.cost, before = self.problem.networks.cost, len(self.values_by_unit)
        added = self.problem.networks.only(np.arange(len(self.cost)) >= before)
        self.values_by_unit = np.concatenate([self.values_by_unit, self._unit_values(added)])

    def total_value(self, selected: list[int]) -> float:
        return float(self._best_values(selected).sum())

    def _best_values(self, selected: list[int]) -> Floats:
        """Returns the value of each unit in its best chosen network."""
        current: Floats = self.values_by_unit[selected].max(axis=0, initial=UNSERVED_VALUE)
        return current

    def run(self, rng: np.random.Generator, limits: Limits) -> list[int]:
        best = self._improve_until_stable([], limits)
        for _ in range(LIST_SEARCH_KICKS):
            if limits.should_stop or self.values_by_unit.size > MAX_LISTED_VALUES:
                break
            other = self._improve_until_stable(self._kick(best, rng), limits)
            if self.total_value(other) > self.total_value(best) + TIE_TOLERANCE / 10:
                best = other
        return best

    def _kick(self, selected: list[int], rng: np.random.Generator) -> list[int]:
        """Keeps about half of the networks, and adds one or two affordable networks that serve some unit better."""
        kept = [row for row in selected if rng.random() < 0.5]
        better = np.flatnonzero((self.values_by_unit > self._best_values(selected) + TIE_TOLERANCE).any(axis=1))
        for row in rng.permutation(better)[: rng.integers(1, 3)].tolist():
            if row not in kept and self.cost[[*kept, row]].sum() <= self.budget:
                kept.append(row)
        return kept

    def _improve_until_stable(self, selected: list[int], limits: Limits) -> list[int]:
        """Improves a selection until no similar group improves it further."""
        while True:
            better = self._improve(selected, limits)
            if self.total_value(better) <= self.total_value(selected) + TIE_TOLERANCE / 10:
                return better
            selected = better
            self.add_neighbors(selected)

    def _improve(self, selected: list[int], limits: Limits) -> list[int]:
        """Repeats the best addition or swap until none improves the value."""
        value = self.total_value(selected)
        while True:
            moves = [self._best_addition([row for row in selected if row != out]) for out in [None, *selected]]
            after, found = max(moves, key=lambda move: move[0])
            if after <= value + TIE_TOLERANCE / 10 or (limits.should_stop and value > UNSERVED_VALUE / 2):
                return self._drop_redundant(selected)
            selected, value = found, after

    def _best_addition(self, selected: list[int]) -> tuple[float, list[int]]:
        fits = np.flatnonzero(self.cost <= self.budget - self.cost[selected].sum())
        if not len(fits):
            return -np.inf, selected
        # Until all units are served, gains are divided by cost, or expensive networks would use up the budget.
        current = self._best_values(selected)
        gain = np.maximum(self.values_by_unit[fits], current).sum(axis=1)
        unserved = (current <= UNSERVED_VALUE).any()
        rate = (gain - current.sum()) / self.cost[fits] if unserved else gain
        row = int(fits[rate.argmax()])
        return float(np.maximum(self.values_by_unit[row], current).sum()), [*selected, row]

    def _drop_redundant(self, selected: list[int]) -> list[int]:
        """Drops networks that add no value."""
        for row in sorted(selected, key=lambda row: -self.cost[row]):
            rest = [other for other in selected if other != row]
            if self.total_value(rest) >= self.total_value(selected) - TIE_TOLERANCE / 10:
                selected = rest
        return selected

    def to_choices(self, selected: list[int]) -> tuple[NetworkChoice, ...]:
        serving: Ints = np.array(selected)[self.values_by_unit[selected].argmax(axis=0)]
        networks = self.problem.networks
        assert networks is not None
        found = []
        for row in sorted(set(serving.tolist())):
            served = [task for unit, by in zip(self.units, serving.tolist(), strict=True) if by == row for task in unit]
            found.append(NetworkChoice(to_bit_mask(np.flatnonzero(networks.trains[row])), to_bit_mask(served), row))
        return tuple(found)
