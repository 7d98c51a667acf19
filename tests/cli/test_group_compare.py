"""`tagalong group --compare`: how much worse a user's own grouping is."""

import json
from pathlib import Path

import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.group import score_grouping, select_groups

TEXT = ",age,weight,smoker,ill\nage,0,0.5,0.1,-0.2\nweight,0.4,0,0,0.1\nsmoker,-0.1,0.1,0,0.6\nill,0.3,0.1,0.5,0\n"
MINE = [["age", "weight", "ill"], ["smoker", "ill"]]


@pytest.fixture(autouse=True)
def _table(tagalong: Terminal) -> None:
    Path("a.csv").write_text(TEXT)


def compare(tagalong: Terminal, mine: str, *arguments: str) -> str:
    Path("mine.yaml").write_text(mine)
    result = tagalong("group", "a.csv", "--compare", "mine.yaml", *arguments)
    assert result.status == 0, result.err
    return result.out


def test_the_comparison_shows_the_loss_in_total_and_by_task(tagalong: Terminal) -> None:
    out = compare(tagalong, "[[age, weight, ill], [smoker, ill]]")
    assert out.endswith(
        "mine.yaml: total 1.75, networks 2; best: total 2, networks 2\n\n"
        "network  serves       helped by  score\n"
        "      1  age, weight  ill         0.65\n"
        "      2  ill, smoker  -            1.1\n\n"
        "task    yours  best  loses\n"
        "age      0.35   0.4   0.05\n"
        "weight    0.3   0.5    0.2\n"
        "smoker    0.5   0.5      0\n"
        "ill       0.6   0.6      0\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "- [age, weight, ill]\n- [smoker, ill]\n",
        "body: [age, weight, ill]\nhabits: [smoker, ill]\n",
        "- trains: [age, weight, ill]\n  serves: [age, weight]\n- trains: [smoker, ill]\n  serves: [smoker, ill]\n",
        json.dumps({"groups": MINE}),
    ],
)
def test_every_file_format_gives_the_same_comparison(tagalong: Terminal, text: str) -> None:
    Path("mine.yaml").write_text(text)
    document = json.loads(tagalong("group", "a.csv", "--compare", "mine.yaml", "--json").out)
    scores = Affinity.from_csv("a.csv")
    mine, best = score_grouping(scores, MINE), select_groups(scores, 2)
    assert document["comparison"] == {
        "mine": mine.to_document(),
        "loss": best.value - mine.value,
        "per_task": {task: score - mine.per_task[task] for task, score in best.per_task.items()},
        "spent": {"mine": 2, "best": 2},
    }


def test_a_saved_grouping_loses_nothing(tagalong: Terminal) -> None:
    for name in ("best.yaml", "best.json"):
        tagalong("group", "a.csv", "--budget", "2", "--out", name)
        document = json.loads(tagalong("group", "a.csv", "--budget", "2", "--compare", name, "--json").out)
        assert document["comparison"]["loss"] == 0


def test_costs_are_compared(tagalong: Terminal) -> None:
    out = compare(tagalong, "[[age, weight], [smoker, ill]]", "--cost", "1+0.5", "--budget", "5")
    assert "total 2, total cost 4; best: total 2, total cost 4" in out


def test_quiet_adds_one_line(tagalong: Terminal) -> None:
    out = compare(tagalong, "[[age, weight, ill], [smoker, ill]]", "--quiet")
    assert out.splitlines()[-1] == "mine.yaml: total 1.75, networks 2; best: total 2, networks 2"


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        ("[[age, height]]", "", "'height'"),
        ("[[age, weight]]", "", "mine.yaml"),
        ("[[age], [weight, ill, smoker]]", "", "--allow-single"),
        ("[[age, weight, ill, smoker]]", "--max-size 3", "--max-size"),
        ("", "", "mine.yaml"),
        ("[[age, weight]", "", "mine.yaml"),
        ("{a: [[age]]}", "", "mine.yaml"),
        ("- {trains: [age], serves: [ill]}", "", "serves"),
        ("[[age, weight, ill, smoker]]", "--budgets 1,2", "--compare"),
    ],
)
def test_invalid_groupings_are_rejected(tagalong: Terminal, text: str, arguments: str, named: str) -> None:
    Path("mine.yaml").write_text(text)
    budget = [] if "--budgets" in arguments else ["--budget", "2"]
    assert named in tagalong.error_of("group", "a.csv", "--compare", "mine.yaml", *arguments.split(), *budget)


def test_the_error_names_a_missing_file(tagalong: Terminal) -> None:
    assert "none.yaml" in tagalong.error_of("group", "a.csv", "--compare", "none.yaml")
