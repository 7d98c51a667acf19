"""The content and the size of the page."""

import ast
import html
import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser_page import HOSTILE
from fake_run import fake_affinity, make_run, make_taught_run

import tagalong.report
from tagalong.group import Group, Taught, select_groups_by_budget
from tagalong.report import write_report
from tagalong.report.page.answer import _groups_card, copies_in_words
from tagalong.report.page.document import to_script_json
from tagalong.report.style import format_percent
from tagalong.study import Change, Cost, LateNetworks, Learning, Results, RowNoise, Score, read_run


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(found[1])


def test_the_page_has_all_sections(hostile_page: Path) -> None:
    text = hostile_page.read_text(encoding="utf-8").partition('<script type="application/json"')[0]
    for part in (
        "measured",
        "networks",
        "affinity",
        "time",
        "budget",
        "worth",
        "search",
        "reading",
        "care",
        "obtained",
    ):
        assert f'id="{part}"' in text
    for words in (
        "Grouping is worth it", "Use three networks, each for some of the tasks.",
        "tagalong run table.csv --targets &#x27;a b,c&#x27;",
        "tagalong report ", "optimizer adamw", "seeds 0 1 2", "torch 2.13.0", "693 (1% missing)", "drawn at random",
        "It implies neither similarity nor causation", "gender: is_male", "optimizer steps",
    ):  # fmt: skip
        assert words in text, words


def test_copies_share_a_card(tmp_path: Path) -> None:
    results = make_run(tmp_path, ["a", "b", "c"])
    copies = tuple(Group("abc", "abc", copy=number) for number in (0, 1, 2))
    averaged = [
        replace(record, method="ensemble", groups=copies) if record.label == ("tag", 3) else record
        for record in results.records
    ]
    kept = [record for record in averaged if record.method in ("mtl", "ensemble")]
    Results(kept, problem=results.problem, noise={("ensemble", 3): 0.001}, settings=results.settings).save(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    for words in (
        "Averaging networks is worth it", "Use three copies of one network and average their answers.",
        "Networks 1, 2 and 3: copies, averaged",
        "Where several networks answer a task, its answer is the mean of their values.",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("copies, averaged") == 1


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """A run whose best networks are taught by others and averaged, and its page."""
    folder = tmp_path_factory.mktemp("taught")
    results = make_taught_run(folder, ["age", "<b>", "ill", "noise"])
    return results, write_report(folder)


def page_text(page: Path) -> str:
    """The page as text, without tags, scripts and styles."""
    body = page.read_text(encoding="utf-8").partition("<body>")[2].partition("<script")[0]
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", body).split()))


def test_the_headline_answers_three_questions(taught: tuple[Results, Path]) -> None:
    results, page = taught
    verdict, shown = results.verdict(), page_text(page).partition("The evidence")[0]

    def lower(change: Change, about: str = "") -> str:
        low, estimate, high = (f"{-100 * value:.1f}" for value in (change.high, change.estimate, change.low))
        return f"{estimate}% lower test losses{about} (95% interval: {low} to {high}% lower)"

    assert "Use three networks, two of them taught by others, and average their answers." in shown
    networks = "three networks, two of them taught by others, have"
    change = format_percent(verdict.networks.estimate)
    for words in (
        f"Is more than one plain network worth it? Yes: {change}%",
        f"Compared with one plain network, {networks} {lower(verdict.networks, ', averaged over tasks')}. They cost 3",
        "The same plan, trained with three seeds that also chose it, has "
        + lower(verdict.recipe).replace("test losses", "losses"),
        "Do groups matter, or would copies do? Groups matter.",
        f"copies of one plain network, averaged (ensemble), the same plan has {lower(verdict.change_from_copies)}",
        "Was everything learnt, and for long enough? No: 1 of 4 tasks was not learnt. noise not learnt It does not",
        "1 of 18 networks was still improving when training ended; raise epochs .",
    ):
        assert words in shown, words


def test_one_network_is_compared_with_one_plain_network(taught: tuple[Results, Path]) -> None:
    verdict = taught[0].verdict()
    single = replace(verdict, copies=("best-of", 1), groups=verdict.groups[:1])
    shown = str(_groups_card(single, single.answers()[3]))
    assert f"One network for all tasks has no groups. Compared with {copies_in_words('best-of', 1)}" in shown
    several = str(_groups_card(replace(verdict, copies=("best-of", 3)), verdict.answers()[3]))
    assert f"Compared with {copies_in_words('best-of', 3)}" in several
    assert "no groups" not in several


@pytest.mark.parametrize(
    ("p_value", "late", "answer"),
    [
        (1e-6, LateNetworks(0, 9), "Yes. On every task, a network beats a constant"),
        (1e-6, LateNetworks(2, 9), "Yes, but perhaps not for long enough. On every task"),
        (0.7, LateNetworks(0, 9), "No: nothing was learnt. On validation data"),
        (None, None, "Not checked. The best constants are not known here"),
    ],
)
def test_the_headline_says_whether_everything_was_learnt(
    tmp_path: Path, p_value: float | None, late: LateNetworks | None, answer: str
) -> None:
    made = make_run(tmp_path, [*"abc"])
    p_values = {} if p_value is None else dict.fromkeys("abc", p_value)
    learning = Learning(p_values, {} if late is None else {("mtl", None): late})
    Results(made.records, problem=made.problem, noise=made.noise, learning=learning).save(tmp_path)
    shown = page_text(write_report(tmp_path))
    assert f"Was everything learnt, and for long enough? {answer}" in shown
    if p_value == 0.7:
        assert shown.count("Nothing was learnt: no network beats a constant.") == 1
        assert "How many networks? What each further one buys" not in shown


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (1, "one plain network (best-of)"),
        (2, "two copies of one plain network, averaged (best-of)"),
        (None, "copies of one plain network, averaged (best-of)"),
    ],
)
def test_one_copy_is_not_called_copies(budget: int | None, words: str) -> None:
    assert copies_in_words("best-of", budget) == words


