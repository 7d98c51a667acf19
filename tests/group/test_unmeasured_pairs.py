"""Groups from tables with unmeasured pairs."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.group import Grouping, score_grouping, select_groups
from tagalong.group.completion import complete_pairs

Floats = NDArray[np.float64]


def with_gaps(table: Floats, fraction: float, seed: int = 0) -> Floats:
    missing = np.random.default_rng(seed).random(table.shape) < fraction
    return np.where(missing & ~np.eye(len(table), dtype=bool), np.nan, table)


def planted(tasks: int, families: int, noise: float, seed: int = 0) -> Floats:
    """Returns a table in which tasks help their own family, with levels for sources and targets."""
    draw = np.random.default_rng(seed)
    family = np.arange(tasks) % families
    levels = 0.3 * draw.standard_normal((2, tasks))
    return (family[:, None] == family) + levels[0][:, None] + levels[1] + noise * draw.standard_normal((tasks, tasks))


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_additive_tables_are_recovered(scale: float) -> None:
    a, b = np.random.default_rng(1).standard_normal((2, 9))
    table = scale * (a[:, None] + b)
    gaps = with_gaps(table, 0.3)
    completed, stderr = complete_pairs(gaps)
    off_diagonal = ~np.eye(9, dtype=bool)
    np.testing.assert_allclose(completed[off_diagonal], table[off_diagonal], rtol=0, atol=1e-5 * scale)
    assert stderr.max() < 0.01 * scale
    np.testing.assert_array_equal(completed[~np.isnan(gaps)], table[~np.isnan(gaps)])
    assert not complete_pairs(table)[1].any()  # nothing is missing


@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_tables_are_recovered(rank: int) -> None:
    draw = np.random.default_rng(rank)
    u, v = draw.standard_normal((2, 40, rank))
    table = 5.0 + draw.standard_normal(40)[:, None] + u @ v.T
    completed, stderr = complete_pairs(with_gaps(table, 0.3))
    np.testing.assert_allclose(completed[stderr > 0], table[stderr > 0], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("tasks", "rank"), [(25, 0), (60, 2), (300, 0)])
def test_two_thirds_of_unmeasured_pairs_are_within_one_standard_deviation(tasks: int, rank: int) -> None:
    draw = np.random.default_rng(tasks + rank)
    a, b = draw.standard_normal((2, tasks))
    u, v = draw.standard_normal((2, tasks, rank))
    table = a[:, None] + b + u @ v.T + 0.5 * draw.standard_normal((tasks, tasks))
    completed, stderr = complete_pairs(with_gaps(table, 0.4))
    error = (completed - table)[stderr > 0]
    assert 0.55 <= (np.abs(error) < stderr[stderr > 0]).mean() <= 0.8
    assert rank or np.sqrt((error**2).mean()) < 0.6  # the noise alone is 0.5


@pytest.mark.parametrize(("tasks", "families"), [(12, 3), (40, 4)])
def test_planted_families_are_found_with_half_of_the_pairs_missing(tasks: int, families: int) -> None:
    table = with_gaps(planted(tasks, families, 0.15), 0.5)
    found = select_groups(table, families, resamples=0)
    assert {frozenset(group.serves) for group in found.groups} == {
        frozenset(map(str, range(k, tasks, families))) for k in range(families)
    }
    assert found.unmeasured == pytest.approx(0.5, abs=0.1)


def test_permuting_the_tasks_permutes_the_predictions() -> None:
    table, order = with_gaps(planted(15, 3, 0.2), 0.4), np.random.default_rng(3).permutation(15)
    completed, stderr = complete_pairs(table)
    permuted, permuted_stderr = complete_pairs(table[np.ix_(order, order)])
    np.testing.assert_allclose(permuted, completed[np.ix_(order, order)], atol=1e-6)
    np.testing.assert_allclose(permuted_stderr, stderr[np.ix_(order, order)], rtol=1e-4)


@pytest.mark.parametrize(
    "table",
    [
        [[0, np.nan], [3, 0]],
        [[np.nan, 1, np.nan], [np.nan, np.nan, np.nan], [np.nan, 2, np.nan]],
        [[0, 5, np.nan], [5, 0, 5], [np.nan, 5, 0]],
        [[0, 0, np.nan], [0, 0, 0], [0, 0, 0]],
    ],
)
def test_a_few_pairs_are_enough_if_every_task_has_one(table: Any) -> None:
    found = select_groups(np.array(table, dtype=float), 1)
    assert np.isfinite(list(found.per_task.values())).all()
    assert found.unmeasured > 0
    assert found.resampled is not None


def test_missing_values_of_a_frame_are_unmeasured_pairs() -> None:
    names = ["a", "b", "c"]
    for dtype in (object, "Float64"):
        frame = pd.DataFrame([[0, 1, pd.NA], [2, 0, 3], [1, 1, 0]], index=names, columns=names, dtype=dtype)
        assert select_groups(frame, 2).unmeasured == pytest.approx(1 / 6)


def test_tasks_without_measured_pairs_are_left_out_unless_they_are_to_be_placed() -> None:
    """Three of 60 datasets, as after two visits of each."""
    table = planted(60, 6, 0.1)
    table[[7, 8, 40], :] = table[:, [7, 8, 40]] = np.nan
    affinity = Affinity.from_matrix(table, stderr=np.full(table.shape, 0.1))
    unmeasured, measured = {"7", "8", "40"}, {str(i) for i in range(60)} - {"7", "8", "40"}
    with pytest.warns(UserWarning, match="'40', '7', '8'"):
        grouping = select_groups(affinity, 6)
    assert set(grouping.unplaced) == unmeasured
    assert set(grouping.tasks) == measured
    assert all(len({int(task) % 6 for task in group.serves}) == 1 for group in grouping.groups)
    assert grouping.unmeasured == 0  # of the pairs of those that are placed
    assert any("'7'" in remark or " 7," in remark for remark in grouping.remarks)
    assert Grouping.from_json(grouping.to_json()) == grouping
    with pytest.warns(UserWarning, match="'7'"), pytest.raises(ValueError, match="'7'"):
        score_grouping(affinity, [measured, {"7", "1"}])

    placed = select_groups(affinity, 6, place_unmeasured=True, resamples=5)
    assert placed.unplaced == ()
    assert set(placed.tasks) == measured | unmeasured
    assert placed.unmeasured == pytest.approx((60 * 59 - 57 * 56) / (60 * 59))
    families = [{int(task) % 6 for task in group.serves - unmeasured} for group in placed.groups]
    assert all(len(family) <= 1 for family in families)
    assert all(abs(placed.per_task[task]) < 1 for task in unmeasured)


def test_stability_counts_the_uncertainty_of_predictions() -> None:
    clear, hidden = planted(8, 2, 0.02, seed=2), planted(8, 2, 0.02, seed=2)
    clear[0, 1] = np.nan
    hidden[0, 1:] = hidden[1:7, 0] = np.nan  # only one pair is known of task 0
    first, second = (select_groups(table, 2).resampled for table in (clear, hidden))
    assert first is not None
    assert second is not None
    assert first.share == 1.0
    assert second.share < 0.9
    assert "0" in second.unsettled


def test_predictions_vary_beside_resamples_of_the_history() -> None:
    draw = np.random.default_rng(0)
    steps = planted(8, 2, 0.02, seed=2) + 0.01 * draw.standard_normal((30, 8, 8))
    whole = select_groups(Affinity.from_history(steps, list("abcdefgh")), 2)
    steps[:, 0, 1:] = steps[:, 1:7, 0] = np.nan
    gaps = select_groups(Affinity.from_history(steps, list("abcdefgh")), 2)
    assert whole.resampled is not None
    assert gaps.resampled is not None
    assert whole.resampled.share == 1.0
    assert gaps.resampled.share < 0.9


def test_unmeasured_self_affinities_only_rule_out_networks_for_single_tasks() -> None:
    """Sampled targets leave gaps on the diagonal, too, which says nothing about pairs."""
    table, settings = planted(12, 3, 0.1) - 2.0 * ~np.eye(12, dtype=bool), {"held_out": True}
    tasks = [f"t{k}" for k in range(12)]
    complete = select_groups(Affinity.from_matrix(table, tasks, settings=settings), budget=6, resamples=0)
    assert any(len(group.trains) == 1 for group in complete.groups)
    table[4, 4] = table[1, 2] = np.nan
    sampled = Affinity.from_matrix(table, tasks, settings=settings)
    grouping = select_groups(sampled, budget=6, resamples=0)
    assert all(len(group.trains) > 1 for group in grouping.groups)
    with pytest.raises(ValueError, match="'t4' on 't4'"):
        select_groups(sampled, budget=6, allow_single=True)
