"""Local search for any number of tasks, with a bound that is cheap to compute.

With pairwise scores, units of tasks move between served sets. Listed networks are exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import squareform

from ..completion import Floats, Ints
from ..problem import (
    TIE_TOLERANCE,
    Limits,
    NetworkChoice,
    Networks,
    SelectionProblem,
    Solution,
    best_values,
    values_with_helpers,
)

MAX_SORTED_VALUES = 5e7  # in total over all kicks; sorting takes a few seconds
UNSERVED_VALUE = -1e6  # far below any score, so that serving all units comes first
MAX_LISTED_VALUES = 600_000  # networks × tasks; no groups are added to longer lists
MAX_COMPARED_VALUES = 5e8  # in total over all kicks; comparing takes a few seconds
SIZE_PENALTY = 1e6  # per task above the size limit; far above any score, so that moves first restore the limit


def solve_search(problem: SelectionProblem, budget: int, limits: Limits) -> Solution | None:
    """Returns the best choice found. It is proven optimal only if its value equals the bound."""
    if problem.networks is None:
        return _PartitionSearch(problem, min(budget, problem.n)).run(limits)
    return _search_listed(problem, budget, limits)


class _PartitionSearch:
    """Improves a partition into served sets by moving units between sets.

    An assignment is the served set of each unit. A unit is one task, or several that must be served together.
    """

    def __init__(self, problem: SelectionProblem, budget: int) -> None:
        self.problem, self.budget = problem, budget
        self.units = np.zeros((len(problem.units), problem.n), dtype=np.int64)  # [units, tasks]
        for unit, tasks in enumerate(problem.units):
            self.units[unit, list(tasks)] = 1
        self.contributions = self.units @ problem.pairwise_scores.T  # of each task to each unit [units, tasks]

    def run(self, limits: Limits) -> Solution | None:
        # Moves units until nothing improves, and then again after each of a number of random kicks.
        if self.budget * self.problem.max_size < self.problem.n:
            return None
        random = np.random.default_rng(limits.seed)
        best = self._move_units(self._average_linkage(), random, limits)
        bound = simple_bound(self.problem, self.budget)
        kicks = min(limits.kicks, int(MAX_SORTED_VALUES / (len(self.units) * (self.budget + 2) * self.problem.n)))
        for kick in range(kicks):
            if limits.should_stop:
                break
            start = self._kick(best, random, everything=kick % 10 == 9)
            best = self._better(best, self._move_units(start, random, limits))
            limits.report(f"local search, {self.budget} networks", self.problem.scale * self._total_value(best))
        if self._total_value(best) < -SIZE_PENALTY / 2:
            return None
        choices = self._choices(best)
        value = self.problem.value_of(choices)
        bound = max(bound, value)
        return Solution(choices, bound, bound - value <= TIE_TOLERANCE)

    def _better(self, best: Ints, other: Ints) -> Ints:
        return other if self._total_value(other) > self._total_value(best) + TIE_TOLERANCE / 10 else best

    def _average_linkage(self) -> Ints:
        # Clusters units by their mutual affinities. If groups are clearly separated, this finds them immediately.
        if len(self.units) < 3:
            return np.arange(len(self.units)) % self.budget
        sizes = self.units.sum(axis=1)
        affinity = self.contributions @ self.units.T
        affinity = (affinity + affinity.T) / np.outer(sizes, sizes)
        distance = affinity.max() - affinity
        np.fill_diagonal(distance, 0.0)
        tree = linkage(squareform(distance, checks=False), method="average")
        return np.asarray(fcluster(tree, self.budget, criterion="maxclust"), dtype=np.int64) - 1

    def _kick(self, assignment: Ints, random: np.random.Generator, everything: bool) -> Ints:
        # Moves a few random units, or randomly redistributes the units of two sets or of all sets.
        if everything:
            return random.integers(self.budget, size=len(assignment))
        assignment = assignment.copy()
        if random.random() < 0.5:
            count = max(2, len(assignment) // 10)
            moved = random.choice(len(assignment), size=count, replace=len(assignment) < 2)
            assignment[moved] = random.integers(self.budget, size=count)
        else:
            pair = random.integers(self.budget, size=2)
            moved = np.flatnonzero(np.isin(assignment, pair))
            assignment[moved] = random.choice(pair, size=len(moved))
        return assignment

    def _move_units(self, assignment: Ints, random: np.random.Generator, limits: Limits) -> Ints:
        # Moves units one by one to the best set, until no move improves the value.
        assignment = assignment.copy()
        members, contributions = self._sets(assignment)
        value = self._set_values(members, contributions)
        improved = True
        while improved and not limits.should_stop:
            improved = False
            for unit in random.permutation(len(self.units)):
                if limits.should_stop:
                    break
                here = assignment[unit]
                # The unit leaves its set or joins another one: the change in the value of every set [sets].
                sign = np.where(np.arange(self.budget) == here, -1, 1)[:, None]
                new_members = members + sign * self.units[unit]
                new_contributions = contributions + sign * self.contributions[unit]
                new_value = self._set_values(new_members, new_contributions)
                gain = new_value - value + new_value[here] - value[here]
                gain[here] = 0.0
                there = int(gain.argmax())
                if gain[there] > TIE_TOLERANCE / 100:
                    changed = [here, there]
                    members[changed], contributions[changed] = new_members[changed], new_contributions[changed]
                    value[changed] = new_value[changed]
                    assignment[unit], improved = there, True
        return assignment

    def _sets(self, assignment: Ints) -> tuple[Ints, Floats]:
        # Returns the members of each set, and the contribution of each task to it [sets, tasks].
        inside = np.arange(self.budget)[:, None] == assignment
        return inside.astype(np.int64) @ self.units, inside.astype(np.float64) @ self.contributions

    def _set_values(self, members: Ints, contributions: Floats) -> Floats:
        sets, size = members.astype(bool), members.sum(axis=1)
        value = best_values(self.problem, sets, contributions=contributions)
        value = np.where(np.isfinite(value), value, -SIZE_PENALTY * np.maximum(size - self.problem.max_size, 1))
        return np.where(size > 0, value, 0.0)

    def _total_value(self, assignment: Ints) -> float:
        return float(self._set_values(*self._sets(assignment)).sum())

    def _choices(self, assignment: Ints) -> tuple[NetworkChoice, ...]:
        # Returns the best network for each served set. Networks that train the same tasks are merged.
        serves: dict[tuple[int, ...], tuple[int, ...]] = {}
        for served_set in np.unique(assignment):
            served = np.flatnonzero(self.units[assignment == served_set].any(axis=0))
            trains = tuple(best_network(self.problem, served).tolist())
            serves[trains] = (*serves.get(trains, ()), *served.tolist())
        return tuple(NetworkChoice(trains, tuple(sorted(served))) for trains, served in serves.items())


def best_network(problem: SelectionProblem, served: Ints) -> Ints:
    # Returns the tasks of the best network for a served set. Ties are broken by size and then by name.
    price = TIE_TOLERANCE / (2 * problem.n**2)
    members = np.isin(np.arange(problem.n), served)
    contributions = problem.pairwise_scores[:, served].sum(axis=1)
    value = values_with_helpers(members[None], contributions[None], problem.max_size, price)[0]
    if len(served) == 1 and problem.single_task_scores[served[0]] - price >= value.max():
        return served
    rounded = np.round(contributions / (price / (4 * problem.n)))
    order = np.argsort(-np.where(members, -np.inf, rounded), kind="stable")
    return np.sort(np.concatenate([served, order[: int(value.argmax())]]))


def simple_bound(problem: SelectionProblem, budget: int) -> float:
    """Returns an upper bound on the value of at most `budget` networks.

    A task in a served set of s tasks is trained with at least s − 1 other tasks. Its score is therefore at most u(s),
    the mean of its s − 1 largest affinities. The sum of 1/s over all tasks is the number of served sets, which is at
    most k. For every λ ≥ 0, the value is therefore at most λk + Σ max(u(s) − λ/s), with the sum over tasks and the
    maximum over s. Every λ yields a valid bound, and a one-dimensional search finds the lowest bound.
    """
    n, alone = problem.n, problem.single_task_scores
    if n == 1:
        return float(alone[0])
    others = -np.sort(-problem.pairwise_scores.T[~np.eye(n, dtype=bool)].reshape(n, n - 1), axis=1)
    means = np.cumsum(others, axis=1) / np.arange(1, n)
    if problem.max_size > 1:
        alone = np.maximum(alone, means[:, 0])  # with one helper
    highest = np.column_stack([alone, means])[:, : problem.max_size]  # u(s) [tasks, sizes]
    shares = 1 / np.arange(1, highest.shape[1] + 1)

    def bound(multiplier: float) -> float:
        return float(multiplier * budget + (highest - multiplier * shares).max(axis=1).sum())

    finite = highest[np.isfinite(highest)]
    most = max(float(np.ptp(finite)), 1e-12) * n**2  # above this multiplier, every task prefers the largest set
    best = minimize_scalar(bound, bounds=(0.0, most), method="bounded", options={"xatol": 1e-9 * most})
    return min(bound(0.0), float(best.fun)) + 1e-12 * n


def _search_listed(problem: SelectionProblem, budget: int, limits: Limits) -> Solution | None:
    random = np.random.default_rng(limits.seed)
    problem, rows = _improve(problem, budget, [], limits)

    # Random kicks: keep some of the networks, add another one, and improve this choice.
    kicks = min(limits.kicks, int(MAX_COMPARED_VALUES / (problem.unit_values.size * budget**2)))
    for _ in range(kicks):
        if limits.should_stop or len(rows) < 2:
            break
        kept = random.choice(rows, size=random.integers(len(rows)), replace=False).tolist()
        costs = problem.listed.cost
        affordable = np.flatnonzero(costs <= problem.max_total_cost - costs[kept].sum())
        kept += random.choice(affordable, size=min(1, len(affordable))).tolist()
        problem, kicked = _improve(problem, budget, kept, limits)
        if total_value(problem, kicked) > total_value(problem, rows) + TIE_TOLERANCE:
            rows = kicked
        limits.report(f"local search, {budget} networks", problem.scale * total_value(problem, rows))

    bound = float(problem.unit_values.max(axis=0).sum())
    if problem.list_more is not None:
        bound = simple_bound(problem, budget)
    solution = to_solution(problem, rows, bound)
    return solution and replace(solution, proven=False)


def _improve(
    problem: SelectionProblem, budget: int, rows: list[int], limits: Limits
) -> tuple[SelectionProblem, list[int]]:
    # Exchanges networks and lists groups that are similar to the chosen ones, until nothing improves.
    rows, value = exchange_networks(problem, budget, rows, limits), -np.inf
    while total_value(problem, rows) > value + TIE_TOLERANCE and not limits.should_stop:
        value = total_value(problem, rows)
        problem = _list_similar_groups(problem, rows)
        rows = exchange_networks(problem, budget, rows, limits)
    return problem, rows


def _list_similar_groups(problem: SelectionProblem, rows: list[int]) -> SelectionProblem:
    # They differ from a chosen group by one unit.
    trains = problem.listed.trains
    if problem.list_more is None or trains.size > MAX_LISTED_VALUES:
        return problem
    units = np.array([np.isin(np.arange(problem.n), unit) for unit in problem.units])
    similar = {group.tobytes(): group for row in rows for group in trains[row] ^ units}
    unlisted = similar.keys() - {group.tobytes() for group in trains}
    added = problem.list_more(np.array([similar[key] for key in sorted(unlisted)], dtype=bool).reshape(-1, problem.n))
    columns: list[Any] = [np.concatenate(parts) for parts in zip(problem.listed, added, strict=True)]
    return replace(problem, networks=Networks(*columns))


def exchange_networks(problem: SelectionProblem, budget: int, rows: list[int], limits: Limits) -> list[int]:
    # Adds networks to a choice, or exchanges them one by one, until nothing improves.
    networks = problem.listed
    values = np.maximum(problem.unit_values, UNSERVED_VALUE)  # [networks, units]
    limit = problem.max_total_cost * (1 + 1e-9)
    value = total_value(problem, rows)
    while not (limits.should_stop and serves_all(problem, rows)):
        best_rows, best_rate = rows, TIE_TOLERANCE
        for removed in [None, *rows]:
            kept = [row for row in rows if row != removed]
            current = values[kept].max(axis=0, initial=UNSERVED_VALUE)
            gain = np.maximum(values, current).sum(axis=1) - value
            # Until all units are served, gains are divided by costs, or expensive networks would use up the budget.
            rate = gain / networks.cost if (current == UNSERVED_VALUE).any() else gain
            rate = np.where(networks.cost <= limit - networks.cost[kept].sum(), rate, -np.inf)
            if len(kept) < budget and rate.max(initial=0.0) > best_rate:
                best_rows, best_rate = [*kept, int(rate.argmax())], float(rate.max())
        if best_rows is rows:
            break
        rows, value = best_rows, total_value(problem, best_rows)
    return sorted({rows[i] for i in values[rows].argmax(axis=0)}) if rows else rows


def total_value(problem: SelectionProblem, rows: list[int]) -> float:
    return float(problem.unit_values[rows].max(axis=0, initial=UNSERVED_VALUE).sum())


def serves_all(problem: SelectionProblem, rows: list[int]) -> bool:
    return total_value(problem, rows) > UNSERVED_VALUE / 2


def to_solution(problem: SelectionProblem, rows: Sequence[int], bound: float) -> Solution | None:
    # Returns the solution in which each unit is served by the best of the chosen networks, or None if some cannot.
    if not serves_all(problem, list(rows)):
        return None
    serving = np.array(rows)[problem.unit_values[list(rows)].argmax(axis=0)]
    choices = []
    for row in np.unique(serving).tolist():
        served = [task for unit, by in zip(problem.units, serving, strict=True) if by == row for task in unit]
        trains = np.flatnonzero(problem.listed.trains[row])
        choices.append(NetworkChoice(tuple(trains.tolist()), tuple(sorted(served)), row))
    value = problem.value_of(choices)
    bound = max(bound, value)
    return Solution(tuple(choices), bound, bound - value <= TIE_TOLERANCE)