def test_many_unlearnt_tasks_are_counted_at_the_top(tmp_path: Path) -> None:
    tasks = [f"t{i:02}" for i in range(16)]
    made = make_run(tmp_path, tasks)
    learning = Learning({task: 1e-9 if task in tasks[:2] else 0.9 for task in tasks})
    Results(made.records, problem=made.problem, learning=learning).save(tmp_path)
    top = page_text(write_report(tmp_path)).partition("The evidence")[0]
    assert "No: 14 of 16 tasks were not learnt." in top
    assert "t13 not learnt and 2 more They do not count" in top
    assert "t14" not in top


def test_one_seed_leaves_the_headline_open(tmp_path: Path) -> None:
    made = make_run(tmp_path, [*"abc"])
    Results([record for record in made.records if record.seed == 0], problem=made.problem).save(tmp_path)
    shown = page_text(write_report(tmp_path))
    assert "Use one plain network for all tasks, until more seeds show that others are better." in shown
    assert "Is more than one plain network worth it? Not known." in shown


def test_the_evidence_has_four_answers(taught: tuple[Results, Path]) -> None:
    results, page = taught
    shown = page_text(page).partition("The evidence")[2]
    for question, answer, detail in results.verdict().answers():
        words = re.sub(r"(?<!\w)-(?=\d)", "−", detail).replace("`", " ").removeprefix(f"{answer[:-1]}: ")
        start = f"{question} {answer} "
        found = shown.partition(start)[2].replace(" .", ".")
        assert found.lower().startswith(" ".join(words.split()).replace(" .", ".").lower()), question
    answers = [answer for _, answer, _ in results.verdict().answers()]
    assert answers == ["Partly.", "No.", "Yes.", "Groups matter."]
    assert "Groups matter. Compared with ensemble (budget 3)" in shown
    assert "Partly. noise is not counted" in shown


