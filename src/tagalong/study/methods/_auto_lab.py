"""The laboratory as an oracle: what the search asks is trained, or looked up where it was trained before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.learn import Job

from ..search import Seen, Trial

if TYPE_CHECKING:
    from .._lab import Lab
    from .._row import Row

FRACTIONS = (0.125, 0.25, 0.5)
LEAST = 1e-9  # losses are compared by their logarithms, and a separable task can have none at all


class LabOracle:
    """Trains what the search asks for; everything goes through the store, so that a killed search goes on.

    Args:
        lab: trains.
        seeds: of networks of all tasks, whose steps are what a whole training is.
    """

    def __init__(self, lab: Lab, seeds: Sequence[int]) -> None:
        self._lab = lab
        rows = lab.networks([lab.job(lab.problem.names, seed) for seed in seeds], "all tasks together")
        steps = [row.steps for row in rows.values()]
        self._whole = sum(steps) / len(steps)
        self.jobs: dict[Job, None] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._lab.problem.names

    @property
    def fractions(self) -> tuple[float, ...]:
        return FRACTIONS

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        """Trains these networks, batched where networks can be; gives what they showed in the same order."""
        jobs = [self._job(trial) for trial in trials]
        rows = self._lab.networks(jobs, "what auto proposes", diverged=True)
        self.jobs |= dict.fromkeys(jobs)
        return [self._seen(trial, rows[job]) for trial, job in zip(trials, jobs, strict=True)]

    def _job(self, trial: Trial) -> Job:
        job = self._lab.job(trial.tasks, trial.seed)
        return job if trial.fraction == 1 else Job(job.tasks, job.seed, epochs=self._epochs(trial.fraction))

    def _epochs(self, fraction: float) -> int:
        problem = self._lab.problem
        a_epoch = -(-len(problem.train) // problem.recipe.batch_size)
        return max(1, round(fraction * self._whole / a_epoch))

    def _seen(self, trial: Trial, row: Row) -> Seen:
        if row.diverged:
            return Seen(trial, {}, 1.0 if trial.fraction == 1 else row.steps / self._whole)
        halves = {task: _halves(row, task) for task in row.job.tasks}
        losses = {task: (max(first, LEAST), max(second, LEAST)) for task, (first, second) in halves.items()}
        return Seen(trial, losses, 1.0 if trial.fraction == 1 else row.steps / self._whole)


def _halves(row: Row, task: str) -> tuple[float, float]:
    """The whole for either where they were not kept, or were beyond what single precision holds."""
    first, second = row.halves.get(task, (math.nan, math.nan))
    whole = row.val[task].loss
    return (whole, whole) if math.isnan(first) and math.isnan(second) else (first, second)
