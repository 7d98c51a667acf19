"""Figures of results."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import make_run, make_taught_run

from tagalong.group import Group
from tagalong.report import affinity_heatmap, gain_by_models, task_skills
from tagalong.study import Results, Run, read_run

TASKS = ("age", "<b>ill</b>", "tall", "thin")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    make_run(tmp_path, TASKS)
    return read_run(tmp_path)


def test_skills_by_task_are_those_of_the_verdict(run: Run) -> None:
    verdict = run.results.verdict()
    before, after = task_skills(verdict, tasks=TASKS[:2]).data
    assert before.x == tuple(100 * answer.before.estimate for answer in verdict.per_task[:2])
    assert after.x == tuple(100 * answer.after.estimate for answer in verdict.per_task[:2])
    high = verdict.per_task[0].after.high
    assert after.x[0] + after.error_x.array[0] == pytest.approx(100 * high)
    assert task_skills(verdict).layout.yaxis.ticktext == ("age", "&lt;b&gt;ill&lt;/b&gt;", "tall", "thin")


def test_groups_are_next_to_each_other_in_the_heat_map(run: Run) -> None:
    assert run.affinity is not None
    figure = affinity_heatmap(run.affinity, grouping=run.groupings[2])
    assert figure.layout.xaxis.ticktext == ("&lt;b&gt;ill&lt;/b&gt;", "thin", "age", "tall")
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-0.5, 1.5), (1.5, 3.5)]


def test_skill_by_number_of_models_has_the_intervals_of_gains(tmp_path: Path) -> None:
    verdict = make_taught_run(tmp_path, TASKS).verdict()
    traces = {trace.name: trace for trace in gain_by_models(verdict).data}
    best, taught, copies, recommended = (
        traces[name] for name in ("best on validation", "taught networks", "averaged copies", "recommended")
    )
    assert best.y == taught.y == tuple(100 * way.skill for way in verdict.by_budget.values())
    assert [round(x) for x in taught.x] == [1, 2, 3]
    assert recommended.y == (100 * verdict.skill,)
    gain = verdict.way(("ensemble", 3)).gain
    assert copies.error_y.array[-1] == pytest.approx(100 * (gain.high - gain.estimate))
    assert not set(copies.x) & set(taught.x), "bars do not overlap"


def test_all_families_are_drawn(tmp_path: Path) -> None:
    grouped, taught = make_run(tmp_path, TASKS), make_taught_run(tmp_path, TASKS)
    others = [record for record in grouped.records if record.method in ("tag", "stl")]
    boosted = (Group(TASKS, TASKS, network="boosting"),)
    others += [replace(record, method="boosting", groups=boosted) for record in others if record.method == "stl"]
    results = Results([*taught.records, *others], problem=taught.problem)
    drawn = {trace.name: trace for trace in gain_by_models(results.verdict()).data}
    assert len(drawn["groups"].x) >= 2
    assert [round(x) for x in drawn["boosting"].x] == [1]


def test_numbers_of_models_are_evenly_spaced_and_gains_of_one_seed_have_no_interval(tmp_path: Path) -> None:
    made = make_run(tmp_path, [f"t{i}" for i in range(14)])
    records = [record for record in made.records if record.seed == 0]
    figure = gain_by_models(Results(records, problem=made.problem).verdict())
    assert (figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext) == ((1, 2, 3, 4), ("1", "2", "3", "14"))
    groups = next(trace for trace in figure.data if trace.name == "groups")
    assert [round(x) for x in groups.x] == [2, 3, 4]
    assert set(groups.error_y.array) == set(groups.error_y.arrayminus) == {0.0}