def test_the_page_states_the_networks_the_recipe_and_copies_separately(taught: tuple[Results, Path]) -> None:
    results, page = taught
    verdict, text = results.verdict(), page.read_text(encoding="utf-8")
    for name, change in (
        ("the networks you get, compared with one plain network", verdict.networks),
        ("the same plan over 3 seeds, compared with one plain network", verdict.recipe),
        ("the same plan, compared with ensemble (budget 3)", verdict.change_from_copies),
        ("the networks you get, compared with ensemble (budget 3)", verdict.networks_from_copies),
    ):
        numbers = [format_percent(value) for value in (change.estimate, change.low, change.high)]
        assert 'aria-label="{}: {}%, {} to {}%"'.format(name, *numbers) in text


def test_measured_budgets_show_what_each_further_network_buys(taught: tuple[Results, Path]) -> None:
    results, page = taught
    found = results.verdict().by_budget
    assert {k: (one.kind, [other.kind for other in one.others]) for k, one in found.items()} == {
        1: ("taught", ["plain"]), 2: ("taught", ["copies", "larger"]), 3: ("taught", ["copies"]),
    }  # fmt: skip
    shown = page_text(page).partition("The best way of each kind")[2]
    for before, k in ((1, 2), (2, 3)):
        one, gain = found[k], found[k].change.estimate - found[before].change.estimate
        numbers = [format_percent(value) for value in (one.change.estimate, one.change.low, one.change.high, gain)]
        assert "{} taught networks (auto) {}% {} to {} {} ".format(k, *numbers) in shown
        copies = one.others[0]
        assert f"averaged copies (ensemble) {format_percent(copies.change.estimate)}%" in shown
    traces = {trace["name"]: trace for trace in data_of(page)["measured"]["data"]}
    assert traces["best way found"]["x"] == traces["taught networks"]["x"] == [1, 2, 3]
    assert [round(x) for x in traces["averaged copies"]["x"]] == [1, 2, 3]
    assert len(page_text(page).split("How many networks?")) == 2
    assert "Groups suggested by affinity" in page_text(page)


def test_without_measured_networks_only_affinity_answers_how_many(tmp_path: Path) -> None:
    made = make_run(tmp_path, ["a", "b", "c"])
    plain = [record for record in made.records if record.method == "mtl"]
    Results(plain, problem=made.problem, settings=made.settings).save(tmp_path)
    page = write_report(tmp_path)
    assert data_of(page)["measured"] is None
    assert "How many networks? The best groups by affinity" in page_text(page)


def test_a_committee_shows_who_answers_what_and_who_was_taught(taught: tuple[Results, Path]) -> None:
    _, page = taught
    shown = page_text(page).partition("3 networks (recommended)")[2]
    assert "Where several networks answer a task, its answer is the mean of their values." in shown
    learning = (
        "Learns 50% from labels and 50% from the answers of 3 teachers, also on 1 mixture of two rows for each row."
    )
    teachers = "The 3 teachers 2 networks for all tasks 1 network for age, <b>"
    assert (
        f"Network 1 Student, trained on all 4 tasks. {learning} answers age <b> ill noise not learnt {teachers}"
        in shown
    )
    assert "Network 3 Plain network, trained on 2 of 4 tasks. answers age trained only to help: <b>" in shown
    who = shown.partition("Who answers what")[2]
    assert "age mean of networks 1, 2 and 3 " in who
    assert "<b> mean of networks 1 and 2 " in who
    assert "noise not learnt mean of networks 1 and 2 " in who


