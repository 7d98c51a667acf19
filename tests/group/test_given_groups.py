"""Groupings given by the user: reading, scoring by the same rules, and comparing."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.group import (
    Candidate,
    Comparison,
    Group,
    Grouping,
    GroupingFileError,
    read_groups,
    score_grouping,
    select_groups,
)

MATRIX = np.array([[0, 5, 1, 2], [4, 0, 0, 3], [2, 1, 0, 6], [0, 2, 7, 0]], dtype=float)
NAMES = ["age", "ill", "sex", "no"]
SCORES = Affinity.from_matrix(MATRIX, NAMES)


@pytest.mark.parametrize("objective", ["max", "min"])
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_selected_grouping_has_the_score_of_the_selection(budget: int, objective: Any) -> None:
    weights = {"age": 2.0, "ill": 0.5}
    best = select_groups(SCORES, budget, objective=objective, weights=weights)
    for groups in (best.groups, [group.trains for group in best.groups]):
        again = score_grouping(SCORES, groups, objective=objective, weights=weights)
        assert again.value == pytest.approx(best.value)
        assert again.per_task == pytest.approx(dict(best.per_task))
        assert Comparison(again, best).loss == 0


def test_every_task_is_served_by_the_best_network_that_trains_it() -> None:
    groups = [{"age", "ill"}, {"age", "ill", "sex"}, {"sex", "no"}]
    found = score_grouping(SCORES, groups)
    for task in NAMES:
        j = NAMES.index(task)
        means = [np.mean([MATRIX[NAMES.index(s), j] for s in group - {task}]) for group in groups if task in group]
        assert found.per_task[task] == max(means)
    assert found.budget == 3
    assert found.solver == "given"


def test_the_bound_of_a_given_grouping_holds_for_every_selection() -> None:
    for budget, objective in product((1, 2, 3, 4), ("max", "min")):
        given = score_grouping(SCORES, [NAMES], objective=objective)
        best = select_groups(SCORES, budget, objective=objective)
        sign = 1 if objective == "max" else -1
        assert sign * given.bound >= sign * best.value


def test_groups_as_written_keep_what_they_serve() -> None:
    groups = [Group({"age", "ill"}, {"ill"}), Group({"age", "sex", "no"}, {"age", "sex", "no"})]
    assert score_grouping(SCORES, groups).served_by("age").serves == {"age", "sex", "no"}


def test_candidates_are_found_by_their_tasks() -> None:
    table = [
        Candidate({"a"}, {"a": 1.0}, cost=0.5),
        Candidate({"a"}, {"a": 2.0}, cost=1),
        Candidate({"a", "b"}, {"a": 0.0, "b": 3.0}),
    ]
    assert score_grouping(table, [{"a"}, {"a", "b"}]).value == 5
    assert score_grouping(table, [Group({"a"}, {"a"}, 0.5), Group({"a", "b"}, {"b"}, 1)]).value == 4
    assert score_grouping(table, [{"a"}, {"a", "b"}]).budget == 2


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([["age", "height"]], {}, r"must contain only known tasks \('age', 'ill', 'no', 'sex'\), found 'height'"),
        ([["age", "ill", "sex"]], {}, "must serve every task, found no group that serves 'no'"),
        ([["age"], ["ill", "sex", "no"]], {}, r"\{age\} trains a single task, which `allow_single` does not permit"),
        ([NAMES], {"max_size": 3}, "trains 4 tasks, but `max_size` is 3"),
        ([NAMES], {"cost": len, "max_cost": 3}, "costs 4, but `max_cost` is 3"),
        ([NAMES], {"cost": {2: 1.0}}, r"`cost` has no entry for \{age, ill, no, sex\}"),
        ([NAMES], {"cannot_link": [("age", "no")]}, "trains age, no together, which `cannot_link`"),
        ([["age", "ill"], ["sex", "no"]], {"must_link": [("age", "no")]}, "no network serves age, no together"),
        (
            [Group({"age", "ill"}, {"age", "ill"}), Group(NAMES, NAMES)],
            {},
            "serve each task only once, found 'age', 'ill'",
        ),
        ([[]], {}, "found an empty group"),
        ([NAMES], {"objective": "best"}, "`objective` must be"),
    ],
)
def test_the_error_names_broken_rules(groups: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_grouping(SCORES, groups, **options)


def test_a_table_must_hold_the_networks() -> None:
    table: Any = {("a", "b"): {"a": 1.0, "b": 1.0}, ("b", "c"): {"b": 1.0, "c": 1.0}}
    with pytest.raises(ValueError, match=r"has no result for \{a, b, c\}"):
        score_grouping(table, [["a", "b", "c"]])


def test_linked_tasks_are_served_together() -> None:
    groups = [["age", "ill"], ["age", "ill", "sex", "no"]]
    assert score_grouping(SCORES, groups, must_link=[("ill", "sex")]).served_by("ill").serves >= {"ill", "sex"}


@pytest.mark.parametrize(
    "text",
    [
        "[[age, ill], [sex, no]]",
        "- [age, ill]\n- [sex, no]\n",
        "- age, ill\n- sex + no\n",
        "first: [age, ill]\nsecond: [sex, no]\n",
        "groups:\n  first: [age, ill]\n  second: [sex, no]\n",
        "- trains: [age, ill]\n- trains: [sex, no]\n",
        '[["age", "ill"],\n\t["sex", "no"]]',
        '{"groups": [{"trains": ["age", "ill"]}, {"trains": ["sex", "no"]}]}',
    ],
)
def test_groups_are_read_in_every_common_notation(text: str) -> None:
    assert read_groups(text) == ({"age", "ill"}, {"sex", "no"})


def test_saved_groupings_are_read() -> None:
    best = select_groups(SCORES, 2)
    for text in (best.to_json(), best.to_yaml()):
        assert read_groups(text) == best.groups
    assert Grouping.from_yaml(best.to_yaml()) == best


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing"),
        ("3", "found str"),
        ("[[age, age]]", "list each task only once, found 'age' more than once"),
        ("[[age, [ill]]]", "must be a list of names"),
        ("a: [age]\na: [ill]\n", "duplicate key 'a' in line 2"),
        ("[[age, ill]", "is not valid YAML or JSON: expected"),
        ("- {trains: [age], serves: [ill]}", "`serves` must contain only tasks in `trains`"),
        ("- {names: [age]}", "found an entry with the keys 'names'"),
        ('{"groupings": []}', "multiple budgets"),
        ("- {trains: [age], serves: [age], cost: much}", "could not convert"),
    ],
)
def test_invalid_texts_are_rejected(text: str, message: str) -> None:
    with pytest.raises(GroupingFileError, match=message):
        read_groups(text)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "valid YAML"), ("[1]", "format"), ("format: tagalong-grouping", "version 1")]
)
def test_damaged_yaml_is_rejected(text: str, message: str) -> None:
    with pytest.raises(GroupingFileError, match=message):
        Grouping.from_yaml(text)


def test_a_comparison_shows_the_loss_in_total_and_by_task() -> None:
    best, mine = select_groups(SCORES, 2), score_grouping(SCORES, [NAMES])
    found = Comparison(mine, best)
    assert found.loss == pytest.approx(best.value - mine.value)
    assert sum(found.per_task.values()) == pytest.approx(found.loss)
    assert found.spent == (1, 2)
    assert str(found).startswith(f"loses {found.loss:.4g} of {best.value:.6g}")
    assert str(Comparison(best, best)) == f"is equally good: {best.value:.6g}"
    assert str(Comparison(best, mine)).startswith("is better by")
    with pytest.raises(ValueError, match="same tasks"):
        Comparison(mine, score_grouping(SCORES.only(["age", "ill"]), [["age", "ill"]]))
