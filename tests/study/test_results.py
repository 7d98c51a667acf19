"""The table, its text, and the file."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from verdict_records import APART, TOGETHER, records, results, together

from tagalong.entries import Entry
from tagalong.group import Group
from tagalong.learn import MLP, Problem, Split, Task
from tagalong.study import Cost, ProblemInfo, Record, Results, Score
from tagalong.study.latency import measure_latency
from tagalong.study.records import read_problem_info

HEADINGS = "method budget nets total loss vs mtl vs random decide train size latency"


def found() -> list[Record]:
    tag = [replace(one, deciding=Cost(1, 150, 7.0)) for one in records("tag", 2, [-0.1] * 3, [-0.1, -0.2, -0.3])]
    random = records("random", 2, [0.0] * 3, [0.1, 0.1, 0.1], groups=())
    oracle = records("oracle", 2, [-0.2] * 3, [-0.3] * 3, honest=False)
    return [*together(), *tag, *records("stl", None, [0.0] * 3, [0.2] * 3), *random, *oracle]


def test_a_row_of_the_table_is_the_mean_over_seeds_with_its_error() -> None:
    lines = {(line.method, line.budget): line for line in results(found()).table()}
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
    assert lines["mtl", None].change == 0.0
    assert lines["stl", None].random_change is None
    assert not lines["oracle", 2].honest


def test_costs_are_in_units_of_all_together() -> None:
    tag = {line.method: line for line in results(found(), settings={"price_per_hour": 36.0}).table()}["tag"]
    assert (tag.training, tag.deciding) == (Cost(2, 200, 4.0), Cost(1, 150, 7.0))
    assert (tag.training_cost, tag.deciding_cost) == (2.0, 1.5)
    assert (tag.relative_parameters, tag.parameters_per_network) == (2.0, 1.0)
    assert tag.money == pytest.approx(36.0 * 11 / 3600)
    uncounted = [replace(one, training=replace(one.training, steps=0), deciding=Cost(1, 0, 1.0)) for one in found()]
    tag = {line.method: line for line in results(uncounted).table()}["tag"]
    assert (tag.training_cost, tag.deciding_cost, tag.money) == (2.0, 0.5, None)


def test_relative_changes_do_not_depend_on_the_scale_of_a_target() -> None:
    small = results([*together(), *records("tag", 2, [-0.1] * 3, [-0.1, -0.2, -0.3])]).table()
    large = results(
        [
            *records("mtl", None, [0.0] * 3, [0.0] * 3, TOGETHER, base=1e9),
            *records("tag", 2, [-0.1] * 3, [-0.1, -0.2, -0.3], base=1e9),
        ]
    ).table()
    assert [line.change for line in small] == pytest.approx([line.change for line in large])
    assert small[1].total != pytest.approx(large[1].total)


def results_with_a_long_name() -> Results:
    long = [replace(one, method="a-method-with-a-very-long-name", latency=0.0123) for one in found()[3:6]]
    return results([*found(), *long])


def test_the_text_has_table_and_verdict_in_a_hundred_columns() -> None:
    text = results_with_a_long_name().to_text(100)
    lines = text.split("\n")
    assert max(map(len, lines)) <= 100
    assert " ".join(lines[2].split()) == HEADINGS
    row = next(line for line in lines if line.startswith("tag "))
    assert row.split()[:3] == ["tag", "2", "2"]
    assert "-20.0% ± 5.8" in row
    assert any(line.startswith("oracle*") for line in lines)
    assert "uses test data to choose" in text
    assert "erdict: " in text


def test_printed_results_are_shortened_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = results_with_a_long_name()
    assert "a-method-with-a-very-long-name  " in str(wide)
    assert str(wide) == wide.to_text()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert str(wide) == wide.to_text(80)
    assert max(map(len, str(wide).split("\n"))) <= 80
    assert "No room for: " in str(wide)


def test_the_text_shows_networks_costs_and_results_by_task() -> None:
    text = str(results(found(), settings={"price_per_hour": 36.0}))
    lines = text.split("\n")
    assert lines[2].split()[-1] == "money"
    row = next(line for line in lines if line.startswith("tag "))
    assert "  2 + 1  " in row, "two networks in use, one trained to decide"
    assert row.split()[-1] == "0.11"
    assert "Money: " in text
    assert "groups of oracle" not in text, "what looked at test data is no candidate"
    start = lines.index("By task, mtl and the groups of tag (budget 2):")
    assert lines[start + 2].split() == ["a", "1", "0.8", "-20.0%", "0.25", "0.25"]


def test_the_legend_explains_only_the_columns_that_are_there() -> None:
    bare = [replace(one, training=Cost(), parameters=0) for one in [*together(), *records("stl", None, [0.0], [0.1])]]
    text = str(results(bare))
    assert " ".join(text.split("\n")[2].split()) == "method budget nets total loss vs mtl"
    for word in ("Nets", "Decide", "Size", "Latency", "Money"):
        assert f"{word}: " not in text


def test_the_file_holds_the_table_for_other_programs() -> None:
    document = results(found(), settings={"price_per_hour": 36.0}).to_document()
    tag = next(line for line in document["table"] if line["method"] == "tag")
    assert tag["money"] == pytest.approx(36.0 * 11 / 3600)
    assert tag["groups"][0]["trains"] == ["a"]
    assert tag["deciding"]["networks"] == 1
    assert tag["parameters_per_network"] == 1.0


def test_saved_results_are_loaded_unchanged(tmp_path: Path) -> None:
    lost = [replace(one, test={**one.test, "a": Score(one.test["a"].loss, math.nan)}) for one in found()]
    before = results(lost, noise={("tag", 2): 0.01, ("stl", None): math.inf}, settings={"seeds": [0, 1, 2]})
    file = before.save(tmp_path / "run")
    assert file == tmp_path / "run" / "results.json"
    document = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["verdict"]["worth_it"] == before.verdict().worth_it
    after = Results.load(tmp_path / "run")
    assert str(after) == str(before)
    assert after.verdict() == before.verdict()
    assert after.problem == before.problem
    assert after.settings == before.settings
    assert [replace(one, test={}) for one in after.records] == [replace(one, test={}) for one in before.records]
    assert after.records[0].groups == TOGETHER
    assert after.records[3].groups == APART
    assert math.isnan(after.records[0].test["a"].error)
    assert Results.load(file).out == tmp_path / "run"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must have the format 'tagalong-results', found 'list'"),
        ('{"format": "tagalong-results", "version": 99}', "must have version 1, found 99"),
        ('{"format": "tagalong-results", "version": 1}', "is damaged"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Results.load(tmp_path)


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="found no file nowhere"):
        Results.load("nowhere")


def test_the_frame_has_a_row_per_method_budget_seed_and_task() -> None:
    some = results(found())
    frame = some.to_frame()
    assert len(frame) == len(some.records) * len(some.problem.tasks)
    assert not frame.duplicated(["method", "budget", "seed", "task"]).any()
    row = frame.set_index(["method", "seed", "task"]).loc[("tag", 2, "b")]
    record = next(one for one in some.records if (one.method, one.seed) == ("tag", 2))
    assert (row.val_loss, row.val_error) == (record.val["b"].loss, record.val["b"].error)
    assert (row.test_loss, row.test_error) == (record.test["b"].loss, record.test["b"].error)
    assert (row.val_change, row.test_change) == (pytest.approx(-0.1), pytest.approx(-0.3))
    assert (row.budget, row.network, row.networks, row.honest, row.diverged) == (2, ("b",), 2, True, False)
    assert (row.deciding_cost, row.training_cost) == (1.5, 2.0)


def test_the_means_of_the_frame_are_the_table() -> None:
    some = results(found())
    frame = some.to_frame()
    for summary in some.table():
        rows = frame[(frame.method == summary.method) & (frame.budget.fillna(-1) == (summary.budget or -1))]
        assert rows.groupby("task").test_loss.mean().to_dict() == pytest.approx(summary.loss)
        assert rows.groupby("task").test_error.mean().to_dict() == pytest.approx(summary.error)
        assert rows.test_change.mean() == pytest.approx(summary.change)
        assert rows.val_change.mean() == pytest.approx(summary.validation)
        assert (rows.honest == summary.honest).all()


def test_the_frame_has_nan_where_nothing_is_known() -> None:
    frame = results([*records("random", 2, [0.0], [0.1], groups=()), *records("stl", None, [0.0], [0.0])]).to_frame()
    assert str(frame.budget.dtype) == "Int64"
    assert frame.budget.isna().tolist() == [False, False, True, True]
    assert frame.test_change.isna().all(), "there is no mtl to compare with"
    assert frame.network.tolist() == [None, None, ("a",), ("b",)]


def test_results_without_all_together_have_a_table_and_no_verdict(tmp_path: Path) -> None:
    alone = results(records("stl", None, [0.0], [0.0]))
    assert alone.table()[0].change is None
    assert "erdict" not in str(alone)
    assert alone.save(tmp_path).exists()
    with pytest.raises(ValueError, match="mtl"):
        alone.verdict()


def test_problem_info_survives_json() -> None:
    half = Split(torch.zeros(4, 2), {"a": torch.tensor([0.0, 1.0, torch.nan, 1.0])})
    info = ProblemInfo.of(Problem("toy", (Task("a"),), half, half, half, MLP(2), notes=("a note",)))
    assert info.labels["train"] == {"a": 3}
    assert info.rows == {"train": 4, "val": 4, "test": 4}
    assert read_problem_info(Entry(json.loads(json.dumps(info.to_document())))) == info


def test_latency_times_the_rows_and_restores_the_mode() -> None:
    seen: list[tuple[int, bool]] = []

    class RecordsMode(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen.append((len(rows), self.training))
            return super().forward(rows)

    network = RecordsMode(3, 2).train()
    assert measure_latency(network, torch.zeros(5, 3), repeats=4, warm_up=2) > 0
    assert seen == [(5, False)] * 6
    assert network.training


def test_scores_are_saved_as_loss_and_error_alone() -> None:
    scores = {"a": Score(0.5, 0.1, np.zeros(3, dtype=np.float32)), "b": Score(0.25, 0.2)}
    mtl = Record("mtl", None, seed=0, groups=(Group(["a", "b"], ["a", "b"]),), val=scores, test=scores)
    document = Results([mtl], problem=ProblemInfo.from_tasks(["a", "b"])).to_document()
    assert document["records"][0]["test"] == {"a": {"loss": 0.5, "error": 0.1}, "b": {"loss": 0.25, "error": 0.2}}
