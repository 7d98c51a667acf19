"""Networks that are trained in no time: reduced-rank regressions, real learners of drawn data.

A linear encoder of a few units that several tasks share, at its optimum, is a reduced-rank regression. The luck of a
seed is which rows are left out of training for all its networks, the luck of a network a few more of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tagalong.study import Seen, Trial

WORLDS = ("shuffled", "independent", "twins", "conflict")


@dataclass
class World:
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
    fractions: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        draw = np.random.default_rng([self.seed, WORLDS.index(self.kind)])
        n, features = len(self.tasks), 10
        directions = np.linalg.qr(draw.normal(size=(features, features)))[0]
        used = {"independent": range(n), "twins": [0] * n, "conflict": [j * 2 // n for j in range(n)]}
        signal = directions[:, list(used[self.kind])] if self.kind in used else np.zeros((features, n))
        self.units = {"conflict": 1, "shuffled": 2}.get(self.kind, n)
        self.inputs = [draw.normal(size=(count, features)) for count in self.rows]
        self.targets = [some @ signal + 0.5 * draw.normal(size=(len(some), n)) for some in self.inputs]

    def train(self, trials: Sequence[Trial]) -> list[Seen]:
        """What each network shows on either half of the validation rows."""
        return [self._seen(trial) for trial in trials]

    def _seen(self, trial: Trial) -> Seen:
        rows = self.row_losses(trial, 1)
        by_task = {task: (float(rows[::2, j].mean()), float(rows[1::2, j].mean())) for task, j in self._columns(trial)}
        return Seen(trial, by_task, trial.fraction)

    def _columns(self, trial: Trial) -> list[tuple[str, int]]:
        return [(task, at) for at, task in enumerate(task for task in self.tasks if task in trial.tasks)]

    def row_losses(self, trial: Trial, part: int) -> np.ndarray:
        """[rows, tasks of the network], on the validation (1) or test (2) rows."""
        columns = [j for j, task in enumerate(self.tasks) if task in trial.tasks]
        there = np.random.default_rng([trial.seed, 0]).random(self.rows[0]) < 0.8
        there &= np.random.default_rng([trial.seed, *map(ord, "".join(sorted(trial.tasks)))]).random(len(there)) < 0.95
        inputs, targets = self.inputs[0][there], self.targets[0][there][:, columns]
        weights = np.linalg.solve(inputs.T @ inputs + np.eye(inputs.shape[1]), inputs.T @ targets)
        _, _, right = np.linalg.svd(inputs @ weights, full_matrices=False)
        kept = right[: self.units]
        return (self.inputs[part] @ weights @ kept.T @ kept - self.targets[part][:, columns]) ** 2

    def change(self, serves: dict[str, frozenset[str]], seeds: Sequence[int]) -> float:
        """The change on test rows against all together."""
        everything = frozenset(self.tasks)
        changes = []
        for seed in seeds:
            together = self.row_losses(Trial(everything, seed), 2).mean(0)
            for column, task in enumerate(self.tasks):
                trial = Trial(serves[task], seed)
                place = dict(self._columns(trial))[task]
                changes.append(self.row_losses(trial, 2)[:, place].mean() / together[column] - 1)
        return float(np.mean(changes))
