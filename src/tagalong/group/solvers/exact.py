"""Finds the optimal networks by dynamic programming over sets of served tasks.

A solution is a partition of the tasks into served sets, each served by the best network for it. Sets are bit masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np

from ..problem import (
    MAX_LISTED,
    TIE_TOLERANCE,
    Floats,
    Ints,
    Limits,
    NetworkChoice,
    SelectionProblem,
    Solution,
    membership,
)
from .served_sets import best_values

MAX_PAIRWISE = 16  # tasks
MAX_LEVELS = 400  # distinct sums of costs
MAX_ADDITIONS = 2e9  # which take a few seconds
MAX_ARRAY_TASKS = 8  # the 3^8 pairs of a set and one of its subsets are processed in one array
SETS_PER_BATCH = 1 << 15  # takes a few megabytes for any number of tasks
MAX_TIES = 8  # listed per solution
MAX_PARTIAL_CHOICES = 1_000  # to extend while looking for ties; if there are more, some ties are not listed


def solve_exact(problem: SelectionProblem, budgets: Sequence[int], limits: Limits) -> list[Solution | None]:
    """Returns the optimal choice for each budget.

    Raises:
        TimeoutError: If time runs out.
    """
    program = _DynamicProgram(problem, max(budgets), limits)
    return [program.solution(budget) for budget in budgets]


def can_solve_exactly(problem: SelectionProblem, max_networks: int) -> bool:
    """Returns whether the dynamic program takes at most a few seconds."""
    if problem.networks is None:
        return problem.n <= MAX_PAIRWISE
    if problem.n > MAX_LISTED or problem.list_more is not None:
        return False
    costs = _costs(problem)
    levels = _spending_levels(costs, problem.max_total_cost, max_networks)
    additions = len(levels) * len(costs) * _most_networks(problem, costs, max_networks) * 3**problem.n
    return len(levels) <= MAX_LEVELS and additions <= MAX_ADDITIONS


def _costs(problem: SelectionProblem) -> Floats:
    """Returns the distinct costs in ascending order, or a single zero if the total cost is not limited."""
    networks = problem.networks
    if networks is None or problem.max_total_cost == np.inf or not len(networks.cost):
        return np.zeros(1)
    return np.unique(networks.cost)


def _spending_levels(costs: Floats, limit: float, max_networks: int) -> Floats:
    """Returns the sums of costs up to the limit, but not many more than `MAX_LEVELS`."""
    unit = costs.min(initial=np.inf, where=costs > 0)
    most = min(limit, max_networks * costs.max()) * (1 + 1e-9)
    levels = sums = np.zeros(1)
    while len(sums) and len(levels) <= MAX_LEVELS and costs.any():
        sums = np.round((sums[:, None] + costs).ravel() / unit, 9) * unit  # equal sums may differ by rounding
        sums = np.setdiff1d(sums[sums <= most], levels)
        levels = np.union1d(levels, sums)
    return levels


def _most_networks(problem: SelectionProblem, costs: Floats, max_networks: int) -> int:
    return int(min(max_networks, problem.max_total_cost * (1 + 1e-9) / costs[0])) if costs.any() else max_networks


class _DynamicProgram:
    """The highest value of serving each set of tasks, by number of networks and total cost.

    Attributes:
        set_values: the value of the best network for each cost and served set [costs, sets], minus a tiny price for
            each trained task, which breaks ties in favor of smaller groups.
        best: the highest value of each set with at most k networks, within each spending level: best[k][level][set].
    """

    def __init__(self, problem: SelectionProblem, max_networks: int, limits: Limits) -> None:
        self.problem, n = problem, problem.n
        self.costs = _costs(problem)
        self.levels = _spending_levels(self.costs, problem.max_total_cost, max_networks)
        self.price = TIE_TOLERANCE / (2 * n**2)  # all prices add up to at most half a tie
        self.slack = max(self.price / (4 * n), 8 * n * np.finfo(np.float64).eps)  # above rounding errors
        if problem.networks is None:
            self.set_values = self._pairwise_values(limits)
        else:
            self.set_values = self._listed_values()
        sets = np.arange(2**n)
        for unit in problem.units:
            mask = sum(1 << task for task in unit)
            self.set_values[:, (sets & mask != 0) & (sets & mask != mask)] = -np.inf
        nothing = np.full(2**n, -np.inf)
        nothing[0] = 0.0
        self.best = [[nothing] * len(self.levels)]
        for k in range(1, _most_networks(problem, self.costs, max_networks) + 1):
            if limits.should_stop:
                raise TimeoutError
            self.best.append([self._add_network(level) for level in range(len(self.levels))])
            limits.report("exact solver: %d networks", k)

    def _pairwise_values(self, limits: Limits) -> Floats:
        n = self.problem.n
        values = np.full((1, 2**n), -np.inf)
        for start in range(0, 2**n, SETS_PER_BATCH):
            if limits.should_stop:
                raise TimeoutError
            sets = np.arange(start, min(start + SETS_PER_BATCH, 2**n))
            values[0, sets] = best_values(self.problem, membership(sets, n), self.price)
        return values

    def _listed_values(self) -> Floats:
        networks = self.problem.networks
        assert networks is not None
        values = np.full((len(self.costs), 2**self.problem.n), -np.inf)
        kinds = np.searchsorted(self.costs, networks.cost) if self.costs.any() else np.zeros(len(networks.cost), int)
        for kind, trains, scores in zip(kinds, networks.trains, networks.values, strict=True):
            # Doubles the list of served sets for each task, with or without the task.
            sets, sums = np.zeros(1, dtype=np.int64), np.full(1, -self.price * trains.sum())
            for task in np.flatnonzero(np.isfinite(scores)):
                sets, sums = np.concatenate([sets, sets | 1 << task]), np.concatenate([sums, sums + scores[task]])
            values[kind, sets] = np.maximum(values[kind, sets], sums)
        values[:, 0] = -np.inf
        return values

    def _add_network(self, level: int) -> Floats:
        """Returns the highest values with one more network than before."""
        best = self.best[-1][level]
        for set_values, rest in self._affordable(level):
            first = len(self.best) == 1
            best = np.maximum(best, set_values if first else best_split(set_values, self.best[-1][rest]))
        return best

    def _affordable(self, level: int) -> list[tuple[Floats, int]]:
        """Returns the values of served sets for each cost within a level, and the level that is left."""
        rests = self.levels[level] - self.costs + 1e-9 * self.levels[-1]
        left = np.searchsorted(self.levels, rests, side="right") - 1
        return [(values, int(rest)) for values, rest in zip(self.set_values, left, strict=True) if rest >= 0]

    def solution(self, budget: int) -> Solution | None:
        """Returns the best choice of at most `budget` networks, with the fewest networks and the smallest groups."""
        values = [tables[-1][-1] for tables in self.best[: budget + 1]]
        if values[-1] == -np.inf:
            return None
        k = int(np.argmax(np.array(values) >= values[-1] - TIE_TOLERANCE / 2))
        choices = []
        left, level = 2**self.problem.n - 1, len(self.levels) - 1
        for networks_left in range(k, 0, -1):
            # Of equally good served sets, the one with the first tasks is chosen.
            _, kind, served, level = min(self._next_sets(left, networks_left, level, self.slack))
            choices.append(self._best_network(kind, served))
            left ^= served
            if not left:
                break
        chosen = tuple(choices)
        return Solution(chosen, values[-1] + TIE_TOLERANCE / 2, True, self._ties(chosen, k))

    def _next_sets(
        self, left: int, networks_left: int, level: int, slack: float
    ) -> list[tuple[tuple[int, ...], int, int, int]]:
        """Returns the sets that the next network may serve: their tasks, kind of cost, bit mask and level left.

        All contain the first remaining task, so that each partition is found only once.
        """
        sets = np.arange(2**self.problem.n)
        sets = sets[((sets & ~left) == 0) & ((sets & left & -left) > 0)]
        least = self.best[networks_left][level][left] - slack
        options = []
        for kind, (set_values, rest) in enumerate(self._affordable(level)):
            values = set_values[sets] + self.best[networks_left - 1][rest][left ^ sets]
            options += [(tasks_of(mask), kind, mask, rest) for mask in sets[values >= least].tolist()]
        return options

    def _networks_for(self, kind: int, served: int) -> tuple[Floats, Ints, Ints]:
        """Returns all networks of a cost that can serve a set: their values, trained tasks and rows in the list."""
        problem, tasks = self.problem, list(tasks_of(served))
        if problem.networks is not None:
            values = problem.networks.values[:, tasks].sum(axis=1)
            if self.costs.any():
                values = np.where(problem.networks.cost == self.costs[kind], values, -np.inf)
            rows = np.flatnonzero(np.isfinite(values))
            return values[rows], problem.networks.trains[rows] @ (1 << np.arange(problem.n)), rows
        contributions = problem.pairwise_scores[:, tasks].sum(axis=1)
        trains, sums = np.array([served]), np.array([contributions[tasks].sum()])
        for task in range(problem.n):
            if task not in tasks:
                trains = np.concatenate([trains, trains | 1 << task])
                sums = np.concatenate([sums, sums + contributions[task]])
        sizes = membership(trains, problem.n).sum(axis=1)
        values = sums / np.maximum(sizes - 1, 1)
        if len(tasks) == 1:
            values[0] = problem.single_task_scores[tasks[0]]
        values[sizes > problem.max_size] = -np.inf
        return values, trains, np.full(len(trains), -1)

    def _best_network(self, kind: int, served: int) -> NetworkChoice:
        values, trains, rows = self._networks_for(kind, served)
        values = values - self.price * membership(trains, self.problem.n).sum(axis=1)
        near = np.flatnonzero(values >= values.max() - self.slack)
        first = min(near.tolist(), key=lambda i: tasks_of(int(trains[i])))
        return NetworkChoice(tasks_of(int(trains[first])), tasks_of(served), int(rows[first]))

    def _ties(self, chosen: tuple[NetworkChoice, ...], k: int) -> tuple[tuple[NetworkChoice, ...], ...]:
        """Returns other equally good choices of at most k networks, ordered by size."""
        everything = 2**self.problem.n - 1
        least = self.problem.value_of(chosen) - TIE_TOLERANCE
        partial_choices = self._extend((), 0.0, everything, k, len(self.levels) - 1, least)
        by_networks = {_network_key(chosen): chosen}
        for choices, left in islice(partial_choices, MAX_PARTIAL_CHOICES):
            if not left:
                by_networks.setdefault(_network_key(choices), choices)
        del by_networks[_network_key(chosen)]
        ties = sorted(by_networks.values(), key=_size_and_tasks)
        return tuple(ties[:MAX_TIES])

    def _extend(
        self, choices: tuple[NetworkChoice, ...], value: float, left: int, networks_left: int, level: int, least: float
    ) -> Iterator[tuple[tuple[NetworkChoice, ...], int]]:
        """Yields a partial choice and then all its extensions that can reach the value `least`."""
        yield choices, left
        if not left or not networks_left:
            return
        slack = max(self.best[networks_left][level][left] + value - least, 0.0) + TIE_TOLERANCE
        for tasks, kind, served, rest in self._next_sets(left, networks_left, level, slack):
            needed = least - value - self.best[networks_left - 1][rest][left ^ served]
            values, trains, rows = self._networks_for(kind, served)
            # Prices reduce the values of the remaining sets by up to half a tie.
            for i in np.flatnonzero(values >= needed - TIE_TOLERANCE / 2):
                choice = NetworkChoice(tasks_of(int(trains[i])), tasks, int(rows[i]))
                after = value + float(values[i])
                yield from self._extend((*choices, choice), after, left ^ served, networks_left - 1, rest, least)


def _network_key(choices: tuple[NetworkChoice, ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple(sorted((choice.trains, choice.row) for choice in choices))


def _size_and_tasks(choices: tuple[NetworkChoice, ...]) -> tuple[int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    size = sum(len(choice.trains) for choice in choices)
    return size, sorted((choice.serves, choice.trains) for choice in choices)


def tasks_of(bit_mask: int) -> tuple[int, ...]:
    """Returns the tasks in a bit mask."""
    return tuple(task for task in range(bit_mask.bit_length()) if bit_mask >> task & 1)


def best_split(first: Floats, second: Floats) -> Floats:
    """Returns the maximum of first[S] + second[T − S] over all subsets S of each set T."""
    n = len(first).bit_length() - 1
    low = min(n, MAX_ARRAY_TASKS)
    whole, part, starts = _subsets(low)
    first, second = first.reshape(-1, 2**low), second.reshape(-1, 2**low)
    best = np.full_like(first, -np.inf)
    high_whole, high_part, _ = _subsets(n - low)
    for row, taken in zip(high_whole.tolist(), high_part.tolist(), strict=True):
        sums = first[taken][part] + second[row ^ taken][whole ^ part]
        np.maximum(best[row], np.maximum.reduceat(sums, starts), out=best[row])
    return best.reshape(-1)


@lru_cache(maxsize=8)
def _subsets(n: int) -> tuple[Ints, Ints, Ints]:
    """Returns every pair of a set and one of its subsets, and the index at which each set begins."""
    whole = part = np.zeros(1, dtype=np.int64)
    for bit in (1 << task for task in range(n)):
        whole = np.concatenate([whole, whole | bit, whole | bit])
        part = np.concatenate([part, part, part | bit])
    order = np.argsort(whole, kind="stable")
    return whole[order], part[order], np.searchsorted(whole[order], np.arange(2**n))
