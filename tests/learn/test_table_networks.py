"""The default networks for tables depend on the number of training rows and the kinds of columns."""

from typing import Any

import numpy as np
import pytest
import torch

from tagalong.learn import MLP, Job, Problem, Recipe, TabM, build_network, train, why_not_batched
from tagalong.learn.piecewise_linear import count_bins
from tagalong.learn.table_networks import BINS, ROWS_PER_CODE, default_network


def numbers(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def bits(rows: int, columns: int) -> torch.Tensor:
    return (numbers(rows, columns) > 1).float()


@pytest.mark.parametrize("encoder", ["mlp", "tabm"])
def test_numbers_are_coded_if_there_are_enough_rows(encoder: Any) -> None:
    codes = 5 * BINS[encoder]
    enough = codes * ROWS_PER_CODE[encoder]
    for rows, expected in ((enough, codes), (enough - 1, 0), (30, 0)):
        chosen = default_network(numbers(rows, 5), encoder)["encoder"]
        assert count_bins(chosen.edges) == expected


def test_columns_with_two_values_are_not_coded() -> None:
    inputs = torch.cat([bits(400, 3), numbers(400, 1)], 1)
    edges = default_network(inputs, "mlp")["encoder"].edges
    assert [len(own) for own in edges] == [0, 0, 0, BINS["mlp"] + 1]


def test_fingerprints_get_one_layer_and_more_dropout() -> None:
    usual, fingerprint = (default_network(inputs, "mlp")["encoder"] for inputs in (numbers(300, 250), bits(300, 250)))
    assert len(fingerprint.hidden) == 1 < len(usual.hidden)
    assert fingerprint.dropout > usual.dropout
    assert repr(default_network(bits(300, 20), "mlp")["encoder"]) == f"MLP(20, hidden={usual.hidden}, dropout=0.1)"


@pytest.mark.parametrize(("rows", "batch_size"), [(20, 32), (600, 32), (2000, 128), (10**5, 256)])
def test_the_batch_size_grows_with_the_number_of_rows(rows: int, batch_size: int) -> None:
    assert default_network(bits(rows, 1), "mlp")["recipe"].batch_size == batch_size


def test_edges_come_from_training_rows_only() -> None:
    inputs = np.random.default_rng(0).normal(size=(900, 2))
    inputs[700:] += 1000
    rows = [range(700), range(700, 800), range(800, 900)]
    problem = Problem.from_arrays(inputs, {"sum": inputs.sum(1) + inputs[:, 0] ** 3}, ["sum"], split=rows)
    train_inputs = problem.train.batch(torch.arange(700))[0]
    assert isinstance(problem.encoder, MLP)
    assert [own[-1] for own in problem.encoder.edges] == train_inputs.amax(0).tolist()


def arrays() -> tuple[Any, dict[str, Any]]:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(1000, 2))
    return inputs, {"size": np.abs(inputs[:, 0]) + draw.normal(size=1000), "rare": draw.random(1000) < 0.1}


@pytest.mark.parametrize("encoder", [None, "mlp", "tabm", TabM(2, (4,), members=2)])
def test_heads_of_tables_start_at_the_base_rate(encoder: Any) -> None:
    inputs, targets = arrays()
    problem = Problem.from_arrays(inputs, targets, list(targets), encoder=encoder)
    rate = float(problem.train.batch(torch.arange(len(problem.train)))[1]["rare"].mean())
    bias = build_network(problem, ["rare"], seed=0).heads[0].bias
    np.testing.assert_allclose(bias.sigmoid().flatten().tolist(), rate, rtol=1e-5)


def test_a_recipe_or_an_encoder_of_the_user_is_left_alone() -> None:
    inputs, targets = arrays()
    recipe = Recipe(epochs=3)
    assert Problem.from_arrays(inputs, targets, list(targets), recipe=recipe).recipe == recipe
    given = Problem.from_arrays(inputs, targets, list(targets), encoder=MLP(2, (3,)))
    assert (given.recipe, repr(given.encoder)) == (Recipe(), "MLP(2, hidden=(3,), dropout=0.0)")


def test_default_networks_are_batched_and_learn() -> None:
    inputs, targets = arrays()
    problem = Problem.from_arrays(inputs, targets, list(targets))
    assert isinstance(problem.encoder, MLP)
    assert count_bins(problem.encoder.edges) == 2 * BINS["mlp"]
    assert why_not_batched(problem) is None
    assert train(problem, Job(problem.names, epochs=20)).test["size"].loss < 0.95
