"""Groups from tables with unmeasured pairs."""

import re
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


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_additive_tables_are_recovered(scale: float) -> None:
    a, b = np.random.default_rng(1).standard_normal((2, 9))
    table = scale * (a[:, None] + b)
    found = complete_pairs(with_gaps(table, 0.3))
    assert found is not None
    off_diagonal = ~np.eye(9, dtype=bool)
    np.testing.assert_allclose(found.matrix[off_diagonal], table[off_diagonal], rtol=0, atol=1e-5 * scale)
    assert found.stderr.max() < 0.01 * scale
    assert found.unmeasured == pytest.approx(found.predicted.sum() / 72)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_low_rank_tables_are_recovered(rank: int) -> None:
    draw = np.random.default_rng(rank)
    u, v = draw.standard_normal((2, 40, rank))
    table = 5.0 + draw.standard_normal(40)[:, None] + u @ v.T
    found = complete_pairs(with_gaps(table, 0.3))
    assert found is not None
    np.testing.assert_allclose(found.matrix[found.predicted], table[found.predicted], rtol=0, atol=1e-3)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("tasks", [25, 60])
def test_two_thirds_of_unmeasured_pairs_are_within_one_standard_deviation(tasks: int, rank: int) -> None:
    draw = np.random.default_rng(tasks + rank)
    a, b = draw.standard_normal((2, tasks))
    u, v = draw.standard_normal((2, tasks, rank))
    table = a[:, None] + b + u @ v.T + 0.5 * draw.standard_normal((tasks, tasks))
    found = complete_pairs(with_gaps(table, 0.4))
    assert found is not None
    inside = np.abs(found.matrix - table) < found.stderr
    assert 0.55 <= inside[found.predicted].mean() <= 0.8


def test_draws_have_the_stated_mean_and_deviation_and_leave_measured_pairs_alone() -> None:
    table = with_gaps(planted(12, 3, 0.2), 0.3)
    found = complete_pairs(table)
    assert found is not None
    random = np.random.default_rng(0)
    draws = np.stack([found.draw(table, random) for _ in range(4000)])
    at = found.predicted
    np.testing.assert_allclose(draws.std(axis=0)[at], found.stderr[at], rtol=0.1)
    assert np.abs((draws.mean(axis=0) - found.matrix)[at] / found.stderr[at]).max() < 0.08
    np.testing.assert_array_equal(draws[7][~at], table[~at])


def test_errors_of_the_same_source_are_correlated() -> None:
    table = np.random.default_rng(0).standard_normal((6, 6))
    table[0, 2:] = np.nan  # one pair is all that is known of source 0
    found = complete_pairs(table)
    assert found is not None
    random = np.random.default_rng(0)
    draws = np.stack([found.draw(table, random)[0, 2:] for _ in range(2000)])
    assert np.corrcoef(draws.T)[0, 1] > 0.1


@pytest.mark.parametrize(("tasks", "families"), [(12, 3), (40, 4), (96, 8)])
def test_planted_families_are_found_with_half_of_the_pairs_missing(tasks: int, families: int) -> None:
    table = with_gaps(planted(tasks, families, 0.15), 0.5)
    found = select_groups(table, families, resamples=0)
    assert {frozenset(group.serves) for group in found.groups} == {
        frozenset(map(str, range(k, tasks, families))) for k in range(families)
    }
    assert found.unmeasured == pytest.approx(0.5, abs=0.1)


def test_permuting_the_tasks_permutes_the_predictions() -> None:
    table, order = with_gaps(planted(15, 3, 0.2), 0.4), np.random.default_rng(3).permutation(15)
    found, permuted = complete_pairs(table), complete_pairs(table[np.ix_(order, order)])
    assert found is not None
    assert permuted is not None
    np.testing.assert_allclose(permuted.matrix, found.matrix[np.ix_(order, order)], atol=1e-6)
    np.testing.assert_allclose(permuted.stderr, found.stderr[np.ix_(order, order)], rtol=1e-4)


def test_measured_scores_are_never_changed() -> None:
    table = with_gaps(planted(10, 2, 0.5), 0.6)
    found = complete_pairs(table)
    assert found is not None
    np.testing.assert_array_equal(found.matrix[~found.predicted], table[~found.predicted])
    assert complete_pairs(planted(10, 2, 0.5)) is None


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


@pytest.mark.parametrize("dtype", [object, "Float64"])
def test_missing_values_of_a_frame_are_unmeasured_pairs(dtype: Any) -> None:
    names = ["a", "b", "c"]
    frame = pd.DataFrame([[0, 1, pd.NA], [2, 0, 3], [1, 1, 0]], index=names, columns=names, dtype=dtype)
    assert select_groups(frame, 2).unmeasured == pytest.approx(1 / 6)


def test_a_task_without_measured_pairs_is_refused_by_name() -> None:
    table = planted(5, 2, 0.1)
    table[3, :] = table[:, 3] = np.nan
    affinity = Affinity.from_matrix(table, list("abcde"))
    message = (
        "`scores` must contain at least one measured pair of every task, found none from or onto 'd'; measure some of "
        "its pairs, or omit the task"
    )
    for refuse in (lambda: select_groups(affinity, 2), lambda: score_grouping(affinity, [set("abcde")])):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            refuse()


def test_the_answer_says_how_many_pairs_were_never_measured() -> None:
    table = planted(6, 2, 0.1)
    table[0, 1] = table[4, 2] = np.nan
    found = select_groups(table, 2)
    assert found.unmeasured == pytest.approx(2 / 30)
    assert "7% of pairs were never measured; their scores are predictions" in found.remarks
    assert Grouping.from_json(found.to_json()) == found
    assert Grouping.from_yaml(found.to_yaml()).unmeasured == found.unmeasured
    assert score_grouping(table, [set("024"), set("135")]).unmeasured == found.unmeasured
    assert "unmeasured" not in select_groups(planted(6, 2, 0.1), 2).to_document()


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


def test_a_thousand_tasks_are_completed() -> None:
    table = planted(1000, 8, 0.3)
    found = complete_pairs(with_gaps(table, 0.5))
    assert found is not None
    error = (found.matrix - table)[found.predicted]
    assert np.sqrt((error**2).mean()) < 0.32  # the noise alone is 0.3
    assert 0.64 < (np.abs(error) < found.stderr[found.predicted]).mean() < 0.72


def test_unmeasured_self_affinities_only_rule_out_networks_for_single_tasks() -> None:
    """Sampled targets leave gaps on the diagonal, too, which says nothing about pairs."""
    table, settings = planted(12, 3, 0.1) - 2.0 * ~np.eye(12, dtype=bool), {"held_out": True}
    tasks = [f"t{k}" for k in range(12)]
    complete = select_groups(Affinity.from_matrix(table, tasks, settings=settings), budget=6)
    assert any(len(group.trains) == 1 for group in complete.groups)
    table[4, 4] = table[1, 2] = np.nan
    sampled = Affinity.from_matrix(table, tasks, settings=settings)
    grouping = select_groups(sampled, budget=6)
    assert all(len(group.trains) > 1 for group in grouping.groups)
    with pytest.raises(ValueError, match="'t4' on 't4'"):
        select_groups(sampled, budget=6, allow_single=True)
