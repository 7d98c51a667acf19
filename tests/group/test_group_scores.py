"""All accepted forms of scores."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tagalong.affinity import Affinity
from tagalong.group import Candidate, select_groups

MATRIX = np.random.default_rng(0).standard_normal((5, 5))
TASKS = ("e", "d", "c", "b", "a")


def test_affinity_and_frame_give_the_same_groups_whatever_the_order_of_rows() -> None:
    expected = select_groups(Affinity.from_matrix(MATRIX, TASKS), 2)
    frame = pd.DataFrame(MATRIX[::-1], list(TASKS[::-1]), list(TASKS))
    assert select_groups(frame, 2) == expected
    assert expected.tasks == ("a", "b", "c", "d", "e")


def test_the_diagonal_is_read_only_where_singles_are_allowed() -> None:
    other = MATRIX.copy()
    np.fill_diagonal(other, np.nan)
    assert select_groups(other, 2) == select_groups(MATRIX, 2)
    np.fill_diagonal(other, 100.0)
    assert all(len(group.trains) > 1 for group in select_groups(other, 5).groups)
    assert all(len(group.trains) == 1 for group in select_groups(other, 5, allow_single=True).groups)


@pytest.mark.parametrize("held_out", [True, False])
def test_singles_are_allowed_by_default_on_held_out_affinity(held_out: bool) -> None:
    matrix = MATRIX + 100 * np.eye(5)
    affinity = Affinity.from_matrix(matrix, TASKS, settings={"held_out": held_out})
    sizes = {len(group.trains) for group in select_groups(affinity, 5).groups}
    assert (sizes == {1}) == held_out


def test_a_table_of_groups_offers_only_those_groups() -> None:
    table: Any = {
        frozenset("ab"): {"a": 2.0, "b": 1.0},
        frozenset("abc"): {"a": 1.0, "b": 1.0, "c": 1.0},
        ("b", "c"): {"c": 5.0},
    }
    assert select_groups(table, 1).value == 3.0
    grouping = select_groups(table, 2)
    assert [sorted(group.trains) for group in grouping.groups] == [["a", "b"], ["b", "c"]]
    assert grouping.value == 8.0


def test_given_results_of_larger_groups_take_precedence_over_pairs() -> None:
    pairs: Any = {frozenset(pair): dict.fromkeys(pair, 1.0) for pair in ("ab", "ac", "bc", "ad", "bd", "cd")}
    assert select_groups(pairs, 1, complete="pairs").value == 4.0
    larger = pairs | {frozenset("abcd"): dict.fromkeys("abcd", 3.0)}
    assert select_groups(larger, 1, complete="pairs").value == 12.0
    some = pairs | {frozenset("abc"): {"a": 9.0}}
    grouping = select_groups(some, 2, complete="pairs")
    assert grouping.value == 12.0
    assert grouping.per_task == {"a": 9.0, "b": 1.0, "c": 1.0, "d": 1.0}


def test_single_results_in_a_table_allow_singles_unless_forbidden() -> None:
    table: Any = {frozenset("a"): {"a": 9.0}, frozenset("b"): {"b": 9.0}, frozenset("ab"): {"a": 1.0, "b": 1.0}}
    assert select_groups(table, 2).value == 18.0
    assert select_groups(table, 2, allow_single=False).value == 2.0


def test_networks_of_several_sizes_compete() -> None:
    candidates = [
        Candidate({"a", "b"}, {"a": 3.0, "b": 3.0}, cost=1.0),
        Candidate({"a"}, {"a": 5.0}, cost=1.0),
        Candidate({"a"}, {"a": 4.0}, cost=0.5),
    ]
    assert select_groups(candidates, 1).value == 6.0
    assert select_groups(candidates, 2, max_total_cost=1).value == 6.0
    half = select_groups(candidates, 2, max_total_cost=1.5)
    assert half.value == 7.0
    assert sorted(group.cost for group in half.groups) == [0.5, 1.0]
    assert half.per_task == {"a": 4.0, "b": 3.0}
    assert select_groups(candidates, 2).value == 8.0


def test_many_tasks_with_few_candidates_are_solved() -> None:
    names = [f"t{i:02}" for i in range(30)]
    random = np.random.default_rng(0)
    candidates = [Candidate(names, dict.fromkeys(names, 0.0))]
    candidates += [
        Candidate(some, dict(zip(some, random.random(6).tolist(), strict=True)))
        for some in (random.choice(names, 6, replace=False).tolist() for _ in range(12))
    ]
    grouping = select_groups(candidates, 5)
    assert grouping.solver == "milp"
    assert grouping.status == "optimal"
    assert len(grouping.groups) <= 5


def test_a_cost_by_number_by_size_by_group_and_by_callable_agree() -> None:
    plain = select_groups(MATRIX, 3).value
    for cost in (2.5, dict.fromkeys(range(2, 6), 2.5), lambda tasks: 2.5):
        assert select_groups(MATRIX, 5, cost=cost, max_total_cost=7.5).value == pytest.approx(plain)
        assert select_groups(MATRIX, 3, cost=cost).value == pytest.approx(plain)
    only = {frozenset("01234"): 1.0, frozenset("01"): 1.0}
    assert {group.trains for group in select_groups(MATRIX, 5, cost=only).groups} <= set(only)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_costs_in_any_unit_and_large_limits_are_accepted(unit: float) -> None:
    def cost(tasks: frozenset[str]) -> float:
        return unit * (1 + 0.25 * len(tasks))

    expected = select_groups(MATRIX, 5)
    grouping = select_groups(MATRIX, 5, cost=cost, max_total_cost=1e6 * unit)
    assert grouping.status == "optimal"
    assert grouping.value == pytest.approx(expected.value)
    assert select_groups(MATRIX, 5, cost=cost, max_total_cost=3 * unit).value < grouping.value


@pytest.mark.parametrize("solver", ["exact", "milp", "search"])
def test_one_task_is_one_network(solver: Any) -> None:
    assert select_groups([[np.nan]], 1, solver=solver).groups[0].serves == {"0"}
    assert select_groups([[3.0]], 1, solver=solver).value == 3.0


def test_scores_do_not_depend_on_the_order_of_sets() -> None:
    """Sets of other names have another order, in which sums would be rounded differently."""
    matrix = np.random.default_rng(3).standard_normal((9, 9))
    per_task = [
        list(select_groups(Affinity.from_matrix(matrix, [f"{prefix}{k}" for k in range(9)]), 1).per_task.values())
        for prefix in ("task ", "a", "b", "zz")
    ]
    assert all(values == per_task[0] for values in per_task)
