"""Averaged answers equal a slow average of probabilities or values, one row and network at a time, in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from tagalong.learn import (
    MLP,
    Average,
    Network,
    Problem,
    Split,
    Task,
    average_answers,
    average_outputs,
    average_scores_on,
    build_network,
)

LOGITS = st.lists(st.floats(-30, 30), min_size=2, max_size=5)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    total = sum(math.exp(logit - largest) for logit in logits)
    return [math.exp(logit - largest) / total for logit in logits]


@given(LOGITS)
def test_binary_outputs_average_to_the_mean_probability(logits: list[float]) -> None:
    found = average_outputs([torch.tensor([[one]], dtype=torch.float64) for one in logits], "sigmoid")
    mean = sum(map(sigmoid, logits)) / len(logits)
    negative = sum(sigmoid(-one) for one in logits) / len(logits)
    assert found.shape == (1, 1)
    assert torch.sigmoid(found).item() == pytest.approx(mean, rel=1e-12)
    assert torch.sigmoid(-found).item() == pytest.approx(negative, rel=1e-12)


@given(st.lists(st.lists(st.floats(-30, 30), min_size=3, max_size=3), min_size=2, max_size=4))
def test_multiclass_outputs_average_to_the_mean_probabilities(logits: list[list[float]]) -> None:
    found = average_outputs([torch.tensor([one], dtype=torch.float64) for one in logits], "softmax")
    mean = np.mean([softmax(one) for one in logits], axis=0)
    np.testing.assert_allclose(found.exp().numpy()[0], mean, rtol=1e-12)
    np.testing.assert_allclose(torch.softmax(found, 1).numpy()[0], mean, rtol=1e-12)


@pytest.mark.parametrize("average", ["outputs", "sigmoid", "softmax"])
def test_a_network_of_weight_three_counts_like_three_networks(average: Average) -> None:
    members = [torch.randn(4, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in range(3)]
    repeated = average_outputs([*members, members[1], members[1], members[2]], average)
    torch.testing.assert_close(average_outputs(members, average, (1, 3, 2)), repeated, rtol=1e-12, atol=1e-12)
    single = average_answers([{"a": members[0]}, {"b": members[1]}, {"b": members[2]}], {"b": average}, (5, 1, 1))
    assert torch.equal(single["a"], members[0])
    torch.testing.assert_close(single["b"], average_outputs(members[1:], average), rtol=1e-12, atol=1e-12)


def test_outputs_that_are_certain_stay_finite_and_certain() -> None:
    high, low = torch.tensor([[500.0]]), torch.tensor([[-500.0]])
    assert average_outputs([high, high], "sigmoid").item() == 500
    assert average_outputs([high, low], "sigmoid").item() == 0
    classes = average_outputs([torch.tensor([[900.0, 0.0]]), torch.tensor([[0.0, 900.0]])], "softmax")
    np.testing.assert_allclose(classes.exp().numpy(), [[0.5, 0.5]])


def test_a_task_of_one_network_is_not_touched() -> None:
    outputs = torch.randn(5, 1)
    assert average_answers([{"own": outputs}, {"other": outputs}], {"own": None})["own"] is outputs
    with pytest.raises(ValueError, match="it is not known how to average the outputs for the task 'own'"):
        average_answers([{"own": outputs}, {"own": outputs}], {"own": None})


TASKS = (
    Task("age", "regression", error="rmse"),
    Task("ill", class_weights=(0.5, 3.0), error="auroc"),
    Task("kind", "multiclass", classes=3, class_weights=(1.0, 2.0, 0.5)),
)
SCALE = (50.0, 10.0)


def make_problem() -> Problem:
    draw = torch.Generator().manual_seed(0)

    def some(rows: int) -> Split:
        inputs = torch.randn(rows, 4, generator=draw, dtype=torch.float64)
        targets = {
            "age": inputs[:, 0].clone(),
            "ill": (inputs[:, 1] > 0).double(),
            "kind": inputs[:, 1:].argmax(1).double(),
        }
        for number, values in enumerate(targets.values()):
            values[number::5] = torch.nan
        return Split(inputs, targets)

    return Problem("toy", TASKS, some(40), some(30), some(37), MLP(4, (6,)), scales={"age": SCALE})


def slow_row_loss(task: Task, members: list[Tensor], target: float) -> float:
    """The loss of the average answer for one row, from probabilities."""
    if task.kind == "regression":
        return (sum(one.item() for one in members) / len(members) - target) ** 2
    if task.kind == "binary":
        positive = sum(sigmoid(one.item()) for one in members) / len(members)
        return -3.0 * math.log(positive) if target else -0.5 * math.log(1 - positive)
    mean = np.mean([softmax(one.tolist()) for one in members], axis=0)
    return -task.class_weights[int(target)] * math.log(mean[int(target)])


def networks(problem: Problem) -> list[Network]:
    """Three networks: two serve every task, one serves only two tasks."""
    made = [build_network(problem, problem.names, seed).double() for seed in (0, 1)]
    return [*made, build_network(problem, ("age", "kind"), 2).double()]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_losses_of_averages_equal_a_slow_average_of_probabilities(task: Task) -> None:
    problem = make_problem()
    members = [network.train() for network in networks(problem)]
    score = average_scores_on(problem, members, problem.test)[task.name]
    assert all(network.training for network in members)
    expected = []
    for inputs, target in zip(problem.test.inputs, problem.test.targets[task.name], strict=True):
        outputs = [network(inputs[None])[task.name][0] for network in members if task.name in network.tasks]
        expected.append(math.nan if target.isnan() else slow_row_loss(task, outputs, target.item()))
    np.testing.assert_allclose(score.rows, np.float32(expected), rtol=1e-6)
    assert score.loss == pytest.approx(np.nanmean(expected), rel=1e-12)
    if task.name == "age":  # its error is in the units of the data
        assert score.error == pytest.approx(math.sqrt(np.nanmean(expected)) * SCALE[1], rel=1e-12)
