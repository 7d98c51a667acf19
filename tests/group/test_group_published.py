"""What else is known about the published matrices; tests/golden has their optima."""

from typing import Any

import numpy as np
import pytest

from published import EXPECTED, OPTIONS, groups_of, optimal_groups, read_affinity
from tagalong.affinity import Affinity
from tagalong.group import select_groups
from tagalong_paper import MATRICES


@pytest.mark.parametrize("problem", EXPECTED)
def test_the_package_ships_the_published_matrices(problem: str) -> None:
    np.testing.assert_array_equal(MATRICES[problem].T, read_affinity(problem).mean)


@pytest.mark.parametrize("solver", ["exact", "milp", "search"])
@pytest.mark.parametrize("problem", ["taskonomy_tag", "taskonomy_cs"])
def test_no_solver_returns_redundant_groups(problem: str, solver: Any) -> None:
    # Three groups give every task its best partner; the published selector fills the budget on ties.
    for budget in (4, 5):
        grouping = select_groups(read_affinity(problem), budget, solver=solver)
        assert groups_of(grouping) == optimal_groups(problem, 3)
        assert grouping.status == "optimal"


@pytest.mark.parametrize("problem", EXPECTED)
def test_a_constant_per_target_does_not_change_the_grouping(problem: str) -> None:
    scores = read_affinity(problem)
    constants = np.random.default_rng(0).normal(size=len(scores.tasks)) * np.abs(scores.mean).max()
    moved = Affinity.from_matrix(scores.mean + constants, scores.tasks)
    for budget in (2, 3, 4, 5):
        assert groups_of(select_groups(moved, budget, **OPTIONS[problem])) == optimal_groups(problem, budget)
