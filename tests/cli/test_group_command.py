"""`tagalong group`: every kind of file and every option."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.group import Candidate, Grouping, select_groups

NAMES = ["age", "weight", "smoker", "ill"]
MATRIX = np.array([[0, 0.5, 0.1, -0.2], [0.4, 0, 0, 0.1], [-0.1, 0.1, 0, 0.6], [0.3, 0.1, 0.5, 0]])
AFFINITY = Affinity.from_matrix(MATRIX, NAMES)
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


# Kinds of files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("semicolons.csv", SQUARE.replace(",", ";")),
        ("marked.csv", "\ufeff" + SQUARE.replace("\n", "\r\n")),
        ("plain.csv", SQUARE.replace("source", "")),
        ("lying.json", SQUARE),
    ],
)
def test_the_same_table_in_other_formats_gives_the_same_groups(tagalong: Terminal, name: str, text: str) -> None:
    assert grouping_of(tagalong, write(name, text), "--budget", "2") == select_groups(AFFINITY, 2)


def test_results_with_costs_are_candidates(tagalong: Terminal) -> None:
    text = "group,cost,a,b\na,0.5,1,\na,1,2,\nb,0.5,,1\na+b,1,1.5,1.5\n"
    rows = [("a", {"a": 1.0}, 0.5), ("a", {"a": 2.0}, 1), ("b", {"b": 1.0}, 0.5), ("ab", {"a": 1.5, "b": 1.5}, 1)]
    candidates = [Candidate({*trains}, values, cost) for trains, values, cost in rows]
    name = write("n.csv", text)
    for most in (1, 1.5, 2):
        expected = select_groups(candidates, 2, max_total_cost=most)
        assert grouping_of(tagalong, name, "--max-total-cost", str(most)) == expected


# Options -------------------------------------------------------------------------------------------------------------


def test_options_are_passed_to_the_selection(tagalong: Terminal) -> None:
    history = 0.5 * np.random.default_rng(0).standard_normal((60, 6, 6))
    affinity = Affinity.from_history(history, list("abcdef"))
    affinity.save("r.json")
    for typed, options in [
        ("--objective min", {"objective": "min"}),
        ("--allow-single", {"allow_single": True}),
        ("--no-single", {"allow_single": False}),
        ("--max-size 3", {"max_size": 3}),
        ("--must-link a,d --must-link b,c", {"must_link": [("a", "d"), ("b", "c")]}),
        ("--cannot-link a,b", {"cannot_link": [("a", "b")]}),
        ("--weights a=3,b=0.5", {"weights": {"a": 3, "b": 0.5}}),
        ("--solver search --seed 3 --time-limit 60", {"solver": "search", "seed": 3, "time_limit": 60}),
        ("--cost 0.5", {"cost": 0.5}),
        ("--cost half-single --allow-single", {"cost": lambda g: 0.5 if len(g) == 1 else 1, "allow_single": True}),
        ("--cost 0.5+0.1 --max-cost 0.8", {"cost": lambda g: 0.5 + 0.1 * len(g), "max_cost": 0.8}),
        ("--cost 0.5+0.1 --max-total-cost 2", {"cost": lambda g: 0.5 + 0.1 * len(g), "max_total_cost": 2}),
    ]:
        expected = select_groups(affinity, 3, resamples=0, **options)  # type: ignore[arg-type]
        assert grouping_of(tagalong, "r.json", "--budget", "3", "--resamples", "0", *typed.split()) == expected, typed
    for average in ("mean", "trimmed", "median"):
        expected = select_groups(affinity.averaged(average), 3, resamples=20)  # type: ignore[arg-type]
        typed = ("--average", average, "--resamples", "20")
        assert grouping_of(tagalong, "r.json", "--budget", "3", *typed) == expected
    some = grouping_of(tagalong, "r.json", "--budget", "1", "--resamples", "0", "--tasks", "d, a")
    assert some == select_groups(affinity.only(["d", "a"]), 1, resamples=0)


def test_pairs_are_completed_as_hoa_does(tagalong: Terminal) -> None:
    pairs = {group: row for group, row in TABLE.items() if len(group) < 3}
    plain = write("pairs.csv", "".join(line + "\n" for line in RESULTS.splitlines()[:-1]))
    square = write("square.csv", "with,a,b,c\na,1,1,1\nb,4,2,2\nc,2,5,3\n")
    expected = select_groups(pairs, 2, complete="pairs")
    for name in (plain, square):
        found = grouping_of(tagalong, name, "--budget", "2", "--complete", "pairs")
        assert (found.groups, found.value) == (expected.groups, expected.value)
    # with half-size networks for single tasks
    costs: Any = {"cost": lambda group: 0.5 if len(group) == 1 else 1, "max_cost": 1, "max_total_cost": 1.5}
    expected = select_groups(pairs, 3, complete="pairs", **costs)
    typed = (plain, "--cost", "half-single", "--max-cost", "1", "--max-total-cost", "1.5", "--complete", "pairs")
    found = grouping_of(tagalong, *typed)
    assert (found.groups, found.value) == (expected.groups, expected.value)


# What is shown -------------------------------------------------------------------------------------------------------


def test_one_budget_shows_networks_and_tasks(tagalong: Terminal) -> None:
    result = tagalong("group", write("a.csv", SQUARE), "--budget", "2")
    assert result.err == ""
    rows = [line.split() for line in result.out.splitlines()]
    for row in ("1 age, weight 0.9", "2 ill, smoker 1.1", "age 1 0.4 0.1", "ill 2 0.6 -0.05"):
        assert row.split() in rows, row
    quiet = tagalong("group", "a.csv", "--budget", "2", "--quiet", "--out", "best.json").out
    assert [line.split()[0] for line in quiet.splitlines() if line] == ["2", "network", "1", "2"]
    tied = tagalong("group", write("t.csv", ",a,b,c\na,0,2,1\nb,1,0,1\nc,1,2,0\n"), "--budget", "2", "--max-size", "2")
    assert "equally good" in tied.out


def test_several_budgets_come_in_one_table_with_costs(tagalong: Terminal) -> None:
    result = tagalong("group", write("a.csv", SQUARE))
    rows = re.findall(r"^ +(\d) +(\S+) +(\+\S+)?  optimal", result.out, re.MULTILINE)
    assert rows == [("1", "0.8", ""), ("2", "2", "+1.2"), ("3", "2", "+0"), ("4", "2", "+0")]
    assert result.out.rstrip().endswith("2 networks are enough")
    document = json.loads(tagalong("group", "a.csv", "--budgets", "2,3-4", "--cost", "0.5+0.25", "--json").out)
    assert [grouping["budget"] for grouping in document["groupings"]] == [2, 3, 4]
    assert [group["cost"] for group in document["groupings"][0]["groups"]] == [1, 1]


def test_a_history_shows_how_stable_the_groups_are(tagalong: Terminal) -> None:
    noise = 0.5 * np.random.default_rng(0).standard_normal((60, 4, 4))
    affinity = Affinity.from_history(noise + MATRIX, NAMES, settings={"estimator": "lookahead"})
    affinity.save("affinity.json")
    out = tagalong("group", "affinity.json", "--budget", "2", "--resamples", "50").out
    assert str(select_groups(affinity, 2, resamples=50).resampled) in out
    assert "100 resamples" in tagalong("group", "affinity.json").out


def test_explanations_are_given_on_request(tagalong: Terminal) -> None:
    grouping = select_groups(AFFINITY, 2)
    shown = tagalong("group", write("a.csv", SQUARE), "--budget", "2", "--explain", "ill").out
    assert grouping.explain("ill") in shown
    assert grouping.explain("age") not in shown
    document = json.loads(tagalong("group", "a.csv", "--budget", "2", "--explain", "all", "--json").out)
    assert document["explanations"] == {task: grouping.explain(task) for task in NAMES}
    assert document["input"] == {"file": "a.csv", "kind": "square", "axis": "source", "tasks": NAMES}


def test_groupings_are_saved(tagalong: Terminal) -> None:
    write("a.csv", SQUARE)
    tagalong("group", "a.csv", "--budget", "2", "--out", "new/best.json")
    assert Grouping.from_json(Path("new/best.json").read_text()) == select_groups(AFFINITY, 2)
    tagalong("group", "a.csv", "--budgets", "1-2", "--out", "all.json", "--quiet")
    document = json.loads(Path("all.json").read_text())
    assert len(document["groupings"]) == 2
    assert "nor causation" in document["caution"]
