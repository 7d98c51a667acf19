"""Larger groups completed from pairs, as HOA does, with costs of networks: compared with enumeration."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from group_oracle import Network, best_by_enumeration
from tagalong.group import Candidate, Grouping, score_grouping, select_groups

Results = dict[frozenset[int], dict[int, float]]
VALUE = st.integers(-20, 20).map(lambda number: number / 4)


def groups_of(n: int, *sizes: int) -> list[frozenset[int]]:
    return [frozenset(group) for size in sizes for group in combinations(range(n), size)]


@st.composite
def pair_results(draw: st.DrawFn, n: int) -> Results:
    """Draws results of all pairs and some larger groups."""
    larger = draw(st.sets(st.sampled_from(groups_of(n, *range(3, n + 1))), max_size=3))
    return {group: {task: draw(VALUE) for task in group} for group in [*groups_of(n, 2), *larger]}


def complete_from_pairs(results: Results, n: int) -> Results:
    """Returns every group of two or more; results not given are the means over pairs."""
    return {
        group: results.get(
            group,
            {
                task: float(np.mean([results[frozenset({task, other})][task] for other in group - {task}]))
                for task in group
            },
        )
        for group in groups_of(n, *range(2, n + 1))
    }


def networks(results: Results, cost: Callable[[frozenset[int]], float]) -> list[Network]:
    return [(group, values, cost(group)) for group, values in results.items()]


def named(results: Results) -> dict[frozenset[str], dict[str, float]]:
    return {
        frozenset(map(str, group)): {str(task): value for task, value in values.items()}
        for group, values in results.items()
    }


def candidates(results: Results, cost: float) -> list[Candidate]:
    return [Candidate(group, values, cost) for group, values in named(results).items()]


def assert_best(found: Grouping, networks: list[Network], n: int, budget: float, sign: int = 1) -> None:
    """Asserts a grouping as good as enumeration's, of existing networks, within the budget."""
    assert found.value == pytest.approx(best_by_enumeration(networks, n, budget, sign=sign))
    assert found.status == "optimal"
    assert sum(group.cost for group in found.groups) <= budget + 1e-9
    exist = {(frozenset(map(str, trains)), cost) for trains, _, cost in networks}
    assert all((group.trains, group.cost) in exist for group in found.groups)


@given(n=st.integers(3, 5), data=st.data(), sign=st.sampled_from([1, -1]))
@settings(max_examples=60, deadline=None)
def test_a_table_is_completed_with_costs(n: int, data: st.DataObject, sign: int) -> None:
    singles: Results = {frozenset({task}): {task: data.draw(VALUE)} for task in range(n)}
    pairs = data.draw(pair_results(n))
    budget, most = data.draw(st.integers(2, 2 * n)) / 2, data.draw(st.sampled_from([1, 1.5, 2]))
    of_size = {1: 0.5, 2: 1.0, 3: 1.0, 4: 1.5, 5: 2.0}
    everything = networks(singles | complete_from_pairs(pairs, n), lambda group: of_size[len(group)])
    allowed = [network for network in everything if network[2] <= most]
    options: Any = {"cost": lambda group: of_size[len(group)], "max_cost": most, "complete": "pairs"}
    objective: Any = "max" if sign == 1 else "min"
    if np.isnan(best_by_enumeration(allowed, n, budget, sign=sign)):
        with pytest.raises(ValueError, match=r"no grouping .* can serve all tasks"):
            select_groups(named(singles | pairs), budget, objective=objective, **options)
        return
    found = select_groups(named(singles | pairs), budget, objective=objective, **options)
    assert_best(found, allowed, n, budget, sign)
    assert score_grouping(named(singles | pairs), found.groups, **options).value == pytest.approx(found.value)


@given(n=st.integers(3, 5), data=st.data(), sign=st.sampled_from([1, -1]))
@settings(max_examples=60, deadline=None)
def test_half_size_networks_compete_with_completed_groups(n: int, data: st.DataObject, sign: int) -> None:
    """Single tasks have full and half size; pairs have full size and some also half size."""
    full, half = ({frozenset({task}): {task: data.draw(VALUE)} for task in range(n)} for _ in range(2))
    pairs = data.draw(pair_results(n))
    small = data.draw(pair_results(n)) if data.draw(st.booleans()) else {}
    given_to_it = [*candidates(full | pairs, 1), *candidates(half | small, 0.5)]
    exist = networks(full | complete_from_pairs(pairs, n), lambda _: 1.0)
    exist += networks(half | (complete_from_pairs(small, n) if small else {}), lambda _: 0.5)
    budget = data.draw(st.integers(2, 2 * n)) / 2
    objective: Any = "max" if sign == 1 else "min"
    found = select_groups(given_to_it, budget, objective=objective, complete="pairs")
    assert_best(found, exist, n, budget, sign)
    again = score_grouping(given_to_it, found.groups, objective=objective, complete="pairs")
    assert again.value == pytest.approx(found.value)
    assert again.budget == pytest.approx(sum(group.cost for group in found.groups))


