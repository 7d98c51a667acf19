"""The losses of all tasks and networks at once equal those of each task and network by itself."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from batched_problems import MIXED, MLP_WITH_DROPOUT, make_problem
from torch import Tensor

from tagalong.learn import (
    Network,
    Problem,
    Split,
    TabM,
    TabMHeads,
    Task,
    build_network,
    first_half,
    mean_loss,
)
from tagalong.learn.losses import LabeledRows, Losses
from tagalong.learn.network import join_layers

KINDS = (
    Task("size", kind="regression"),
    Task("ill", kind="binary", class_weights=(1, 3)),
    Task("sort", kind="multiclass", classes=3, weight=0.5),
    Task("weight", kind="regression", weight=2.0),
    Task("old", kind="binary"),
    Task("color", kind="multiclass", classes=3),
    Task("shape", kind="multiclass", classes=3, class_weights=(1, 2, 3)),
)


OWN_LOSSES = (*MIXED, Task("place", "regression", outputs=2), Task("old"))


def add_dense(split: Split) -> Split:
    """Gives the task "place" two labels per row, if there is such a task."""
    if "place" not in split.targets:
        return split
    place = torch.stack([split.targets["place"], split.inputs[:, 0]], 1)
    return replace(split, targets={**split.targets, "place": place})


def problem_of(tasks: Sequence[Task], missing: float, members: int = 0) -> Problem:
    encoder = TabM(6, (5,), 0.0, members) if members else MLP_WITH_DROPOUT
    problem = make_problem(encoder, tasks=tasks)
    splits = {name: add_dense(split) for name, split in problem.splits.items()}
    for split in splits.values():
        for target in split.targets.values():
            target[torch.rand(len(target), generator=torch.Generator().manual_seed(3)) < missing] = torch.nan
    return replace(problem, **splits, head=TabMHeads(members) if members else None)


def prepare(problem: Problem, networks: Sequence[Network], trains: np.ndarray | None) -> tuple[Losses, LabeledRows]:
    losses = Losses(problem.tasks, networks[0], problem.val, trains)
    return losses, LabeledRows(problem.val, losses)


@pytest.mark.parametrize("missing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("tasks", "members"), [(KINDS, 0), (KINDS, 3), (KINDS[:1], 0), (OWN_LOSSES, 0)])
@pytest.mark.parametrize("training", [True, False])
def test_losses_equal_those_of_each_task(tasks: tuple[Task, ...], members: int, missing: float, training: bool) -> None:
    problem = problem_of(tasks, missing, members)
    network = build_network(problem, problem.names, 0)
    losses, rows = prepare(problem, [network], None)
    network.train(training)
    chosen = torch.tensor([7, 3, 19])
    inputs, labels = rows.batch(chosen)
    outputs = network.at_step(0)(inputs)
    means, counts = losses.means(losses.join(outputs), labels)
    for place, task in enumerate(losses.tasks):
        target = problem.val.targets[task.name][chosen]
        torch.testing.assert_close(means[place], mean_loss(task, outputs[task.name], target))
        assert counts[place] == task.row_losses(outputs[task.name], target)[1].sum()


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize(("tasks", "members"), [(KINDS, 0), (KINDS, 3), (OWN_LOSSES, 0)])
def test_losses_of_a_stack_equal_those_of_each_network(tasks: tuple[Task, ...], members: int, missing: float) -> None:
    problem = problem_of(tasks, missing, members)
    networks = [build_network(problem, problem.names, seed) for seed in range(3)]
    trains = np.random.default_rng(1).random((3, len(tasks))) < 0.6
    losses, rows = prepare(problem, networks, trains)

    def outputs_on(inputs: Tensor) -> list[Tensor]:
        outputs = [network.eval()(inputs) for network in networks]
        return losses.join({name: torch.stack([own[name] for own in outputs]) for name in problem.names})

    table = rows.mean_losses(outputs_on)  # [networks, tasks, 3]
    first = first_half(len(problem.val))
    for (network, place), is_trained in np.ndenumerate(trains):
        if is_trained:
            task = problem.tasks[place]
            outputs, target = networks[network](problem.val.inputs)[task.name], problem.val.targets[task.name]
            parts = [mean_loss(task, outputs[part], target[part]).item() for part in (slice(None), first, ~first)]
            np.testing.assert_allclose(table[network, place], parts, rtol=1e-9)
    assert torch.equal(losses.weights > 0, torch.from_numpy(trains)[:, np.argsort(losses.places)])


def test_every_seed_has_its_own_rows_and_every_network_its_own_targets() -> None:
    problem = problem_of(KINDS, 0.2)
    rows = torch.tensor([[5, 1, 9], [2, 30, 5]])  # of two seeds, with two networks each
    networks = [build_network(problem, problem.names, seed) for seed in (0, 0, 1, 1)]
    losses, _ = prepare(problem, networks, np.ones((4, len(KINDS)), bool))
    soft = torch.rand(len(problem.val), 3, dtype=torch.float64).softmax(1)
    own = [{}, {"sort": soft, "size": problem.val.inputs[:, 0]}, {"color": soft}, {"sort": soft}]
    inputs, labels = LabeledRows(problem.val, losses, own).batch(rows, networks_per_seed=2)
    outputs = [network.eval()(inputs[number // 2]) for number, network in enumerate(networks)]
    joined = losses.join({name: torch.stack([one[name] for one in outputs]) for name in problem.names})
    means, _ = losses.means(joined, labels)
    for number, replaced in enumerate(own):
        for place, task in enumerate(losses.tasks):
            target = replaced.get(task.name, problem.val.targets[task.name])[rows[number // 2]]
            torch.testing.assert_close(means[number, place], mean_loss(task, outputs[number][task.name], target))


@pytest.mark.parametrize("members", [0, 3])
def test_joined_heads_remain_parts_of_the_network(members: int) -> None:
    network = build_network(problem_of(KINDS, 0.0, members), [task.name for task in KINDS], 0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    joined = copy.deepcopy(network.heads[0])
    join_layers(network.heads, joined, -1 if members else 0)
    features = network.encode(torch.randn(4, 6, dtype=torch.float64))
    outputs = torch.cat([head(features) for head in network.heads], 1)
    torch.testing.assert_close(joined(features), outputs)
    with torch.no_grad():
        joined.bias.add_(1)
    assert all(torch.equal(head.bias, before[f"heads.{k}.bias"] + 1) for k, head in enumerate(network.heads))
    network.load_state_dict(before)
    torch.testing.assert_close(joined(features), outputs)
