"""Invalid input: an error that names the argument, and what is possible instead."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tagalong.affinity import Affinity
from tagalong.group import Candidate, score_grouping, select_groups

MATRIX = np.arange(9.0).reshape(3, 3)
GAPS = np.array([[0, np.nan, 1], [1, 0, np.inf], [1, 1, 0]])


@pytest.mark.parametrize(
    ("scores", "part"),
    [
        (np.zeros((2, 3)), r"`scores`.*\(2, 3\)"),
        (np.zeros((0, 0)), "`scores`"),
        ("affinity.csv", "`scores`.*str"),
        (None, "`scores`"),
        (GAPS, "`scores`.*finite"),
        (Affinity.from_matrix(np.full((2, 2), np.nan), ["a", "b"]), "`scores`.*'a' on 'b'"),
        (pd.DataFrame(MATRIX, ["a", "b", "b"], ["a", "b", "b"]), "`scores`"),
        (pd.DataFrame(MATRIX, ["a", "b", "c"], ["a", "b", "d"]), "b, d and rows .*b, c"),
        (pd.DataFrame(np.array([["x"]]), ["a"], ["a"]), "'x'"),
        ({}, "group"),
        ({"ab": {"a": 1.0}}, "'ab'"),
        ({("a", "b"): {"c": 1.0}}, "'c'"),
        ({("a", "b"): {"a": 1.0, "b": 1.0}, ("b", "a"): {}}, r"'b', 'a'"),
        ({("a", "b"): {"a": 1.0}}, "'b'"),
        ({("a", "b"): {"a": np.nan, "b": 1.0}}, "nan for 'a'"),
    ],
)
def test_scores_are_checked(scores: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        select_groups(scores, 1)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("ab", {}), "`trains`"),
        (({"a"}, {"b": 1.0}), "'b'"),
        (({"a"}, {"a": np.inf}), "inf for 'a'"),
        (({"a"}, {"a": 1.0}, 0), r"\{a\}.*0"),
    ],
)
def test_candidates_are_checked(arguments: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Candidate(*arguments)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("budget", value) for value in (0, 4, 1.5, np.nan, "3", True, 10**400, [], "23", [2, 9])),
        ("objective", "maximum"), ("solver", "magic"), ("complete", "triples"),
        ("max_size", 0), ("max_size", 2.5), ("time_limit", -1), ("time_limit", "x"), ("seed", -1), ("resamples", -1),
        ("weights", {"9": 1.0}), ("weights", {"1": -1.0}), ("weights", {"1": "2"}), ("weights", [1, 2, 3]),
        ("must_link", ["01"]), ("must_link", "01"),
        ("cannot_link", [("0", "x")]),
        ("max_cost", 1), ("max_total_cost", 1),  # without `cost`
        ("cost", -1), ("cost", {2: 1, 3: "x"}), ("cost", {"01": 1}),
        *(("cost", lambda tasks, value=value: value) for value in (0, -2, np.inf, None, True, "1")),
    ],
)  # fmt: skip
def test_options_are_checked(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        select_groups(MATRIX, **({"budget": 2} | {argument: value}))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"budget": 1, "max_size": 2}, "`budget` of 1"),
        ({"budget": 1, "cannot_link": [("0", "1")]}, "`budget` of 1"),
        ({"cost": len, "max_total_cost": 2.5}, "`max_total_cost` of 2.5"),
        ({"cost": 2.5, "max_total_cost": 1}, "`max_total_cost` of 1"),
        ({"cost": len, "max_cost": 1.5}, "`max_cost`"),
        ({"cost": 2, "max_cost": 1}, "`max_cost`"),
        ({"max_size": 1}, "`max_size`"),
        ({"must_link": [("0", "1"), ("1", "2")], "max_size": 2}, "`max_size`"),
        ({"must_link": [("0", "1")], "cannot_link": [("0", "1")]}, "`must_link`"),
    ],
)
def test_the_error_for_impossible_constraints_names_what_is_possible(options: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        select_groups(MATRIX, **({"budget": 2} | options))


@pytest.mark.parametrize(
    ("solver", "n", "options"),
    [
        ("exact", 17, {}),
        ("exact", 15, {"cannot_link": [("0", "1")]}),
        ("milp", 15, {"cannot_link": [("0", "1")]}),
    ],
)
def test_a_solver_that_does_not_suit_is_refused(solver: Any, n: int, options: Any) -> None:
    with pytest.raises(ValueError, match=f"`solver='{solver}'|at most 14"):
        select_groups(np.zeros((n, n)), 2, solver=solver, **options)


def test_given_results_of_larger_groups_need_few_tasks_and_all_pairs() -> None:
    names = [f"t{i:02}" for i in range(15)]
    table: Any = {frozenset({a, b}): {a: 1.0, b: 1.0} for a in names for b in names if a < b}
    table[frozenset(names[:3])] = dict.fromkeys(names[:3], 2.0)
    with pytest.raises(ValueError, match=r"14 tasks.*15"):
        select_groups(table, 2, complete="pairs")
    table = {frozenset("ab"): {"a": 1.0, "b": 1.0}, frozenset("bc"): {"b": 1.0, "c": 1.0}}
    with pytest.raises(ValueError, match=r"\{a, c\}"):
        select_groups(table, 1, complete="pairs")
    with pytest.raises(ValueError, match="`complete`"):
        select_groups([Candidate(["a", "b"], {"a": 1.0, "b": 1.0})], 1, complete="pairs")


def test_costs_of_groups_may_be_tuples_in_any_order() -> None:
    table: Any = {("2", "0"): 1.0, ("2", "1"): 1.0, ("1", "0"): 3.0, 3: 3.0}
    grouping = select_groups(MATRIX, 3, cost=table, max_total_cost=2.5)
    assert {group.trains for group in grouping.groups} == {frozenset("02"), frozenset("12")}


@pytest.mark.parametrize(
    ("groups", "options", "broken"),
    [
        ([["0", "height"]], {}, "'height'"),
        ([["0", "1"]], {}, "'2'"),
        ([["0"], ["1", "2"]], {}, "allow_single"),
        ([["0", "1", "2"]], {"cost": {2: 1.0}}, "cost"),
        ([[]], {}, "groups"),
        ([["0", "1", "2"]], {"objective": "best"}, "objective"),
        ([["0", "1", "2"]], {"weights": [1, 2, 3]}, "weights"),
        ("012", {}, "groups"),
        (["012"], {}, "groups"),
        ([(0, 1, 2)], {}, "groups"),
    ],
)
def test_groupings_given_by_the_user_are_checked_too(groups: Any, options: Any, broken: str) -> None:
    with pytest.raises(ValueError, match=broken):
        score_grouping(MATRIX, groups, **options)
