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
from tagalong.report import affinity_heatmap, change_by_networks, task_changes, write_report
from tagalong.report.figures import interval_text, percent_text
from tagalong.report.page import to_script_json
from tagalong.study import Cost, LateNetworks, Learning, Results, Score, read_run

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
    answer = text.partition("What each further network buys")[0]
    assert all(part in answer for part in verdict.sentence.split(": "))
    for question, short, detail in verdict.answers():
        assert re.sub(r"[`\s]", "", question + short + detail) in re.sub(r"\s", "", answer)
    assert results.search_log.sentence in text
    for change in (verdict.networks, verdict.recipe, verdict.networks_from_copies, verdict.change_from_copies):
        assert f"{percent_text(change.estimate)} {interval_text(change)}" in answer
    for networks, best in verdict.by_budget.items():
        for way in (best, *best.others):
            if way.kind != "plain":
                numbers = f"{percent_text(way.change.estimate)} {interval_text(way.change)}"
                assert re.search(rf"{networks} [a-zA-Z ]+ \({way.label[0]}.*?\)+ {re.escape(numbers)}", text)
    for row in results.changes_by_task(*verdict.candidate).values():
        assert f"{percent_text(row.change, row.stderr)} {row.before:.4g} {row.after:.4g} mae {row.loss:.4g}" in text


def test_numbers_in_figures_are_those_of_the_run(taught: tuple[Results, Path]) -> None:
    results, page = taught
    drawn, run = figures_of(page), read_run(page.parent)
    labels = ["auto (budget 3)", "ensemble (budget 2)"]
    expected = [
        (drawn["curve"][""], change_by_networks(results), "y"),
        (drawn["changes"][labels[0]], task_changes(results, "auto", 3), "x"),
        (drawn["changes"][labels[1]], task_changes(results, "ensemble", 2), "x"),
        (drawn["heatmap"]["lookahead"], affinity_heatmap(run.affinity, grouping=run.groupings[3]), "z"),
    ]
    for found, figure, axis in expected:
        for trace, original in zip(found["data"], figure.data, strict=True):
            values = [float("nan") if value is None else value for value in flat(trace[axis])]
            assert values == pytest.approx(flat(original[axis]), rel=1e-3, nan_ok=True)
    assert next(iter(drawn["changes"])) == labels[0], "the candidate is shown first"
    assert sorted(drawn["over-time"]) == [f"onto {task}" for task in sorted(results.problem.tasks)]


def flat(values: object) -> list:
    parts = values.tolist() if hasattr(values, "tolist") else list(values)
    return [part for row in parts for part in (row if isinstance(row, list) else [row])]


def test_networks_to_use_are_listed_with_what_they_learn(taught: tuple[Results, Path]) -> None:
    table = text_of(taught[1]).partition("The networks to use")[2].partition("Where several")[0]
    assert "1 all tasks network of the problem, taught by 3 networks, half by labels" in table
    assert "3 age <b> network of the problem" in table, "it answers one task, and another helps"


@pytest.mark.parametrize(("p_value", "answer"), [(1e-6, "Yes."), (0.7, "No."), (None, "Not checked.")])
def test_pages_of_runs_that_learnt_nothing_or_were_not_checked(
    tmp_path: Path, p_value: float | None, answer: str
) -> None:
    made = make_run(tmp_path, ABC)
    learning = Learning({} if p_value is None else dict.fromkeys("abc", p_value), {("mtl", None): LateNetworks(2, 9)})
    Results(made.records, problem=made.problem, noise=made.noise, learning=learning).save(tmp_path)
    page = write_report(tmp_path)
    assert f"Was anything learnt? {answer}" in text_of(page)
    assert ('id="budgets"' in elements_of(page)) == (p_value != 0.7)
    assert text_of(page).count(" not learnt") == (3 if p_value == 0.7 else 0)


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
    assert (figures["changes"], figures["over-time"], len(figures["heatmap"])) == ({}, {}, 1)
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


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "tagalong-groupings", "version": 1, "groupings": [{}]}'])
def test_damaged_groupings_are_named(tmp_path: Path, content: str) -> None:
    make_run(tmp_path, ABC)
    (tmp_path / "groupings.json").write_text(content)
    with pytest.raises(ValueError, match=r"groupings\.json"):
        write_report(tmp_path)
