"""The default networks for tables depend on the number of training rows and the kinds of columns."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tagalong.errors import InvalidInput
from tagalong.learn import (
    MLP,
    Job,
    Problem,
    Recipe,
    TabM,
    Task,
    build_network,
    relative_step_cost,
    train,
)
from tagalong.learn.classical import FITTED
from tagalong.learn.network import count_multiplications
from tagalong.learn.piecewise_linear import count_bins
from tagalong.learn.table_networks import BINS, ROWS_PER_CODE, default_network
from tagalong.learn.tabm import MEMBERS


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
    mixed = torch.cat([bits(enough, 3), numbers(enough, 1)], 1)  # columns with two values are not coded
    assert [len(own) for own in default_network(mixed, encoder)["encoder"].edges] == [0, 0, 0, BINS[encoder] + 1]


def test_fingerprints_get_one_layer_and_more_dropout() -> None:
    usual, fingerprint = (default_network(inputs, "mlp")["encoder"] for inputs in (numbers(300, 250), bits(300, 250)))
    assert len(fingerprint.hidden) == 1 < len(usual.hidden)
    assert fingerprint.dropout > usual.dropout
    assert repr(default_network(bits(300, 20), "mlp")["encoder"]) == f"MLP(20, hidden={usual.hidden}, dropout=0.1)"


@pytest.mark.parametrize(("rows", "batch_size"), [(20, 32), (600, 32), (2000, 128), (10**5, 256)])
def test_the_batch_size_grows_with_the_number_of_rows(rows: int, batch_size: int) -> None:
    assert default_network(bits(rows, 1), "mlp")["recipe"].batch_size == batch_size


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


def test_the_alternative_of_a_default_network_is_what_tabm_would_be() -> None:
    inputs, targets = arrays()
    problem, tabm = (Problem.from_arrays(inputs, targets, list(targets), encoder=name) for name in (None, "tabm"))
    other = problem.with_network("tabm")
    assert problem.alternatives == ("tabm", *FITTED)
    assert (repr(other.encoder), other.encoder.edges) == (repr(tabm.encoder), tabm.encoder.edges)  # type: ignore[union-attr]
    assert (repr(other.head), other.recipe) == (repr(tabm.head), tabm.recipe)
    assert other.fingerprint == problem.fingerprint
    assert problem.with_network("tabm") is other
    assert problem.with_network(None) is problem
    assert tabm.alternatives == other.alternatives == tuple(FITTED)
    assert problem.only(["rare"]).with_network("tabm").names == ("rare",)
    changed = replace(problem, recipe=replace(problem.recipe, epochs=7, patience=3, batch_size=50))
    recipe = changed.with_network("tabm").recipe
    assert (recipe.epochs, recipe.patience, recipe.batch_size) == (7, 3, 50)
    assert recipe.lr == other.recipe.lr > changed.recipe.lr


def test_edges_come_from_training_rows_only() -> None:
    inputs = np.random.default_rng(0).normal(size=(900, 2))
    inputs[700:] += 1000
    rows = [range(700), range(700, 800), range(800, 900)]
    problem = Problem.from_arrays(inputs, {"sum": inputs.sum(1) + inputs[:, 0] ** 3}, ["sum"], split=rows)
    train_inputs = problem.train.batch(torch.arange(700))[0]
    assert isinstance(problem.encoder, MLP)
    assert [own[-1] for own in problem.encoder.edges] == train_inputs.amax(0).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": MLP(2, (3,))},
        {"recipe": Recipe(epochs=3)},
        {"head": lambda task, features: torch.nn.Linear(features, task.head_size)},
        {"tasks": (Task("size", "custom", loss=torch.nn.functional.mse_loss), Task("rare"))},
    ],
)
def test_problems_that_the_user_changes_cannot_use_tabm_instead(change: dict[str, Any]) -> None:
    inputs, targets = arrays()
    problem = Problem.from_arrays(inputs, targets, list(targets))
    other = replace(problem, **change)
    assert "tabm" not in other.alternatives
    with pytest.raises(InvalidInput, match="`network`"):
        other.with_network("tabm")
    for wrong, network in ((other, "tabm"), (problem, "unknown")):
        with pytest.raises(InvalidInput, match="network`"):
            train(wrong, Job(problem.names, network=network))


def test_the_cost_of_a_step_is_that_of_its_multiplications() -> None:
    inputs, targets = arrays()
    problem = Problem.from_arrays(inputs, targets, list(targets))
    codes, many = (2 + 2 * BINS[name] for name in ("mlp", "tabm"))
    plain = 128 * (codes + 128 + 2)
    adapted = MEMBERS * (128 * (many + 128 + 2) + many + 3 * 128)
    networks = [build_network(one, one.names, 0) for one in (problem, problem.with_network("tabm"))]
    rows = problem.train.inputs[:3]
    assert [count_multiplications(network, rows) for network in networks] == [3 * plain, 3 * adapted]
    assert relative_step_cost(problem, "tabm") == adapted / plain
    assert relative_step_cost(problem, None) == 1
    twice = replace(problem, recipe=replace(problem.recipe, batch_size=10))
    assert relative_step_cost(twice, "tabm") == adapted / plain, "both have the same batches"
