"""Invalid input: one error with a clear message for each problem."""

from typing import Any

import numpy as np
import pytest

from group_oracle import Frame
from tagalong.affinity import Affinity
from tagalong.group import Candidate, score_grouping, select_groups, select_groups_by_budget

MATRIX = np.arange(9.0).reshape(3, 3)
GAPS = np.array([[0, np.nan, 1], [1, 0, np.inf], [1, 1, 0]])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((2, 3)), r"`scores` must be square, .*found shape \(2, 3\)"),
        (np.zeros((0, 0)), "`scores` must be square"),
        ("affinity.csv", "`scores` must be an Affinity, a square table, .*found str"),
        (None, "`scores` must be"),
        (GAPS, "`scores` must be finite, found inf for the score of '1' on '2'; measure that pair"),
        (
            Affinity.from_matrix(np.full((2, 2), np.nan), ["a", "b"]),
            "`scores` must contain at least one measured pair of every task, found none from or onto 'a', 'b'; measure",
        ),
        (Frame(MATRIX, ["a", "b", "b"], ["a", "b", "b"]), "column names must be distinct, found 'b' more than once"),
        (Frame(MATRIX, ["a", "b", "c"], ["a", "b", "d"]), "found 'c', 'd' in only one of them"),
        (Frame(np.array([["x"]]), ["a"], ["a"]), "`scores` must contain only numbers"),
        ({}, "at least one group, found none"),
        ({"ab": {"a": 1.0}}, "a group must be a frozenset or tuple of names, found 'ab'"),
        ({("a", "b"): 3.0}, r"the results of \{a, b\} must be a mapping \{task: value\}, found 3.0"),
        ({("a", "b"): {"c": 1.0}}, r"the results of \{a, b\} must include only tasks in the group, found 'c'"),
        ({("a", "b"): {"a": 1.0, "b": 1.0}, ("b", "a"): {}}, r"found a duplicate: \{a, b\}"),
        ({("a", "b"): {"a": 1.0}}, "found none for 'b'; add a network"),
        ({("a", "b"): {"a": np.nan, "b": 1.0}}, r"the result of 'a' in \{a, b\} must be a finite number, found nan"),
        ([Candidate({"a"}, {"a": 1.0}, cost=0)], r"the cost of \{a\} must be a positive number, found 0"),
        ([Candidate({"a"}, {"a": 1.0}), 3], "must contain only Candidates, found int"),
    ],
)
def test_scores_are_checked(scores: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_groups(scores, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "`budget` must be positive, found 0"),
        ({"budget": 4}, r"`budget` must be at most the number of tasks \(3\), found 4"),
        ({"budget": 1.5}, r"`budget` must be an integer \(the number of networks\), found 1.5; pass `cost`"),
        ({"budget": np.nan}, "`budget` must be positive, found nan"),
        ({"budget": "two"}, "`budget` must be a number, found 'two'"),
        ({"budget": True}, "`budget` must be a number, found True"),
        ({"budget": None}, "`budget` must be a number, found None"),
        ({"objective": "maximum"}, "`objective` must be 'max' or 'min', found 'maximum'"),
        ({"solver": "magic"}, "`solver` must be one of 'auto', .*found 'magic'"),
        ({"max_size": 0}, "`max_size` must be a positive integer, found 0"),
        ({"time_limit": -1}, "`time_limit` must be a positive number of seconds"),
        ({"seed": -1}, "`seed` must be a non-negative integer"),
        ({"complete": "triples"}, "`complete` must be 'pairs' or None"),
        ({"cost": -1}, "`cost` must be a positive number"),
        ({"cost": lambda tasks: 0}, r"`cost` must return a positive number for \{0, 1\}, found 0"),
        ({"max_cost": 1}, "`max_cost` requires `cost`"),
        ({"weights": {"9": 1.0}}, r"`weights` must contain only known tasks \('0', '1', '2'\), found '9'"),
        ({"weights": {"1": -1.0}}, "`weights` must contain only positive numbers, found -1.0 for '1'"),
        ({"must_link": ["01"]}, "`must_link` must contain sets of two or more tasks, found '01'"),
        ({"cannot_link": [("0", "x")]}, "`cannot_link` must contain only known tasks .*found 'x'"),
        ({"resamples": -1}, "`resamples` must be a non-negative integer"),
        ({"budget": "3"}, "^`budget` must be a number, found '3'$"),
        ({"budget": 10**400}, "^`budget` must be positive, found 1000.*; 1 means one network"),
        ({"weights": [1, 2, 3]}, r"^`weights` must map tasks to numbers, e.g. \{'0': 2\}, found \[1, 2, 3\]$"),
        ({"weights": np.ones(3)}, r"^`weights` must map tasks to numbers, .*found array\("),
        ({"weights": 2}, "^`weights` must map tasks to numbers, .*found 2$"),
        ({"weights": {"1": "2"}}, "^`weights` must contain only positive numbers, found '2' for '1'$"),
        ({"cost": lambda tasks: "1"}, r"^`cost` must return a positive number for \{0, 1\}, found '1'$"),
        ({"cost": lambda tasks: None}, r"^`cost` must return a positive number for \{0, 1\}, found None$"),
        ({"cost": lambda tasks: np.nan}, r"^`cost` must return a positive number for \{0, 1\}, found nan$"),
        ({"cost": lambda tasks: np.inf}, r"^`cost` must return a positive number for \{0, 1\}, found inf$"),
        ({"cost": lambda tasks: -2}, r"^`cost` must return a positive number for \{0, 1\}, found -2$"),
        ({"cost": lambda tasks: [1]}, r"^`cost` must return a positive number for \{0, 1\}, found \[1\]$"),
        ({"cost": lambda tasks: True}, r"^`cost` must return a positive number for \{0, 1\}, found True$"),
        (
            {"cost": lambda tasks: {}["x"]},
            r"^`cost` must return a positive number for \{0, 1\}, but raised KeyError\('x'\)$",
        ),
        ({"cost": {2: 1, 3: "x"}}, "^`cost` must contain only positive numbers, found 'x' for a network of 3 tasks$"),
        ({"cost": {2: 1, 1: "1"}}, "^`cost` must contain only positive numbers, found '1' for a network of 1 task$"),
        ({"cost": {2: 1, ("1", "0"): None}}, r"^`cost` must contain only positive numbers, found None for \{0, 1\}$"),
        (
            {"cost": {"01": 1}},
            "^`cost` must map groups or group sizes to costs, found the key '01'; use",
        ),
        ({"cost": {("0", "1"): 1, ("1", "0"): 2}}, "^`cost` must list each group only once"),
        ({"cost": 1, "max_cost": "x"}, "^`max_cost` must be a positive number, found 'x'$"),
        ({"max_size": 2.5}, "^`max_size` must be a positive integer, found 2.5$"),
        ({"must_link": "01"}, r"^`must_link` must be a list of sets of tasks, e.g. \[\('a', 'b'\)\], found '01'$"),
        ({"must_link": None}, "^`must_link` must be a list of sets of tasks, .*found None$"),
        ({"must_link": [3]}, "^`must_link` must contain sets of two or more tasks, found 3$"),
        ({"cannot_link": 3}, "^`cannot_link` must be a list of sets of tasks, .*found 3$"),
        ({"cannot_link": [(["0"], "1")]}, r"^`cannot_link` must contain only known tasks .*found \['0'\]$"),
        ({"time_limit": "x"}, "^`time_limit` must be a positive number of seconds, found 'x'$"),
        ({"allow_single": np.ones(2)}, "^`allow_single` must be True, False or None, found array"),
        ({"objective": np.ones(2)}, "^`objective` must be 'max' or 'min', found array"),
        ({"solver": np.ones(2)}, "^`solver` must be one of .*found array"),
        ({"complete": np.ones(2)}, "^`complete` must be 'pairs' or None, found array"),
    ],
)
def test_options_are_checked(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_groups(MATRIX, **({"budget": 2} | options))


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ([], "^`budgets` must contain at least one budget, found none$"),
        (3, r"^`budgets` must be a list of numbers, e.g. \[2, 3\], found 3$"),
        (None, "^`budgets` must be a list of numbers, .*found None$"),
        ("23", "^`budgets` must be a list of numbers, .*found '23'"),
        ([2, 9], r"^`budget` must be at most the number of tasks \(3\), found 9$"),
    ],
)
def test_several_budgets_are_checked(budgets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_groups_by_budget(MATRIX, budgets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"budget": 1, "max_size": 2},
            "no grouping with a `budget` of 1 can serve all tasks .*the smallest feasible budget is 2",
        ),
        ({"max_size": 1}, "no budget is large enough, so check `max_size`"),
        ({"must_link": ["01", "12"], "max_size": 2}, "no budget is large enough"),
        ({"must_link": ["01"], "cannot_link": ["01"]}, "no budget is large enough"),
        ({"budget": 1, "cannot_link": ["01"]}, "the smallest feasible budget is 2"),
        ({"budget": 3, "cost": len}, None),
        (
            {"budget": 2.5, "cost": len},
            "no grouping with a `budget` of 2.5 can serve .*the smallest feasible budget is 3",
        ),
        ({"budget": 1, "cost": 2.5}, "the smallest feasible budget is 2.5"),
        ({"budget": 9, "cost": len, "max_cost": 1.5}, "`max_cost` of 1.5 .*the smallest feasible value is 2"),
        ({"budget": 9, "cost": 2, "max_cost": 1}, "`max_cost` of 1 .*the smallest feasible value is 2"),
    ],
)
def test_the_error_for_impossible_constraints_names_what_is_possible(options: Any, message: str | None) -> None:
    links = {name: list(map(tuple, options[name])) for name in ("must_link", "cannot_link") if name in options}
    if message is None:
        assert select_groups(MATRIX, **options).groups
        return
    with pytest.raises(ValueError, match=message):
        select_groups(MATRIX, **({"budget": 2} | options | links))


