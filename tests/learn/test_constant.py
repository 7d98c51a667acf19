"""The best constants, compared with a search over constants and with scores computed by hand."""

import math

import numpy as np
import pytest
import torch
from learn_small import stream
from scipy.optimize import minimize

from tagalong.learn import MLP, Problem, Split, Task, constant_output, constant_scores, has_constant

NAN = float("nan")


def problem_of(task: Task, train: list[float], val: list[float], test: list[float] | None = None) -> Problem:
    def split(labels: list[float]) -> Split:
        return Split(torch.zeros(len(labels), 2), {task.name: torch.tensor(labels)})

    return Problem("constants", (task,), split(train), split(val), split(test or val), MLP(2, (2,)))


TASKS = [
    (Task("x", kind="regression"), 1),
    (Task("x"), 1),
    (Task("x", class_weights=(1.0, 7.0)), 1),
    (Task("x", kind="multiclass", classes=3), 3),
    (Task("x", kind="multiclass", classes=3, class_weights=(1.0, 5.0, 0.2)), 3),
]


@pytest.mark.parametrize(("task", "outputs"), TASKS)
def test_no_other_constant_has_a_lower_loss(task: Task, outputs: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(2, size=60) if task.kind == "regression" else rng.integers(0, task.classes or 2, 60)
    labels = torch.tensor(np.where(rng.random(60) < 0.2, NAN, values), dtype=torch.float64)

    def loss(output: np.ndarray) -> float:
        constant = torch.tensor(output, dtype=torch.float64).expand(len(labels), -1)
        losses, present = task.row_losses(constant, labels)
        return float(losses.sum() / present.sum())

    found = constant_output(task, labels)
    assert found.shape == (outputs,)
    searched = minimize(loss, np.zeros(outputs), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    assert loss(found.numpy()) == pytest.approx(searched.fun, abs=1e-8)
    assert loss(found.numpy()) <= searched.fun + 1e-12


def test_scores_are_those_of_the_training_mean_in_the_units_of_losses_and_errors() -> None:
    task = Task("x", kind="regression")
    problem = problem_of(task, [1.0, 3.0, NAN], [2.0, NAN, 5.0])
    object.__setattr__(problem, "scales", {"x": (10.0, 4.0)})
    score = constant_scores(problem, "val")["x"]
    np.testing.assert_array_equal(score.rows, [0.0, NAN, 9.0])
    assert (score.loss, score.error) == (4.5, 6.0)


def test_a_binary_constant_has_the_entropy_as_its_loss_and_no_ranking() -> None:
    problem = problem_of(Task("x", error="auroc"), [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0])
    score = constant_scores(problem, "val")["x"]
    assert score.loss == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert score.error == 0.5


def test_classes_without_training_labels_have_finite_losses() -> None:
    task = Task("x", kind="multiclass", classes=3)
    score = constant_scores(problem_of(task, [0.0, 0.0, 1.0, 1.0], [2.0]), "val")["x"]
    assert 0 < score.loss < 10
    binary = constant_scores(problem_of(Task("x"), [0.0] * 10, [1.0]), "val")["x"]
    assert binary.loss == pytest.approx(-math.log(0.05 / 1.05))


def test_own_losses_and_dense_targets_have_no_constant() -> None:
    inputs = torch.zeros(4, 2)
    own = Task("own", kind="custom", loss=lambda outputs, targets: (outputs[:, 0] - targets).abs())
    dense, plain = Task("dense", kind="regression", outputs=3), Task("plain", kind="regression")
    split = Split(inputs, {"own": torch.ones(4), "dense": torch.ones(4, 3), "plain": torch.ones(4)})
    problem = Problem("mixed", (own, dense, plain), split, split, split, MLP(2, (2,)))
    assert [has_constant(problem, task) for task in problem.tasks] == [False, False, True]
    assert list(constant_scores(problem, "test")) == ["plain"]


def test_rows_read_from_files_give_the_same_scores() -> None:
    problem = problem_of(Task("x", kind="regression"), [1.0, 3.0, NAN, 4.0], [2.0, NAN, 5.0])
    held, streamed = (constant_scores(rows, "val")["x"] for rows in (problem, stream(problem)))
    assert held == streamed
    np.testing.assert_array_equal(held.rows, streamed.rows)
