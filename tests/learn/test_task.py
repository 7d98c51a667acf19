"""Losses of rows, masked labels, and errors for invalid tasks."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from learn_small import small_problem
from torch import nn
from torch.nn import functional

from tagalong.errors import InvalidInput
from tagalong.learn import Job, Problem, Recipe, Task, average_scores_on, build_network, mean_loss, train, train_many

NAN = math.nan


def squared_distance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum(1)


def test_class_weights_multiply_rows_and_the_mean_is_over_rows() -> None:
    logits, labels = torch.randn(5, 1), torch.tensor([0.0, 1.0, 1.0, torch.nan, 0.0])
    pairs = zip(logits[:, 0], labels, strict=True)
    each = [functional.softplus(logit if label == 0 else -logit).item() for logit, label in pairs]
    expected = (each[0] * 1 + each[1] * 3 + each[2] * 3 + each[4] * 1) / 4
    assert mean_loss(Task("ill", class_weights=[1, 3]), logits, labels).item() == pytest.approx(expected)
    three, classes = torch.randn(4, 3), torch.tensor([0.0, 1.0, 2.0, 2.0])
    task = Task("kind", "multiclass", classes=3, class_weights=(1, 2, 4))
    logs = functional.log_softmax(three, 1)
    expected = -(logs[0, 0] * 1 + logs[1, 1] * 2 + (logs[2, 2] + logs[3, 2]) * 4).item() / 4
    assert mean_loss(task, three, classes).item() == pytest.approx(expected)


def test_a_score_has_the_loss_of_every_row() -> None:
    problem = small_problem()
    network = build_network(problem, ("age",), seed=0)
    nn.init.zeros_(network.heads[0].weight)
    nn.init.zeros_(network.heads[0].bias)
    found = average_scores_on(problem, [network], problem.val)["age"]
    expected = problem.val.targets["age"].square().numpy()
    np.testing.assert_allclose(found.rows, expected, rtol=1e-6)
    assert found.loss == pytest.approx(np.nanmean(expected))
    assert found.error == pytest.approx(np.nanmean(np.sqrt(expected)))


def test_a_custom_loss_may_hold_tensors_of_the_training_precision() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0])

    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets.long(), weight=weights, reduction="none")

    random = np.random.default_rng(0)
    targets = {name: random.integers(0, 3, 60) for name in "ab"}
    own = [Task(name, kind="custom", outputs=3, loss=loss) for name in "ab"]
    problem = Problem.from_arrays(random.normal(size=(60, 2)), targets, own, recipe=Recipe(epochs=1))
    alone = train(problem, Job(("a",)))
    together = next(iter(train_many(problem, [Job(("a",)), Job(("b",))])))
    assert together.test["a"].loss == pytest.approx(alone.test["a"].loss, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "outputs", "targets", "losses"),
    [
        (Task("age", "regression"), [[1.0], [2.0], [3.0]], [0.0, NAN, 1.0], [1.0, NAN, 4.0]),
        # a dense row is the mean over its labels
        (Task("depth", "regression"), [[1.0, 2.0], [3.0, 4.0]], [[0.0, NAN], [NAN, NAN]], [1.0, NAN]),
        # a custom loss per row needs all labels of the row
        (Task("pose", "custom", loss=squared_distance), [[1.0] * 3] * 2, [[0.0] * 3, [0.0, NAN, 0.0]], [3.0, NAN]),
    ],
)
def test_row_losses_skip_missing_labels(task: Task, outputs: Any, targets: Any, losses: list[float]) -> None:
    found, present = task.row_losses(torch.tensor(outputs), torch.tensor(targets))
    assert found.tolist() == np.nan_to_num(losses).tolist()
    assert present.tolist() == np.isfinite(losses).astype(float).tolist()


def test_missing_labels_have_no_gradient() -> None:
    outputs = torch.tensor([[1.0], [torch.inf]], requires_grad=True)
    mean_loss(Task("ill"), outputs, torch.tensor([1.0, torch.nan])).backward()
    assert outputs.grad[:, 0].tolist() == pytest.approx([torch.sigmoid(torch.tensor(1.0)).item() - 1, 0])
    outputs = torch.ones(2, 1, requires_grad=True)
    loss = mean_loss(Task("ill"), outputs, torch.full((2,), torch.nan))
    loss.backward()
    assert loss.item() == 0
    assert not outputs.grad.any()


@pytest.mark.parametrize(
    ("task", "outputs", "targets"),
    [
        (Task("age", "custom", loss=nn.MSELoss()), (4, 2), (4, 2)),
        (Task("age", "custom", loss=lambda out, goal: (out - goal[:, None]).square()), (4, 2), (4,)),
        (Task("age", "regression", outputs=2), (2, 2), (2,)),
        (Task("age", "regression", outputs=3), (4, 3), (4,)),
    ],
)
def test_losses_and_outputs_of_the_wrong_shape_are_explained(task: Task, outputs: Any, targets: Any) -> None:
    with pytest.raises(InvalidInput, match="task 'age'"):
        task.row_losses(torch.ones(outputs), torch.ones(targets))


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"name": ""}, "`name`"),
        ({"kind": "ranking"}, "`kind`"),
        ({"kind": "multiclass"}, "`classes`"),
        ({"kind": "custom"}, "`loss`"),
        ({"error": "mae"}, "`error`"),
        ({"outputs": 2}, "`outputs`"),
        ({"class_weights": [1, 2, 3]}, "`class_weights`"),
        ({"class_weights": [1, -2]}, "`class_weights`"),
        ({"weight": math.nan}, "`weight`"),
        ({"kind": "regression", "outputs": 0}, "`outputs`"),
    ],
)
def test_an_error_names_the_invalid_argument_of_a_task(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput, match=argument):
        Task(**{"name": "ill", **arguments})


def test_tasks_are_comparable_and_hashable() -> None:
    assert len({Task("ill", class_weights=[1, 2]), Task("ill", class_weights=(1.0, 2.0))}) == 1
