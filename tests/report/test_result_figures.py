"""Figures of results and groupings."""

from pathlib import Path

import pytest
from fake_run import make_run, make_taught_run

from tagalong import select_groups
from tagalong.report import (
    affinity_heatmap,
    change_by_networks,
    cost_against_error,
    grouping_figure,
    task_changes,
)
from tagalong.study import Results, Run, read_run

TASKS = ("age", "<b>ill</b>", "tall", "thin")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    make_run(tmp_path, TASKS)
    return read_run(tmp_path)


def test_cost_and_error_of_every_budget(run: Run) -> None:
    figure = cost_against_error(run.results)
    traces = {trace.name: trace for trace in figure.data}
    assert set(traces) == {"mtl", "stl", "tag", "random", "oracle*"}
    assert traces["tag"].x == tuple(1.5 + len(run.groupings[k].groups) for k in (2, 3))
    assert traces["tag"].text == ("2", "3")
    line = next(line for line in run.results.table() if (line.method, line.budget) == ("tag", 2))
    assert traces["tag"].y[0] == pytest.approx(100 * line.change)
    assert traces["tag"].error_y.array[0] == pytest.approx(100 * (line.change_stderr**2 + 0.002**2) ** 0.5)
    assert (traces["mtl"].x, traces["mtl"].y) == ((1.0,), (0.0,))
    assert figure.layout.xaxis.type == "log"
    assert len({(trace.marker.symbol, trace.marker.color) for trace in figure.data}) == len(figure.data)


def test_other_costs_can_be_shown(run: Run) -> None:
    assert [trace.name for trace in cost_against_error(run.results, "deciding").data] == ["tag"]
    assert "parameters" in cost_against_error(run.results, "size").layout.xaxis.title.text


def test_changes_by_task_are_paired_by_seed(run: Run) -> None:
    figure = task_changes(run.results, "tag", 2)
    records, together = run.results.records_of(("tag", 2)), run.results.records_of(("mtl", None))
    changes = [a.test["age"].loss / b.test["age"].loss - 1 for a, b in zip(records, together, strict=True)]
    assert figure.data[0].x[0] == pytest.approx(100 * sum(changes) / 3)
    assert figure.layout.yaxis.ticktext == ("age", "&lt;b&gt;ill&lt;/b&gt;", "tall", "thin")
    assert "mae: 10" in figure.data[0].hovertext[0]
    with pytest.raises(ValueError, match="`method` and `budget`"):
        task_changes(run.results, "tag", 7)


def test_a_grouping_shows_who_is_served_and_who_helps(run: Run) -> None:
    grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
    served, helping = grouping_figure(grouping).data
    assert (served.x, served.y) == ((0, 0, 1), (0, 1, 2))
    assert (helping.x, helping.y) == ((1,), (0,))


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
    assert best.x == taught.x == (1.0, 2.0, 3.0)
    assert (recommended.x, recommended.y) == (taught.x[2:], taught.y[2:])
    assert (plain.y, plain.error_y.array, plain.error_y.arrayminus) == ((0.0,), (0.0,), (0.0,))
    change = ways[3].others[0].change
    assert (copies.x[0], copies.y[0], copies.marker.size[0], copies.error_y.array[0]) == (1, 0, 0, 0)  # no marker there
    assert copies.y[2] + copies.error_y.array[2] == pytest.approx(100 * change.high)
    assert copies.y[2] - copies.error_y.arrayminus[2] == pytest.approx(100 * change.low)
    assert len({trace.x[-2:] for trace in (copies, taught)}) == 2  # bars do not overlap


def test_groups_of_other_methods_are_drawn_next_to_those_of_auto(tmp_path: Path) -> None:
    grouped = make_run(tmp_path, TASKS)
    taught = make_taught_run(tmp_path, TASKS)
    groups = [record for record in grouped.records if record.method in ("tag", "stl")]
    results = Results([*taught.records, *groups], problem=taught.problem, noise=taught.row_noise)
    figure = change_by_networks(results)
    drawn = {trace.name: trace for trace in figure.data}
    changes = {line.label: 100 * line.change for line in results.table()}
    # With a budget of three, tag uses two networks.
    assert drawn["groups"].y == pytest.approx([0, changes["tag", 3], changes["tag", 3], changes["stl", None]])
    assert [round(x) for x in drawn["groups"].x] == [1, 2, 3, 4]
    assert [round(x) for x in drawn["best way found"].x] == [1, 2, 3]


def test_numbers_of_networks_are_evenly_spaced_and_changes_of_one_seed_have_no_interval(tmp_path: Path) -> None:
    made = make_run(tmp_path, [f"t{i}" for i in range(14)])
    records = [record for record in made.records if record.seed == 0]
    figure = change_by_networks(Results(records, problem=made.problem))
    assert (figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext) == ((1, 2, 3, 4), ("1", "2", "3", "14"))
    groups = next(trace for trace in figure.data if trace.name == "groups")
    assert groups.x == (1, 2, 3, 4)
    assert set(groups.error_y.array) == set(groups.error_y.arrayminus) == {0.0}
