"""Ties go to the fewest groups, then to the smallest, then to the first by name."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from group_oracle import Floats
from tagalong.group import Candidate, Grouping, select_groups

small = st.integers(2, 4).flatmap(lambda n: npst.arrays(np.float64, (n, n), elements=st.integers(-2, 2).map(float)))
Cover = frozenset[frozenset[str]]


def covers(matrix: Floats, budget: int) -> list[tuple[float, Cover]]:
    """Returns every set of groups of two or more that covers all tasks, with its value."""
    n = len(matrix)
    groups = [group for total_size in range(2, n + 1) for group in combinations(range(n), total_size)]
    found = []
    for k in range(1, budget + 1):
        for some in combinations(groups, k):
            if len({j for group in some for j in group}) == n:
                best = [max(matrix[[i for i in g if i != j], j].mean() for g in some if j in g) for j in range(n)]
                found.append((float(sum(best)), frozenset(frozenset(map(str, group)) for group in some)))
    return found


def total_size(groups: Cover) -> int:
    return sum(map(len, groups))


def trained_groups(grouping: Grouping) -> Cover:
    return frozenset(group.trains for group in grouping.groups)


@given(matrix=small, data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_fewest_and_smallest_of_equal_choices_win_and_the_others_are_listed(
    matrix: Floats, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(1, min(3, len(matrix))))
    found = covers(matrix, budget)
    top = max(value for value, _ in found)
    near = [groups for value, groups in found if value >= top - 1e-9]
    fewest = min(map(len, near))
    grouping = select_groups(matrix, budget)
    assert len(grouping.groups) == fewest
    assert total_size(trained_groups(grouping)) == min(total_size(groups) for groups in near if len(groups) == fewest)
    others = {groups for groups in near if len(groups) == fewest} - {trained_groups(grouping)}
    listed = [frozenset(group.trains for group in tie) for tie in grouping.ties]
    assert set(listed) <= others
    assert len(set(listed)) == len(listed) == min(len(others), 8)
    assert [total_size(tie) for tie in listed] == sorted(total_size(tie) for tie in listed)


@pytest.mark.parametrize(("first", "second"), [(0.3, 0.1 + 0.2), (0.1 + 0.2, 0.3)])
def test_equal_helpers_are_chosen_by_name_despite_rounding(first: float, second: float) -> None:
    assert first != second
    grouping = select_groups([[0, 5, first], [5, 0, second], [0, 0, 0]], 2)
    assert [sorted(group.trains) for group in grouping.groups] == [["0", "1"], ["0", "2"]]
    ties = [["".join(sorted(group.trains)) for group in tie] for tie in grouping.ties]
    assert ties == [["01", "12"], ["01", "012"]]
    assert "2 other groupings" in str(grouping)


def test_values_closer_than_a_tie_give_the_fewest_groups() -> None:
    matrix = np.full((4, 4), 0.1)
    matrix[0, 1] += 1e-12
    assert len(select_groups(matrix, 4).groups) == 1
    matrix[0, 1] += 1e-6
    assert len(select_groups(matrix, 4).groups) > 1


def test_the_fewest_groups_also_win_with_costs() -> None:
    same: Any = {"a": 1.0, "b": 1.0}
    candidates = [Candidate({"a"}, {"a": 1.0}, 0.5), Candidate({"b"}, {"b": 1.0}, 0.5), Candidate({"a", "b"}, same, 2)]
    with pytest.raises(ValueError, match="collection of names"):
        Candidate("ab", same)
    grouping = select_groups(candidates, 2)
    assert [group.cost for group in grouping.groups] == [2]


def test_ties_of_many_tasks_are_also_listed() -> None:
    place = np.arange(16) % 4
    matrix = (place[:, None] == place).astype(float)
    matrix[:, 15] = matrix[15] = 0.0
    matrix[[0, 1], 15] = 1.0  # the last task is as well off with 0 as with 1, and with both
    for n in (13, 16):
        keep = [*range(n - 1), 15]
        grouping = select_groups(matrix[np.ix_(keep, keep)], 5)
        assert grouping.status == "optimal"
        assert len(grouping.groups) == 5
        served = next(group for group in grouping.groups if str(n - 1) in group.serves)
        assert sorted(served.trains, key=int) == ["0", str(n - 1)]
        assert any(frozenset({"1", str(n - 1)}) in {group.trains for group in tie} for tie in grouping.ties)
