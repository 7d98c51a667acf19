"""Costs by group and forbidden pairs with too many tasks to list all groups."""

from typing import Any

import numpy as np
import pytest

from group_oracle import Floats, assert_valid, score_of
from tagalong.group import select_groups


def matrix(n: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((n, n))


def encoder_and_heads(group: frozenset[str]) -> float:
    return 1 + 0.1 * len(group)


OPTIONS: list[tuple[int, dict[str, Any]]] = [
    (3, {"cannot_link": [("0", "1"), ("2", "3", "4")]}),
    (9, {"cost": encoder_and_heads, "max_total_cost": 5.5}),
    (4, {"cost": encoder_and_heads, "max_cost": 1.4, "max_total_cost": 6}),
    (9, {"cost": {size: 1 + size / 4 for size in range(1, 6)}, "must_link": [("0", "7")], "max_total_cost": 7}),
    (9, {"cost": encoder_and_heads, "cannot_link": [("0", "5")], "allow_single": True, "max_total_cost": 6}),
    (4, {"cannot_link": [("0", "1")], "max_size": 4, "objective": "min", "weights": {"2": 3.0}}),
]


@pytest.mark.parametrize(("budget", "options"), OPTIONS)
def test_searching_promising_groups_comes_close_to_searching_all(
    monkeypatch: pytest.MonkeyPatch, budget: int, options: dict[str, Any]
) -> None:
    scores = matrix(9, seed=0)
    exact = select_groups(scores, budget, **options)
    monkeypatch.setattr("tagalong.group.problem.MAX_LISTED", 5)
    found = select_groups(scores, budget, **options)
    assert_valid(found, 9)
    assert (found.solver, found.status) == ("search", "feasible")
    sign = -1 if options.get("objective") == "min" else 1
    assert sign * found.value <= sign * exact.value + 1e-9
    assert sign * found.bound >= sign * exact.value - 1e-9
    assert abs(found.value - exact.value) <= 0.15 * abs(exact.value)
    assert len(found.groups) <= budget
    assert sum(group.cost for group in found.groups) <= options.get("max_total_cost", np.inf) + 1e-9


def test_many_tasks_satisfy_costs_and_links() -> None:
    n = 24
    scores, apart = matrix(n, 0), [("0", "1"), ("3", "4", "5")]
    options: Any = {"cost": encoder_and_heads, "max_cost": 2.0, "cannot_link": apart, "must_link": [("6", "7")]}
    grouping = select_groups(scores, n, max_total_cost=10, **options)
    assert_valid(grouping, n)
    assert grouping.value == pytest.approx(score_of(scores, grouping))
    assert grouping.value < grouping.bound
    assert sum(group.cost for group in grouping.groups) <= 10.0 + 1e-9
    assert all(group.cost <= 2.0 + 1e-9 for group in grouping.groups)
    assert all(len(group.trains & set(link)) < 2 for link in apart for group in grouping.groups)
    assert grouping.served_by("6") == grouping.served_by("7")


def test_budgets_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="`budget` of 1"):
        select_groups(matrix(16, 0), 1, cannot_link=[("0", "1")])
    with pytest.raises(ValueError, match="`max_total_cost` of 0"):
        select_groups(matrix(16, 0), 9, cost=encoder_and_heads, max_total_cost=0.5)
