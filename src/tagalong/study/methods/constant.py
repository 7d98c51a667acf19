"""Predicts a constant for each task, without a network: what learning nothing gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tagalong.errors import InvalidInput
from tagalong.learn import Problem, constant_scores, has_constant

from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from ..runner import Runner


class Constant(Method):
    """Predicts the mean or the base rate of the training labels. Nothing is trained."""

    name = "constant"
    order = 10
    budgeted = False
    trains = False

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        method = f"`methods`: {self.name!r}"
        if problem is None:
            return [InvalidInput(method, "requires the labels, so networks must be trained here")]
        without = [task.name for task in problem.tasks if not has_constant(problem, task)]
        if without:
            expected = "requires tasks with one label per row and without a loss of their own"
            return [InvalidInput(method, expected, ", ".join(without))]
        return []

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        scores = {
            part: {task: replace(score, rows=None) for task, score in constant_scores(runner.problem, part).items()}
            for part in ("val", "test")
        }
        return Decision.pooled({None: Choice((), scores=scores)}, seeds)
