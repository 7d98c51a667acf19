"""Gradient boosting with scikit-learn, one model per task: a reference for networks that learn from a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.score import Score

from .losses import mean_loss
from .problem import Problem
from .rows import Split
from .scoring import score_outputs
from .task import Task

Array = NDArray[Any]
TREES_AT_ONCE = 50  # the number of trees between two looks at the validation rows
MIN_PROBABILITY = 1e-7  # of a class, so that the loss of a wrong prediction stays finite


@dataclass(frozen=True)
class BoostingSettings:
    """The settings of gradient boosting, which are the same for all tasks.

    Attributes:
        learning_rate: the factor by which each tree is multiplied.
        max_trees: the maximum number of trees (for a multiclass task, of trees per class).
        patience: the number of trees without a lower validation loss after which no more trees are added.
    """

    learning_rate: float = 0.05
    max_trees: int = 1000
    patience: int = 50


def boosting_scores(problem: Problem, settings: BoostingSettings | None = None) -> dict[str, dict[str, Score]]:
    """Trains one model per task and returns its scores on the "val" and "test" rows.

    Models are `HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`. They are trained on the rows and
    inputs that networks are trained on, and their losses and errors are defined as for networks. Rows without a label
    are left out, and the weights of classes and rows are used as sample weights. The number of trees is the one with
    the lowest loss on the validation rows.

    Args:
        problem: a problem with rows in memory, a vector of inputs per row, and one label per task and row. Tasks must
            not have a loss of their own.
        settings: the settings. Defaults to `BoostingSettings()`.
    """
    found: dict[str, dict[str, Score]] = {"val": {}, "test": {}}
    for task in problem.tasks:
        model = _BoostedTask(task, problem, settings or BoostingSettings())
        model.fit()
        for part, scores in found.items():
            scores[task.name] = model.score(part)
    return found


class _BoostedTask:
    """A model for one task, with as many trees as are best on the validation rows."""

    def __init__(self, task: Task, problem: Problem, settings: BoostingSettings) -> None:
        self._task, self._settings, self._scale = task, settings, problem.scales.get(task.name)
        self._rows = {part: _read_rows(split, task.name) for part, split in problem.splits.items()}
        self._weights = {part: split.weights for part, split in problem.splits.items()}
        self._model: Any = _make_model(task, settings)
        self._trees = 0

    def fit(self) -> None:
        """Adds trees until the validation loss has not decreased for a while."""
        inputs, targets = self._rows["train"]
        known = targets.isfinite().numpy()
        labels = targets.numpy()[known]
        weights = None if self._weights["train"] is None else self._weights["train"].numpy()[known]
        if self._task.class_weights is not None:
            weights = np.array(self._task.class_weights)[labels.astype(int)] * (1 if weights is None else weights)
        losses: list[float] = []
        while len(losses) < self._settings.max_trees and len(losses) - self._trees < self._settings.patience:
            self._model.max_iter = min(len(losses) + TREES_AT_ONCE, self._settings.max_trees)
            self._model.fit(inputs[known], labels, weights)
            losses += self._validation_losses(start=len(losses))
            self._trees = int(np.argmin(losses)) + 1

    def _validation_losses(self, start: int) -> list[float]:
        """Returns the loss with each number of trees, except for those that are known already."""
        inputs, targets = self._rows["val"]
        outputs = islice(self._staged_outputs(inputs), start, None)
        return [float(mean_loss(self._task, output, targets, self._weights["val"])) for output in outputs]

    def score(self, part: str) -> Score:
        """Returns the loss and error on some rows."""
        inputs, targets = self._rows[part]
        outputs = next(islice(self._staged_outputs(inputs), self._trees - 1, None))
        score = score_outputs(self._task, outputs, targets, self._scale, self._weights[part])
        return Score(score.loss, score.error)

    def _staged_outputs(self, inputs: Array) -> Iterator[Tensor]:
        """Yields what the head of a network would return, with one tree, two trees and so on."""
        if self._task.kind == "regression":
            for values in self._model.staged_predict(inputs):
                yield torch.from_numpy(values)[:, None]
            return
        for probabilities in self._model.staged_predict_proba(inputs):
            logs = torch.from_numpy(probabilities.clip(MIN_PROBABILITY, 1 - MIN_PROBABILITY)).log()
            yield self._logits(logs)

    def _logits(self, logs: Tensor) -> Tensor:
        if self._task.kind == "binary":
            return logs[:, 1:] - logs[:, :1]
        every = torch.full((len(logs), self._task.head_size), MIN_PROBABILITY, dtype=logs.dtype).log()
        every[:, torch.from_numpy(self._model.classes_).long()] = logs  # some classes may not occur in training rows
        return every


def _read_rows(rows: Any, task: str) -> tuple[Array, Tensor]:
    assert isinstance(rows, Split)
    return rows.inputs.cpu().float().numpy(), rows.targets[task].cpu().double()


def _make_model(task: Task, settings: BoostingSettings) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if task.kind == "regression" else HistGradientBoostingClassifier
    # Trees are added by further calls of `fit`, since older versions can only stop early on rows that they draw.
    return kind(learning_rate=settings.learning_rate, early_stopping=False, warm_start=True, random_state=0)
