"""The search: affinity proposes, validation disposes.

It starts from networks of all tasks. Again and again it asks what the best networks would be if every doubt were
resolved in their favour, trains those, a few at a time, and learns from them; hopeless ones end after a part of their
training. What is recommended at the end is decided in `_choose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ._beliefs import Array, Beliefs, Bools, Seens
from ._choose import Chosen, choose
from ._cover import cover
from ._oracle import Oracle, Seen, Subset, Trial
from ._pool import first_pool, near

OPTIMISM = 1.0  # standard deviations that doubt counts in favour of a proposal
ROUNDS = 12  # in which the effort is spent, about
RESERVED = 0.25  # of the effort, for further seeds of the best networks


@dataclass(frozen=True)
class Step:
    """What one round did.

    Attributes:
        seen: what was trained and what it showed.
        spent: effort until here.
        best: the expected change against all together of the best networks, by budget.
    """

    seen: tuple[Seen, ...]
    spent: float
    best: dict[int, float]


@dataclass(frozen=True)
class Outcome:
    """What the search found.

    Attributes:
        chosen: by budget.
        steps: in order.
        spent: the effort that it took.
    """

    chosen: dict[int, Chosen]
    steps: tuple[Step, ...]
    spent: float


def search(
    oracle: Oracle,
    budgets: Sequence[int],
    effort: float,
    seeds: Sequence[int],
    *,
    hints: Array | None = None,
    spent: float = 0.0,
    screen: float | None = None,
    optimism: float = OPTIMISM,
) -> Outcome:
    """Looks for the best networks of every budget.

    Args:
        oracle: trains networks.
        budgets: how many networks there may be.
        effort: whole trainings that may be spent, the first ones of all tasks together among them.
        seeds: of networks; each set of tasks is trained with one, then with more where it matters.
        hints: [source, target], such as affinities; None: no idea.
        spent: what measuring hints took.
        screen: train proposals to this fraction first, and end the worse half there; None: train all to the end.
        optimism: how much doubt counts in favour of a proposal, in standard deviations.
    """
    return _Search(oracle, tuple(budgets), effort, tuple(seeds), hints, spent, screen, optimism).run()


@dataclass
class _Search:
    oracle: Oracle
    budgets: tuple[int, ...]
    effort: float
    seeds: tuple[int, ...]
    hints: Array | None
    spent: float
    screen: float | None
    optimism: float
    steps: list[Step] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    believed: tuple[int, Beliefs] | None = None

    def run(self) -> Outcome:
        self.tasks = self.oracle.tasks
        self.pool = first_pool(len(self.tasks))
        self._train([Trial(frozenset(self.tasks), seed) for seed in self._first_seeds()])
        for seed in self._whole_seeds():
            self._train([Trial(self._named(row), seed) for row in self.pool if not self._trained(row, seed)])
        batch = max(1, round(self.effort / ROUNDS))
        while self.spent + 1 <= self.effort:
            confirming = self.spent >= (1 - RESERVED) * self.effort
            proposals = self._confirmations(batch) if confirming else self._proposals(batch)
            proposals = proposals or self._proposals(batch) or self._confirmations(batch)
            if not proposals:
                break
            self._train(self._screened(proposals))
        beliefs = self._beliefs()
        chosen = {budget: choose(beliefs, self.seen, self.tasks, budget) for budget in self.budgets}
        return Outcome(chosen, tuple(self.steps), self.spent)

    def _first_seeds(self) -> tuple[int, ...]:
        """All together is what everything is compared with; it gets a tenth of the effort, one seed at least."""
        return self.seeds[: max(1, round(self.effort / 7))]

    def _whole_seeds(self) -> tuple[int, ...]:
        """Seeds for which every subset can be trained, as long as the effort lasts."""
        subsets = 2 ** len(self.tasks) - 1
        return self.seeds[: int((self.effort - self.spent) // subsets)] if subsets <= len(self.pool) else ()

    def _train(self, trials: Sequence[Trial]) -> None:
        whole = trials[: max(0, int(self.effort - self.spent + 1e-9))] if self.seen else trials
        if not whole:
            return
        found = self.oracle.train(whole)
        self.seen += found
        self.spent += sum(one.effort for one in found)
        self.steps.append(Step(tuple(found), self.spent, self._best_now()))

    def _best_now(self) -> dict[int, float]:
        if len({one.trial.tasks for one in self.seen}) < 2:
            return dict.fromkeys(self.budgets, 0.0)
        beliefs = self._beliefs()
        return {k: choose(beliefs, self.seen, self.tasks, k).expected for k in self.budgets}

    def _beliefs(self) -> Beliefs:
        if self.believed is None or self.believed[0] != len(self.seen):
            self.believed = len(self.seen), self._new_beliefs()
        return self.believed[1]

    def _new_beliefs(self) -> Beliefs:
        logs = np.full((len(self.seen), len(self.tasks)), np.nan)
        for row, one in enumerate(self.seen):
            for column, task in enumerate(self.tasks):
                if task in one.trial.tasks:
                    logs[row, column] = np.log(one.loss(task))
        inside = ~np.isnan(logs)
        seeds = np.array([one.trial.seed for one in self.seen])
        early = np.array([one.trial.fraction < 1 for one in self.seen])
        return Beliefs(Seens(inside, seeds, early, logs), self.hints)

    def _proposals(self, count: int) -> list[Trial]:
        """The networks that would be best if every doubt were resolved in their favour."""
        beliefs = self._beliefs()
        self.pool = near([tuple(task in one.trial.tasks for task in self.tasks) for one in self.seen], self.pool)
        means, deviations = beliefs.expect(self.pool)
        return self._drawn(means, deviations, count)

    def _drawn(self, means: Array, deviations: Array, count: int) -> list[Trial]:
        trials: list[Trial] = []
        optimism, doubts = self.optimism, deviations.copy()
        while len(trials) < count and optimism < 8:
            before = len(trials)
            for budget in self.budgets:
                values = np.where(self.pool, means - optimism * doubts, np.inf)
                values[0] = 0.0
                for row in cover(values, budget):
                    trial = self._next_trial(row, trials)
                    if row and trial is not None and len(trials) < count:
                        trials.append(trial)
                        doubts[row] = 0.0  # its doubt is about to be resolved
            if len(trials) == before:
                optimism *= 1.5
        return trials

    def _confirmations(self, count: int) -> list[Trial]:
        """Further seeds of the networks that look best now, and of all together."""
        beliefs, trials = self._beliefs(), []
        for budget in self.budgets:
            for subset in choose(beliefs, self.seen, self.tasks, budget, cautious=False).networks:
                free = [s for s in self.seeds if not self._has(subset, s) and Trial(subset, s) not in trials]
                trials += [Trial(subset, seed) for seed in free]
        return trials[:count]

    def _screened(self, trials: list[Trial]) -> list[Trial]:
        return trials

    def _next_trial(self, row: int, pending: Sequence[Trial]) -> Trial | None:
        subset = self._named(self.pool[row])
        if any(trial.tasks == subset for trial in pending):
            return None
        free = [seed for seed in self.seeds if not self._has(subset, seed)]
        used = [one.trial.seed for one in self.seen] + [trial.seed for trial in pending]
        return Trial(subset, min(free, key=lambda seed: (used.count(seed), seed))) if free else None

    def _has(self, subset: Subset, seed: int) -> bool:
        return any(one.trial == Trial(subset, seed) for one in self.seen)

    def _trained(self, row: Bools, seed: int) -> bool:
        return self._has(self._named(row), seed)

    def _named(self, row: Bools) -> Subset:
        return frozenset(task for task, inside in zip(self.tasks, row, strict=True) if inside)
