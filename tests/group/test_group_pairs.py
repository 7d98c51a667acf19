"""Larger groups completed from pairs, as HOA does, with costs of networks: compared with enumeration."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from group_oracle import Network, best_by_enumeration
from tagalong.group import Grouping, score_grouping, select_groups

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
        with pytest.raises(ValueError, match=r"no grouping .* serve all tasks"):
            select_groups(named(singles | pairs), n, objective=objective, max_total_cost=budget, **options)
        return
    found = select_groups(named(singles | pairs), n, objective=objective, max_total_cost=budget, **options)
    assert_best(found, allowed, n, budget, sign)
    del options["max_cost"]
    again = score_grouping(named(singles | pairs), found.groups, objective=objective, **options)
    assert again.value == pytest.approx(found.value)
    assert [group.cost for group in again.groups] == pytest.approx([group.cost for group in found.groups])
    assert again.budget == len(again.groups)
