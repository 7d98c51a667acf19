"""Losses on validation rows, in skill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tagalong.learn import Job, row_influences, row_skills

from ..evidence import constants_and_units, label_counts
from ..rule import FEWEST_LABELS, FEWEST_OF_RARER_CLASS
from ..runner import Runner
from .answers import Answers, Array


@dataclass(frozen=True)
class Yardstick:
    """What turns losses on validation rows into skill (see `tagalong.learn.row_skills`).

    Attributes:
        constants: the loss of each task's constant on every row.
        units: the unit of each task's skill.
        weights: the weight of each task in means. Other tasks have no vote.
    """

    constants: Mapping[str, Array]
    units: Mapping[str, float]
    weights: Mapping[str, float]

    def influences(self, losses: Mapping[str, Array]) -> Array:
        """Returns a value for each row, whose mean is the mean skill (see `tagalong.learn.row_influences`)."""
        voting = {task: self.units[task] for task in self.weights}
        return row_influences(row_skills(losses, self.constants, voting), self.weights)


def read_answers(runner: Runner, jobs: Iterable[Job]) -> Answers:
    """Returns the answers of networks on the validation rows, for tasks whose answers can be averaged."""
    tasks = [task for name in runner.tasks if (task := runner.task(name)) is not None]
    val = runner.problem.val
    answers = Answers(tasks, runner.targets("val"), val.groups, val.weights, runner.problem.answer_scales)
    jobs = list(jobs)
    outputs = runner.outputs(jobs, "val")
    for job in jobs:
        answers.add(outputs[job])
    return answers


def set_yardstick(runner: Runner, answers: Answers) -> Yardstick:
    """Lets losses count by their skill, and returns what turns them into skill.

    Tasks without a constant are compared with the mean of the networks for all tasks that answer so far.
    """
    plain = {
        task.name: np.mean([answers.row_losses(number, (network,)) for network in range(len(answers))], axis=0)
        for number, task in enumerate(answers.tasks)
    }
    constants: Mapping[str, Array] = plain
    units: dict[str, float] = {}
    if len(runner.problem.val):
        by_part, units = constants_and_units(runner)
        constants = by_part["val"]
    if not units:
        constants = plain
        means = {task: np.nanmean(losses) for task, losses in plain.items() if np.isfinite(losses).any()}
        units = {task: float(abs(mean)) or 1.0 for task, mean in means.items()}
    labelled = [task for task in units if np.isfinite(plain[task]).any()]
    fewest = np.array([FEWEST_LABELS, FEWEST_OF_RARER_CLASS])
    if len(runner.problem.val):
        labelled = [task for task in labelled if (label_counts(runner, task) >= fewest).all()] or labelled
    weights = {task: runner.problem.task(task).weight for task in labelled}
    shares = [weights.get(task.name, 0.0) / sum(weights.values()) for task in answers.tasks]
    answers.worth = np.array(shares) / [units.get(task.name, 1.0) for task in answers.tasks]
    return Yardstick(constants, units, weights)
