"""Layers, heads and targets of many kinds give the same results together as alone."""

import pytest
import torch
from batched_problems import MLP_WITH_DROPOUT, Layers, all_jobs, check_some, make_problem, words
from torch import nn

from tagalong.learn import Task

LAYERS = {
    "layernorm": Layers(lambda: nn.Linear(6, 8), lambda: nn.LayerNorm(8), nn.SiLU),
    "batchnorm": Layers(lambda: nn.Linear(6, 8), lambda: nn.BatchNorm1d(8), nn.Tanh),
    "conv1d": Layers(
        lambda: nn.Unflatten(1, (2, 3)), lambda: nn.Conv1d(2, 4, 2), lambda: nn.Dropout1d(0.3), nn.ReLU, nn.Flatten
    ),
    "groupnorm": Layers(lambda: nn.Linear(6, 8), lambda: nn.GroupNorm(2, 8), nn.LeakyReLU),
    "no weights": Layers(nn.Tanh),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_those_of_networks_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    problem = make_problem(LAYERS[name], epochs=3)
    check_some(problem, all_jobs(problem))
    assert not caplog.records


def test_embeddings_of_integers_equal_those_of_networks_alone(caplog: pytest.LogCaptureFixture) -> None:
    encoder = Layers(lambda: nn.Embedding(5, 3, padding_idx=0), nn.Flatten, lambda: nn.Linear(12, 6), nn.ReLU)
    problem = make_problem(lambda: encoder().double(), words, epochs=3)
    check_some(problem, all_jobs(problem))
    assert not caplog.records


def test_heads_of_several_layers_with_dropout_and_batchnorm_equal_those_alone() -> None:
    def head(features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 1))

    tasks = [Task("a", kind="regression", head=head), Task("b", head=head), Task("c", kind="regression")]
    problem = make_problem(MLP_WITH_DROPOUT, tasks=tasks, epochs=3)
    check_some(problem, all_jobs(problem), every=2)


def test_dense_targets_with_some_elements_missing_equal_those_alone() -> None:
    tasks = [Task("map", kind="regression", outputs=3, head=lambda features: nn.Linear(features, 3)), Task("ill")]
    problem = make_problem(MLP_WITH_DROPOUT, tasks=tasks, epochs=3)
    for split in problem.splits.values():
        dense = split.targets["map"].unsqueeze(1) * torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
        dense[::5, 1] = torch.nan
        split.targets["map"] = dense  # type: ignore[index]
    check_some(problem, all_jobs(problem), every=1)


def test_frozen_parts_do_not_change() -> None:
    def encoder() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        made[0].requires_grad_(False)
        return made

    problem = make_problem(encoder, epochs=3)
    check_some(problem, all_jobs(problem))
