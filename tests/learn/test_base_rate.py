"""Heads that start at the base rate of the training labels, and nothing else that changes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from batched_problems import MIXED, all_jobs, assert_same, make_problem
from learn_small import same, stream
from torch import nn

from tagalong.learn import (
    MLP,
    Job,
    Problem,
    Recipe,
    Split,
    TabM,
    TabMHeads,
    Task,
    build_network,
    train,
    train_many,
)

PLAIN = (*(replace(task, class_weights=None) for task in MIXED[:3]), MIXED[3])
NAMES = tuple(task.name for task in PLAIN)


def problem_with(start: str = "base_rate", **settings: object) -> Problem:
    return make_problem(MLP(6, (5, 4), dropout=0.2), tasks=PLAIN, start_heads=start, **settings)


def obvious_biases(problem: Problem, task: str) -> list[float]:
    labels = [label for label in problem.train.targets[task].tolist() if not math.isnan(label)]
    if task == "size":
        return [sum(labels) / len(labels)]
    if task == "ill":
        return [math.log(labels.count(1) / labels.count(0))]
    return [math.log(labels.count(number) / len(labels)) for number in range(3)]


@pytest.mark.parametrize("width", [1, 2.5])
def test_biases_are_the_mean_the_log_odds_and_the_log_frequencies(width: float) -> None:
    problem = problem_with()
    network = build_network(problem, problem.names, seed=3, width=width)
    for task, head in list(zip(network.tasks, network.heads, strict=True))[:3]:
        np.testing.assert_allclose(head.bias.tolist(), obvious_biases(problem, task), rtol=1e-12)


def test_all_other_initial_values_are_those_of_random_heads() -> None:
    networks = [build_network(problem_with(start), NAMES, seed=3) for start in ("base_rate", "random")]
    started, plain = (network.state_dict() for network in networks)
    biases = [f"heads.{index}.bias" for index in range(3)]
    assert not any(torch.equal(started[name], plain[name]) for name in biases)
    assert same(*({name: own[name] for name in own if name not in biases} for own in (started, plain)))


def test_every_member_starts_at_the_base_rate() -> None:
    problem = replace(problem_with(), encoder=TabM(6, (5,), members=3), head=TabMHeads(3)).only(NAMES[:3])
    network = build_network(problem, problem.names, seed=0)
    for task, head in zip(network.tasks, network.heads, strict=True):
        for member in range(3):
            np.testing.assert_allclose(head.bias[member, 0].tolist(), obvious_biases(problem, task), rtol=1e-12)


def test_class_weights_count() -> None:
    task = Task("ill", class_weights=(1.0, 3.0))
    split = Split(torch.randn(8, 2), {"ill": torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 1])})
    problem = Problem("weighted", (task,), split, split, split, MLP(2, (2,)), recipe=Recipe(start_heads="base_rate"))
    bias = build_network(problem, ["ill"], 0).heads[0].bias
    assert bias.item() == pytest.approx(0.0, abs=1e-6)  # six times 1 against two times 3


@pytest.mark.cuda
def test_graphs_start_there_too() -> None:
    problem = problem_with(epochs=9, lr=0.01).only(NAMES[:3])
    jobs = all_jobs(problem, seeds=(0, 1))
    found = {trained.job: trained for trained in train_many(problem, jobs, device="cuda")}
    for job in jobs:
        assert_same(found[job], train(problem, job, device="cuda"))


def test_a_rare_class_is_not_learned_first() -> None:
    """Without inputs that say anything, the loss after one short epoch is that of the base rate already."""
    labels = (torch.arange(400) % 20 == 0).float()
    split = Split(torch.randn(400, 3), {"rare": labels})
    recipe = Recipe(lr=1e-3, epochs=1, batch_size=400)
    problem = Problem("rare", (Task("rare"),), split, split, split, MLP(3, (8,)), recipe=recipe)
    entropy = -0.05 * math.log(0.05) - 0.95 * math.log(0.95)
    losses = {
        start: train(replace(problem, recipe=replace(recipe, start_heads=start)), Job(("rare",))).test["rare"].loss
        for start in ("base_rate", "random")
    }
    assert losses["base_rate"] < 1.2 * entropy < 2 * entropy < losses["random"]


@pytest.mark.parametrize("change", ["no labels", "own loss", "own head", "own heads"])
def test_without_a_base_rate_biases_are_random(change: str) -> None:
    networks = []
    for start in ("base_rate", "random"):
        problem = problem_with(start).only(["size"])
        unlabelled = {"size": torch.full_like(problem.train.targets["size"], torch.nan)}
        changes = {
            "no labels": {"train": replace(problem.train, targets=unlabelled)},
            "own loss": {"tasks": (replace(problem.tasks[0], loss=lambda out, target: (out[:, 0] - target).abs()),)},
            "own head": {"tasks": (replace(problem.tasks[0], head=lambda features: nn.Linear(features, 1)),)},
            "own heads": {"head": lambda task, features: nn.Linear(features, 1)},
        }
        networks.append(build_network(replace(problem, **changes[change]), ["size"], seed=1))
    assert same(networks[0].state_dict(), networks[1].state_dict())


def test_labels_are_also_read_from_files() -> None:
    problem = problem_with()
    held, streamed = (build_network(rows, NAMES, seed=0) for rows in (problem, stream(problem)))
    assert same(held.state_dict(), streamed.state_dict())
