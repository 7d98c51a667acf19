"""Piecewise-linear codes equal those of an obvious loop, also in networks that are batched, saved or exported."""

import copy
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from batched_problems import MIXED, all_jobs, assert_same, check_some, make_problem, some_jobs, trained_together

from tagalong.errors import InvalidInput
from tagalong.learn import (
    MLP,
    Problem,
    TabM,
    TabMHeads,
    build_network,
    describe_network,
    feature_count,
    rebuild_network,
    train,
    why_not_batched,
)
from tagalong.learn.captured_step import can_be_captured
from tagalong.learn.piecewise_linear import PiecewiseLinear, quantile_edges

EDGES = ((-1.0, -0.5, 0.0, 2.0), (), (-2.0, 0.0, 1.0), (), (), (0.0, 0.25, 0.5))


def obvious_codes(row: list[float], edges: Any) -> list[float]:
    codes = list(row)
    for value, own in zip(row, edges, strict=True):
        for low, high in pairwise(own):
            if value <= low:
                codes.append(0.0)
            elif value >= high:
                codes.append(1.0)
            else:
                codes.append((value - low) / (high - low))
    return codes


def test_codes_equal_those_of_a_loop() -> None:
    values = torch.randn(50, 6)
    expected = [obvious_codes(row, EDGES) for row in values.tolist()]
    torch.testing.assert_close(PiecewiseLinear(EDGES)(values), torch.tensor(expected))
    seeds = PiecewiseLinear(EDGES)(values.view(5, 10, 6))
    torch.testing.assert_close(seeds.flatten(0, 1), torch.tensor(expected))


def test_edges_are_the_distinct_quantiles_of_known_values() -> None:
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=200).astype(np.float32)
    zeros = np.where(draw.random(200) < 0.7, 0, draw.random(200)).astype(np.float32)
    counts, signs, constant = draw.integers(0, 4, 200), draw.integers(0, 2, 200), np.ones(200)
    gaps = np.where(np.arange(200) % 3 == 0, np.nan, numbers)
    columns = [numbers, zeros, counts, signs, constant, gaps]
    edges = quantile_edges(torch.tensor(np.stack(columns, 1), dtype=torch.float32), bins=8)
    for own, column in ((edges[0], numbers), (edges[1], zeros), (edges[5], gaps)):
        quantiles = np.nanquantile(column.astype(float), np.linspace(0, 1, 9))
        np.testing.assert_allclose(own, np.unique(quantiles.astype(np.float32)), rtol=1e-6)
    assert len(edges[0]) == 9 > len(edges[1]) > 2
    assert edges[2:5] == ((0.0, 1.0, 2.0, 3.0), (), ())


def test_edges_of_close_values_stay_apart_in_single_precision() -> None:
    column = torch.tensor([1.0, 1.0 + 1e-12, 1.0 + 2e-12, 2.0, 3.0], dtype=torch.float64)
    assert quantile_edges(column[:, None], bins=8) == ((1.0, 2.0, 3.0),)


def binned_problem(members: int = 0, **settings: Any) -> Problem:
    """Missing labels and dropout."""
    tasks = MIXED[:3]
    if not members:
        return make_problem(MLP(6, (7, 5), 0.2, EDGES), tasks=tasks, **settings)
    problem = make_problem(TabM(6, (7, 5), 0.2, members, EDGES), tasks=tasks, **settings)
    return replace(problem, head=TabMHeads(members))


@pytest.mark.cuda
@pytest.mark.parametrize("members", [0, 3])
def test_graphs_give_the_same_networks(members: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    problem = binned_problem(members, epochs=14, patience=4, lr=0.01)
    jobs = all_jobs(problem, seeds=(0, 1))
    found = trained_together(problem, jobs, device="cuda")
    assert "as a CUDA graph" in caplog.text
    for job in jobs:
        assert_same(found[job], train(problem, job, device="cuda"))


def test_the_first_layer_sees_columns_and_codes() -> None:
    problem = binned_problem()
    network = build_network(problem, problem.names, seed=0).eval()
    inputs, _ = problem.test.batch(torch.arange(9))
    codes = torch.tensor([obvious_codes(row, EDGES) for row in inputs.tolist()], dtype=torch.float64)
    plain = copy.deepcopy(network.encoder[1:])
    torch.testing.assert_close(network.encoder(inputs), plain(codes))
    assert network.encoder[1].in_features == 6 + 3 + 2 + 2


@pytest.mark.parametrize("members", [0, 3])
def test_networks_are_captured_trained_together_and_rebuilt_from_json(members: int) -> None:
    problem = binned_problem(members, epochs=4, patience=1)
    network = build_network(problem, problem.names, seed=4, width=2).eval()
    assert can_be_captured(network)
    jobs = [*some_jobs(problem, (0, 3), every=3), *some_jobs(problem, (0, 3), every=3, width=2)]
    assert why_not_batched(problem, jobs) is None
    check_some(problem, jobs, every=3)
    inputs, _ = problem.test.batch(torch.arange(9))
    document = describe_network(problem, network, feature_count(network.encoder, inputs), 2)
    again = rebuild_network(json.loads(json.dumps(document)))
    again.load_state_dict(copy.deepcopy(network.state_dict()), assign=True)
    for task, outputs in again.eval()(inputs).items():
        assert torch.equal(outputs, network(inputs)[task])


@pytest.mark.parametrize("edges", [[[0, 1]], [[], [0, 1, 1]], [[1, float("nan")], []]])
@pytest.mark.parametrize("encoder", [MLP, TabM])
def test_invalid_edges_are_an_error(encoder: Any, edges: Any) -> None:
    with pytest.raises(InvalidInput, match="`edges"):
        encoder(2, edges=edges)
