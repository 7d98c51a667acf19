"""Groupings for every number of networks, and where a further network no longer pays."""

import numpy as np
import pytest

from group_oracle import Floats
from tagalong import Affinity, GroupingsByBudget, select_groups


def affinity(matrix: Floats, noise: float) -> Affinity:
    noisy = matrix + noise * np.random.default_rng(0).standard_normal(matrix.shape)
    return Affinity.from_matrix(noisy, [f"t{i}" for i in range(len(matrix))], stderr=np.full(matrix.shape, noise))


def test_every_number_of_networks_has_its_best_grouping() -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 6))
    groupings = select_groups(matrix)
    assert isinstance(groupings, GroupingsByBudget)
    assert dict(groupings) == {budget: select_groups(matrix, budget) for budget in range(1, 7)}
    assert list(select_groups(matrix, [3, 1]).gains) == [3]
    totals = [grouping.value for grouping in groupings.values()]
    assert list(groupings.gains.values()) == pytest.approx(np.diff(totals))
    assert not groupings.errors
    assert totals[groupings.enough - 1] == pytest.approx(max(totals))


def test_numbers_that_are_too_small_are_left_out() -> None:
    assert list(select_groups(np.zeros((6, 6)), max_size=2)) == [3, 4, 5, 6]
    with pytest.raises(ValueError, match="`budget` of 2"):
        select_groups(np.zeros((6, 6)), [2, 3], max_size=2)


def test_networks_are_enough_when_there_is_one_for_each_family() -> None:
    family = np.arange(9) % 3
    groupings = select_groups(affinity(1.0 * (family[:, None] == family), noise=0.3), [1, 2, 3, 4], resamples=30)
    assert groupings.enough == 3
    assert groupings.gains[3] > 5 * groupings.errors[3]


@pytest.mark.parametrize("sign", [1, -1])
def test_pure_noise_gains_nothing(sign: int) -> None:
    scores = affinity(np.zeros((8, 8)), noise=1.0)
    groupings = select_groups(scores, range(1, 5), resamples=30, objective="max" if sign == 1 else "min")
    assert sign * (groupings[4].value - groupings[1].value) > 3
    assert groupings.enough == 1
    assert all(gain <= groupings.errors[budget] for budget, gain in groupings.gains.items())