def test_the_best_networks_of_every_budget_can_be_chosen(taught: tuple[Results, Path]) -> None:
    results, page = taught
    text, shown = page.read_text(encoding="utf-8"), page_text(page).partition("The network to use")[2]
    names = ["1 network", "2 networks", "3 networks (recommended)"]
    assert re.findall(r'data-choice="(.*?)"', text) == names
    assert re.findall(r'data-choice="([^"]*)" data-recommended', text) == names[2:]
    change = results.verdict().by_budget[2].change
    numbers = [format_percent(value) for value in (change.estimate, change.low, change.high)]
    for words in (
        "One network for all tasks, taught by three others, found by auto (budget 1).",
        "Two networks, both taught by others, found by auto (budget 2).",
        "Compared with one plain network, the test losses change by {}% ({} to {}%)".format(*numbers),
    ):
        assert words in page_text(page), words
    assert shown == ""  # several networks


def test_one_plain_network_can_be_chosen_if_another_single_one_is_not_reliably_better(tmp_path: Path) -> None:
    made = make_taught_run(tmp_path, [*"abc"])
    kept = [record for record in made.records if record.label in (("mtl", None), ("auto", 1), ("mtl-big2", None))]
    noise = {record.label: 0.5 for record in kept}
    Results(kept, problem=made.problem, noise=RowNoise(*[noise] * 4)).save(tmp_path)
    page = write_report(tmp_path)
    names = re.findall(r'data-choice="(.*?)"', page.read_text(encoding="utf-8"))
    assert names == ["1 plain network (recommended)", "1 network", "2 networks"]
    assert "Network 1 Network with 2 times the parameters, trained on all 3 tasks." in page_text(page)


def test_networks_of_large_budgets_are_not_listed(tmp_path: Path) -> None:
    make_run(tmp_path, [f"t{i}" for i in range(14)])
    names = re.findall(r'data-choice="(.*?)"', write_report(tmp_path).read_text(encoding="utf-8"))
    assert names == ["1 network", "2 networks", "3 networks (recommended)"]


@pytest.mark.parametrize(
    ("kinds", "average"),
    [
        (("binary", "multiclass", "binary"), "the mean of their probabilities"),
        (("regression", "regression", "binary"), "the mean of their values or the mean of their probabilities"),
        (("custom", "custom", "custom"), "the average that the task defines"),
    ],
)
def test_the_page_says_how_answers_are_averaged(tmp_path: Path, kinds: tuple[str, ...], average: str) -> None:
    made = make_taught_run(tmp_path, [*"abc"])
    problem = replace(made.problem, kinds=dict(zip("abc", kinds, strict=True)))
    Results(made.records, problem=problem, noise=made.row_noise).save(tmp_path)
    assert f"Where several networks answer a task, its answer is {average}." in page_text(write_report(tmp_path))


def test_unlearnt_tasks_are_marked_wherever_they_are_shown(taught: tuple[Results, Path]) -> None:
    _, page = taught
    shown, data = page_text(page), data_of(page)
    assert data["unlearnt"] == ["noise"]
    assert all(figure["figure"]["layout"]["yaxis"]["ticktext"].count("noise †") == 1 for figure in data["changes"])
    note = "† not learnt: on validation data, no network beats a constant by more than the noise."
    assert shown.count(note) == 4  # the heat map, affinity over training, groups by affinity, and changes by task
    assert '<th scope="col">noise †</th>' in page.read_text(encoding="utf-8")
    assert "noise (not learnt) regression mae" in shown
    rows = re.findall(r"<th scope=\"row\">noise(.*?)</th>", page.read_text(encoding="utf-8"))
    assert rows
    assert all("not learnt" in row or "†" in row for row in rows)


@pytest.mark.parametrize(
    ("budget", "headline"),
    [
        (1, "Use one network for all tasks, taught by three others."),
        (2, "Use two networks, both taught by others, and average their answers."),
    ],
)
def test_students_are_named_in_the_answer(tmp_path: Path, budget: int, headline: str) -> None:
    made = make_taught_run(tmp_path, ["a", "b", "c"])
    kept = [record for record in made.records if record.label in (("mtl", None), ("auto", budget))]
    Results(kept, problem=made.problem, noise=made.row_noise, settings=made.settings).save(tmp_path)
    shown = page_text(write_report(tmp_path))
    assert headline in shown
    single = "Do groups matter, or would copies do? No. auto (budget 1) is one network for all tasks"
    assert (single in shown) == (budget == 1)
    assert ("Networks 1 and 2: students, averaged" in shown) == (budget == 2)


