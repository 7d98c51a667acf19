"""Networks that are trained in no time: reduced-rank regressions, real learners of drawn data.

A linear encoder of a few units that several tasks share, at its optimum, is a reduced-rank regression. The luck of a
seed is which rows are left out of training for all its networks, the luck of a network a few more of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tagalong.affinity import Affinity
from tagalong.learn import Job
from tagalong.study import Backend, Cost, NetworkResult, Score

WHOLE = 1000  # steps of a training
WORLDS = ("shuffled", "independent", "twins", "conflict")


@dataclass(eq=False)
class World(Backend):
    """Drawn data of a kind.

    - shuffled: labels have nothing to do with the inputs.
    - independent: every task is a function of its own, and the encoder wide enough for all.
    - twins: all tasks are one function.
    - conflict: two groups of tasks want different directions of an encoder of one unit.

    Attributes:
        kind: one of `WORLDS`.
        seed: of the data.
        tasks: names.
        rows: to train on, to validate on, to test.
    """

    kind: str
    seed: int
    tasks: tuple[str, ...] = ("a", "b", "c", "d", "e", "f")
    rows: tuple[int, int, int] = (200, 400, 2000)

    def __post_init__(self) -> None:
        super().__init__(self.tasks)
        draw = np.random.default_rng([self.seed, WORLDS.index(self.kind)])
        n, features = len(self.tasks), 10
        directions = np.linalg.qr(draw.normal(size=(features, features)))[0]
        used = {"independent": range(n), "twins": [0] * n, "conflict": [j * 2 // n for j in range(n)]}
        signal = directions[:, list(used[self.kind])] if self.kind in used else np.zeros((features, n))
        self.units = {"conflict": 1, "shuffled": 2}.get(self.kind, n)
        self.inputs = [draw.normal(size=(count, features)) for count in self.rows]
        self.targets = [some @ signal + 0.5 * draw.normal(size=(len(some), n)) for some in self.inputs]

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, NetworkResult]:
        return {job: self._result(job) for job in jobs}

    def _result(self, job: Job) -> NetworkResult:
        """What a network shows on validation rows and their halves."""
        rows = self.losses_of_rows(job.tasks, job.seed, 1)
        halves = {task: (float(rows[::2, j].mean()), float(rows[1::2, j].mean())) for j, task in enumerate(job.tasks)}
        val = {task: Score(float(np.mean(pair)), math.nan) for task, pair in halves.items()}
        return NetworkResult(job, val, val, job.epochs or WHOLE, 0.0, 0, halves=halves)

    def early_job(self, job: Job, steps: float) -> Job:
        return replace(job, epochs=round(steps))

    def measure_affinity(self, seeds: Sequence[int], settings: Mapping[str, Any]) -> tuple[Affinity, dict[int, Cost]]:
        raise NotImplementedError

    def losses_of_rows(self, tasks: Sequence[str], seed: int, part: int) -> np.ndarray:
        """[rows, tasks of the network], on the validation (1) or test (2) rows."""
        columns = [j for j, task in enumerate(self.tasks) if task in tasks]
        there = np.random.default_rng([seed, 0]).random(self.rows[0]) < 0.8
        there &= np.random.default_rng([seed, *map(ord, "".join(sorted(tasks)))]).random(len(there)) < 0.95
        inputs, targets = self.inputs[0][there], self.targets[0][there][:, columns]
        weights = np.linalg.solve(inputs.T @ inputs + np.eye(inputs.shape[1]), inputs.T @ targets)
        _, _, right = np.linalg.svd(inputs @ weights, full_matrices=False)
        kept = right[: self.units]
        return (self.inputs[part] @ weights @ kept.T @ kept - self.targets[part][:, columns]) ** 2

    def change(self, serves: dict[str, frozenset[str]], seeds: Sequence[int]) -> float:
        """The change on test rows against all together."""
        changes = []
        for seed in seeds:
            together = self.losses_of_rows(self.tasks, seed, 2).mean(0)
            for column, task in enumerate(self.tasks):
                tasks = [name for name in self.tasks if name in serves[task]]
                losses = self.losses_of_rows(tasks, seed, 2)[:, tasks.index(task)]
                changes.append(losses.mean() / together[column] - 1)
        return float(np.mean(changes))
