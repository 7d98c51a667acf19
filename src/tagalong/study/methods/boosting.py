"""The method `boosting`: gradient boosting for each task, as a reference for networks that learn from a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tagalong.errors import InvalidInput, is_nonnegative, is_positive_integer
from tagalong.learn import BoostingSettings, Problem, Split, boosting_scores
from tagalong.score import Score

from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from ..runner import Runner


class Boosting(Method):
    """Trains gradient-boosted trees for each task. They are a reference and never recommended.

    The result does not depend on the seed.

    Args:
        learning_rate: the factor by which each tree is multiplied.
        max_trees: the maximum number of trees per task.
        patience: the number of trees without a lower validation loss after which no more trees are added.
    """

    name = "boosting"
    order = 10
    budgeted = False
    trains = False

    def __init__(self, learning_rate: float = 0.05, max_trees: int = 1000, patience: int = 50) -> None:
        self.settings = BoostingSettings(learning_rate, max_trees, patience)

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        return [*self._option_problems(), *self._data_problems(problem)]

    def _option_problems(self) -> Iterator[InvalidInput]:
        options = f"`options`: `{{}}` of {self.name!r}"
        settings = self.settings
        if not (is_nonnegative(settings.learning_rate) and settings.learning_rate):
            yield InvalidInput(
                options.format("learning_rate"), "must be a positive number", repr(settings.learning_rate)
            )
        for option in ("max_trees", "patience"):
            value = getattr(settings, option)
            if not is_positive_integer(value):
                yield InvalidInput(options.format(option), "must be a positive integer", repr(value))

    def _data_problems(self, problem: Problem | None) -> Iterator[InvalidInput]:
        method = f"`methods`: {self.name!r}"
        if problem is None:
            yield InvalidInput(method, "requires the data, so it cannot be used for networks trained elsewhere")
            return
        splits = problem.splits.values()
        if not all(isinstance(split, Split) for split in splits):
            yield InvalidInput(method, "requires rows in memory", "rows that are read during training")
            return
        assert isinstance(problem.train, Split)
        inputs, targets = problem.train.inputs, problem.train.targets
        if inputs.dim() != 2 or not inputs.is_floating_point():
            shape = f"{inputs.dtype} inputs of shape {tuple(inputs.shape[1:])}"
            yield InvalidInput(method, "requires a table, with a vector of numbers per row", shape)
        unusual = [task.name for task in problem.tasks if task.loss is not None or targets[task.name].dim() > 1]
        if unusual:
            expected = "requires tasks with one label per row and without a loss of their own"
            yield InvalidInput(method, expected, ", ".join(unusual))

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        stored = runner.remember(self._definition(), lambda: self._compute(runner))
        scores = {part: {task: Score(*pair) for task, pair in stored[part].items()} for part in ("val", "test")}
        return Decision.pooled({None: Choice((), scores=scores)}, seeds)

    def _definition(self) -> dict[str, Any]:
        return {"method": self.name, "scikit-learn": version("scikit-learn"), **asdict(self.settings)}

    def _compute(self, runner: Runner) -> dict[str, dict[str, list[float]]]:
        scores = boosting_scores(runner.problem, self.settings)
        return {
            part: {task: [score.loss, score.error] for task, score in task_scores.items()}
            for part, task_scores in scores.items()
        }
