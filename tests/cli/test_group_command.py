"""`tagalong group`: every kind of file and every option, through the command line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.group import Candidate, Grouping, select_groups

NAMES = ["age", "weight", "smoker", "ill"]
MATRIX = np.array([[0, 0.5, 0.1, -0.2], [0.4, 0, 0, 0.1], [-0.1, 0.1, 0, 0.6], [0.3, 0.1, 0.5, 0]])
SQUARE = (
    "source,age,weight,smoker,ill\nage,0,0.5,0.1,-0.2\nweight,0.4,0,0,0.1\nsmoker,-0.1,0.1,0,0.6\nill,0.3,0.1,0.5,0\n"
)
RESULTS = "group,a,b,c\na,1,,\nb,,2,\nc,,,3\na+b,4,1,\na+c,2,,1\nb+c,,5,2\na+b+c,2,2,2\n"
TABLE = {
    tuple(group.split("+")): {task: float(value) for task, value in zip("abc", values, strict=True) if value}
    for group, *values in (line.split(",") for line in RESULTS.splitlines()[1:])
}


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def grouping_of(tagalong: Terminal, *arguments: str) -> Grouping:
    """Returns the grouping that `--json` prints."""
    result = tagalong("group", *arguments, "--json")
    assert result.status == 0, result.err
    return Grouping.from_json(result.out)


def test_a_square_table_gives_the_best_networks(tagalong: Terminal) -> None:
    result = tagalong("group", write("a.csv", SQUARE), "--budget", "2")
    assert result.err == ""
    assert result.out == (
        "a.csv: square table of 4 tasks, row helps column\n\n"
        "2 networks for 4 tasks, total 2 (proven optimal)\n\n"
        "network  serves       score\n"
        "      1  age, weight    0.9\n"
        "      2  ill, smoker    1.1\n\n"
        "task    network  score  elsewhere\n"
        "age           1    0.4        0.1\n"
        "weight        1    0.5        0.1\n"
        "smoker        2    0.5       0.05\n"
        "ill           2    0.6      -0.05\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("semicolons.csv", SQUARE.replace(",", ";")),
        ("tabs.tsv", SQUARE.replace(",", "\t")),
        ("bars.txt", SQUARE.replace(",", "|")),
        ("marked.csv", "\ufeff" + SQUARE.replace("\n", "\r\n")),
        ("plain.csv", SQUARE.replace("source", "")),
        ("matrix.json", json.dumps({"tasks": NAMES, "matrix": MATRIX.tolist()})),
        (
            "nested.json",
            json.dumps({a: dict(zip(NAMES, row, strict=True)) for a, row in zip(NAMES, MATRIX.tolist(), strict=True)}),
        ),
        (
            "holes.json",
            json.dumps(
                {a: {b: MATRIX[i, j] for j, b in enumerate(NAMES) if a != b} for i, a in enumerate(NAMES)},
            ),
        ),
        ("lying.csv", json.dumps({"tasks": NAMES, "matrix": MATRIX.tolist()})),
        ("lying.json", SQUARE),
    ],
)
def test_the_same_table_in_other_formats_gives_the_same_groups(tagalong: Terminal, name: str, text: str) -> None:
    expected = select_groups(Affinity.from_matrix(MATRIX, NAMES), 2)
    assert grouping_of(tagalong, write(name, text), "--budget", "2") == expected


def test_utf_16_and_names_of_all_kinds_are_read(tagalong: Terminal) -> None:
    names = ["größe", "with space", "a+b", "[red]x[/red]"]
    text = Affinity.from_matrix(MATRIX, names).to_csv()
    Path("wide.csv").write_bytes(text.encode("utf-16"))
    result = tagalong("group", "wide.csv", "--budget", "2")
    assert all(name in result.out for name in names)


def test_tables_with_targets_in_rows_are_declared_by_an_option(tagalong: Terminal) -> None:
    text = Affinity.from_matrix(MATRIX.T, NAMES).to_csv().replace("source", "")
    for name in ("t.csv", "t.json"):
        write(name, text if name == "t.csv" else json.dumps({"tasks": NAMES, "matrix": MATRIX.T.tolist()}))
        expected = select_groups(Affinity.from_matrix(MATRIX, NAMES), 2)
        assert grouping_of(tagalong, name, "--budget", "2", "--axis", "target") == expected
        assert "column helps row" in tagalong("group", name, "-b", "2", "--axis", "target").out


def test_networks_that_the_budget_allows_but_nobody_needs_are_mentioned(tagalong: Terminal) -> None:
    remark = "the budget allows 3 networks, but more would not improve the total"
    table = write("a.csv", SQUARE)
    assert remark in tagalong("group", table, "--budget", "3").out
    assert "the budget allows" not in tagalong("group", table, "--budget", "2").out


def test_all_budgets_come_in_one_table(tagalong: Terminal) -> None:
    result = tagalong("group", write("a.csv", SQUARE), "--budgets", "all")
    assert re.findall(r"^ +(\d) +(\d) +(\S+)  proven", result.out, re.MULTILINE) == [
        *(("1", "1", "0.8"), ("2", "2", "2"), ("3", "2", "2"), ("4", "2", "2"))
    ]
    assert "2  proven  {age, weight}\n" in result.out
    helped = tagalong("group", write("h.csv", ",a,b,c\na,0,5,1\nb,5,0,0\nc,0,0,0\n"), "--budgets", "2").out
    assert "{c} + a\n" in helped
    listed = json.loads(tagalong("group", "a.csv", "--budgets", "1,2-3", "--json").out)["groupings"]
    assert [grouping["budget"] for grouping in listed] == [1, 2, 3]
    quiet = tagalong("group", "a.csv", "--budgets", "1-2", "--quiet").out
    assert quiet.splitlines()[0].split() == ["budget", "networks", "total", "proof", "{served}", "+", "helpers"]


def test_several_budgets_show_what_networks_cost(tagalong: Terminal) -> None:
    typed = (write("a.csv", SQUARE), "--budgets", "2,3", "--cost", "0.5+0.25")
    assert tagalong("group", *typed).out == (
        "a.csv: square table of 4 tasks, row helps column\n\n"
        "budget  networks  cost  total  proof   {served} + helpers: cost\n"
        "     2         2     2      2  proven  {age, weight}: 1\n"
        "                                       {ill, smoker}: 1\n"
        "     3         2     2      2  proven  {age, weight}: 1\n"
        "                                       {ill, smoker}: 1\n"
    )
    listed = json.loads(tagalong("group", *typed, "--json").out)["groupings"]
    assert [(grouping["budget"], grouping["cost"]) for grouping in listed] == [(2, 2), (3, 2)]
    assert [group["cost"] for grouping in listed for group in grouping["groups"]] == [1, 1, 1, 1]
    candidates = write("c.csv", "group,cost,a,b\na,0.5,1,\na,1,2,\nb,0.5,,2\na+b,1,1.5,1.5\n")
    shown = tagalong("group", candidates, "--budgets", "1,1.5", "--quiet").out
    assert re.search(r"^ +1 +1 +1 +3  proven  \{a, b\}: 1$", shown, re.MULTILINE)
    assert "1.5         2   1.5" in shown
    assert "cost" not in tagalong("group", "a.csv", "--budgets", "2,3").out


def test_options_are_passed_to_the_selection(tagalong: Terminal) -> None:
    affinity = Affinity.from_matrix(np.random.default_rng(0).standard_normal((6, 6)), list("abcdef"))
    affinity.to_csv("r.csv")
    for typed, options in [
        ("--objective min", {"objective": "min"}),
        ("--allow-single", {"allow_single": True}),
        ("--no-single", {"allow_single": False}),
        ("--max-size 3", {"max_size": 3}),
        ("--must-link a,d --must-link b,c", {"must_link": [("a", "d"), ("b", "c")]}),
        ("--cannot-link a,b", {"cannot_link": [("a", "b")]}),
        ("--weights a=3,b=0.5", {"weights": {"a": 3, "b": 0.5}}),
        ("--weights a=3 --weights b=0.5", {"weights": {"a": 3, "b": 0.5}}),
        ("--solver milp", {"solver": "milp"}),
        ("--solver search --seed 3 --time-limit 60", {"solver": "search", "seed": 3, "time_limit": 60}),
        ("--cost 0.5", {"cost": 0.5}),
        ("--cost half-single --allow-single", {"cost": lambda g: 0.5 if len(g) == 1 else 1, "allow_single": True}),
        ("--cost 0.5+0.1 --max-cost 0.8", {"cost": lambda g: 0.5 + 0.1 * len(g), "max_cost": 0.8}),
    ]:
        expected = select_groups(affinity, 3, **options)  # type: ignore[arg-type]
        assert grouping_of(tagalong, "r.csv", "--budget", "3", *typed.split()) == expected, typed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("costs.csv", "group,cost\na+b,1\nb + c,2\nc;a,1.5\n"),
        ("costs.tsv", "group\tcost\na,b\t1\nb,c\t2\nc,a\t1.5\n"),
        ("costs.json", '{"a+b": 1, "b+c": 2, "a+c": 1.5}'),
    ],
)
def test_costs_come_from_a_file(tagalong: Terminal, name: str, text: str) -> None:
    matrix = np.arange(9.0).reshape(3, 3)
    Affinity.from_matrix(matrix, list("abc")).to_csv("m.csv")
    costs = {frozenset("ab"): 1.0, frozenset("bc"): 2.0, frozenset("ac"): 1.5}
    expected = select_groups(Affinity.from_matrix(matrix, list("abc")), 3, cost=costs)
    assert grouping_of(tagalong, "m.csv", "--budget", "3", "--cost", write(name, text)) == expected
    shown = tagalong("group", "m.csv", "--budget", "3", "--cost", name).out
    assert re.search(r"network +serves +helped by +score +cost", shown)


def test_costs_may_be_given_by_the_number_of_tasks(tagalong: Terminal) -> None:
    Affinity.from_matrix(np.arange(9.0).reshape(3, 3), list("abc")).to_csv("m.csv")
    grouping = grouping_of(tagalong, "m.csv", "--budget", "2", "--cost", write("c.json", '{"2": 1, "3": 5}'))
    assert {len(group.trains) for group in grouping.groups} == {2}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wide.csv", RESULTS),
        ("wide.tsv", RESULTS.replace(",", "\t").replace("+", ",")),
        ("semicolons.csv", RESULTS.replace(",", ";").replace("+", ", ")),
        (
            "long.csv",
            "group,task,value\n"
            + "".join(
                f"{'+'.join(group)},{task},{value}\n" for group, row in TABLE.items() for task, value in row.items()
            ),
        ),
        ("list.json", json.dumps([{"trains": list(group), "values": row} for group, row in TABLE.items()])),
        ("mapping.json", json.dumps({"+".join(group): row for group, row in TABLE.items()})),
    ],
)
def test_results_of_groups_are_recognized(tagalong: Terminal, name: str, text: str) -> None:
    expected = select_groups(TABLE, 2)
    assert grouping_of(tagalong, write(name, text), "--budget", "2") == expected
    assert f"{name}: results of 7 groups of 3 tasks" in tagalong("group", name, "--budget", "2").out


def test_results_with_costs_are_candidates(tagalong: Terminal) -> None:
    text = "group,cost,a,b\na,0.5,1,\na,1,2,\nb,0.5,,1\na+b,1,1.5,1.5\n"
    candidates = [
        *(Candidate({"a"}, {"a": 1.0}, 0.5), Candidate({"a"}, {"a": 2.0}, 1), Candidate({"b"}, {"b": 1.0}, 0.5)),
        Candidate({"a", "b"}, {"a": 1.5, "b": 1.5}, 1),
    ]
    entries = [{"trains": sorted(c.trains), "values": dict(c.values), "cost": c.cost} for c in candidates]
    for name in (write("n.csv", text), write("n.json", json.dumps(entries))):
        for budget in (1, 1.5, 2):
            assert grouping_of(tagalong, name, "--budget", str(budget)) == select_groups(candidates, budget)
        assert "4 networks with their costs for 2 tasks" in tagalong("group", name, "--budget", "1").out


def test_pairs_are_completed_if_networks_have_costs(tagalong: Terminal) -> None:
    """HOA with half-size networks for single tasks: by --cost, and by a column of costs."""
    pairs = {group: values for group, values in TABLE.items() if len(group) <= 2}
    plain = write("pairs.csv", "\n".join(RESULTS.splitlines()[:-1]))
    expected = select_groups(pairs, 1.5, complete="pairs", cost=lambda group: 0.5 if len(group) == 1 else 1, max_cost=1)
    typed = ("--budget", "1.5", "--complete", "pairs")
    assert grouping_of(tagalong, plain, *typed, "--cost", "half-single", "--max-cost", "1") == expected
    lines = [f"{line},{1 if '+' in line else 0.5}" for line in RESULTS.splitlines()[1:-1]]
    costed = write("costed.csv", "\n".join(["group,a,b,c,cost", *lines]))
    again = grouping_of(tagalong, costed, *typed)
    assert (again.groups, again.value) == (expected.groups, expected.value)
    listed = [Candidate(group, values, 0.5 if len(group) == 1 else 1) for group, values in pairs.items()]
    dear = grouping_of(tagalong, costed, *typed[2:], "--cost", "0.5+0.5", "--budget", "2")
    assert dear == select_groups(listed, 2, complete="pairs", cost=lambda group: 0.5 + 0.5 * len(group))


def test_pairs_are_completed_as_hoa_does(tagalong: Terminal) -> None:
    pairs = {group: row for group, row in TABLE.items() if len(group) < 3}
    write("pairs.csv", "".join(line + "\n" for line in RESULTS.splitlines()[:-1]))
    square = "with,a,b,c\na,1,1,1\nb,4,2,2\nc,2,5,3\n"
    expected = select_groups(pairs, 2, complete="pairs")
    assert grouping_of(tagalong, "pairs.csv", "--budget", "2", "--complete", "pairs") == expected
    again = grouping_of(tagalong, write("square.csv", square), "--budget", "2", "--complete", "pairs")
    assert (again.groups, again.value) == (expected.groups, expected.value)
    assert all(len(group.trains) > 1 for group in grouping_of(tagalong, "square.csv", "--budget", "2").groups)


def test_a_subset_of_tasks_can_be_grouped(tagalong: Terminal) -> None:
    part = grouping_of(tagalong, write("a.csv", SQUARE), "--budget", "1", "--tasks", "ill, age")
    assert part == select_groups(Affinity.from_matrix(MATRIX, NAMES).only(["ill", "age"]), 1)
    some = grouping_of(tagalong, write("r.csv", RESULTS), "--budget", "2", "--tasks", "a,b")
    assert some == select_groups({group: row for group, row in TABLE.items() if "c" not in group}, 2)


def measured() -> Affinity:
    noise = 0.5 * np.random.default_rng(0).standard_normal((60, 4, 4))
    return Affinity.from_history(noise + MATRIX, NAMES, settings={"estimator": "lookahead"})


def test_a_history_shows_how_stable_the_groups_are(tagalong: Terminal) -> None:
    measured().save("affinity.json")
    result = tagalong("group", "affinity.json", "--budget", "2", "--together", "--resamples", "50")
    grouping = select_groups(measured(), 2, resamples=50)
    assert "affinity of 4 tasks over 60 measured steps, row helps column" in result.out
    assert str(grouping.resampled) in result.out
    assert re.search(r"task +network +score +elsewhere +settled", result.out)
    assert re.search(r"^age, weight +\d+%$", result.out, re.MULTILINE)
    assert grouping_of(tagalong, "affinity.json", "--budget", "2", "--resamples", "50") == grouping
    assert "stable" in tagalong("group", "affinity.json", "--budgets", "1,2").out
    assert "found none" in tagalong("group", write("a.csv", SQUARE), "--budget", "2", "--together").out


@pytest.mark.parametrize("average", ["mean", "trimmed", "median"])
def test_the_average_over_the_history_can_be_chosen(tagalong: Terminal, average: str) -> None:
    measured().save("affinity.json")
    expected = select_groups(measured().averaged(average), 2)  # type: ignore[arg-type]
    assert grouping_of(tagalong, "affinity.json", "--budget", "2", "--average", average) == expected


def test_explanations_are_given_on_request(tagalong: Terminal) -> None:
    grouping = select_groups(Affinity.from_matrix(MATRIX, NAMES), 2)
    one = tagalong("group", write("a.csv", SQUARE), "--budget", "2", "--explain", "ill").out
    assert grouping.explain("ill") in one
    assert grouping.explain("age") not in one
    every = tagalong("group", "a.csv", "--budget", "2", "--explain", "all").out
    assert all(grouping.explain(task) in every for task in NAMES)
    explanations = json.loads(tagalong("group", "a.csv", "--budget", "2", "--explain", "all", "--json").out)[
        "explanations"
    ]
    assert explanations == {task: grouping.explain(task) for task in NAMES}


def test_ties_are_shown(tagalong: Terminal) -> None:
    out = tagalong("group", write("t.csv", ",a,b,c\na,0,1,1\nb,1,0,1\nc,1,1,0\n"), "--budget", "2").out
    assert select_groups(np.ones((3, 3)), 2).ties == ()
    assert "just as good" not in out
    tied = tagalong("group", write("t.csv", ",a,b,c\na,0,2,1\nb,1,0,1\nc,1,2,0\n"), "--budget", "2", "--max-size", "2")
    assert "just as good, for example:" in tied.out


def test_groupings_are_saved(tagalong: Terminal) -> None:
    write("a.csv", SQUARE)
    expected = select_groups(Affinity.from_matrix(MATRIX, NAMES), 2)
    assert "saved to new/best.yaml" in tagalong("group", "a.csv", "--budget", "2", "--out", "new/best.yaml").out
    tagalong("group", "a.csv", "--budget", "2", "--out", "best.json")
    assert Grouping.from_yaml(Path("new/best.yaml").read_text()) == expected
    assert Grouping.from_json(Path("best.json").read_text()) == expected
    for name in ("all.yaml", "all.json"):
        tagalong("group", "a.csv", "--budgets", "1-2", "--out", name, "--quiet")
        assert len(yaml.safe_load(Path(name).read_text())["groupings"]) == 2


def test_quiet_shows_only_the_networks(tagalong: Terminal) -> None:
    result = tagalong("group", write("a.csv", SQUARE), "--budget", "2", "--quiet", "--out", "best.json")
    assert result.out.splitlines()[0] == "2 networks for 4 tasks, total 2 (proven optimal)"
    assert len(result.out.splitlines()) == 4


def test_json_output_is_only_json(tagalong: Terminal) -> None:
    result = tagalong("group", write("a.csv", SQUARE), "--budget", "2", "--json", "--out", "best.yaml")
    document = json.loads(result.out)
    assert document["input"] == {"file": "a.csv", "kind": "square", "axis": "source", "tasks": NAMES}
    assert document["interrupted"] is False
    assert document["gap"] == 0
    assert result.err == ""


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"a task with a long name {i}" for i in range(9)]
    Affinity.from_matrix(np.random.default_rng(1).standard_normal((9, 9)), names).to_csv("long.csv")
    for arguments in (("--budget", "3"), ("--budgets", "1-4")):
        out = tagalong("group", "long.csv", *arguments).out
        assert max(map(len, out.splitlines())) <= width
        assert not any(line.endswith(" ") for line in out.splitlines())
        assert "\x1b" not in out


def test_names_cannot_move_the_cursor(tagalong: Terminal) -> None:
    text = ',a,"\x1b[31mred"\na,0,1\n"\x1b[31mred",1,0\n'
    assert "\x1b" not in tagalong("group", write("evil.csv", text), "--budget", "1", "--explain", "all").out


def test_json_carries_the_caution(tagalong: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",gender,depth\ngender,0,1\ndepth,1,0\n")
    for wanted in (["--budget", "1"], ["--budgets", "all"]):
        document = json.loads(tagalong("group", "a.csv", *wanted, "--json").out)
        assert "gender: gender" in document["caution"]
    tagalong("group", "a.csv", "--budgets", "1,2", "--out", "all.json")
    assert "nor causation" in json.loads((tmp_path / "all.json").read_text())["caution"]
