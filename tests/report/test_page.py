"""The content and the size of the page."""

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser_page import HOSTILE
from fake_run import make_run, make_taught_run

from tagalong import Affinity
from tagalong.group import select_groups
from tagalong.report import write_report
from tagalong.report.page.document import to_script_json
from tagalong.report.style import format_percent
from tagalong.study import Cost, LateNetworks, Learning, Results, RowNoise, Score, read_run

ABC = ["a", "b", "c"]


def data_of(page: Path) -> dict:
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


# The answer ----------------------------------------------------------------------------------------------------------


def test_the_page_has_all_sections_and_says_how_it_was_obtained(hostile_page: Path) -> None:
    elements = elements_of(hostile_page)
    sections = "measured networks affinity time budget worth search reading care obtained"
    assert [name for name in sections.split() if f'id="{name}"' not in elements] == []
    settings = ("--targets 'a b,c'", "optimizer adamw", "seeds 0 1 2", "torch 2.13.0", "drawn at random", "is_male")
    assert [words for words in settings if words not in text_of(hostile_page)] == []


def test_the_page_states_the_networks_the_recipe_and_copies_separately(taught: tuple[Results, Path]) -> None:
    results, page = taught
    verdict, elements = results.verdict(), elements_of(page)
    top, _, evidence = text_of(page).partition("The evidence")
    for change in (verdict.networks, verdict.recipe, verdict.change_from_copies, verdict.networks_from_copies):
        numbers = [format_percent(value) for value in (change.estimate, change.low, change.high)]
        assert "{}%, {} to {}%".format(*numbers) in html.unescape(elements)
        assert f"{-100 * change.estimate:.1f}% lower" in top
    assert "1 of 18 networks" in top
    for question, answer, _ in verdict.answers():
        assert f"{question} {answer} " in evidence, question


@pytest.mark.parametrize(
    ("label", "noise", "headline"),
    [
        (("auto", 1), 0.004, "one network for all tasks, taught by three others"),
        (("auto", 1), 0.5, "one plain network"),
        (("auto", 2), 0.004, "two networks, both taught by others, and average"),
        (("auto", 3), 0.004, "three networks, two of them taught by others, and average"),
        (("ensemble", 3), 0.004, "three copies of one network and average"),
        (("mtl-big2", None), 0.0005, "one wider network for all tasks"),
    ],
)
def test_the_headline_names_the_recommended_networks(
    tmp_path: Path, label: tuple[str, int | None], noise: float, headline: str
) -> None:
    made = make_taught_run(tmp_path, ABC)
    records = [record for record in made.records if record.label in (("mtl", None), label)]
    Results(records, problem=made.problem, noise=RowNoise(*[{label: noise}] * 4)).save(tmp_path)
    elements = elements_of(write_report(tmp_path))
    assert f"<h1>Use {headline}" in elements
    assert ('data-choice="1 plain network (recommended)"' in elements) == (noise == 0.5)
    assert ("Networks 1, 2 and 3" in elements) == (label[0] == "ensemble"), "copies share a card"


@pytest.mark.parametrize(
    ("p_value", "late", "answer"),
    [
        (1e-6, LateNetworks(0, 9), "Yes."),
        (1e-6, LateNetworks(2, 9), "Yes, but"),
        (0.7, LateNetworks(0, 9), "No: nothing"),
        (None, None, "Not checked."),
    ],
)
def test_the_headline_says_whether_everything_was_learnt(
    tmp_path: Path, p_value: float | None, late: LateNetworks | None, answer: str
) -> None:
    made = make_run(tmp_path, ABC)
    p_values = {} if p_value is None else dict.fromkeys("abc", p_value)
    learning = Learning(p_values, {} if late is None else {("mtl", None): late})
    Results(made.records, problem=made.problem, noise=made.noise, learning=learning).save(tmp_path)
    page = write_report(tmp_path)
    assert f"Was everything learnt, and for long enough? {answer}" in text_of(page)
    assert ('id="measured"' in elements_of(page)) == (p_value != 0.7)


