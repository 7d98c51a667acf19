"""Proposes sets of tasks whose networks are worth training, from the losses of those that were trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.learn import Trained

from ..relative_losses import Subset
from .beliefs import Array, Beliefs, Bools, distances
from .committee import best_set
from .flattery import mean_half_loss, small_set_flattery

MAX_POOL_SIZE = 4096  # number of candidate sets of tasks
OPTIMISM, MAX_OPTIMISM = 1.0, 8.0  # standard deviations subtracted from the predicted losses of untrained networks
PROPOSALS_PER_FIT = 12  # predictions are updated so many times while a whole effort is spent
MIN_ROUND = 2  # networks, since a grouping needs several


class Trial(NamedTuple):
    """The tasks and the seed of a network."""

    tasks: Subset
    seed: int


@dataclass
class Proposer:
    """Knows the results of networks, and proposes others.

    Args:
        tasks: the names of all tasks.
        seeds: the seeds to choose from. The network for all tasks converges with each of them.
        budgets: the numbers of networks that are to be used.
        importance: how much a relative change of each task's loss counts, or None if all count the same.
    """

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    budgets: tuple[int, ...]
    importance: Array | None = None
    results: dict[Trial, Trained] = field(default_factory=dict)  # without sets that diverged with any seed
    diverged: set[Subset] = field(default_factory=set)

    def add(self, results: Mapping[Trial, Trained]) -> None:
        """Adds results. A set of tasks that diverged with one seed is dropped with all seeds."""
        self.diverged |= {trial.tasks for trial, result in results.items() if result.diverged}
        known = {**self.results, **results}
        self.results = {trial: result for trial, result in known.items() if trial.tasks not in self.diverged}
        self.__dict__.pop("beliefs", None)

    @cached_property
    def beliefs(self) -> Beliefs:
        """What the results say about other networks."""
        return Beliefs(*self._observations())

    def propose(self, count: int, effort: float) -> list[Trial]:
        """Returns the networks that would be best according to optimistic predictions of their losses.

        The first proposals are assumed to turn out as predicted before the next ones are made. Otherwise, there would
        be many networks that teach the same lesson. In Bayesian optimization, this is known as the kriging believer.

        Args:
            count: the number of networks.
            effort: the number of networks that are to be trained in all.
        """
        per_fit = max(MIN_ROUND, round(effort / PROPOSALS_PER_FIT))
        inside, seeds, logs = self._observations()
        base = {seeds[row]: logs[row] for row in np.flatnonzero(inside.all(1))}
        beliefs, candidates, proposals = self.beliefs, self._candidates(inside), list[Trial]()
        while len(proposals) < count:
            known = [*self.results, *proposals]
            new = self._best(beliefs, candidates, known, min(per_fit, count - len(proposals)))
            if not new:
                break
            proposals += new
            sets = np.array([self._mask(trial.tasks) for trial in new])
            levels = np.array([base.get(trial.seed, base[self.seeds[0]]) for trial in new])
            inside, seeds = np.vstack([inside, sets]), np.append(seeds, [trial.seed for trial in new])
            logs = np.vstack([logs, levels + beliefs.predict(sets)[0]])
            if len(proposals) < count:
                beliefs = Beliefs(inside, seeds, logs)
        return proposals

    def _observations(self) -> tuple[Bools, NDArray[np.int64], Array]:
        """Returns the tasks [networks, tasks], seeds [networks] and log losses [networks, tasks] of the networks."""
        inside = np.array([self._mask(trial.tasks) for trial in self.results])
        flattery = small_set_flattery(self.results.values(), len(self.tasks))
        logs = np.full(inside.shape, np.nan)
        for row, (trial, result) in enumerate(self.results.items()):
            flattered = flattery[len(trial.tasks)] if result.flattery else 0.0
            for column in np.flatnonzero(inside[row]):
                logs[row, column] = np.log(mean_half_loss(result, self.tasks[column])) + np.log1p(flattered)
        return inside, np.array([trial.seed for trial in self.results]), logs

    def _candidates(self, inside: Bools) -> Bools:
        """Returns the sets to choose from [sets, tasks]: the set of all tasks first, then all others if there are few.

        Otherwise, these are single tasks, pairs, the sets that omit one or two tasks, and those that differ from a
        trained set in one task.
        """
        n = len(self.tasks)
        if 2**n - 1 <= MAX_POOL_SIZE:
            sets = (np.arange(2**n - 1, 0, -1)[:, None] >> np.arange(n) & 1).astype(bool)
        else:
            one = np.eye(n, dtype=bool)
            upper, lower = np.triu_indices(n, 1)
            two = one[upper] | one[lower]
            neighbors = (inside[::-1, None] ^ one).reshape(-1, n)  # of the latest networks first
            sets = np.concatenate([np.ones((1, n), dtype=bool), ~one, one, neighbors, ~two, two])
            sets = np.array(list(dict.fromkeys(map(tuple, sets[sets.any(1)].tolist()))))[:MAX_POOL_SIZE]
        return sets[[self._tasks_of(row) not in self.diverged for row in sets]]

    def _best(self, beliefs: Beliefs, sets: Bools, known: Sequence[Trial], count: int) -> list[Trial]:
        """Chooses new sets first, since they are more informative than additional seeds of known sets."""
        trained = np.array([self._mask(trial.tasks) for trial in known])
        times = (distances(sets, trained) == 0).sum(1)
        is_known = times > 0 if (times == 0).any() else times >= len(self.seeds)
        means, deviations = beliefs.predict(sets)
        doubts = np.where(is_known[:, None], 0.0, deviations)
        importance = 1.0 if self.importance is None else self.importance
        trials, optimism = list[Trial](), OPTIMISM
        while len(trials) < count and optimism < MAX_OPTIMISM:
            before = len(trials)
            for budget in self.budgets:
                values = np.where(sets, (means - optimism * doubts) * importance, np.inf)
                values[0] = 0.0
                for row in select_cover(values, budget):
                    if not is_known[row] and len(trials) < count:
                        trials.append(Trial(self._tasks_of(sets[row]), self._seed_for(sets[row], [*known, *trials])))
                        is_known[row], doubts[row] = True, 0.0  # will be known after this round
            if len(trials) == before:
                optimism *= 1.5
        return trials

    def _seed_for(self, row: Bools, known: Sequence[Trial]) -> int:
        """Returns a seed that is rarely used, and allows a paired comparison with the network for all tasks."""
        tasks, everything = self._tasks_of(row), frozenset(self.tasks)
        free = [seed for seed in self.seeds if Trial(tasks, seed) not in known]
        paired = [seed for seed in free if Trial(everything, seed) in known]
        used = [trial.seed for trial in known]
        return min(paired or free, key=lambda seed: (used.count(seed), seed))

    def _mask(self, tasks: Subset) -> list[bool]:
        return [task in tasks for task in self.tasks]

    def _tasks_of(self, row: Bools) -> Subset:
        return frozenset(task for task, inside in zip(self.tasks, row, strict=True) if inside)


def select_cover(values: Array, budget: int) -> tuple[int, ...]:
    """Selects rows (networks) that approximately minimize the sum of the lowest value in each column (task).

    Args:
        values: an array of shape [networks, tasks], which is infinite where a network is not trained on a task. The
            first row must be finite.
        budget: the maximum number of networks.

    Returns:
        The indices of the selected rows, without redundant rows.

    Example:
        >>> inf = np.inf
        >>> select_cover(np.array([[0.0, 0.0, 0.0], [-1.0, inf, inf], [inf, -1.0, 1.0], [inf, -2.0, inf]]), 2)
        (0, 3)
    """
    gains = np.minimum(values - values[0], 0).sum(1)
    promising = [(int(row),) for row in (0, *np.argsort(gains, kind="stable")[:3])]
    finite = np.isfinite(values)
    values = np.where(finite, values, 1000 * (np.abs(values[finite]).max() + 1))  # worse than any finite value

    def sums(rows: tuple[int, ...], others: Sequence[int]) -> Array:
        lowest = values[[*rows]].min(0) if rows else np.inf
        return np.asarray(np.minimum(values[[*others]], lowest).sum(1))

    total, rows = best_set(sums, range(len(values)), min(budget, len(values)), promising)
    for row in rows[::-1]:
        rest = tuple(other for other in rows if other != row)
        if rest and values[[*rest]].min(0).sum() <= total + 1e-12:
            rows = rest
    return rows
