"""The table, its text, the frame, and the file."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_records import APART, records, results, together

from tagalong.errors import InvalidInput
from tagalong.learn import MLP, Problem, Split, Task
from tagalong.study import Cost, ProblemInfo, Record, Results, Score


def some_records() -> list[Record]:
    tag = [replace(one, deciding=Cost(1, 150, 7.0)) for one in records("tag", 2, [-0.1] * 3, [-0.1, -0.2, -0.3])]
    random = records("random", 2, [0.0] * 3, [0.1, 0.1, 0.1], groups=())
    oracle = records("oracle", 2, [-0.2] * 3, [-0.3] * 3, honest=False)
    return [*together(), *tag, *records("stl", None, [0.0] * 3, [0.2] * 3), *random, *oracle]


def test_a_row_of_the_table_is_the_mean_over_seeds() -> None:
    lines = {(line.method, line.budget): line for line in results(some_records()).table()}
    tag = lines["tag", 2]
    assert tag.total == pytest.approx(3 * 0.8)  # raw losses: 1 and 2, changed
    assert (tag.skill, tag.validation) == (pytest.approx(0.2), pytest.approx(0.1))
    assert tag.error == pytest.approx({"a": 0.05, "b": 0.3})
    assert (lines["mtl", None].skill, lines["stl", None].skill) == (0.0, pytest.approx(-0.2))
    assert lines["random", 2].skill == pytest.approx(-0.1)
    assert not lines["oracle", 2].honest


def test_costs_are_in_units_of_all_together() -> None:
    tag = {line.method: line for line in results(some_records()).table()}["tag"]
    assert (tag.training, tag.deciding) == (Cost(2, 200, 4.0), Cost(1, 150, 7.0))
    assert (tag.training_cost, tag.deciding_cost, tag.relative_parameters) == (2.0, 1.5, 2.0)
    uncounted = [replace(record, training=replace(record.training, steps=0)) for record in some_records()]
    tag = {line.method: line for line in results(uncounted).table()}["tag"]
    assert (tag.training_cost, tag.deciding_cost) == (2.0, 3.5), "by time"


def test_of_mean_losses_the_plan_with_the_best_ones_is_recommended() -> None:
    verdict = results(some_records()).verdict()
    assert (verdict.recommended, verdict.groups) == (("tag", 2), APART), "the oracle may not be recommended"
    assert verdict.skill == verdict.gain.estimate == pytest.approx(0.2)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert (verdict.gain.low, verdict.gain.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))
    assert not verdict.worth_it
    assert verdict.relative == ("a", "b")
    surer = [*together(), *records("tag", 2, [-0.1] * 3, [-0.19, -0.2, -0.21])]
    assert results(surer).verdict().worth_it
    assert results([*together(1), *records("tag", 2, [-0.1], [-0.2])]).verdict().gain.low is None, "one seed"


def test_without_mtl_there_is_no_verdict() -> None:
    with pytest.raises(InvalidInput, match="methods"):
        results(records("stl", None, [0.0], [0.0])).verdict()


def test_the_text_has_a_row_per_number_of_models_and_fits_a_terminal() -> None:
    made = results(some_records())
    verdict, short = made.verdict(), made.to_text(70).split("\n")
    assert sum(line.lstrip("* ").startswith(("1 ", "2 ")) for line in short) == 2
    assert len(short) <= 25
    assert max(map(len, short)) <= 70
    everything = made.to_text(100, details=True)
    assert {word for word in ("oracle (budget 2)", "random (budget 2)", "stl") if word not in everything} == set()
    assert str(verdict) in everything


def test_saved_results_are_loaded_unchanged(tmp_path: Path) -> None:
    half = Split(torch.zeros(4, 2), {"a": torch.tensor([0.0, 1.0, torch.nan, 1.0]), "b": torch.zeros(4)})
    info = ProblemInfo.of(Problem("toy", (Task("a"), Task("b")), half, half, half, MLP(2), notes=("a note",)))
    assert (info.labels["train"], info.rows["train"]) == ({"a": 3, "b": 4}, 4)
    lost = [
        replace(one, test={**one.test, "a": Score(one.test["a"].loss, math.nan, np.zeros(3))}) for one in some_records()
    ]
    before = Results(lost, problem=info, settings={"seeds": [0, 1, 2]})
    file = before.save(tmp_path / "run")
    document = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["records"][0]["test"] == {"a": {"loss": 1.0, "error": None}, "b": {"loss": 2.0, "error": 0.5}}
    after = Results.load(tmp_path / "run")
    assert after.out == Results.load(file).out == tmp_path / "run"
    assert str(after) == str(before)
    assert repr(after.verdict()) == repr(before.verdict())
    assert (after.problem, after.settings, after.scale) == (before.problem, before.settings, before.scale)
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
    assert (row.val_skill, row.test_skill) == (pytest.approx(0.1), pytest.approx(0.3))
    assert (row.budget, row.network, row.networks, row.honest, row.diverged) == (2, ("b",), 2, True, False)
    assert (row.deciding_cost, row.training_cost) == (1.5, 2.0)
    for summary in some.table():
        rows = frame[(frame.method == summary.method) & (frame.budget.fillna(-1) == (summary.budget or -1))]
        assert rows.test_skill.mean() == pytest.approx(summary.skill)


def test_the_frame_has_nan_where_nothing_is_known() -> None:
    frame = results([*records("random", 2, [0.0], [0.1], groups=()), *records("stl", None, [0.0], [0.0])]).to_frame()
    assert str(frame.budget.dtype) == "Int64"
    assert frame.budget.isna().tolist() == [False, False, True, True]
    assert frame.test_skill.isna().all(), "there is no mtl to compare with"
    assert frame.network.tolist() == [None, None, ("a",), ("b",)]