def test_many_unlearnt_tasks_are_counted_at_the_top(tmp_path: Path) -> None:
    tasks = [f"t{i:02}" for i in range(16)]
    made = make_run(tmp_path, tasks)
    learning = Learning({task: 1e-9 if task in tasks[:2] else 0.9 for task in tasks})
    Results(made.records, problem=made.problem, learning=learning).save(tmp_path)
    page = write_report(tmp_path)
    top = text_of(page).partition("The evidence")[0]
    assert "14 of 16 tasks" in top
    assert re.findall(r"t\d\d", top) == tasks[2:14], "the first twelve of them are named"
    names = re.findall(r'data-choice="(.*?)"', elements_of(page))
    assert names == ["1 network", "2 networks", "3 networks (recommended)"], "large budgets are not listed"


def test_unlearnt_tasks_are_marked_wherever_they_are_shown(taught: tuple[Results, Path]) -> None:
    data = data_of(taught[1])
    assert data["unlearnt"] == ["noise"]
    assert all(figure["figure"]["layout"]["yaxis"]["ticktext"].count("noise †") == 1 for figure in data["changes"])
    assert text_of(taught[1]).count("† not learnt") == 4  # heat map, affinity over training, groups, and changes


# Numbers of networks -------------------------------------------------------------------------------------------------


def test_measured_budgets_show_what_each_further_network_buys(taught: tuple[Results, Path]) -> None:
    results, page = taught
    best = results.verdict().by_budget
    assert {k: (way.kind, [other.kind for other in way.others]) for k, way in best.items()} == {
        1: ("taught", ["plain"]), 2: ("taught", ["copies", "larger"]), 3: ("taught", ["copies"]),
    }  # fmt: skip
    table = text_of(page).partition("The best way of each kind")[2]
    for before, k in ((1, 2), (2, 3)):
        change, gain = best[k].change, best[k].change.estimate - best[before].change.estimate
        numbers = [format_percent(value) for value in (change.estimate, change.low, change.high, gain)]
        assert "(auto) {}% {} to {} {} ".format(*numbers) in table
        assert f"(ensemble) {format_percent(best[k].others[0].change.estimate)}%" in table
    traces = {trace["name"]: trace["x"] for trace in data_of(page)["measured"]["data"]}
    assert traces["best way found"] == traces["taught networks"] == [1, 2, 3]


def test_a_committee_shows_who_answers_what_and_who_was_taught(taught: tuple[Results, Path]) -> None:
    choices = re.findall(r'data-choice="([^"]*)"( data-recommended)?', elements_of(taught[1]))
    assert choices == [("1 network", ""), ("2 networks", ""), ("3 networks (recommended)", " data-recommended")]
    cards = text_of(taught[1]).partition("3 networks (recommended)")[2]
    student, _, plain = re.split(r"Network \d ", cards)[1:4]
    learning = ("50% from labels", "3 teachers", "1 mixture", "on all 4 tasks", "answers age <b> ill noise")
    assert [words for words in learning if words not in student] == []
    assert "answers age trained only to help: <b>" in plain


# Groups by affinity --------------------------------------------------------------------------------------------------


def test_every_budget_has_groups(hostile_page: Path) -> None:
    budgets = data_of(hostile_page)["budgets"]
    assert [entry["k"] for entry in budgets] == [1, 2, 3, 4, 5, 6]
    for entry in budgets:
        served = [task for network in entry["networks"] for task in network["serves"]]
        assert sorted(served) == sorted(HOSTILE)
        assert entry["value"] <= entry["bound"] * (1 + 1e-9)


def test_budgets_of_many_tasks_are_solved_together_and_those_of_hundreds_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, [f"t{i}" for i in range(11)])
    solved: list[list[int]] = []

    def counted(scores: Any, budgets: list[int], **options: Any) -> Any:
        solved.append(budgets)
        return select_groups(scores, budgets, **options | {"solver": "search", "time_limit": 0.5})

    monkeypatch.setattr("tagalong.study.finished_run.select_groups", counted)
    run = read_run(tmp_path)
    budgets = run.all_budgets()
    assert (budgets[2], run.shown_budget(budgets)) == (run.groupings[2], 3)
    assert solved == [[1, *range(4, 12)]]
    for entry in data_of(write_report(tmp_path))["budgets"]:
        assert ("proven" in "; ".join(entry["summary"])) == (budgets[entry["k"]].status == "optimal")
    solved.clear()
    monkeypatch.setattr("tagalong.report.page.document.MAX_TASKS", 10)
    monkeypatch.setattr("tagalong.study.finished_run.MAX_TASKS_FOR_ALL_BUDGETS", 10)
    data = data_of(write_report(tmp_path))
    assert not solved
    assert ([entry["k"] for entry in data["budgets"]], data["shown"]) == ([2, 3], 2)
    assert {len(drawn["tasks"]) for drawn in (*data["heatmaps"], data["time"])} == {10}
    assert sum(len(network["serves"]) for network in data["budgets"][1]["networks"]) == 11