@given(n=st.integers(3, 5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_groups_that_are_not_listed_cost_what_cost_says(n: int, data: st.DataObject) -> None:
    pairs = data.draw(pair_results(n))
    own = {group: data.draw(st.sampled_from([1.0, 1.25, 1.5])) for group in pairs}
    listed = [Candidate(map(str, group), named(pairs)[frozenset(map(str, group))], own[group]) for group in pairs]
    exist = networks(complete_from_pairs(pairs, n), lambda group: own.get(group, len(group) / 2))
    most, budget = data.draw(st.sampled_from([1.25, 1.5, 2.5])), data.draw(st.integers(4, 4 * n)) / 4
    allowed = [network for network in exist if network[2] <= most]
    options: Any = {"cost": lambda group: len(group) / 2, "max_cost": most, "complete": "pairs"}
    if np.isnan(best_by_enumeration(allowed, n, budget)):
        with pytest.raises(ValueError, match=r"no grouping .* can serve all tasks|leaves some tasks unserved"):
            select_groups(listed, budget, **options)
        return
    assert_best(select_groups(listed, budget, **options), allowed, n, budget)


def test_candidates_that_all_cost_one_are_counted() -> None:
    random = np.random.default_rng(0)
    pairs: Results = {group: {task: random.random() for task in group} for group in groups_of(5, 2)}
    for budget in range(1, 6):
        counted = select_groups(named(pairs), budget, complete="pairs")
        found = select_groups(candidates(pairs, 1), budget, complete="pairs")
        assert (found.groups, found.value) == (counted.groups, pytest.approx(counted.value))


def test_results_that_a_larger_network_lacks_are_filled_in() -> None:
    pairs: Results = {group: dict.fromkeys(group, 1.0) for group in groups_of(3, 2)}
    listed = [*candidates(pairs, 1), Candidate({"0", "1", "2"}, {"0": 9.0}, 1)]
    assert dict(select_groups(listed, 1, complete="pairs").per_task) == {"0": 9.0, "1": 1.0, "2": 1.0}
    with pytest.raises(ValueError, match=r"no grouping .* can serve all tasks"):
        select_groups(listed, 1)


PAIRS = candidates({group: dict.fromkeys(group, 1.0) for group in groups_of(3, 2)}, 1)


@pytest.mark.parametrize(
    ("listed", "options", "message"),
    [
        (PAIRS[1:], {}, r"requires results for all pairs, found none for '0' in \{0, 1\}, '1' in \{0, 1\}$"),
        (PAIRS[1:], {"cost": 1}, "requires results for all pairs"),
        (
            [*PAIRS[1:], Candidate({"0", "1"}, {"0": 1.0, "1": 1.0}, 2)],
            {},
            "requires `cost` unless all pairs have the same cost, found costs from 1 to 2$",
        ),
        ([*PAIRS, PAIRS[0]], {}, r"requires exactly one result per pair, found '\d' in \{0, 1\} more than once"),
        (
            [*PAIRS, Candidate({"0", "1"}, {"0": 1.0, "1": 1.0}, 2)],
            {"cost": 1},
            r"requires exactly one result per pair, found '\d' in \{0, 1\} more than once; .* omit `cost`",
        ),
        (PAIRS, {"cost": lambda _: "dear"}, r"`cost` must return a positive number for \{0, 1, 2\}, found 'dear'"),
    ],
)
def test_results_that_cannot_be_completed_are_rejected(listed: list[Candidate], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_groups(listed, 2, complete="pairs", **options)


def test_costs_are_kept_if_there_is_nothing_to_complete() -> None:
    whole = [*PAIRS, Candidate({"0", "1", "2"}, dict.fromkeys("012", 9.0), 3)]
    for listed, budget in ((PAIRS[:1], 1), (whole, 2), (whole, 3)):
        plain = select_groups(listed, budget)
        assert select_groups(listed, budget, complete="pairs") == plain
        assert select_groups(listed, budget, complete="pairs", cost=2) == plain


def test_own_costs_need_few_tasks() -> None:
    pairs: Results = {group: dict.fromkeys(group, 1.0) for group in groups_of(15, 2)}
    with pytest.raises(ValueError, match="supports at most 14 tasks if networks have their own costs, found 15"):
        select_groups(candidates(pairs, 1), 2, complete="pairs")
    assert select_groups(named(pairs), 2, complete="pairs", cost=1).value == 15.0


@pytest.mark.parametrize("size", [3, 8, 9, 12])
def test_candidates_are_completed_to_the_last_digit(size: int) -> None:
    random, n = np.random.default_rng(size), 12
    scale = 10.0 ** random.integers(-200, 200)
    pairs = {group: {task: scale * random.standard_normal() for task in group} for group in groups_of(n, 2)}
    groups = [set(map(str, range(size))), set(map(str, range(n - size, n))), set(map(str, range(n)))]
    table = score_grouping(named(pairs), groups, complete="pairs")
    found = score_grouping(candidates(pairs, 1), groups, complete="pairs")
    assert found.per_task == table.per_task
    assert found.options == table.options
    for task, options in found.options.items():
        for option in options:
            others = [pairs[frozenset({int(task), int(other)})][int(task)] for other in option.trains - {task}]
            assert option.score == pytest.approx(float(np.mean(others)), rel=1e-12, abs=1e-13 * scale)
