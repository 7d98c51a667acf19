"""Widths that multiply channels or parameters."""

from itertools import pairwise

import pytest
from learn_small import TASKS, small_problem
from torch import nn

from tagalong.learn import MLP, capacities, count_parameters


def mlp(features: int, layers: tuple[int, ...], heads: int) -> int:
    sizes = [features, *layers]
    return sum((a + 1) * b for a, b in pairwise(sizes)) + heads * (layers[-1] + 1)


def test_parameters_are_those_of_encoder_and_heads() -> None:
    problem = small_problem(make=MLP(4, (32, 16)))
    assert count_parameters(problem, TASKS) == mlp(4, (32, 16), 3)
    assert count_parameters(problem, ("ill",), 2) == mlp(4, (64, 32), 1)


def test_capacities_equal_those_of_the_paper() -> None:
    problem = small_problem(make=MLP(4, (64, 64)))
    once = mlp(4, (64, 64), 3)
    found = capacities(problem)
    assert [(c.by, c.times) for c in found] == [(by, n) for by in ("channels", "parameters") for n in (2, 3, 4)]
    for capacity in found[:3]:
        assert capacity.width == capacity.times
        assert capacity.reached > 1.5 * capacity.times  # n× channels is not n× parameters
    for capacity in found[3:]:
        wide = round(64 * capacity.width)
        assert capacity.parameters == mlp(4, (wide, wide), 3)
        assert capacity.reached == capacity.parameters / once
        others = [mlp(4, (w, w), 3) for w in (wide - 1, wide + 1)]
        distance = abs(capacity.parameters - capacity.times * once)
        assert all(distance <= abs(other - capacity.times * once) for other in others)


def test_an_encoder_that_does_not_grow_raises_an_error() -> None:
    problem = small_problem(make=lambda width=1: nn.Linear(4, 3))
    with pytest.raises(ValueError, match="`encoder` must grow with `width`"):
        capacities(problem)
