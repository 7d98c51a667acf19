"""Figures of results."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import make_run, make_taught_run

from tagalong.group import Group
from tagalong.report import affinity_heatmap, change_by_networks, task_changes
from tagalong.report.figures import measured_ways
from tagalong.study import Results, Run, interval_half_width, read_run

TASKS = ("age", "<b>ill</b>", "tall", "thin")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    make_run(tmp_path, TASKS)
    return read_run(tmp_path)


def test_changes_by_task_are_paired_by_seed(run: Run) -> None:
    figure = task_changes(run.results, "tag", 2)
    records, together = run.results.records_of(("tag", 2)), run.results.records_of(("mtl", None))
    changes = [a.test["age"].loss / b.test["age"].loss - 1 for a, b in zip(records, together, strict=True)]
    assert figure.data[0].x[0] == pytest.approx(100 * sum(changes) / 3)
    assert figure.layout.yaxis.ticktext == ("age", "&lt;b&gt;ill&lt;/b&gt;", "tall", "thin")
    assert "mae: 10" in figure.data[0].hovertext[0]
    with pytest.raises(ValueError, match="`method` and `budget`"):
        task_changes(run.results, "tag", 7)


def test_groups_are_next_to_each_other_in_the_heat_map(run: Run) -> None:
    assert run.affinity is not None
    figure = affinity_heatmap(run.affinity, grouping=run.groupings[2])
    assert figure.layout.xaxis.ticktext == ("&lt;b&gt;ill&lt;/b&gt;", "thin", "age", "tall")
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-0.5, 1.5), (1.5, 3.5)]


def test_changes_by_number_of_networks_have_intervals(tmp_path: Path) -> None:
    results = make_taught_run(tmp_path, TASKS)
    figure = change_by_networks(results)
    best, plain, copies, taught, wider, recommended = figure.data
    assert wider.name == "wider networks"
    ways = results.verdict().by_budget
    assert best.y == taught.y == tuple(100 * way.change.estimate for way in ways.values())
    assert [round(x) for x in taught.x] == [1, 2, 3]
    assert (recommended.x, recommended.y) == (taught.x[2:], taught.y[2:])
    assert (plain.y, plain.error_y.array, plain.error_y.arrayminus) == ((0.0,), (0.0,), (0.0,))
    change = ways[3].others[0].change
    assert copies.y[1] + copies.error_y.array[1] == pytest.approx(100 * change.high)
    assert copies.y[1] - copies.error_y.arrayminus[1] == pytest.approx(100 * change.low)
    assert not set(copies.x) & set(taught.x), "bars do not overlap"


def test_groups_and_boosting_are_drawn_next_to_what_auto_found(tmp_path: Path) -> None:
    grouped = make_run(tmp_path, TASKS)
    taught = make_taught_run(tmp_path, TASKS)
    others = [record for record in grouped.records if record.method in ("tag", "stl")]
    boosted = (Group(TASKS, TASKS, network="boosting"),)
    others += [replace(record, method="boosting", groups=boosted) for record in others if record.method == "stl"]
    noise = {("stl", None): 0.01}
    results = Results([*taught.records, *others], problem=taught.problem, noise=noise)
    ways = {(way.networks, way.family): way for way in measured_ways(results)}
    changes = {line.label: line.change for line in results.table()}
    for networks, family, label in ((2, "groups", ("tag", 2)), (4, "groups", ("stl", None))):
        assert (ways[networks, family].summary.label, ways[networks, family].best) == (label, False)
        assert ways[networks, family].change.estimate == pytest.approx(changes[label])
    assert ways[1, "boosting"].change.estimate == pytest.approx(changes["stl", None])
    alone, plain = results.records_of(("stl", None)), results.records_of(("mtl", None))
    paired = [record.change(together) for record, together in zip(alone, plain, strict=True)]
    change = ways[4, "groups"].change
    assert change.high - change.estimate == pytest.approx(interval_half_width(paired, row_stderr=0.01))
    drawn = {trace.name: trace for trace in change_by_networks(results).data}
    assert [round(x) for x in drawn["groups"].x] == [2, 3, 4]
    assert [round(x) for x in drawn["best on validation"].x] == [1, 2, 3]


def test_numbers_of_networks_are_evenly_spaced_and_changes_of_one_seed_have_no_interval(tmp_path: Path) -> None:
    made = make_run(tmp_path, [f"t{i}" for i in range(14)])
    records = [record for record in made.records if record.seed == 0]
    figure = change_by_networks(Results(records, problem=made.problem))
    assert (figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext) == ((1, 2, 3, 4), ("1", "2", "3", "14"))
    groups = next(trace for trace in figure.data if trace.name == "groups")
    assert [round(x) for x in groups.x] == [2, 3, 4]
    assert set(groups.error_y.array) == set(groups.error_y.arrayminus) == {0.0}
