"""Measures affinities with every estimator while all tasks train in one network, for truth tables.

Estimators that use the same kind of step share one training: `AffinityMeter` receives a list of them.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagalong.learn import Job, Problem, Training
from tagalong.learn.losses import LabeledBatch
from tagalong.learn.module_step import ModuleStep

COSINES = ("cosine", "centered_cosine")  # independent of the kind of step
ESTIMATORS = ("lookahead", "gradient", *COSINES)
METERS = {
    f"{update} {'held-out' if held_out else 'train'}": {"update": update, "held_out": held_out}
    for update in ("sgd", "optimizer")
    for held_out in (False, True)
}


@dataclass
class Measurements:
    """The affinities measured in one training.

    Attributes:
        mean: affinities [source, target], by estimator.
        stderr: their standard errors.
        measured: the number of measured steps.
        steps: the total number of steps.
    """

    mean: dict[str, np.ndarray]
    stderr: dict[str, np.ndarray]
    measured: int
    steps: int


def measure(problem: Problem, seed: int, settings: Mapping[str, Any], every: int) -> Measurements:
    """Trains all tasks together with a meter; returns means and trimmed means of every estimator."""
    meter = {**settings, "every": every, "estimator": list(ESTIMATORS)}
    with torch.random.fork_rng(devices=[]):
        training = Training(problem, [Job(problem.names, seed)], meter=meter)
        training.run()
    mean, stderr = {}, {}
    for name in ESTIMATORS:
        affinity = training.step.meter.affinity(name)
        for average in ("mean", "trimmed"):
            averaged = affinity if average == "mean" else affinity.averaged("trimmed", 0.05)
            mean[f"{name} {average}"], stderr[f"{name} {average}"] = averaged.mean, averaged.stderr
    return Measurements(mean, stderr, len(affinity.steps), training.step.steps)


class _JointGains:
    """Periodically compares a step on two tasks with a step on one of them, on validation rows, before each step."""

    def __init__(self, step: ModuleStep, every: int) -> None:
        self.step, self.every, self.gains = step, every, []
        self.minimize, step.minimize = step.minimize, self.measure_and_minimize

    def measure_and_minimize(self, batch: LabeledBatch) -> Tensor:
        if self.step.steps % self.every == 0:
            self.gains.append(self._measure_gains(batch))
        return self.minimize(batch)

    def _measure_gains(self, batch: LabeledBatch) -> np.ndarray:
        """Returns 1 − L_j(after a step on i and j) / L_j(after a step on j), [source, target]."""
        n = len(self.step.tasks)
        alone = [self._losses_after_step(batch, (j,))[j] for j in range(n)]
        gain = np.full((n, n), np.nan)
        for j in range(n):
            for i in range(j):
                both = self._losses_after_step(batch, (i, j))
                gain[i, j], gain[j, i] = 1 - both[j] / alone[j], 1 - both[i] / alone[i]
        return gain

    def _losses_after_step(self, batch: LabeledBatch, places: tuple[int, ...]) -> list[float]:
        """Returns validation losses after one optimizer step on some tasks; then restores the state."""
        step, network, optimizer = self.step, self.step.network, self.step.optimizer
        saved = copy.deepcopy(network.state_dict()), copy.deepcopy(optimizer.state_dict())
        losses, _ = step.task_losses(batch)
        optimizer.zero_grad()
        losses[list(places)].sum().backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            after, _ = step.task_losses(step.val.batch(torch.arange(len(step.problem.val))))
        network.train()
        network.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        return after.tolist()


def measure_joint(problem: Problem, seed: int, every: int) -> Measurements:
    """Measures the joint gain on validation rows: a step on both tasks, compared with a step on one of them."""
    with torch.random.fork_rng(devices=[]):
        training = Training(problem, [Job(problem.names, seed)])
        joint = _JointGains(training.step, every)
        training.run()
    gains = np.sort(np.stack(joint.gains), axis=0)
    cut = round(0.05 * len(gains))
    trimmed = gains[cut : len(gains) - cut]
    stderr = gains.std(0, ddof=1) / np.sqrt(len(gains))
    mean = {"joint mean": gains.mean(0), "joint trimmed": trimmed.mean(0)}
    errors = {"joint mean": stderr, "joint trimmed": stderr}
    return Measurements(mean, errors, len(gains), training.step.steps)
