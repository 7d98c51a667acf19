"""Affinities that every estimator measures while all tasks train in one network, for truth tables.

Estimators of one kind of step share a training, as a list of estimators does in `AffinityMeter`.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagalong.learn import Job, Problem, Training

ESTIMATORS = ("lookahead", "gradient", "cosine")
METERS = {
    f"{update} {'held-out' if held_out else 'train'}": {"update": update, "held_out": held_out}
    for update in ("sgd", "optimizer")
    for held_out in (False, True)
}


@dataclass
class Measured:
    """What a training with a meter gave.

    Attributes:
        mean: [source, target], by estimator.
        stderr: of these.
        measured: steps.
        steps: in all.
        seconds: of it.
    """

    mean: dict[str, np.ndarray]
    stderr: dict[str, np.ndarray]
    measured: int
    steps: int
    seconds: float


def measure(problem: Problem, seed: int, settings: Mapping[str, Any], every: int) -> Measured:
    """Trains all tasks together with a meter; both means and trimmed means of every estimator."""
    meter = {**settings, "every": every, "estimator": list(ESTIMATORS)}
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        training = Training(problem, Job(problem.names, seed), meter=meter)
        while not training.finished:
            training.run_epoch()
    mean, stderr = {}, {}
    for name in ESTIMATORS:
        affinity = training.meter.affinity(name)
        for average in ("mean", "trimmed"):
            found = affinity if average == "mean" else affinity.averaged("trimmed", 0.05)
            mean[f"{name} {average}"], stderr[f"{name} {average}"] = found.mean, found.stderr
    return Measured(mean, stderr, len(affinity.steps), training.steps, time.perf_counter() - start)


class _Joint(Training):
    """Compares at some steps, on validation rows, a step on two tasks with a step on the one alone."""

    def __init__(self, problem: Problem, seed: int, every: int) -> None:
        super().__init__(problem, Job(problem.names, seed))
        self.every, self.gains = every, []

    def step(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> None:
        if self.steps % self.every == 0:
            self.gains.append(self._gain(inputs, targets))
        super().step(inputs, targets)

    def _gain(self, inputs: Tensor, targets: Mapping[str, Tensor]) -> np.ndarray:
        """1 − L_j(after a step on i and j) / L_j(after a step on j), [source, target]."""
        n = len(self.tasks)
        alone = [self._after(inputs, targets, (j,))[j] for j in range(n)]
        gain = np.full((n, n), np.nan)
        for j in range(n):
            for i in range(j):
                both = self._after(inputs, targets, (i, j))
                gain[i, j], gain[j, i] = 1 - both[j] / alone[j], 1 - both[i] / alone[i]
        return gain

    def _after(self, inputs: Tensor, targets: Mapping[str, Tensor], some: tuple[int, ...]) -> list[float]:
        """Validation losses after a step of the optimizer on some tasks, from where training stands."""
        kept = copy.deepcopy(self.network.state_dict()), copy.deepcopy(self.optimizer.state_dict())
        losses = self.losses(inputs, targets)
        self.optimizer.zero_grad()
        sum(losses[self.tasks[task].name] for task in some).backward()
        self.optimizer.step()
        self.network.eval()
        with torch.no_grad():
            after = self.losses(self.val.inputs, self.val.targets)
        self.network.train()
        self.network.load_state_dict(kept[0])
        self.optimizer.load_state_dict(kept[1])
        return [float(after[task.name]) for task in self.tasks]


def measure_joint(problem: Problem, seed: int, every: int) -> Measured:
    """The joint gain: own and other's step against own alone, held out."""
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        training = _Joint(problem, seed, every)
        while not training.finished:
            training.run_epoch()
    gains = np.sort(np.stack(training.gains), axis=0)
    cut = round(0.05 * len(gains))
    trimmed = gains[cut : len(gains) - cut]
    stderr = gains.std(0, ddof=1) / np.sqrt(len(gains))
    mean = {"joint mean": gains.mean(0), "joint trimmed": trimmed.mean(0)}
    errors = {"joint mean": stderr, "joint trimmed": stderr}
    return Measured(mean, errors, len(gains), training.steps, time.perf_counter() - start)
