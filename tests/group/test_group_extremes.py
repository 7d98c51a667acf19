"""Scores of any size give the same groups as ordinary ones."""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from group_oracle import Floats
from tagalong.affinity import Affinity
from tagalong.group import Candidate, Grouping, score_grouping, select_groups

NAMES = list("abcde")
WHOLE = npst.arrays(np.float64, (5, 5), elements=st.integers(-9, 9))
POWERS = st.integers(-900, 900)


def results(matrix: Floats) -> dict[tuple[str, ...], dict[str, float]]:
    """Returns results of every group that are not means over pairs."""
    return {
        tuple(NAMES[i] for i in group): {NAMES[j]: float(matrix[group[j % size], j]) for j in group}
        for size in range(1, 6)
        for group in combinations(range(5), size)
    }


FORMS: dict[str, Any] = {
    "array": lambda matrix: matrix,
    "frame": lambda matrix: pd.DataFrame(matrix, NAMES, NAMES),
    "affinity": lambda matrix: Affinity.from_matrix(matrix, NAMES),
    "results": results,
    "candidates": lambda matrix: [
        Candidate(group, values, cost=1 if len(group) > 1 else 0.5) for group, values in results(matrix).items()
    ],
}


def assert_scaled(found: Grouping, plain: Grouping, power: int) -> None:
    """Asserts the same choice, with values times a power of two, as exact as doubles of that size are."""
    assert [(group.trains, group.serves) for group in found.groups] == [
        (group.trains, group.serves) for group in plain.groups
    ]
    assert (found.status, found.solver, found.ties) == (plain.status, plain.solver, plain.ties)
    assert (found.value, found.bound) == (np.ldexp(plain.value, power), np.ldexp(plain.bound, power))
    assert dict(found.per_task) == {task: np.ldexp(score, power) for task, score in plain.per_task.items()}


@given(matrix=WHOLE, power=POWERS, form=st.sampled_from(sorted(FORMS)), objective=st.sampled_from(["max", "min"]))
@settings(max_examples=50, deadline=None)
def test_scaling_by_a_power_of_two_changes_no_grouping(matrix: Floats, power: int, form: str, objective: Any) -> None:
    plain_scores, scores = FORMS[form](matrix), FORMS[form](np.ldexp(matrix, power))
    plain = select_groups(plain_scores, 2, objective=objective)
    assert_scaled(select_groups(scores, 2, objective=objective), plain, power)
    names = list("01234") if form == "array" else NAMES
    groups = [set(names[:3]), set(names[1:]), set(names[::2])]
    assert_scaled(score_grouping(scores, groups), score_grouping(plain_scores, groups), power)


@pytest.mark.parametrize("power", [-900, 900])
@pytest.mark.parametrize(
    "options",
    [
        {"solver": "milp"},
        {"solver": "search"},
        {"cost": lambda group: 0.5 + len(group) / 4},
        {"cannot_link": [("0", "3")]},
        {"allow_single": True, "weights": {"1": 3.0, "4": 0.1}},
    ],
)
def test_every_solver_accepts_scores_of_any_size(power: int, options: Any) -> None:
    matrix = np.random.default_rng(0).integers(-9, 10, (5, 5)).astype(np.float64)
    plain = select_groups(matrix, 3, **options)
    assert_scaled(select_groups(np.ldexp(matrix, power), 3, **options), plain, power)


@given(matrix=WHOLE, powers=st.lists(st.integers(-900, 900), min_size=5, max_size=5))
@settings(max_examples=20, deadline=None)
def test_weights_may_compensate_for_the_size_of_scores(matrix: Floats, powers: list[int]) -> None:
    weights = {str(task): float(np.ldexp(1.0, -power)) for task, power in enumerate(powers)}
    plain, found = select_groups(matrix, 2), select_groups(np.ldexp(matrix, powers), 2, weights=weights)
    assert (found.groups, found.value, found.ties) == (plain.groups, plain.value, plain.ties)
    by_hand = score_grouping(np.ldexp(matrix, powers), found.groups, weights=weights)
    assert by_hand.value == score_grouping(matrix, found.groups).value
