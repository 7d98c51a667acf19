"""Gradient boosting per task, compared with models that are fitted by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch.nn import functional

from tagalong.learn import MLP, BoostingSettings, Problem, Split, Task, boosting_scores

FEW = BoostingSettings(learning_rate=0.3, max_trees=12, patience=12)


def make_problem(task: Task, classes: int = 0, scale: tuple[float, float] | None = None) -> Problem:
    """A task that depends on the first inputs, with some missing labels; `classes` is 0 for regression."""
    rng = np.random.default_rng(0)

    def split(rows: int) -> Split:
        inputs = rng.normal(size=(rows, 3))
        values = inputs[:, 0] + inputs[:, 1] ** 2 + rng.normal(size=rows)
        labels = np.digitize(values, np.linspace(0, 2, classes + 1)[1:-1]) if classes else values
        labels = np.where(rng.random(rows) < 0.1, np.nan, labels)
        return Split(torch.tensor(inputs, dtype=torch.float32), {task.name: torch.tensor(labels, dtype=torch.float32)})

    scales = {} if scale is None else {task.name: scale}
    return Problem("drawn", (task,), split(300), split(150), split(150), MLP(3, (2,)), scales=scales)


def labeled(problem: Problem, part: str) -> tuple[np.ndarray, np.ndarray]:
    rows = problem.splits[part]
    (labels,) = (target.numpy() for target in rows.targets.values())
    known = np.isfinite(labels)
    return rows.inputs.numpy()[known], labels[known].astype(np.float64)


def fit_by_hand(problem: Problem, kind: Any, loss_of: Any, weights: Any = None) -> Any:
    """Fits one model for every number of trees and returns the best on validation rows."""
    options = {"learning_rate": FEW.learning_rate, "early_stopping": False, "random_state": 0}
    models = [kind(max_iter=trees, **options) for trees in range(1, FEW.max_trees + 1)]
    inputs, labels = labeled(problem, "train")
    for model in models:
        model.fit(inputs, labels, None if weights is None else np.array(weights)[labels.astype(int)])
    return min(models, key=lambda model: loss_of(model, *labeled(problem, "val")))


def test_regression_equals_the_best_model_fitted_by_hand() -> None:
    problem = make_problem(Task("age", "regression"), scale=(40.0, 12.0))

    def loss_of(model: Any, inputs: np.ndarray, labels: np.ndarray) -> float:
        return float(np.mean((model.predict(inputs) - labels) ** 2))

    model = fit_by_hand(problem, HistGradientBoostingRegressor, loss_of)
    found = boosting_scores(problem, FEW)
    for part, scores in found.items():
        inputs, labels = labeled(problem, part)
        assert scores["age"].loss == pytest.approx(loss_of(model, inputs, labels), rel=1e-9)
        assert scores["age"].error == pytest.approx(12 * np.abs(model.predict(inputs) - labels).mean(), rel=1e-6)
    assert set(found) == {"val", "test"}


@pytest.mark.parametrize("weights", [None, (1.0, 4.0)])
def test_a_binary_task_has_the_log_loss_with_class_weights(weights: tuple[float, float] | None) -> None:
    problem = make_problem(Task("ill", class_weights=weights), classes=2)

    def loss_of(model: Any, inputs: np.ndarray, labels: np.ndarray) -> float:
        right = model.predict_proba(inputs)[np.arange(len(labels)), labels.astype(int)]
        return float(np.mean(-np.log(right) * np.array(weights or (1.0, 1.0))[labels.astype(int)]))

    model = fit_by_hand(problem, HistGradientBoostingClassifier, loss_of, weights)
    found = boosting_scores(problem, FEW)["test"]["ill"]
    inputs, labels = labeled(problem, "test")
    assert found.loss == pytest.approx(loss_of(model, inputs, labels), rel=1e-9)
    assert found.error == pytest.approx(np.mean(model.predict(inputs) != labels))


def test_a_class_without_training_rows_has_a_finite_loss() -> None:
    problem = make_problem(Task("stage", "multiclass", classes=4), classes=3)  # the fourth class never occurs
    problem.test.targets["stage"][0] = 3
    model = fit_by_hand(
        problem,
        HistGradientBoostingClassifier,
        lambda model, inputs, labels: (
            -np.log(model.predict_proba(inputs)[np.arange(len(labels)), labels.astype(int)]).mean().item()
        ),
    )
    inputs, labels = labeled(problem, "test")
    probabilities = np.concatenate([model.predict_proba(inputs), np.full((len(inputs), 1), 1e-7)], axis=1)
    expected = functional.cross_entropy(torch.from_numpy(probabilities).log(), torch.from_numpy(labels).long())
    found = boosting_scores(problem, FEW)["test"]["stage"]
    assert found.loss == pytest.approx(float(expected), rel=1e-9)
    assert np.isfinite(found.loss)


def test_no_trees_are_added_after_the_validation_loss_stops_decreasing() -> None:
    problem = make_problem(Task("age", "regression"))
    rates = {"learning_rate": 1.0, "max_trees": 400}
    few, many = (boosting_scores(problem, BoostingSettings(**rates, patience=patience)) for patience in (20, 400))
    assert few == many  # with so large a rate, the first trees are the best