@pytest.mark.parametrize("solver", ["exact", "lp", "milp", "search"])
@pytest.mark.parametrize(
    ("budget", "options"),
    [(1, {"max_size": 2}), (5, {"max_size": 1}), (4, {"max_size": 2, "must_link": [("0", "1"), ("1", "2")]})],
)
def test_no_solver_gives_an_impossible_answer(solver: Any, budget: int, options: Any) -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 5))
    with pytest.raises(ValueError, match=r"no grouping .* can serve all tasks"):
        select_groups(matrix, budget, solver=solver, **options)


def test_one_error_lists_all_problems() -> None:
    with pytest.raises(ValueError, match="several problems") as error:
        select_groups(GAPS, 7, objective="best", must_link=[("0", "y")], weights={"z": 1.0})
    text = str(error.value)
    assert all(word in text for word in ("`budget`", "`objective`", "`must_link`", "`weights`", "`scores`"))


@pytest.mark.parametrize(
    ("solver", "n", "options", "message"),
    [
        ("exact", 17, {}, "`solver='exact'` supports at most 16 tasks"),
        ("lp", 25, {}, "`solver='lp'` supports at most 24 tasks, found 25"),
        ("milp", 11, {}, "`solver='milp'` supports at most 10 tasks because it lists all groups"),
        ("search", 5, {"cannot_link": [("0", "1")]}, "`solver='search'` requires pairwise scores"),
        (
            "exact",
            15,
            {"cannot_link": [("0", "1")]},
            "supports at most 14 tasks with `cannot_link` or per-group costs",
        ),
    ],
)
def test_the_error_for_an_unsuitable_solver_says_why(solver: Any, n: int, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_groups(np.zeros((n, n)), 2, solver=solver, **options)


def test_given_results_of_larger_groups_need_few_tasks() -> None:
    names = [f"t{i:02}" for i in range(15)]
    table: Any = {frozenset({a, b}): {a: 1.0, b: 1.0} for a in names for b in names if a < b}
    table[frozenset(names[:3])] = dict.fromkeys(names[:3], 2.0)
    message = "must have at most 14 tasks if they include results for groups of three or more, found 15; omit some"
    with pytest.raises(ValueError, match=message):
        select_groups(table, 2, complete="pairs")


def test_the_error_names_missing_pairs() -> None:
    table: Any = {frozenset("ab"): {"a": 1.0, "b": 1.0}, frozenset("bc"): {"b": 1.0, "c": 1.0}}
    with pytest.raises(ValueError, match=r"requires results for all pairs, found none for 'a' in \{a, c\}"):
        select_groups(table, 1, complete="pairs")


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([("0", "1", "2")], {"weights": [1, 2, 3]}, "^`weights` must map tasks to numbers"),
        (
            [("0", "1", "2")],
            {"cost": lambda tasks: "x"},
            r"^`cost` must return a positive number for \{0, 1, 2\}, found 'x'$",
        ),
        ([("0", "1", "2")], {"must_link": "01"}, "^`must_link` must be a list of sets of tasks"),
        ([("0", "1", "2")], {"must_link": ["01"]}, "^`must_link` must contain sets of two or more tasks, found '01'$"),
        ([("0", "1", "2")], {"budget": "3"}, "^`budget` must be a positive number, found '3'$"),
        ("012", {}, "groups"),
        (["012"], {}, "groups"),
        ([(0, 1, 2)], {}, "groups"),
    ],
)
def test_groupings_given_by_the_user_are_checked_in_the_same_way(groups: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_grouping(MATRIX, groups, **options)


def test_a_cost_may_be_an_array_of_one_number() -> None:
    assert select_groups(MATRIX, 2, cost=lambda tasks: np.array(1.0)).groups == select_groups(MATRIX, 2).groups  # type: ignore[arg-type,return-value]


def test_costs_of_groups_may_be_tuples_in_any_order() -> None:
    table: Any = {("2", "0"): 1.0, ("2", "1"): 1.0, ("1", "0"): 3.0, 3: 3.0}
    assert select_groups(MATRIX, 2, cost=table).groups == select_groups(MATRIX, 2).groups


def test_candidates_have_their_own_cost() -> None:
    with pytest.raises(ValueError, match="`cost` cannot be combined with candidates"):
        select_groups([Candidate({"a"}, {"a": 1.0})], 1, cost=2)
