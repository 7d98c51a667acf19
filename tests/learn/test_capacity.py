"""Widths that multiply channels or parameters."""

from itertools import pairwise

import pytest
from learn_small import TASKS, small_problem
from torch import nn

from tagalong.learn import MLP, count_parameters, width_of_size


def mlp(features: int, layers: tuple[int, ...], heads: int) -> int:
    sizes = [features, *layers]
    return sum((a + 1) * b for a, b in pairwise(sizes)) + heads * (layers[-1] + 1)


def test_parameters_are_those_of_encoder_and_heads() -> None:
    problem = small_problem(make=MLP(4, (32, 16)))
    assert count_parameters(problem, TASKS) == mlp(4, (32, 16), 3)
    assert count_parameters(problem, ("ill",), 2) == mlp(4, (64, 32), 1)


@pytest.mark.parametrize("times", [2, 3, 4])
def test_the_width_of_a_size_comes_closest_to_the_wanted_number_of_parameters(times: int) -> None:
    problem = small_problem(make=MLP(4, (64, 64)))
    wide = round(64 * width_of_size(problem, TASKS, times))
    reached, smaller, larger = (mlp(4, (w, w), 3) for w in (wide, wide - 1, wide + 1))
    wanted = times * mlp(4, (64, 64), 3)
    assert abs(reached - wanted) <= min(abs(smaller - wanted), abs(larger - wanted))


def test_an_encoder_that_does_not_grow_raises_an_error() -> None:
    problem = small_problem(make=lambda width=1: nn.Linear(4, 3))
    with pytest.raises(ValueError, match="`encoder`"):
        width_of_size(problem, TASKS, 2)
