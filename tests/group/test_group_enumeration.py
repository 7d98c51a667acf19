"""Every solver compared with enumeration, on small problems of every kind."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from group_oracle import Floats, assert_valid, best_by_enumeration, networks_of, score_of
from tagalong.group import Candidate, select_groups

values = st.integers(-40, 40).map(lambda number: number / 8)


PROVING: tuple[Any, ...] = ("exact", "milp")


def matrices(low: int = 2, high: int = 6) -> st.SearchStrategy[Floats]:
    return st.integers(low, high).flatmap(lambda n: npst.arrays(np.float64, (n, n), elements=values))


def subsets_of(n: int) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.integers(0, n - 1), min_size=2, max_size=3)


def named(group: frozenset[int]) -> frozenset[str]:
    return frozenset(map(str, group))


@given(matrix=matrices(), data=st.data(), singles=st.booleans(), objective=st.sampled_from(["max", "min"]))
@settings(max_examples=100, deadline=None)
def test_the_exact_program_equals_enumeration(
    matrix: Floats, data: st.DataObject, singles: bool, objective: str
) -> None:
    n = len(matrix)
    budget, largest = data.draw(st.integers(1, n)), data.draw(st.integers(2, n))
    networks = networks_of(matrix, lambda _: 1, singles=singles, largest=largest)
    best = best_by_enumeration(networks, n, budget, sign=1 if objective == "max" else -1)
    options: Any = {"objective": objective, "allow_single": singles, "max_size": largest}
    if np.isnan(best):
        with pytest.raises(ValueError, match="`budget`"):
            select_groups(matrix, budget, **options)
        return
    grouping = select_groups(matrix, budget, **options)
    assert_valid(grouping, n)
    assert grouping.status == "optimal"
    assert grouping.value == pytest.approx(best, abs=1e-7)
    assert grouping.value == pytest.approx(score_of(matrix, grouping))
    assert len(grouping.groups) <= budget
    assert all(len(group.trains) <= largest and (singles or len(group.trains) > 1) for group in grouping.groups)


@given(matrix=matrices(high=5), data=st.data(), singles=st.booleans())
@settings(max_examples=80, deadline=None)
def test_links_and_costs_equal_enumeration(matrix: Floats, data: st.DataObject, singles: bool) -> None:
    n = len(matrix)
    must = data.draw(st.lists(subsets_of(n), max_size=1)) if n > 2 else []
    cannot = data.draw(st.lists(subsets_of(n), max_size=1)) if n > 2 else []
    head = data.draw(st.sampled_from([0.25, 0.5, 1.0]))
    most = data.draw(st.integers(2, 2 * n))

    def cost(group: frozenset[Any]) -> float:
        return 1 + head * len(group)

    networks = [
        network
        for network in networks_of(matrix, cost, singles=singles)
        if all(len(link & network[0]) < 2 for link in cannot)
    ]
    best = best_by_enumeration(networks, n, most, must=must)
    options: Any = {
        "allow_single": singles,
        "max_total_cost": most,
        "cost": cost,
        "must_link": list(map(named, must)),
        "cannot_link": list(map(named, cannot)),
    }
    if np.isnan(best):
        with pytest.raises(ValueError, match="`max_total_cost`"):
            select_groups(matrix, n, **options)
        return
    grouping = select_groups(matrix, n, **options)
    assert_valid(grouping, n)
    assert grouping.value == pytest.approx(best, abs=1e-7)
    assert sum(group.cost for group in grouping.groups) <= most + 1e-9
    assert all(group.cost == cost(group.trains) for group in grouping.groups)
    assert all(len(named(link) & group.trains) < 2 for link in cannot for group in grouping.groups)
    assert all(len({grouping.served_by(task) for task in named(link)}) == 1 for link in must)


@given(data=st.data(), n=st.integers(1, 5), objective=st.sampled_from(["max", "min"]))
@settings(max_examples=60, deadline=None)
def test_lists_of_candidates_equal_enumeration(data: st.DataObject, n: int, objective: Any) -> None:
    networks = [(frozenset(range(n)), dict.fromkeys(range(n), -9.0 if objective == "max" else 9.0), 1.0)]
    for _ in range(data.draw(st.integers(0, 8))):
        trains = data.draw(st.frozensets(st.integers(0, n - 1), min_size=1))
        score = {task: data.draw(values) for task in trains if data.draw(st.booleans())}
        networks.append((trains, score, data.draw(st.sampled_from([0.5, 1.0, 2.0]))))
    candidates = [
        Candidate(named(trains), {str(task): value for task, value in score.items()}, cost)
        for trains, score, cost in networks
    ]
    most, budget = data.draw(st.sampled_from([1.0, 1.5, 2.0, 3.0, 4.5])), data.draw(st.integers(1, n))
    sign = 1 if objective == "max" else -1
    best = best_by_enumeration(networks, n, most, sign=sign, most_networks=budget)
    grouping = select_groups(candidates, budget, objective=objective, allow_single=True, max_total_cost=most)
    assert_valid(grouping, n)
    assert grouping.status == "optimal"
    assert grouping.value == pytest.approx(best, abs=1e-7)
    assert len(grouping.groups) <= budget
    assert sum(group.cost for group in grouping.groups) <= most + 1e-9


@given(matrix=matrices(), data=st.data(), singles=st.booleans(), objective=st.sampled_from(["max", "min"]))
@settings(max_examples=25, deadline=None)
def test_all_solvers_agree_and_no_bound_is_below_the_optimum(
    matrix: Floats, data: st.DataObject, singles: bool, objective: str
) -> None:
    n, sign = len(matrix), 1 if objective == "max" else -1
    budget, largest = data.draw(st.integers(1, n)), data.draw(st.integers(2, n))
    must = data.draw(st.lists(subsets_of(n), max_size=2)) if n > 2 else []
    options: Any = {
        "objective": objective,
        "allow_single": singles,
        "max_size": largest,
        "must_link": list(map(named, must)),
    }
    networks = networks_of(matrix, lambda _: 1, singles=singles, largest=largest)
    best = best_by_enumeration(networks, n, budget, sign=sign, must=must)
    for solver in (*PROVING, "search"):
        if np.isnan(best):
            with pytest.raises(ValueError, match="`budget`"):
                select_groups(matrix, budget, solver=solver, **options)
            continue
        grouping = select_groups(matrix, budget, solver=solver, **options)
        assert_valid(grouping, n)
        assert grouping.value == pytest.approx(score_of(matrix, grouping))
        assert all(len(group.trains) <= largest for group in grouping.groups)
        assert sign * grouping.value <= sign * best + 1e-7
        assert sign * grouping.bound >= sign * best - 1e-7
        if solver in PROVING:
            assert grouping.status == "optimal"
        if grouping.status == "optimal":
            assert grouping.value == pytest.approx(best, abs=1e-7)


@given(matrix=matrices(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_weights_scale_targets(matrix: Floats, data: st.DataObject) -> None:
    n = len(matrix)
    weights = data.draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=n, max_size=n))
    budget = data.draw(st.integers(1, n))
    grouping = select_groups(matrix, budget, weights={str(i): weight for i, weight in enumerate(weights)})
    scaled = select_groups(matrix * np.array(weights), budget)
    assert grouping.groups == scaled.groups
    assert grouping.value == pytest.approx(scaled.value)
    assert grouping.per_task["0"] * weights[0] == pytest.approx(scaled.per_task["0"])
