"""The content and the size of the page."""

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import make_run, make_taught_run

from tagalong import Affinity
from tagalong.report import affinity_heatmap, gain_by_models, task_skills, write_report
from tagalong.report.page import to_script_json
from tagalong.study import Cost, Results, Score, interval_text, percent, points, read_run

ABC = ["a", "b", "c"]


def figures_of(page: Path) -> dict:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert match is not None
    return json.loads(match[1])


def elements_of(page: Path) -> str:
    """The page without its scripts."""
    return page.read_text(encoding="utf-8").partition("<script")[0]


def text_of(page: Path) -> str:
    """The page as text, without tags, scripts and styles."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", elements_of(page).partition("<body>")[2]).split()))


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """A run whose best networks are taught by others and averaged, and its page."""
    folder = tmp_path_factory.mktemp("taught")
    results = make_taught_run(folder, ["age", "<b>", "ill", "noise"])
    return results, write_report(folder)


# Sections and numbers ------------------------------------------------------------------------------------------------


def test_the_page_has_all_sections_and_says_how_it_was_obtained(hostile_page: Path) -> None:
    elements = elements_of(hostile_page)
    sections = "budgets tasks next affinity time groups methods reading obtained care"
    assert [name for name in sections.split() if f'id="{name}"' not in elements] == []
    settings = ("--targets 'a b,c'", '"optimizer": "adamw"', "seeds: [0, 1, 2]", "2.13.0", "drawn at random", "is_male")
    assert [words for words in settings if words not in text_of(hostile_page)] == []


def test_numbers_on_the_page_are_those_of_the_verdict(taught: tuple[Results, Path]) -> None:
    results, page = taught
    verdict, text = results.verdict(), text_of(page)
    answer = text.partition("What each further model buys")[0]
    for numbers in (percent(verdict.skill), points(verdict.gain.estimate), interval_text(verdict.gain)):
        assert numbers in answer
    for way in verdict.by_budget.values():
        if way.label != verdict.reference:
            assert f"{percent(way.skill)} {points(way.gain.estimate)} {interval_text(way.gain)}" in text
    for row in verdict.per_task:
        change = f"{points(row.change.estimate)} {interval_text(row.change)}"
        errors = f"{row.error_before:.4g} {row.error_after:.4g} mae"
        assert f"{percent(row.before.estimate)} {percent(row.after.estimate)} {change} {errors}" in text


def test_numbers_in_figures_are_those_of_the_run(taught: tuple[Results, Path]) -> None:
    results, page = taught
    drawn, run = figures_of(page), read_run(page.parent)
    expected = [
        (drawn["curve"][""], gain_by_models(results.verdict()), "y"),
        (drawn["changes"][""], task_skills(results.verdict()), "x"),
        (drawn["heatmap"]["lookahead"], affinity_heatmap(run.affinity, grouping=run.groupings[3]), "z"),
    ]
    for found, figure, axis in expected:
        for trace, original in zip(found["data"], figure.data, strict=True):
            values = [float("nan") if value is None else value for value in flat(trace[axis])]
            assert values == pytest.approx(flat(original[axis]), rel=1e-3, nan_ok=True)
    assert sorted(drawn["over-time"]) == [f"onto {task}" for task in sorted(results.problem.tasks)]


def flat(values: object) -> list:
    parts = values.tolist() if hasattr(values, "tolist") else list(values)
    return [part for row in parts for part in (row if isinstance(row, list) else [row])]


def test_networks_to_use_are_listed_with_what_they_learn(taught: tuple[Results, Path]) -> None:
    table = text_of(taught[1]).partition("The networks to use")[2].partition("Where several")[0]
    assert "1 all tasks network of the problem, taught by 3 networks, half by labels" in table
    assert "3 age <b> network of the problem" in table, "it answers one task, and another helps"


# What may be missing or hostile --------------------------------------------------------------------------------------


def test_names_of_tasks_are_not_interpreted_as_html(hostile_page: Path) -> None:
    elements = elements_of(hostile_page)
    assert 'id="obtained"' in elements, "the first script comes after all sections"
    assert not {"img", "b", "iframe", "link", "base", "object", "svg"} & set(re.findall(r"<(\w+)", elements))
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'" in elements
    without_values = re.sub(r'"[^"]*"', "", elements)
    assert not re.search(r"<[^>]*\son\w+=", without_values), "no event is handled"
    text = to_script_json({"name": "</script><!--<script>\u2028"})
    assert not {"<", "\u2028"} & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>\u2028"}


def test_the_page_works_without_measured_networks_histories_affinities_and_settings(tmp_path: Path) -> None:
    made = make_run(tmp_path, ABC)
    plain = [record for record in made.records if record.method == "mtl"]
    Results(plain, problem=made.problem).save(tmp_path)
    affinity = Affinity.load(tmp_path / "affinity.json")
    Affinity.from_matrix(affinity.mean, ABC).save(tmp_path / "affinity.json")
    (tmp_path / "affinity-cs.json").unlink()
    figures = figures_of(write_report(tmp_path))
    assert (figures["over-time"], len(figures["heatmap"])) == ({}, 1)
    (tmp_path / "affinity.json").unlink()
    (tmp_path / "groupings.json").unlink()
    elements = elements_of(write_report(tmp_path))
    assert 'id="heatmap"' not in elements
    assert 'id="methods"' in elements


def test_missing_values_of_networks_trained_elsewhere_are_left_out(tmp_path: Path) -> None:
    made = make_run(tmp_path, ABC)

    def without_errors(scores: Mapping[str, Score]) -> dict[str, Score]:
        return {task: Score(score.loss, math.nan) for task, score in scores.items()}

    unknown = {"deciding": Cost(), "training": Cost(), "parameters": 0}
    records = [
        replace(record, val=without_errors(record.val), test=without_errors(record.test), **unknown)
        for record in made.records
    ]
    Results(records, problem=made.problem).save(tmp_path)
    page = write_report(tmp_path)
    assert "the training of one plain network" not in text_of(page)
    assert "nan" not in text_of(page).lower()


def test_forty_tasks_stay_below_two_megabytes(tmp_path: Path) -> None:
    make_run(tmp_path, [f"attribute_number_{i}" for i in range(40)], budgets=(2, 5), steps=100)
    page = write_report(tmp_path)
    assert page.stat().st_size < 2_000_000
    assert "attribute_number_39" in elements_of(page), "tables have all tasks"
