"""Networks with the same seed share initial weights and masks; any encoder can be used."""

from typing import Any

import pytest
import torch
from learn_small import TASKS, encoder, same, small_problem
from torch import nn

from tagalong.learn import MLP, Network, build_network, outputs_on
from tagalong.learn.network import evaluation_mode


def test_initial_weights_depend_on_the_seed_and_the_name_of_the_task() -> None:
    problem = small_problem()
    everything, pair = build_network(problem, TASKS, 5), build_network(problem, ("ill", "age"), 5)
    assert pair.tasks == ("age", "ill")
    assert same(everything.encoder.state_dict(), pair.encoder.state_dict())
    assert same(everything.heads[2].state_dict(), pair.heads[1].state_dict())
    assert not same(everything.heads[0].state_dict(), everything.heads[1].state_dict())
    assert not same(everything.encoder.state_dict(), build_network(problem, TASKS, 6).encoder.state_dict())


def test_building_changes_neither_global_random_numbers_nor_statistics() -> None:
    before = torch.get_rng_state()
    network = build_network(small_problem(make=encoder(dropout=0.5, norm=True)), TASKS, 0)
    assert torch.equal(before, torch.get_rng_state())
    assert network.encoder[1].num_batches_tracked == 0
    assert all(part.training for part in network.modules())


def test_evaluation_draws_no_random_numbers() -> None:
    network = build_network(small_problem(make=encoder(dropout=0.5)), TASKS, 0).at_step(3)
    before = torch.get_rng_state()
    inputs = torch.ones(8, 4, dtype=torch.float64)
    first, second = outputs_on(network, inputs), outputs_on(network.at_step(4), inputs, at_once=3)
    assert all(torch.allclose(first[task], second[task]) for task in TASKS)
    assert torch.equal(before, torch.get_rng_state())
    assert network.training


def test_frozen_parts_keep_their_mode() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Dropout())
    with evaluation_mode(network):
        assert not any(part.training for part in network.modules())
    assert [part.training for part in network.modules()] == [True, False, True]


@pytest.mark.parametrize(
    ("layer", "is_random"),
    [
        (nn.Linear(4, 2), False),
        (nn.BatchNorm1d(4), False),
        (nn.ReLU(), False),
        (nn.Dropout(0.5), True),
        (nn.TransformerEncoderLayer(4, 2), True),
    ],
)
def test_only_layers_known_to_be_deterministic_are_not_seeded(layer: nn.Module, is_random: bool) -> None:
    network = Network(layer, [nn.Linear(4, 1)], ["encoder"])  # a task may have this name
    assert network.random_parts["encoder"] == is_random


def test_weights_are_those_of_a_module_or_drawn_by_the_seed() -> None:
    module = nn.Linear(4, 5)
    network = build_network(small_problem(make=module), TASKS, 0)
    assert torch.equal(network.encoder.weight, module.weight.double())
    assert network.encoder is not module
    lazy = small_problem(make=lambda: nn.Sequential(nn.LazyLinear(5), nn.Tanh()))
    first, second = (build_network(lazy, TASKS, 0) for _ in range(2))
    assert same(first.state_dict(), second.state_dict())
    assert first.encoder[0].weight.shape == (5, 4)
    wide = build_network(small_problem(make=MLP(4, (8, 6), dropout=0.1)), TASKS, 0, width=2)
    assert [part.out_features for part in wide.encoder if isinstance(part, nn.Linear)] == [16, 12]


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (lambda: nn.Flatten(0), 1),  # whose output has no features
        (lambda: nn.LSTM(4, 3), 1),  # which returns a tuple
        (lambda: nn.Linear(4, 5), 2),
        (nn.Linear(4, 5), 2),
    ],
)
def test_an_unsuitable_encoder_is_named(make: Any, width: float) -> None:
    with pytest.raises(ValueError, match="`encoder`"):
        build_network(small_problem(make=make), TASKS, 0, width=width)