class Tags(HTMLParser):
    """The elements of a page, and the handlers of events in it."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_names_of_tasks_are_not_interpreted_as_html(hostile_page: Path) -> None:
    tags = Tags()
    tags.feed(hostile_page.read_text(encoding="utf-8"))
    assert tags.elements["script"] == 3
    assert not {"img", "b", "iframe", "link", "base", "object", "svg"} & set(tags.elements)
    assert tags.handlers == []


def test_data_cannot_close_the_script_element() -> None:
    text = to_script_json({"name": "</script><!--<script>\u2028"})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"name": "</script><!--<script>\u2028"}


def test_every_budget_has_groups(hostile_page: Path) -> None:
    found = data_of(hostile_page)["budgets"]
    assert [entry["k"] for entry in found] == [1, 2, 3, 4, 5, 6]
    for entry in found:
        served = [task for network in entry["networks"] for task in network["serves"]]
        assert sorted(served) == sorted(HOSTILE)
        assert entry["value"] <= entry["bound"] * (1 + 1e-9)
    assert "resamples" in " ".join(found[1]["summary"])
    assert "training these networks changed the test losses" in " ".join(found[1]["summary"])


def test_groupings_of_the_run_are_used_for_its_budgets(tmp_path: Path) -> None:
    make_run(tmp_path, ["a", "b", "c", "d"])
    run = read_run(tmp_path)
    budgets = run.all_budgets()
    assert sorted(run.groupings) == [2, 3]
    assert budgets[2] is run.groupings[2]
    assert budgets[4].budget == 4
    assert run.shown_budget(budgets) == 3


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[list[int]]]:
    """A run of fourteen tasks that asked for two budgets, and which budgets are solved for its page."""
    make_run(tmp_path, [f"t{i}" for i in range(14)], budgets=(2, 3))
    document = json.loads((tmp_path / "groupings.json").read_text())
    document["groupings"] = [entry for entry in document["groupings"] if entry["budget"] in (2, 3)]
    (tmp_path / "groupings.json").write_text(json.dumps(document))
    solved: list[list[int]] = []

    def counted(scores: Any, budgets: list[int], **options: Any) -> Any:
        solved.append(budgets)
        return select_groups_by_budget(scores, budgets, **options | {"solver": "search", "time_limit": 0.5})

    monkeypatch.setattr("tagalong.study.finished_run.select_groups_by_budget", counted)
    return tmp_path, solved


def test_all_budgets_of_many_tasks_are_solved_together(many: tuple[Path, list[list[int]]]) -> None:
    folder, solved = many
    first = read_run(folder).all_budgets()
    assert solved == [[1, *range(4, 15)]]
    entries = data_of(write_report(folder))["budgets"]
    assert all(("proven" in said) == (first[k].status == "optimal") for k, said in _summaries(entries))
    assert all(("% more" in said) == (first[k].status != "optimal") for k, said in _summaries(entries))


def test_plots_and_budgets_of_hundreds_of_tasks_are_limited(
    many: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagalong.report.page.document.MAX_TASKS", 10)
    monkeypatch.setattr("tagalong.study.finished_run.MAX_TASKS_FOR_ALL_BUDGETS", 10)
    folder, solved = many
    page = write_report(folder)
    data = data_of(page)
    assert not solved
    assert ([entry["k"] for entry in data["budgets"]], data["shown"]) == ([2, 3], 2)
    assert [len(drawn["tasks"]) for drawn in (*data["heatmaps"], data["time"])] == [10] * (len(data["heatmaps"]) + 1)
    assert all(
        len(shape) == 10 for shape in (data["heatmaps"][0]["figure"]["data"][0]["hovertext"], data["time"]["mean"])
    )
    assert page.read_text(encoding="utf-8").count("The first 10 of 14 tasks;") == 3
    assert sum(len(one["serves"]) for one in data["budgets"][1]["networks"]) == 14


def _summaries(entries: list[dict]) -> list[tuple[int, str]]:
    return [(entry["k"], "; ".join(entry["summary"])) for entry in entries]


def test_the_page_works_without_affinities_and_settings(tmp_path: Path) -> None:
    results = make_run(tmp_path, ["a", "b", "c"])
    for file in tmp_path.glob("*.json"):
        file.unlink()
    results.settings.clear()
    results.save(tmp_path)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="heatmap"' not in text.partition("<script")[0]
    assert 'id="methods"' in text


def test_missing_values_of_networks_trained_elsewhere_are_left_out(tmp_path: Path) -> None:
    made = make_run(tmp_path, ["a", "b", "c"])
    assert "test error" in write_report(tmp_path).read_text(encoding="utf-8")
    records = [
        replace(
            record,
            val={task: Score(found.loss, math.nan) for task, found in record.val.items()},
            test={task: Score(found.loss, math.nan) for task, found in record.test.items()},
            deciding=Cost(),
            training=Cost(),
            parameters=0,
        )
        for record in made.records
    ]
    Results(records, problem=made.problem).save(tmp_path / "results.json")
    text = write_report(tmp_path).read_text(encoding="utf-8").partition("<script")[0]
    assert 'id="cost"' not in text
    assert "Costs are optimizer steps" not in text
    assert "Costs are unknown" in text
    assert "test error" not in text
    assert re.search(r'<th scope="col">test loss</th>.*?<td>\d\.\d+</td>', text)


def test_an_affinity_without_history_is_drawn(tmp_path: Path) -> None:
    make_run(tmp_path, ["a", "b", "c"])
    (tmp_path / "affinity-cs.json").unlink()
    affinity = fake_affinity(["a", "b", "c"], 5)
    type(affinity).from_matrix(affinity.mean, affinity.tasks).save(tmp_path / "affinity.json")
    found = data_of(write_report(tmp_path))
    assert [entry["average"] for entry in found["heatmaps"]] == ["mean"]
    assert found["time"] is None


def test_the_page_shows_how_auto_searched(tmp_path: Path) -> None:
    make_run(tmp_path, ["a", "<b>", "c"])
    page = write_report(tmp_path)
    text = page.read_text(encoding="utf-8").partition("<script")[0]
    for words in ("spent 2.1 of 2.5 trainings", "made the first 6.4% slower", "&lt;b&gt;</td><td>0</td><td>−10.0%"):
        assert words in text, words
    lines = data_of(page)["search"]["data"]
    assert [(line["x"], line["y"]) for line in lines] == [([1.1, 2.1], [0.0, -6.0])] * 2


def test_the_page_shows_what_averaging_and_teaching_brought(taught: tuple[Results, Path]) -> None:
    _, page = taught
    shown = page_text(page).partition("How auto searched")[2]
    for words in (
        "on 2 networks for all tasks, 1 network for 1 set of tasks, and 3 students, which other networks taught",
        "networks copies only with taught networks with all networks recommended",
        "1 −2.0% −6.0% −5.0% −6.0 ± 1.0% 2 −4.0% −8.0% −7.0% −8.0 ± 1.0% 3 −6.0% −10.0% −13.0% −13.0 ± 1.0%",
        "3 networks teach the 3 students: 2 trained on all tasks and 1 trained on (<b>, age).",
        "answers 2 −15.0% −20.0%",  # alone, they have losses of 0.8 and 0.9, and the copies 0.9 and 1.1
        "answers (50%) and labels, 1 mixture per row 1 −30.0% −30.0%",
        "3.1 age, <b> some tasks 1 −10.0%",
        "student: answers (50%) and labels, 1 mixture per row",
    ):
        assert words in shown, words
    used = re.findall(r'<td class="best">(.*?)</td>', page.read_text(encoding="utf-8"))
    assert used == ["−6.0%", "−8.0%", "−13.0%"]


def test_the_page_says_why_answers_are_not_averaged(tmp_path: Path) -> None:
    made = make_run(tmp_path, ["a", "b", "c"])
    made.settings["decisions"]["auto"]["one_network_per_task"] = "the rows are read from files"
    made.save(tmp_path)
    assert "Each task is answered by one network: the rows are read from files." in page_text(write_report(tmp_path))


def test_the_page_needs_no_torch(tmp_path: Path) -> None:
    make_run(tmp_path, ["a", "b", "c"])
    code = f"import sys; from tagalong.report import write_report; write_report({str(tmp_path)!r}); "
    done = subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=False)
    assert done.returncode == 0


def test_the_report_neither_solves_nor_trains() -> None:
    """`write_report` asks `tagalong.study` for the groups of every budget; nothing else in the room could find them."""
    taken = set()
    for file in Path(tagalong.report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                taken |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Import):
                taken |= {name.name for name in node.names}
    rooms = {name.split(".")[1] for name in taken if name.startswith("tagalong.")}
    assert rooms <= {"_version", "affinity", "errors", "files", "group", "rendering", "study"}
    assert (
        not {"tagalong.group.select_groups", "tagalong.group.select_groups_by_budget", "tagalong.study.Study"} & taken
    )
    assert not {name for name in taken if name.split(".")[0] in ("torch", "tagalong_paper")}


@pytest.mark.slow
def test_forty_tasks_stay_below_ten_megabytes(tmp_path: Path) -> None:
    make_run(tmp_path, [f"attribute_number_{i}" for i in range(40)], budgets=(2, 5), steps=100)
    assert write_report(tmp_path).stat().st_size < 10_000_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must have the format 'tagalong-groupings', found 'list'"),
        ('{"groupings": [{"method": "tag"}]}', "must have the format 'tagalong-groupings', found None"),
        (
            '{"format": "tagalong-groupings", "version": 1, "groupings": [{"method": "tag"}]}',
            r"is damaged: groupings\[0\].grouping is missing; run the study again",
        ),
    ],
)
def test_damaged_groupings_are_named(tmp_path: Path, content: str, said: str) -> None:
    make_run(tmp_path, ["a", "b", "c"])
    (tmp_path / "groupings.json").write_text(content)
    with pytest.raises(ValueError, match=rf"groupings\.json {said}"):
        write_report(tmp_path)


def test_a_folder_without_a_run_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the folder of a finished run"):
        write_report(tmp_path)


def test_tabm_networks_are_named(tmp_path: Path) -> None:
    made = make_taught_run(tmp_path, [*"abc"])
    tabm = Group("abc", "abc", network="tabm")
    groups = (tabm, replace(tabm, copy=1), Group("abc", "abc", copy=2))
    teachers = made.settings["decisions"]["auto"]["teachers"]
    teachers.append(replace(tabm, copy=3).to_document(cost=False))
    student = Group("abc", "abc", taught=Taught(("k1", "k2", "k3", "k4")))
    swapped = {("auto", 1): (tabm,), ("auto", 2): (student, Group("abc", "abc")), ("auto", 3): groups}
    records = [replace(record, groups=swapped.get(record.label, record.groups)) for record in made.records]
    results = Results(records, problem=made.problem, noise=made.row_noise, settings=made.settings)
    results.save(tmp_path)
    page = write_report(tmp_path)
    shown = page_text(page)
    for words in (
        "Use three networks, two of them TabM networks, and average their answers.",
        "One TabM network for all tasks, found by auto (budget 1).",
        "Networks 1 and 2: TabM networks, averaged TabM network, trained on all 3 tasks. answers a b c",
        "The 4 teachers 1 TabM network for all tasks 2 networks for all tasks 1 network for a, b",
    ):
        assert words in shown, words
    assert "TabM networks" in [trace["name"] for trace in data_of(page)["measured"]["data"]]
