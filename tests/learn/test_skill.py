"""Skill, compared with R², with the share of the entropy, and with slow sums in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn_small import small_problem, stream
from scipy.special import xlogy
from torch import nn

from tagalong.learn import (
    MLP,
    Job,
    Problem,
    Split,
    Task,
    constant_losses,
    mean_skill,
    row_influences,
    row_skills,
    score_outputs,
    skill_constants,
    skill_units,
    task_skills,
    train,
)
from tagalong.study.best import ServedTask

PARTS = ("train", "val", "test")


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.squeeze(1) - targets).abs()


def problem_of(task: Task, labels: list[torch.Tensor], weights: torch.Tensor | None = None) -> Problem:
    parts = [Split(torch.zeros(len(own), 2), {task.name: own}, None, weights) for own in labels]
    return Problem("skill", (task,), *parts, MLP(2, (2,)))


def slow_skills(problem: Problem, part: str, losses: dict[str, np.ndarray]) -> dict[str, float]:
    """(C − L) / U by loops, for binary and regression tasks whose rows may have weights."""
    skills = {}
    for task in problem.tasks:
        rows = {
            name: [
                (i, float(label), 1.0 if split.weights is None else float(split.weights[i]))
                for i, label in enumerate(split.targets[task.name])
                if math.isfinite(label)
            ]
            for name, split in problem.splits.items()
        }
        pair = task.class_weights or (1.0, 1.0)
        if task.kind == "regression":
            constant = sum(w * y for _, y, w in rows["train"]) / sum(w for _, _, w in rows["train"])

            def loss(y: float, constant: float = constant) -> float:
                return (y - constant) ** 2
        else:
            ones, zeros = (sum(pair[c] * w for _, y, w in rows["train"] if y == c) for c in (1, 0))
            share = ones / (ones + zeros)

            def loss(y: float, share: float = share, pair: tuple[float, ...] = pair) -> float:
                return -pair[int(y)] * math.log(share if y else 1 - share)

        every = [row for name in PARTS for row in rows[name]]
        unit = sum(w * loss(y) for _, y, w in every) / sum(w for *_, w in every)
        gained = sum(w * (loss(y) - losses[task.name][i]) for i, y, w in rows[part])
        skills[task.name] = gained / sum(w for *_, w in rows[part]) / unit
    return skills


@pytest.mark.parametrize("weighted", [False, True])
def test_skills_are_those_of_slow_sums_over_rows(weighted: bool) -> None:
    problem = small_problem()
    if weighted:
        draw = torch.Generator().manual_seed(3)
        parts = {name: replace(split, weights=torch.rand(len(split), generator=draw).round(decimals=1))
                 for name, split in problem.splits.items()}  # fmt: skip
        problem = replace(problem, **parts)
    trained = train(problem, Job(problem.names))
    rows = {task: score.rows for task, score in trained.test.items()}
    found = task_skills(row_skills(rows, constant_losses(problem, "test"), skill_units(problem)))
    weights = problem.test.weights
    plain = {}
    for task, own in rows.items():  # the losses of rows contain their weights, whose mean over labelled rows is 1
        labelled = problem.test.labelled(task).numpy()
        mean = 1.0 if weights is None else weights.numpy()[labelled & (weights.numpy() > 0)].mean()
        plain[task] = own if weights is None else own * mean / np.where(weights > 0, weights, 1)
        plain[task] = np.nan_to_num(plain[task])
    assert found == pytest.approx(slow_skills(problem, "test", plain), abs=1e-6)


def test_on_all_rows_the_skill_of_a_regression_is_r_squared_against_the_training_mean() -> None:
    rng = np.random.default_rng(0)
    labels, answers = rng.normal(3, 2, 50), rng.normal(3, 2, 50)
    problem = problem_of(Task("age", "regression"), [torch.tensor(labels)] * 3)
    losses = (answers - labels) ** 2
    skills = task_skills(row_skills({"age": losses}, constant_losses(problem, "test"), skill_units(problem)))
    assert skills["age"] == pytest.approx(1 - losses.sum() / ((labels - labels.mean()) ** 2).sum(), rel=1e-12)


def test_on_all_rows_the_skill_of_classes_is_the_share_of_the_entropy() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    answers = rng.dirichlet(np.ones(3), 60)
    problem = problem_of(Task("stage", "multiclass", classes=3), [torch.tensor(labels, dtype=torch.float64)] * 3)
    losses = -np.log(answers[np.arange(60), labels])
    shares = np.bincount(labels) / 60
    skills = task_skills(row_skills({"stage": losses}, constant_losses(problem, "val"), skill_units(problem)))
    assert skills["stage"] == pytest.approx(1 + losses.mean() / xlogy(shares, shares).sum(), rel=1e-12)


def test_a_constant_has_no_skill_and_a_perfect_answer_on_all_rows_has_all() -> None:
    problem = small_problem()
    units = skill_units(problem)
    for part in PARTS:
        constants = constant_losses(problem, part)
        assert set(task_skills(row_skills(constants, constants, units)).values()) == {0.0}
    same_rows = replace(problem, val=problem.train, test=problem.train)
    constants, units = constant_losses(same_rows, "test"), skill_units(same_rows)
    perfect = {task: losses * 0 for task, losses in constants.items()}
    assert task_skills(row_skills(perfect, constants, units)) == pytest.approx(dict.fromkeys(problem.names, 1.0))


def test_an_absolute_error_is_measured_against_the_median() -> None:
    labels = torch.tensor([0.0, 1.0, 2.0, 9.0, 100.0, math.nan])
    problem = problem_of(Task("age", "regression", loss=absolute), [labels, labels[:3], labels[3:]])
    assert skill_constants(problem)["age"].tolist() == [2.0]
    np.testing.assert_array_equal(constant_losses(problem, "test")["age"], [7.0, 98.0, math.nan])
    assert skill_units(problem)["age"] == pytest.approx((2 + 1 + 0 + 7 + 98) * 2 / 10)


def test_row_weights_count_in_the_constant_of_a_loss_of_its_own() -> None:
    labels, weights = torch.tensor([0.0, 1.0, 2.0, 9.0]), torch.tensor([1.0, 1.0, 0.0, 3.0])
    problem = problem_of(Task("age", "regression", loss=absolute), [labels] * 3, weights)
    assert skill_constants(problem)["age"].tolist() == [9.0]
    np.testing.assert_allclose(constant_losses(problem, "val")["age"], [9 * 0.6, 8 * 0.6, math.nan, 0.0])
    assert skill_units(problem)["age"] == pytest.approx((9 + 8) / 5)
    unweighted = problem_of(Task("age", "regression", loss=absolute), [labels] * 3, torch.zeros(4))
    assert skill_constants(unweighted) == {}


def test_a_dense_task_gets_one_constant_per_channel() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randn(30, 2, 3, 4, generator=draw) + torch.tensor([5.0, -1.0]).view(2, 1, 1)

    class Head(nn.Module):
        def __init__(self, features: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(features, 24))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return (features @ self.weight).view(-1, 2, 3, 4)

    task = Task("depth", "custom", loss=lambda outputs, targets: (outputs - targets).pow(4), head=Head)
    problem = problem_of(task, [labels, labels, labels])
    found = skill_constants(problem)["depth"]
    assert found.shape == (2, 3, 4)
    for channel in range(2):
        values = labels[:, channel].double()
        gradient = 4 * (found[channel, 0, 0].double() - values).pow(3).mean()
        assert abs(float(gradient)) < 1e-3


def test_the_loss_of_a_constant_can_be_given() -> None:
    labels = torch.tensor([1.0, math.nan, 3.0])
    problem = problem_of(Task("age", "regression", constant_loss=0.5), [labels] * 3)
    np.testing.assert_array_equal(constant_losses(problem, "val")["age"], [0.5, math.nan, 0.5])
    assert skill_units(problem) == {"age": 0.5}
    with pytest.raises(ValueError, match="constant_loss"):
        Task("age", constant_loss=-1.0)


def test_a_task_without_training_labels_or_spread_has_no_unit() -> None:
    same, none = torch.ones(3), torch.full((3,), math.nan)
    assert skill_units(problem_of(Task("age", "regression"), [same] * 3)) == {}
    assert skill_units(problem_of(Task("age", "regression"), [none, same, same])) == {}


def test_rows_read_from_files_give_the_same() -> None:
    problem = small_problem()
    assert skill_units(stream(problem)) == pytest.approx(skill_units(problem), rel=1e-12)


def test_means_have_task_weights_and_a_floor() -> None:
    assert mean_skill({"a": 0.4, "b": -30.0, "c": math.nan}) == pytest.approx(-0.3)
    assert mean_skill({"a": 0.4, "b": 0.1}, {"a": 3.0, "b": 1.0}) == pytest.approx(0.325)


def test_differences_are_means_of_row_differences_with_the_right_standard_error() -> None:
    rng = np.random.default_rng(1)
    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    first = {task: rng.normal(size=400) for task in weights}
    second = {task: own + 0.3 * rng.normal(size=400) for task, own in first.items()}
    first["c"] = first["c"] - 50  # below the floor
    for rows in (first, second):
        rows["b"] = np.where(np.arange(400) % 3 == 0, np.nan, rows["b"])
    influences = [row_influences(rows, weights) for rows in (first, second)]
    for rows, own in zip((first, second), influences, strict=True):
        assert own.mean() == pytest.approx(mean_skill(task_skills(rows), weights), rel=1e-12)
    difference = influences[0] - influences[1]

    def resampled() -> float:
        drawn = rng.integers(0, 400, 400)
        means = [
            mean_skill(task_skills({t: own[drawn] for t, own in rows.items()}), weights) for rows in (first, second)
        ]
        return means[0] - means[1]

    spread = np.std([resampled() for _ in range(1000)])
    assert difference.std() / math.sqrt(400) == pytest.approx(spread, rel=0.1)


def test_answers_of_every_network_have_a_floor_where_they_are_scored() -> None:
    tasks = (Task("ill"), Task("stage", "multiclass", classes=3), Task("age", "regression"))
    labels = {"ill": torch.tensor([0.0, 1.0]), "stage": torch.tensor([0.0, 2.0]), "age": torch.ones(2)}
    rows = Split(torch.zeros(50, 2), {name: own.repeat(25) for name, own in labels.items()})
    problem = Problem("floors", tasks, rows, rows, rows, MLP(2, (2,)))
    outputs = torch.tensor([[30.0, 0.0, -30.0]], dtype=torch.float64)
    for task in tasks:
        scale, given = problem.answer_scales.get(task.name), outputs[:, : task.head_size]
        loss = score_outputs(task, given, labels[task.name][1:], scale).loss
        wrong = score_outputs(task, -given, labels[task.name][1:], scale).loss
        if task.kind == "regression":
            assert (loss, wrong) == (29.0**2, 31.0**2)
        elif task.kind == "binary":
            assert (loss, wrong) == pytest.approx((-math.log(0.99), -math.log(0.01)))
            served = ServedTask(task.name, task.kind, scale).prediction(-given)
            assert served.tolist() == pytest.approx([0.01])
        else:
            assert (loss, wrong) == pytest.approx((-math.log(0.01 / 1.02), -math.log(1 / 1.02)))
            served = ServedTask(task.name, task.kind, scale).prediction(given)
            np.testing.assert_allclose(served, [[1 / 1.02, 0.01 / 1.02, 0.01 / 1.02]])


def test_the_floor_makes_no_scores_equal() -> None:
    outputs, labels = torch.tensor([[8.0], [9.0], [-9.0], [-8.0]]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert score_outputs(Task("ill", error="auroc"), outputs, labels, (0.0, 1.0, -2.0, 2.0)).error == 0.25