# How auto searched ---------------------------------------------------------------------------------------------------


def test_the_page_shows_how_auto_searched(tmp_path: Path) -> None:
    made = make_run(tmp_path, ABC)
    made.settings["decisions"]["auto"]["one_network_per_task"] = "the rows are read from files"
    made.save(tmp_path)
    page = write_report(tmp_path)
    words = ("2.1 of 2.5 trainings", "6.4%", "b 0 −10.0%", "the rows are read from files")
    assert [part for part in words if part not in text_of(page)] == []
    lines = data_of(page)["search"]["data"]
    assert [(line["x"], line["y"]) for line in lines] == [([1.1, 2.1], [0.0, -6.0])] * 2


def test_the_page_shows_what_averaging_and_teaching_brought(taught: tuple[Results, Path]) -> None:
    shown = text_of(taught[1]).partition("How auto searched")[2]
    rows = (
        "1 −2.0% −6.0% −5.0% −6.0 ± 1.0% 2 −4.0% −8.0% −7.0% −8.0 ± 1.0% 3 −6.0% −10.0% −13.0% −13.0 ± 1.0%",
        "answers 2 −15.0% −20.0%",  # alone, they have losses of 0.8 and 0.9, and the copies 0.9 and 1.1
        "1 −30.0% −30.0%",
        "3.1 age, <b> some tasks 1 −10.0%",
    )
    assert [row for row in rows if row not in shown] == []
    used = re.findall(r'<td class="best">(.*?)</td>', taught[1].read_text(encoding="utf-8"))
    assert used == ["−6.0%", "−8.0%", "−13.0%"]


# What may be missing or hostile --------------------------------------------------------------------------------------


def test_names_of_tasks_are_not_interpreted_as_html(hostile_page: Path) -> None:
    elements = elements_of(hostile_page)
    assert 'id="obtained"' in elements, "the first script comes after all sections"
    assert not {"img", "b", "iframe", "link", "base", "object", "svg"} & set(re.findall(r"<(\w+)", elements))
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
    data = data_of(write_report(tmp_path))
    assert (data["measured"], data["time"]) == (None, None)
    assert [entry["average"] for entry in data["heatmaps"]] == ["mean"]
    (tmp_path / "affinity.json").unlink()
    (tmp_path / "groupings.json").unlink()
    elements = elements_of(write_report(tmp_path))
    assert 'id="heatmap"' not in elements
    assert 'id="methods"' in elements


def test_missing_values_of_networks_trained_elsewhere_are_left_out(tmp_path: Path) -> None:
    made = make_run(tmp_path, ABC)
    assert "test error" in text_of(write_report(tmp_path))

    def without_errors(scores: Mapping[str, Score]) -> dict[str, Score]:
        return {task: Score(score.loss, math.nan) for task, score in scores.items()}

    unknown = {"deciding": Cost(), "training": Cost(), "parameters": 0}
    records = [
        replace(record, val=without_errors(record.val), test=without_errors(record.test), **unknown)
        for record in made.records
    ]
    Results(records, problem=made.problem).save(tmp_path)
    elements = elements_of(write_report(tmp_path))
    assert 'id="cost"' not in elements
    assert "test error" not in elements
    assert re.search(r'<th scope="col">test loss</th>.*?<td>\d\.\d+</td>', elements)


@pytest.mark.slow
def test_forty_tasks_stay_below_ten_megabytes(tmp_path: Path) -> None:
    make_run(tmp_path, [f"attribute_number_{i}" for i in range(40)], budgets=(2, 5), steps=100)
    assert write_report(tmp_path).stat().st_size < 10_000_000


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "tagalong-groupings", "version": 1, "groupings": [{}]}'])
def test_damaged_groupings_are_named(tmp_path: Path, content: str) -> None:
    make_run(tmp_path, ABC)
    (tmp_path / "groupings.json").write_text(content)
    with pytest.raises(ValueError, match=r"groupings\.json"):
        write_report(tmp_path)
