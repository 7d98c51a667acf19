"""Losses of rows, masked labels, and errors for invalid tasks."""

import math

import numpy as np
import pytest
import torch
from learn_small import small_problem
from torch import nn
from torch.nn import functional

from tagalong.learn import Job, Problem, Recipe, Task, build_network, mean_loss, train, train_many
from tagalong.learn.scoring import scores_on


def test_row_losses_skip_missing_labels() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0.0, torch.nan, 1.0])
    losses, present = Task("age", "regression").row_losses(outputs, targets)
    assert losses.tolist() == [1.0, 0.0, 4.0]
    assert present.tolist() == [1.0, 0.0, 1.0]
    assert mean_loss(Task("age", "regression"), outputs, targets).item() == 2.5


def test_missing_labels_have_no_gradient() -> None:
    outputs = torch.tensor([[1.0], [torch.inf]], requires_grad=True)
    mean_loss(Task("ill"), outputs, torch.tensor([1.0, torch.nan])).backward()
    assert outputs.grad is not None
    assert outputs.grad[1].item() == 0
    assert outputs.grad[0].item() == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item() - 1)


def test_a_task_without_any_label_has_loss_and_gradient_zero() -> None:
    outputs = torch.ones(2, 1, requires_grad=True)
    loss = mean_loss(Task("ill"), outputs, torch.full((2,), torch.nan))
    loss.backward()
    assert loss.item() == 0
    assert not outputs.grad.any()


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


def test_a_dense_row_is_the_mean_over_its_labels() -> None:
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    targets = torch.tensor([[0.0, torch.nan], [torch.nan, torch.nan]])
    losses, present = Task("depth", "regression").row_losses(outputs, targets)
    assert losses.tolist() == [1.0, 0.0]
    assert present.tolist() == [1.0, 0.0]


def test_a_custom_loss_per_row_needs_all_labels_of_the_row() -> None:
    task = Task("pose", "custom", loss=lambda out, goal: (out - goal).square().sum(1))
    losses, present = task.row_losses(torch.ones(2, 3), torch.tensor([[0.0, 0.0, 0.0], [0.0, torch.nan, 0.0]]))
    assert losses.tolist() == [3.0, 0.0]
    assert present.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda out, goal: (out - goal[:, None]).square()])
def test_a_loss_of_the_wrong_shape_is_explained(loss: object) -> None:
    task = Task("age", "custom", loss=loss)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"task 'age': `loss` must return one value per row.*reduction='none'"):
        task.row_losses(torch.ones(4, 2), torch.ones(4) if not isinstance(loss, nn.MSELoss) else torch.ones(4, 2))


def test_a_head_of_the_wrong_size_is_explained() -> None:
    with pytest.raises(ValueError, match=r"found shape \[2, 2\] for outputs of shape \[2, 2\]"):
        Task("age", "regression", outputs=2).row_losses(torch.ones(2, 2), torch.ones(2))


def test_a_score_has_the_loss_of_every_row() -> None:
    problem = small_problem()
    network = build_network(problem, ("age",), seed=0)
    nn.init.zeros_(network.heads[0].weight)
    nn.init.zeros_(network.heads[0].bias)
    found = scores_on(problem, network, problem.val)["age"]
    expected = problem.val.targets["age"].square().numpy()
    np.testing.assert_allclose(found.rows, expected, rtol=1e-6)
    assert found.loss == pytest.approx(np.nanmean(expected))
    assert found.error == pytest.approx(np.nanmean(np.sqrt(expected)))


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ({"name": ""}, ["`name` must be a non-empty string"]),
        ({"kind": "ranking"}, ["`kind` must be one of 'binary', 'multiclass', 'regression', 'custom'"]),
        (
            {"kind": "multiclass", "weight": -1},
            ["`classes` must be an integer ≥ 2", "`weight` must be a positive"],
        ),
        ({"kind": "custom"}, ["`loss` is required for a custom task"]),
        ({"error": "mae", "outputs": 2}, ["`error` must be one of", "`outputs` must be 1 for a binary task, found 2"]),
        (
            {"class_weights": [1, 2, 3], "weight": math.nan},
            ["`class_weights` must contain 2 numbers", "`weight` must be"],
        ),
        ({"class_weights": [1, -2]}, ["`class_weights` must not be negative"]),
        ({"kind": "regression", "outputs": 0}, ["`outputs` must be a positive integer, found 0"]),
    ],
)
def test_invalid_tasks_raise_an_error_with_all_problems(arguments: dict, messages: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must|is required") as error:
        Task(**{"name": "ill", **arguments})
    assert all(message in str(error.value) for message in messages)


def test_tasks_are_comparable_and_hashable() -> None:
    assert Task("ill", class_weights=[1, 2]) == Task("ill", class_weights=(1.0, 2.0))
    assert len({Task("ill", class_weights=[1, 2]), Task("ill", class_weights=(1.0, 2.0))}) == 1


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


def test_outputs_that_do_not_broadcast_with_targets_are_explained() -> None:
    with pytest.raises(ValueError, match=r"shape \[4\], found shape \[4, 3\] for outputs of shape \[4, 3\]"):
        Task("a", kind="regression", outputs=3).row_losses(torch.zeros(4, 3), torch.zeros(4))
