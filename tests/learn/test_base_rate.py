"""Heads that start at the base rate of the training labels, and nothing else that changes."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from batched_problems import MIXED, all_jobs, assert_same, make_problem, trained_together
from learn_small import same
from torch import Tensor, nn

from tagalong.learn import (
    MLP,
    Job,
    Network,
    Problem,
    Recipe,
    Split,
    StreamedRows,
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


def biases(network: Network) -> list[torch.Tensor]:
    return [head.bias for head in network.heads]


@pytest.mark.parametrize("change", ["no labels", "own loss", "own head", "own heads"])
def test_without_a_base_rate_biases_are_random(change: str) -> None:
    def start(recipe: str) -> Problem:
        problem = problem_with(recipe).only(["size"])
        targets = {"size": torch.full_like(problem.train.targets["size"], torch.nan)}
        tasks: dict[str, Callable[[], Task]] = {
            "own loss": lambda: replace(problem.tasks[0], loss=lambda out, target: (out[:, 0] - target).abs()),
            "own head": lambda: replace(problem.tasks[0], head=lambda features: nn.Linear(features, 1)),
        }
        if change == "no labels":
            return replace(problem, train=replace(problem.train, targets=targets))
        if change == "own heads":
            return replace(problem, head=lambda task, features: nn.Linear(features, 1))
        return replace(problem, tasks=(tasks[change](),))

    started, plain = (build_network(start(recipe), ["size"], seed=1) for recipe in ("base_rate", "random"))
    assert same(started.state_dict(), plain.state_dict())


def test_networks_trained_together_start_there_too() -> None:
    problem = problem_with(epochs=5)
    jobs = all_jobs(problem, seeds=(0, 3))
    found = trained_together(problem, jobs)
    for job in jobs[::5]:
        assert_same(found[job], train(problem, job))


@pytest.mark.cuda
def test_graphs_start_there_too() -> None:
    problem = problem_with(epochs=9, lr=0.01).only(NAMES[:3])
    jobs = all_jobs(problem, seeds=(0, 1))
    found = {trained.job: trained for trained in train_many(problem, jobs, device="cuda")}
    for job in jobs:
        assert_same(found[job], train(problem, job, device="cuda"))


class RowReader:
    """Reads the rows of a split one by one."""

    def __init__(self, split: Split) -> None:
        self.split, self.tasks = split, split.tasks

    def __len__(self) -> int:
        return len(self.split)

    def read(self, row: int, tasks: Iterable[str], draw: object) -> tuple[Tensor, dict[str, Tensor]]:
        return self.split.inputs[row], {task: self.split.targets[task][row] for task in tasks}

    def contents(self) -> Iterator[bytes]:
        yield b"rows"


def test_labels_are_also_read_from_files() -> None:
    problem = problem_with()
    streams = {part: StreamedRows(RowReader(split), split.tasks) for part, split in problem.splits.items()}
    networks = [build_network(one, NAMES, seed=0) for one in (problem, replace(problem, **streams))]
    assert same(networks[0].state_dict(), networks[1].state_dict())


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


def test_recipes_with_random_heads_keep_their_keys() -> None:
    assert "start_heads" not in Recipe(start_heads="random").definition
    assert Recipe(start_heads="base_rate").definition == {"start_heads": "base_rate"}
