"""The best constants, compared with a search over constants, and heads that start there."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from batched_problems import MIXED, make_problem
from learn_small import same, stream
from scipy.optimize import minimize
from torch import nn

from tagalong.learn import (
    MLP,
    Problem,
    Split,
    TabM,
    TabMHeads,
    Task,
    build_network,
    constant_output,
    constant_scores,
    has_constant,
)

NAN = float("nan")
TASKS = [
    Task("x", kind="regression"),
    Task("x"),
    Task("x", class_weights=(1.0, 7.0)),
    Task("x", kind="multiclass", classes=3),
    Task("x", kind="multiclass", classes=3, class_weights=(1.0, 5.0, 0.2)),
]


def problem_of(task: Task, train: list[float], val: list[float]) -> Problem:
    def split(labels: list[float]) -> Split:
        return Split(torch.zeros(len(labels), 2), {task.name: torch.tensor(labels)})

    return Problem("constants", (task,), split(train), split(val), split(val), MLP(2, (2,)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_no_other_constant_has_a_lower_loss(task: Task, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(2, size=60) if task.kind == "regression" else rng.integers(0, task.classes or 2, 60)
    labels = torch.tensor(np.where(rng.random(60) < 0.2, NAN, values), dtype=torch.float64)
    weights = torch.tensor(rng.integers(0, 3, 60), dtype=torch.float64) if weighted else torch.ones(60).double()

    def loss(output: np.ndarray) -> float:
        constant = torch.tensor(output, dtype=torch.float64).expand(len(labels), -1)
        losses, present = task.row_losses(constant, labels)
        return float(losses @ weights / (present @ weights))

    found = constant_output(task, labels, weights if weighted else None)
    assert found.shape == (task.head_size,)
    start = np.zeros(task.head_size)
    searched = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    assert loss(found.numpy()) == pytest.approx(searched.fun, abs=1e-8)
    assert loss(found.numpy()) <= searched.fun + 1e-12


def test_scores_are_those_of_the_training_mean_in_the_units_of_losses_and_errors() -> None:
    task = Task("x", kind="regression")
    problem = replace(problem_of(task, [1.0, 3.0, NAN], [2.0, NAN, 5.0]), scales={"x": (10.0, 4.0)})
    for rows in (problem, stream(problem)):
        score = constant_scores(rows, "val")["x"]
        np.testing.assert_array_equal(score.rows, [0.0, NAN, 9.0])
        assert (score.loss, score.error) == (4.5, 6.0)


def test_classes_without_training_labels_have_finite_losses_and_constants_do_not_rank() -> None:
    task = Task("x", kind="multiclass", classes=3)
    score = constant_scores(problem_of(task, [0.0, 0.0, 1.0, 1.0], [2.0]), "val")["x"]
    assert 0 < score.loss < 10
    binary = constant_scores(problem_of(Task("x"), [0.0] * 10, [1.0]), "val")["x"]
    assert binary.loss == pytest.approx(-math.log(0.05))
    ranked = problem_of(Task("x", error="auroc"), [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0])
    assert constant_scores(ranked, "val")["x"].error == 0.5


def test_own_losses_and_dense_targets_have_no_best_constant() -> None:
    inputs = torch.zeros(4, 2)
    own = Task("own", kind="custom", loss=lambda outputs, targets: (outputs[:, 0] - targets).abs())
    dense, plain = Task("dense", kind="regression", outputs=3), Task("plain", kind="regression")
    split = Split(inputs, {"own": torch.ones(4), "dense": torch.ones(4, 3), "plain": torch.ones(4)})
    problem = Problem("mixed", (own, dense, plain), split, split, split, MLP(2, (2,)))
    assert [has_constant(problem, task) for task in problem.tasks] == [False, False, True]
    assert list(constant_scores(problem, "test")) == ["plain"]


# Heads that start at the constant -------------------------------------------------------------------------------------


def starting(start: str = "base_rate", **changes: object) -> Problem:
    return replace(make_problem(MLP(6, (5, 4), dropout=0.2), start_heads=start), **changes)


@pytest.mark.parametrize("make", [MLP(6, (5,)), TabM(6, (5,), members=3)])
def test_biases_are_the_constants_of_every_member_and_all_else_is_random(make: MLP | TabM) -> None:
    head = TabMHeads(3) if isinstance(make, TabM) else None
    problems = [
        starting(start, encoder=make, head=head).only([t.name for t in MIXED[:3]]) for start in ("base_rate", "random")
    ]
    started, plain = (build_network(problem, problem.names, seed=3) for problem in problems)
    for task, head_of_task in zip(problems[0].tasks, started.heads, strict=True):
        constant = constant_output(task, problems[0].train.targets[task.name])
        torch.testing.assert_close(head_of_task.bias, constant.expand_as(head_of_task.bias))
    states = [
        {k: v for k, v in own.state_dict().items() if not k.endswith("bias") or "heads" not in k}
        for own in (started, plain)
    ]
    assert same(*states)


@pytest.mark.parametrize("change", ["no labels", "own loss", "own head", "own heads"])
def test_without_a_constant_biases_are_random(change: str) -> None:
    networks = []
    for start in ("base_rate", "random"):
        problem = starting(start).only(["size"])
        unlabelled = {"size": torch.full_like(problem.train.targets["size"], torch.nan)}
        changes = {
            "no labels": {"train": replace(problem.train, targets=unlabelled)},
            "own loss": {"tasks": (replace(problem.tasks[0], loss=lambda out, target: (out[:, 0] - target).abs()),)},
            "own head": {"tasks": (replace(problem.tasks[0], head=lambda features: nn.Linear(features, 1)),)},
            "own heads": {"head": lambda task, features: nn.Linear(features, 1)},
        }
        networks.append(build_network(replace(problem, **changes[change]), ["size"], seed=1))
    assert same(networks[0].state_dict(), networks[1].state_dict())
