"""The table, its text, and the file."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from verdict_records import records, results, together

from tagalong.learn import MLP, Problem, Split, Task
from tagalong.study import Cost, ProblemInfo, Record, Results, Score


def some_records() -> list[Record]:
    tag = [replace(one, deciding=Cost(1, 150, 7.0)) for one in records("tag", 2, [-0.1] * 3, [-0.1, -0.2, -0.3])]
    random = records("random", 2, [0.0] * 3, [0.1, 0.1, 0.1], groups=())
    oracle = records("oracle", 2, [-0.2] * 3, [-0.3] * 3, honest=False)
    return [*together(), *tag, *records("stl", None, [0.0] * 3, [0.2] * 3), *random, *oracle]


def test_a_row_of_the_table_is_the_mean_over_seeds_with_its_error() -> None:
    lines = {(line.method, line.budget): line for line in results(some_records()).table()}
    tag = lines["tag", 2]
    totals = [3 * (1 - change) for change in (0.1, 0.2, 0.3)]  # raw losses: 1 and 2, changed
    assert tag.total == pytest.approx(sum(totals) / 3)
    assert tag.total_stderr == pytest.approx(0.3 / math.sqrt(3))
    assert tag.change == pytest.approx(-0.2)
    assert tag.change_stderr == pytest.approx(0.1 / math.sqrt(3))
    assert tag.random_change == pytest.approx(0.8 / 1.1 - 1)
    assert tag.validation == pytest.approx(-0.1)
    assert tag.loss == pytest.approx({"a": 0.8, "b": 1.6})
    assert tag.error == {"a": 0.25, "b": 0.5}
    assert (lines["mtl", None].change, lines["stl", None].random_change) == (0.0, None)
    assert not lines["oracle", 2].honest


def test_costs_are_in_units_of_all_together() -> None:
    tag = {line.method: line for line in results(some_records(), settings={"price_per_hour": 36.0}).table()}["tag"]
    assert (tag.training, tag.deciding) == (Cost(2, 200, 4.0), Cost(1, 150, 7.0))
    assert (tag.training_cost, tag.deciding_cost) == (2.0, 1.5)
    assert (tag.relative_parameters, tag.parameters_per_network) == (2.0, 1.0)
    assert tag.money == pytest.approx(36.0 * 11 / 3600)
    uncounted = [replace(record, training=replace(record.training, steps=0)) for record in some_records()]
    tag = {line.method: line for line in results(uncounted).table()}["tag"]
    assert (tag.training_cost, tag.deciding_cost, tag.money) == (2.0, 3.5, None), "by time"


def test_the_text_has_a_row_per_method_and_fits_a_terminal() -> None:
    wide = results(some_records(), settings={"price_per_hour": 36.0})
    lines = str(wide).split("\n")
    (tag,) = [line.split() for line in lines if line.startswith("tag ")]
    assert tag[:5] == ["tag", "2", "2", "+", "1"], "two networks in use, one trained to decide"
    assert tag[-1] == "0.11", "the price"
    assert any(line.startswith("oracle*") for line in lines), "which uses test data to choose"
    assert max(map(len, wide.to_text(100).split("\n"))) <= 100


def test_saved_results_are_loaded_unchanged(tmp_path: Path) -> None:
    half = Split(torch.zeros(4, 2), {"a": torch.tensor([0.0, 1.0, torch.nan, 1.0]), "b": torch.zeros(4)})
    info = ProblemInfo.of(Problem("toy", (Task("a"), Task("b")), half, half, half, MLP(2), notes=("a note",)))
    assert (info.labels["train"], info.rows["train"]) == ({"a": 3, "b": 4}, 4)
    lost = [
        replace(one, test={**one.test, "a": Score(one.test["a"].loss, math.nan, np.zeros(3))}) for one in some_records()
    ]
    noise = {("tag", 2): 0.01, ("stl", None): math.inf}
    before = Results(lost, problem=info, noise=noise, settings={"seeds": [0, 1, 2], "price_per_hour": 36.0})
    file = before.save(tmp_path / "run")
    document = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["records"][0]["test"] == {"a": {"loss": 1.0, "error": None}, "b": {"loss": 2.0, "error": 0.5}}
    after = Results.load(tmp_path / "run")
    assert after.out == Results.load(file).out == tmp_path / "run"
    assert str(after) == str(before)
    assert after.verdict() == before.verdict()
    assert (after.problem, after.settings) == (before.problem, before.settings)
    assert [replace(one, test={}) for one in after.records] == [replace(one, test={}) for one in before.records]
    assert math.isnan(after.records[0].test["a"].error)


def test_the_frame_has_a_row_per_method_budget_seed_and_task() -> None:
    some = results(some_records())
    frame = some.to_frame()
    assert len(frame) == len(some.records) * len(some.problem.tasks)
    row = frame.set_index(["method", "seed", "task"]).loc[("tag", 2, "b")]
    record = next(one for one in some.records if (one.method, one.seed) == ("tag", 2))
    assert (row.val_loss, row.val_error) == (record.val["b"].loss, record.val["b"].error)
    assert (row.test_loss, row.test_error) == (record.test["b"].loss, record.test["b"].error)
    assert (row.val_change, row.test_change) == (pytest.approx(-0.1), pytest.approx(-0.3))
    assert (row.budget, row.network, row.networks, row.honest, row.diverged) == (2, ("b",), 2, True, False)
    assert (row.deciding_cost, row.training_cost) == (1.5, 2.0)
    for summary in some.table():
        rows = frame[(frame.method == summary.method) & (frame.budget.fillna(-1) == (summary.budget or -1))]
        assert rows.groupby("task").test_loss.mean().to_dict() == pytest.approx(summary.loss)
        assert rows.test_change.mean() == pytest.approx(summary.change)


def test_the_frame_has_nan_where_nothing_is_known() -> None:
    frame = results([*records("random", 2, [0.0], [0.1], groups=()), *records("stl", None, [0.0], [0.0])]).to_frame()
    assert str(frame.budget.dtype) == "Int64"
    assert frame.budget.isna().tolist() == [False, False, True, True]
    assert frame.test_change.isna().all(), "there is no mtl to compare with"
    assert frame.network.tolist() == [None, None, ("a",), ("b",)]
