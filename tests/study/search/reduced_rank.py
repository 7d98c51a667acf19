"""Networks that train instantly: reduced-rank regressions on random data.

The optimum of a linear encoder of a few units that several tasks share is a reduced-rank regression. The noise of a
seed is which rows all its networks leave out of training; the noise of a network is a few more rows that it leaves out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tagalong.learn import Job, Task, Trained
from tagalong.study import Elsewhere, Runner, Score, without_rows

WHOLE = 1000  # steps of a training
PARTS = ("train", "val", "test")
WORLDS = ("shuffled", "independent", "twins", "conflict")


@dataclass(eq=False)
class World(Runner):
    """Random data of one kind.

    - shuffled: labels have nothing to do with the inputs.
    - independent: every task is a different function, and the encoder is wide enough for all of them.
    - twins: all tasks are the same function.
    - conflict: two groups of tasks need different directions of an encoder of one unit.

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
        super().__init__(without_rows(self.tasks), executor=Elsewhere())
        draw = np.random.default_rng([self.seed, WORLDS.index(self.kind)])
        n, features = len(self.tasks), 10
        directions = np.linalg.qr(draw.normal(size=(features, features)))[0]
        used = {"independent": range(n), "twins": [0] * n, "conflict": [j * 2 // n for j in range(n)]}
        signal = directions[:, list(used[self.kind])] if self.kind in used else np.zeros((features, n))
        self.units = {"conflict": 1, "shuffled": 2}.get(self.kind, n)
        self.inputs = [draw.normal(size=(count, features)) for count in self.rows]
        self.labels = [some @ signal + 0.5 * draw.normal(size=(len(some), n)) for some in self.inputs]

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        return {job: self._result(job) for job in jobs}

    def _result(self, job: Job) -> Trained:
        """Returns the losses of a network on the validation rows and their halves."""
        rows = self.losses_of_rows(job.tasks, job.seed, 1)
        halves = {task: (float(rows[::2, j].mean()), float(rows[1::2, j].mean())) for j, task in enumerate(job.tasks)}
        val = {task: Score(float(np.mean(pair)), math.nan) for task, pair in halves.items()}
        return Trained(job, val, val, WHOLE, 0.0, 0, halves=halves)

    def task(self, name: str) -> Task:
        return Task(name, kind="regression")

    def targets(self, part: str) -> dict[str, torch.Tensor]:
        labels = torch.as_tensor(self.labels[PARTS.index(part)])
        return {task: labels[:, column] for column, task in enumerate(self.tasks)}

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, torch.Tensor]]:
        found = {job: torch.as_tensor(self.predict(job.tasks, job.seed, PARTS.index(part))) for job in jobs}
        return {job: {task: some[:, [at]] for at, task in enumerate(job.tasks)} for job, some in found.items()}

    def losses_of_rows(self, tasks: Sequence[str], seed: int, part: int) -> np.ndarray:
        """Returns losses [rows, tasks of the network] on the validation (1) or test (2) rows."""
        columns = [j for j, task in enumerate(self.tasks) if task in tasks]
        return (self.predict(tasks, seed, part) - self.labels[part][:, columns]) ** 2

    def predict(self, tasks: Sequence[str], seed: int, part: int) -> np.ndarray:
        """Returns predictions [rows, tasks of the network] for the validation (1) or test (2) rows."""
        columns = [j for j, task in enumerate(self.tasks) if task in tasks]
        there = np.random.default_rng([seed, 0]).random(self.rows[0]) < 0.8
        there &= np.random.default_rng([seed, *map(ord, "".join(sorted(tasks)))]).random(len(there)) < 0.95
        inputs, targets = self.inputs[0][there], self.labels[0][there][:, columns]
        weights = np.linalg.solve(inputs.T @ inputs + np.eye(inputs.shape[1]), inputs.T @ targets)
        _, _, right = np.linalg.svd(inputs @ weights, full_matrices=False)
        kept = right[: self.units]
        return np.asarray(self.inputs[part] @ weights @ kept.T @ kept)
