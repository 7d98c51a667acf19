"""`tagalong group --compare`: how much worse a user's own grouping is."""

import json
from pathlib import Path

import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.group import Comparison, score_grouping, select_groups

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
        "mine.yaml loses 0.25 of 2 (12.5%); networks: 2, the best: 2\n\n"
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
    expected = Comparison(score_grouping(scores, MINE), select_groups(scores, 2))
    assert document["comparison"]["loss"] == expected.loss
    assert document["comparison"]["per_task"] == expected.per_task
    assert document["comparison"]["spent"] == {"mine": 2, "best": 2}


def test_a_saved_grouping_loses_nothing(tagalong: Terminal) -> None:
    for name in ("best.yaml", "best.json"):
        tagalong("group", "a.csv", "--budget", "2", "--out", name)
        assert f"{name} is equally good: 2" in tagalong("group", "a.csv", "--budget", "2", "--compare", name).out


def test_a_larger_budget_is_pointed_out(tagalong: Terminal) -> None:
    out = compare(tagalong, "[[age, weight], [smoker, ill]]", "--budget", "1")
    assert "mine.yaml is better by 1.2 (150.0%) than 0.8; networks: 2, exceeding the budget of 1, the best: 1" in out


def test_costs_are_compared(tagalong: Terminal) -> None:
    out = compare(tagalong, "[[age, weight], [smoker, ill]]", "--cost", "1+0.5", "--budget", "5")
    assert "is equally good: 2; cost: 4, the best: 4" in out


def test_quiet_adds_one_line(tagalong: Terminal) -> None:
    out = compare(tagalong, "[[age, weight, ill], [smoker, ill]]", "--quiet")
    assert out.splitlines()[-1] == "mine.yaml loses 0.25 of 2 (12.5%); networks: 2, the best: 2"


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            "[[age, height]]",
            "",
            "mine.yaml must contain only known tasks ('age', 'ill', 'smoker', 'weight'), found 'height'",
        ),
        ("[[age, weight]]", "", "mine.yaml must serve every task, found no group that serves 'ill', 'smoker'"),
        (
            "[[age], [weight, ill, smoker]]",
            "",
            "mine.yaml: {age} trains a single task, which --allow-single does not permit",
        ),
        ("[[age, weight, ill, smoker]]", "--max-size 3", "trains 4 tasks, but --max-size is 3"),
        ("[[age, weight, ill, smoker]]", "--cannot-link age,ill", "trains age, ill together, which --cannot-link"),
        (
            "[[age, weight], [ill, smoker]]",
            "--must-link age,ill",
            "no network serves age, ill together, which --must-link",
        ),
        ("[[age, weight, ill, smoker]]", "--cost 1+1 --max-cost 4", "costs 5, but --max-cost is 4"),
        ("", "", "mine.yaml is empty"),
        ("[[age, weight]", "", "mine.yaml is not valid YAML or JSON"),
        ("{a: [[age]]}", "", "mine.yaml: each group must be a list of names, found [['age']]"),
        (
            "[[age, weight, ill, smoker]]",
            "--budgets 1,2",
            "--compare, --explain and --together require a single grouping",
        ),
    ],
)
def test_invalid_groupings_are_rejected(tagalong: Terminal, text: str, arguments: str, message: str) -> None:
    Path("mine.yaml").write_text(text)
    budget = [] if "--budgets" in arguments else ["--budget", "2"]
    error = tagalong.error_of("group", "a.csv", "--compare", "mine.yaml", *arguments.split(), *budget)
    assert message in error


def test_the_error_names_a_missing_file(tagalong: Terminal) -> None:
    assert tagalong.error_of("group", "a.csv", "--compare", "none.yaml") == "none.yaml does not exist"
