"""TabM: members that share weights are trained one by one or together, averaged, saved, and chosen by name."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from batched_problems import MIXED, all_jobs, assert_same, make_problem, trained_together
from torch import Tensor, nn
from torch.nn import functional

from tagalong.errors import InvalidInput
from tagalong.learn import (
    MLP,
    Problem,
    Recipe,
    TabM,
    TabMHeads,
    Task,
    build_network,
    train,
)
from tagalong.learn.tabm import AdaptedLinear, MemberHead

MEMBERS = 3
TASKS = (*MIXED[:3], Task("price", "regression", loss=lambda out, target: (out.squeeze(1) - target).abs()))


def tabm_problem(**settings: Any) -> Problem:
    """Missing labels, all kinds that can be averaged, and a loss of the user's."""
    problem = make_problem(TabM(6, hidden=(7, 5), dropout=0.2, members=MEMBERS), tasks=TASKS, **settings)
    return replace(problem, head=TabMHeads(MEMBERS))


def member_outputs(problem: Problem, network: nn.Module, inputs: Tensor) -> list[dict[str, Tensor]]:
    """The outputs of each member without dropout, computed with ordinary layers and weights of its own."""
    return [_outputs_of(problem, network, inputs, member) for member in range(MEMBERS)]


def _outputs_of(problem: Problem, network: Any, features: Tensor, member: int) -> dict[str, Tensor]:
    for layer in network.encoder:
        if isinstance(layer, AdaptedLinear):
            adapters = layer.output_scales[member].T * layer.input_scales[member]  # of rank one
            features = functional.linear(features, layer.weight * adapters, layer.bias[member]).relu()
    return {
        task: features @ head.weight[member] + head.bias[member]
        for task, head in zip(network.tasks, network.heads, strict=True)
    }


@pytest.mark.cuda
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_stacked_graphs_of_members_give_the_same_networks(
    seeds: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    problem = tabm_problem(epochs=14, patience=4, lr=0.01)
    jobs = [job for job in all_jobs(problem, seeds=seeds) if "price" not in job.tasks]  # it has a loss of its own
    found = trained_together(problem, jobs, device="cuda")
    assert "without CUDA graphs" not in caplog.text
    for job in jobs:
        assert_same(found[job], train(problem, job, device="cuda"))


def test_in_evaluation_outputs_or_probabilities_are_averaged() -> None:
    problem = tabm_problem()
    network = build_network(problem, problem.names, seed=1).eval()
    inputs, _ = problem.test.batch(torch.arange(29))
    outputs, members = network(inputs), member_outputs(problem, network, inputs)
    for task in problem.tasks:
        alone = torch.stack([member[task.name] for member in members])
        assert alone.std(0).min() > 0, "members should differ"
        found = outputs[task.name]
        if task.kind == "binary":
            torch.testing.assert_close(found.sigmoid(), alone.sigmoid().mean(0))
        elif task.kind == "multiclass":
            torch.testing.assert_close(found.exp(), alone.softmax(-1).mean(0))
        else:
            torch.testing.assert_close(found, alone.mean(0))


def test_averages_of_extreme_logits_are_finite() -> None:
    head = MemberHead(1, 1, 2, "binary").eval()
    with torch.no_grad():
        head.weight.fill_(0)
        head.bias.copy_(torch.tensor([-500.0, -400.0])[:, None, None])
        assert head(torch.zeros(1, 1, 2)).item() == pytest.approx(-400 - np.log(2))


def test_members_start_with_equal_layers_and_different_signs_and_heads() -> None:
    network = build_network(tabm_problem(), ["size"], seed=0)
    first, second = (layer for layer in network.encoder if isinstance(layer, AdaptedLinear))
    assert set(first.input_scales.unique().tolist()) == {-1.0, 1.0}
    assert not torch.equal(first.input_scales[0], first.input_scales[1])
    for equal in (first.output_scales, second.input_scales, second.output_scales):
        assert torch.equal(equal, torch.ones_like(equal))
    assert torch.equal(first.bias[0], first.bias[1])
    assert not torch.equal(network.heads[0].weight[0], network.heads[0].weight[1])


def test_the_loss_of_dense_targets_is_the_mean_over_members() -> None:
    task, targets = Task("map", "regression", outputs=2), torch.tensor([[1.0, torch.nan], [torch.nan] * 2])
    outputs = torch.tensor([[0.0, 5.0], [3.0, 5.0], [1.0, 1.0], [1.0, 1.0]])
    losses, present = task.row_losses(outputs, targets)
    assert losses.tolist() == [(1 + 4) / 2, 0]
    assert present.tolist() == [1, 0]


def table_arrays() -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 5))
    size = np.where(rng.random(200) < 0.2, np.nan, 50 + 10 * inputs[:, 0] + rng.normal(size=200))
    return inputs, {"size": size, "ill": (inputs[:, 1] > 0) * 1.0, "sort": np.digitize(inputs[:, 2], (-0.4, 0.4))}


def test_names_of_encoders_choose_the_network_and_its_recipe() -> None:
    inputs, targets = table_arrays()

    def problem(**given: Any) -> Problem:
        return Problem.from_arrays(inputs, targets, list(targets), **given)

    usual, named, members = problem(), problem(encoder="mlp"), problem(encoder="tabm")
    assert (repr(named.encoder), named.head, named.recipe) == (repr(usual.encoder), None, usual.recipe)
    assert isinstance(members.encoder, TabM)
    assert isinstance(members.head, TabMHeads)
    assert members.recipe != usual.recipe
    assert problem(encoder="tabm", recipe=Recipe(epochs=2)).recipe == Recipe(epochs=2)
    assert problem(encoder=TabM(5, members=4)).head.members == 4
    table = {f"x{number}": column for number, column in enumerate(inputs.T)} | targets
    assert isinstance(Problem.from_table(table, list(targets), encoder="tabm").encoder, TabM)
    assert isinstance(Problem.from_table(table, list(targets)).encoder, TabM)
    own = Task(next(iter(targets)), "custom", loss=lambda outputs, labels: (outputs[:, 0] - labels).abs())
    assert isinstance(Problem.from_table(table, [own], ignore=list(targets)[1:]).encoder, MLP)
    integers = Problem.from_arrays(np.arange(60).reshape(20, 3), {"ill": np.arange(20) % 2}, ["ill"], encoder="tabm")
    assert integers.train.inputs.is_floating_point()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"encoder": "tabn"}, "`encoder`"),
        ({"inputs": np.zeros((200, 2, 2))}, "`encoder`"),
        ({"tasks": [Task("size", "custom", loss=lambda out, target: out[:, 0] - target), "ill"]}, "task 'size'"),
        ({"tasks": [Task("ill", head=nn.LazyLinear)]}, "task 'ill'"),
    ],
)
def test_what_members_cannot_learn_is_an_error(given: dict[str, Any], words: str) -> None:
    inputs, targets = table_arrays()
    with pytest.raises(InvalidInput, match=words):
        Problem.from_arrays(**({"encoder": "tabm", "inputs": inputs, "targets": targets, "tasks": ["size"]} | given))
