"""Finds the optimal networks by dynamic programming over sets of served tasks.

A solution is a partition of the tasks into served sets, each served by the best network for it. Sets are bit masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np

from ..completion import Floats, Ints
from ..grouping import MAX_TIES
from ..problem import (
    TIE_TOLERANCE,
    Limits,
    NetworkChoice,
    SelectionProblem,
    Solution,
    best_values,
    membership,
)

MAX_ARRAY_TASKS = 8  # the 3^8 pairs of a set and one of its subsets are processed in one array
MAX_PARTIAL_CHOICES = 1_000  # to extend while looking for ties; if there are more, some ties are not listed


def solve_exact(problem: SelectionProblem, budgets: Sequence[int], limits: Limits) -> list[Solution | None]:
    """Returns the optimal choice for each budget.

    Raises:
        TimeoutError: If time runs out.
    """
    program = _DynamicProgram(problem, max(budgets), limits)
    return [program.solution(budget) for budget in budgets]


class _DynamicProgram:
    """The highest value of serving each set of tasks, by number of networks.

    Attributes:
        set_values: the value of the best network for each served set, minus a tiny price for each trained task, which
            breaks ties in favor of smaller groups.
        best: the highest value of each set with at most k networks: best[k][set].
    """

    def __init__(self, problem: SelectionProblem, max_networks: int, limits: Limits) -> None:
        self.problem, self.list_ties, n = problem, limits.list_ties, problem.n
        self.price = TIE_TOLERANCE / (2 * n**2)  # all prices add up to at most half a tie
        self.slack = max(self.price / (4 * n), 8 * n * np.finfo(np.float64).eps)  # above rounding errors
        sets = np.arange(2**n)
        if problem.networks is None:
            self.set_values = best_values(problem, membership(sets, n), self.price)
        else:
            self.set_values = self._listed_values()
        for unit in problem.units:
            mask = sum(1 << task for task in unit)
            self.set_values[(sets & mask != 0) & (sets & mask != mask)] = -np.inf
        nothing = np.full(2**n, -np.inf)
        nothing[0] = 0.0
        self.best = [nothing]
        for k in range(1, max_networks + 1):
            if limits.should_stop:
                raise TimeoutError
            extended = self.set_values if k == 1 else best_split(self.set_values, self.best[-1])
            self.best.append(np.maximum(self.best[-1], extended))
            limits.report(f"exact solver, {k} networks", problem.scale * self.best[-1][-1])

    def _listed_values(self) -> Floats:
        networks = self.problem.listed
        values = np.full(2**self.problem.n, -np.inf)
        for trains, scores in zip(networks.trains, networks.values, strict=True):
            # Doubles the list of served sets for each task, with or without the task.
            sets, sums = np.zeros(1, dtype=np.int64), np.full(1, -self.price * trains.sum())
            for task in np.flatnonzero(np.isfinite(scores)):
                sets, sums = np.concatenate([sets, sets | 1 << task]), np.concatenate([sums, sums + scores[task]])
            values[sets] = np.maximum(values[sets], sums)
        values[0] = -np.inf
        return values

    def solution(self, budget: int) -> Solution | None:
        # Returns the best choice of at most `budget` networks, with the fewest networks and the smallest groups.
        totals = np.array([best[-1] for best in self.best[: budget + 1]])
        if totals[-1] == -np.inf:
            return None
        k = int(np.argmax(totals >= totals[-1] - TIE_TOLERANCE / 2))
        choices: list[NetworkChoice] = []
        left = 2**self.problem.n - 1
        while left:
            # Of equally good served sets and networks, those with the first tasks are chosen.
            served = min(self._next_sets(left, k - len(choices), self.slack), key=tasks_of)
            values, trains, rows = self._networks_for(served)
            values = values - self.price * membership(trains, self.problem.n).sum(axis=1)
            near = np.flatnonzero(values >= values.max() - self.slack).tolist()
            first = min(near, key=lambda i: tasks_of(int(trains[i])))
            choices.append(NetworkChoice(tasks_of(int(trains[first])), tasks_of(served), int(rows[first])))
            left ^= served
        chosen = tuple(choices)
        ties = self._ties(chosen, k) if self.list_ties else ()
        return Solution(chosen, totals[-1] + TIE_TOLERANCE / 2, True, ties)

    def _next_sets(self, left: int, networks_left: int, slack: float) -> list[int]:
        """Returns the sets that the next network may serve.

        All contain the first remaining task, so that each partition is found only once.
        """
        sets = np.arange(2**self.problem.n)
        sets = sets[((sets & ~left) == 0) & ((sets & left & -left) > 0)]
        values = self.set_values[sets] + self.best[networks_left - 1][left ^ sets]
        best_sets: list[int] = sets[values >= self.best[networks_left][left] - slack].tolist()
        return best_sets

    def _networks_for(self, served: int) -> tuple[Floats, Ints, Ints]:
        # Returns all networks that can serve a set: their values, trained tasks and rows in the list.
        problem, tasks = self.problem, list(tasks_of(served))
        if problem.networks is not None:
            values = problem.networks.values[:, tasks].sum(axis=1)
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

    def _ties(self, chosen: tuple[NetworkChoice, ...], k: int) -> tuple[tuple[NetworkChoice, ...], ...]:
        everything = 2**self.problem.n - 1
        least = self.problem.value_of(chosen) - TIE_TOLERANCE
        by_networks = {frozenset((choice.trains, choice.row) for choice in chosen): chosen}
        for choices, left in islice(self._extend((), 0.0, everything, k, least), MAX_PARTIAL_CHOICES):
            if not left:
                by_networks.setdefault(frozenset((choice.trains, choice.row) for choice in choices), choices)
        others = list(by_networks.values())[1:]
        others.sort(key=lambda tie: (sum(len(c.trains) for c in tie), sorted((c.serves, c.trains) for c in tie)))
        return tuple(others[:MAX_TIES])

    def _extend(
        self, choices: tuple[NetworkChoice, ...], value: float, left: int, networks_left: int, least: float
    ) -> Iterator[tuple[tuple[NetworkChoice, ...], int]]:
        # Yields a partial choice and then all its extensions that can reach the value `least`.
        yield choices, left
        if not left or not networks_left:
            return
        slack = max(self.best[networks_left][left] + value - least, 0.0) + TIE_TOLERANCE
        for served in self._next_sets(left, networks_left, slack):
            needed = least - value - self.best[networks_left - 1][left ^ served]
            values, trains, rows = self._networks_for(served)
            # Prices reduce the values of the remaining sets by up to half a tie.
            for i in np.flatnonzero(values >= needed - TIE_TOLERANCE / 2):
                choice = NetworkChoice(tasks_of(int(trains[i])), tasks_of(served), int(rows[i]))
                after = value + float(values[i])
                yield from self._extend((*choices, choice), after, left ^ served, networks_left - 1, least)


def tasks_of(bit_mask: int) -> tuple[int, ...]:
    return tuple(task for task in range(bit_mask.bit_length()) if bit_mask >> task & 1)


def best_split(first: Floats, second: Floats) -> Floats:
    # Returns the maximum of first[S] + second[T − S] over all subsets S of each set T.
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
    # Returns every pair of a set and one of its subsets, and the index at which each set begins.
    whole = part = np.zeros(1, dtype=np.int64)
    for bit in (1 << task for task in range(n)):
        whole = np.concatenate([whole, whole | bit, whole | bit])
        part = np.concatenate([part, part, part | bit])
    order = np.argsort(whole, kind="stable")
    return whole[order], part[order], np.searchsorted(whole[order], np.arange(2**n))
