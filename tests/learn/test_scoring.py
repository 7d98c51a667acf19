"""Error measures equal slow implementations of their definitions."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tagalong.learn import Task, score_outputs

Labelled = list[tuple[float, int | None]]
labelled = st.lists(st.tuples(st.integers(-3, 3).map(float), st.sampled_from([0, 1, None])), min_size=1, max_size=25)


def found(error: str, rows: Labelled) -> float:
    outputs = torch.tensor([[score] for score, _ in rows], dtype=torch.float64)
    targets = torch.tensor([math.nan if label is None else label for _, label in rows], dtype=torch.float64)
    return score_outputs(Task("ill", error=error), outputs, targets).error


def slow_auroc(rows: Labelled) -> float:
    negatives = [score for score, label in rows if label == 0]
    positives = [score for score, label in rows if label == 1]
    if not negatives or not positives:
        return math.nan
    wrong = sum((n > p) + (n == p) / 2 for n in negatives for p in positives)
    return wrong / (len(negatives) * len(positives))


def slow_auprc(rows: Labelled) -> float:
    labels = [(score, label) for score, label in rows if label is not None]
    positives = sum(label for _, label in labels)
    if positives in (0, len(labels)):
        return math.nan
    area, recall = 0.0, 0.0
    for threshold in sorted({score for score, _ in labels}, reverse=True):
        taken = [label for score, label in labels if score >= threshold]
        area += (sum(taken) / positives - recall) * sum(taken) / len(taken)
        recall = sum(taken) / positives
    return 1 - area


def slow_error_rate(rows: Labelled) -> float:
    wrong = [(score > 0) != bool(label) for score, label in rows if label is not None]
    return sum(wrong) / len(wrong) if wrong else math.nan


@pytest.mark.parametrize(
    ("name", "slow"), [("auroc", slow_auroc), ("auprc", slow_auprc), ("error rate", slow_error_rate)]
)
@given(rows=labelled)
@settings(max_examples=100, deadline=None)
def test_errors_of_binary_tasks_equal_their_definitions(
    name: str, slow: Callable[[Labelled], float], rows: Labelled
) -> None:
    assert found(name, rows) == pytest.approx(slow(rows), rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mae", 10 * (1 + 3) / 2), ("rmse", 10 * math.sqrt((1 + 9) / 2)), ("r2", (1 + 9) / 2), ("loss", (1 + 9) / 2)],
)
def test_errors_of_regression_are_in_the_units_of_the_data(name: str, expected: float) -> None:
    outputs, targets = torch.tensor([[1.0], [1.0], [5.0]]), torch.tensor([2.0, 4.0, torch.nan])
    task = Task("age", "regression", error=name)
    assert score_outputs(task, outputs, targets, (50.0, 10.0)).error == pytest.approx(expected)


def test_custom_errors_get_complete_rows_in_the_units_of_the_data() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> float:  # its name must not be taken for "loss"
        assert outputs.flatten().tolist() == [60.0]
        assert targets.tolist() == [70.0]
        return 0.25

    task = Task("age", "regression", error=loss)
    outputs, targets = torch.tensor([[1.0], [5.0]]), torch.tensor([2.0, torch.nan])
    assert score_outputs(task, outputs, targets, (50.0, 10.0)).error == 0.25
    assert math.isnan(score_outputs(task, outputs, targets * torch.nan).error)


def test_multiclass_and_dense_targets_are_compared_element_by_element() -> None:
    outputs = torch.tensor([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    targets = torch.tensor([1.0, 2.0, torch.nan])
    assert score_outputs(Task("kind", "multiclass", classes=3), outputs, targets).error == 0.5
    pixels = torch.tensor([[[1.0, -1.0], [1.0, 1.0]]])
    truth = torch.tensor([[[1.0, 1.0], [torch.nan, 1.0]]])
    assert score_outputs(Task("where"), pixels[:, None], truth).error == pytest.approx(1 / 3)
    assert score_outputs(Task("depth", "regression"), pixels, truth).error == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        (Task("a"), torch.full((3,), torch.nan)),
        (Task("a", error="auroc"), torch.full((3,), torch.nan)),
        (Task("a", "regression", error="r2"), torch.full((3,), torch.nan)),
        (Task("a", "regression", error="r2"), torch.ones(3)),  # a constant has no R²
    ],
)
def test_an_error_that_is_not_defined_is_nan(task: Task, targets: torch.Tensor) -> None:
    assert math.isnan(score_outputs(task, torch.zeros(3, 1), targets).error)


@pytest.mark.parametrize("error", ["auroc", "auprc"])
def test_scores_that_differ_by_rounding_are_ties(error: str) -> None:
    rows: Labelled = [(0.1 + 0.2, 0), (0.3, 1), (0.3, 0), (2.0, 1)]
    assert found(error, rows) == found(error, [(0.3 if score < 1 else score, label) for score, label in rows])
