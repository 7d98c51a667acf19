"""Truth tables: the change of a grouping is a look-up, and saving keeps the table."""

import itertools
from math import comb
from pathlib import Path

import numpy as np
import pytest

from tagalong.study import compare_methods
from tagalong_paper.truth import (
    TruthRunner,
    TruthTable,
    load_truth,
    marginal_effects,
    pair_gains,
    subset_members,
    truth_names,
)
from tagalong_paper.truth.standings import correlation

TASKS = ("age", "ill", "fit")


def random_table(seeds: int = 3) -> TruthTable:
    draw = np.random.default_rng(0)
    inside = subset_members(len(TASKS))

    def logs(*shape: int) -> np.ndarray:
        return np.where(inside, 0.1 * draw.normal(size=(*shape, *inside.shape)), np.nan)

    hints = {"cosine": draw.normal(size=(seeds, 3, 3))}
    early = logs(seeds, 1)
    return TruthTable(
        TASKS,
        logs(seeds, 2),
        logs(seeds),
        early,
        (0.25,),
        np.full((seeds, len(inside)), 7),
        hints,
        {"cosine": np.abs(hints["cosine"])},
        {"fine-tuning": logs(seeds)},
        {"cosine": 2.0, "fine-tuning": 0.1},
        {"command": "by hand"},
        {2: 0.1 * draw.normal(size=(2, seeds * (seeds - 1) // 2, len(TASKS)))},
    )


def test_a_file_holds_the_table_to_its_rounding(tmp_path: Path) -> None:
    table = random_table()
    table.save(tmp_path / "drawn.npz")
    again = TruthTable.load(tmp_path / "drawn.npz")
    assert (again.tasks, again.fractions, again.about) == (table.tasks, table.fractions, table.about)
    for name in ("val", "test", "early"):
        np.testing.assert_allclose(getattr(again, name), getattr(table, name), atol=2.6e-5)
    np.testing.assert_allclose(again.predictions["fine-tuning"], table.predictions["fine-tuning"], atol=2.6e-5)
    np.testing.assert_array_equal(again.epochs, table.epochs)
    np.testing.assert_allclose(again.affinities["cosine"], table.affinities["cosine"], rtol=1e-6)
    assert list(again.copies) == [2]
    np.testing.assert_allclose(again.copies[2], table.copies[2], atol=2.6e-5)


def test_the_change_of_a_grouping_is_the_mean_of_ratios() -> None:
    table = random_table()
    serves = {"age": {"age", "ill"}, "ill": {"age", "ill"}, "fit": set(TASKS)}
    ratios = [
        np.exp(table.test[seed, table.place(serves[task]), column] - table.test[seed, -1, column])
        for seed in (0, 2)
        for column, task in enumerate(TASKS)
    ]
    assert table.change(serves, [0, 2]) == pytest.approx(np.mean(ratios) - 1)
    assert table.change(dict.fromkeys(TASKS, TASKS)) == 0


def test_effects_equal_a_slow_loop() -> None:
    table = random_table()
    logs = table.test.mean(0)
    pairs, joining = pair_gains(logs), marginal_effects(logs)
    for i, j in itertools.permutations(range(3), 2):
        other = TASKS[3 - i - j]
        source, target = TASKS[i], TASKS[j]
        gain = logs[table.place([target]), j] - logs[table.place([source, target]), j]
        larger = logs[table.place([target, other]), j] - logs[table.place(TASKS), j]
        assert pairs[i, j] == pytest.approx(gain)
        assert joining[i, j] == pytest.approx((gain + larger) / 2)
    assert correlation(pairs + np.arange(3), pairs) == pytest.approx(1)


def test_the_runner_returns_the_losses_of_the_table() -> None:
    table = random_table()
    runner = TruthRunner(table)
    whole, pair = runner.job(["ill"], 1), runner.job(["age", "ill"], 2)
    results = runner.networks([whole, pair])
    assert results[whole].halves == {"ill": pytest.approx(tuple(np.exp(table.val[1, :, table.place(["ill"]), 1])))}
    assert results[whole].test["ill"].loss == pytest.approx(np.exp(table.test[1, table.place(["ill"]), 1]))
    assert set(results[pair].val) == {"age", "ill"}
    assert results[whole].steps == 1000


def test_methods_decide_from_a_shipped_table() -> None:
    table = load_truth("nhanes")
    request: dict = {"methods": ["stl", "tag", "hoa", "auto"], "budgets": [2], "seeds": 2}
    records = compare_methods(TruthRunner(table), **request, options={"auto": {"effort": 12}})
    mtl = {record.seed: record for record in records if record.method == "mtl"}
    for record in records:
        served = {task: group.trains for group in record.groups for task in group.serves}
        together = mtl[record.seed].test
        change = np.mean([score.loss / together[task].loss - 1 for task, score in record.test.items()])
        assert change == pytest.approx(table.change(served, [record.seed]))


@pytest.mark.parametrize("name", truth_names())
def test_shipped_tables_are_complete(name: str) -> None:
    table = load_truth(name)
    inside = table.subsets
    assert np.isfinite(table.val[..., inside]).all()
    assert np.isfinite(table.test[..., inside]).all()
    assert np.isnan(table.test[..., ~inside]).all()
    assert table.about["command"].startswith("python benchmarks/truth.py")
    assert set(table.costs) == set(table.affinities) | set(table.predictions)
    assert {k: logs.shape for k, logs in table.copies.items()} == {
        k: (2, comb(table.seeds, k), len(table.tasks)) for k in (2, 3, 4)
    }
    assert all(np.exp(logs[1]).mean() < 1 for logs in table.copies.values())  # averages are better than one network


def test_the_error_for_an_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"`name`.*'nhanse'.*'nhanes'"):
        load_truth("nhanse")
