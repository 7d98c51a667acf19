"""Gradient boosting per task, compared with models that are fitted by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from tagalong.learn import MLP, BoostingSettings, Problem, Split, Task, boosting_scores

Floats = NDArray[np.float64]
FEW = BoostingSettings(learning_rate=0.3, max_trees=8, patience=8)


def make_problem(task: Task, classes: int = 0) -> Problem:
    """A task that depends on the first inputs, with some missing labels; `classes` is 0 for regression."""
    rng = np.random.default_rng(0)

    def split(rows: int) -> Split:
        inputs = rng.normal(size=(rows, 3))
        values = inputs[:, 0] + inputs[:, 1] ** 2 + rng.normal(size=rows)
        labels = np.digitize(values, np.linspace(0, 2, classes + 1)[1:-1]) if classes else values
        labels = np.where(rng.random(rows) < 0.1, np.nan, labels)
        return Split(torch.tensor(inputs, dtype=torch.float32), {task.name: torch.tensor(labels, dtype=torch.float32)})

    scales = {} if classes else {task.name: (40.0, 12.0)}
    return Problem("drawn", (task,), split(300), split(150), split(150), MLP(3, (2,)), scales=scales)


def labelled(problem: Problem, part: str) -> tuple[Floats, Floats]:
    rows = problem.splits[part]
    (labels,) = (target.numpy() for target in rows.targets.values())
    present = np.isfinite(labels)
    return rows.inputs.numpy()[present], labels[present].astype(np.float64)


def loss_of(task: Task, model: Any, inputs: Floats, labels: Floats) -> float:
    if task.kind == "regression":
        return float(np.mean((model.predict(inputs) - labels) ** 2))
    probabilities = np.full((len(inputs), task.classes or 2), 1e-7)  # of classes without training rows
    probabilities[:, model.classes_.astype(int)] = model.predict_proba(inputs)
    probabilities /= probabilities.sum(1, keepdims=True)
    right, weights = (
        probabilities[np.arange(len(labels)), labels.astype(int)],
        np.array(task.class_weights or [1.0] * 4),
    )
    return float(np.mean(-np.log(right) * weights[labels.astype(int)]))


@pytest.mark.parametrize(
    ("task", "classes"),
    [
        (Task("age", "regression"), 0),
        (Task("ill"), 2),
        (Task("ill", class_weights=(1.0, 4.0)), 2),
        (Task("stage", "multiclass", classes=4), 3),  # the fourth class occurs in a test row only
    ],
)
def test_losses_are_those_of_the_best_number_of_trees_on_validation_rows(task: Task, classes: int) -> None:
    problem = make_problem(task, classes)
    if classes == 3:
        problem.test.targets["stage"][0] = 3
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    options = {"learning_rate": FEW.learning_rate, "early_stopping": False, "random_state": 0}
    models = [kind(max_iter=trees, **options) for trees in range(1, FEW.max_trees + 1)]
    inputs, labels = labelled(problem, "train")
    weights = None if task.class_weights is None else np.array(task.class_weights)[labels.astype(int)]
    for model in models:
        model.fit(inputs, labels, weights)
    best = min(models, key=lambda model: loss_of(task, model, *labelled(problem, "val")))
    scores = boosting_scores(problem, FEW)
    assert set(scores) == {"val", "test"}
    for part, found in scores.items():
        inputs, labels = labelled(problem, part)
        assert found[task.name].loss == pytest.approx(loss_of(task, best, inputs, labels), rel=1e-6)
        wrong = (
            np.mean(best.predict(inputs) != labels) if classes else 12 * np.abs(best.predict(inputs) - labels).mean()
        )
        assert found[task.name].error == pytest.approx(wrong, rel=1e-6)


def test_no_trees_are_added_after_the_validation_loss_stops_decreasing() -> None:
    problem = make_problem(Task("age", "regression"))
    few, many = (
        boosting_scores(problem, BoostingSettings(learning_rate=1.0, max_trees=100, patience=patience))
        for patience in (20, 100)
    )
    assert few == many  # with so large a rate, the first trees are the best
