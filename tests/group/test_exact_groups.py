from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from tagalong.group import exact_groups

Floats = NDArray[np.float64]

# Published affinities, rounded (rows: target, columns: source), Fifty et al. 2021.
CELEBA = np.array(  # a1 … a9
    [
        [0, -83.34, -86.05, -82.42, -81.97, -86.02, -49.04, -87.37, -86.77],
        [-188.16, 0, -184.53, -147.50, -189.46, -191.00, -185.28, -190.66, -189.42],
        [-121.05, -109.58, 0, -106.02, -122.62, -124.40, -117.20, -120.56, -123.26],
        [-143.72, -112.18, -139.85, 0, -145.43, -146.78, -142.40, -146.30, -146.23],
        [-85.53, -92.21, -95.75, -91.74, 0, -65.43, -45.95, -98.60, -95.68],
        [-30.22, -32.70, -34.78, -33.48, -0.84, 0, -15.27, -35.21, -34.37],
        [-109.48, -147.50, -152.39, -148.49, -127.32, -147.14, 0, -157.48, -156.16],
        [-74.98, -74.25, -72.05, -73.83, -76.45, -76.50, -75.21, 0, -77.00],
        [-109.37, -100.85, -113.52, -110.65, -110.26, -116.10, -106.51, -119.35, 0],
    ]
).T
TASKONOMY = np.array(  # segmentation, depth, normals, edges, keypoints
    [
        [0, 0.1154, 0.0489, 0.0088, 0.0045],
        [0.4136, 0, 0.2914, 0.0740, 0.0135],
        [0.1398, 0.2210, 0, 0.0765, 0.0105],
        [0.0567, 0.0367, 0.0360, 0, 0.3037],
        [0.0211, 0.0134, 0.0107, 0.6897, 0],
    ]
).T


def score(matrix: Floats, groups: object) -> float:
    total = 0.0
    for trains, serves in groups:  # type: ignore[attr-defined]
        total += sum(np.mean([matrix[i, j] for i in trains if i != j]) for j in serves)
    return total


def best_by_enumeration(matrix: Floats, budget: int) -> tuple[float, int, int]:
    """The best sum over all sets of groups, with the fewest groups and then the fewest trained tasks."""
    n = len(matrix)
    subsets = [set(some) for size in range(2, n + 1) for some in combinations(range(n), size)]
    found = []
    for k in range(1, budget + 1):
        for groups in combinations(subsets, k):
            if set().union(*groups) == set(range(n)):
                best = [max(score(matrix, [(g, [j])]) for g in groups if j in g) for j in range(n)]
                found.append((sum(best), k, sum(map(len, groups))))
    top = max(value for value, _, _ in found)
    near = [(k, size) for value, k, size in found if value >= top - 1e-9]
    return (top, *min(near))


small_matrices = st.integers(2, 5).flatmap(
    lambda n: npst.arrays(np.float64, (n, n), elements=st.integers(-4, 4).map(float))
)


@given(matrix=small_matrices, budget=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_groups_equal_enumeration_with_the_fewest_and_smallest_groups(matrix: Floats, budget: int) -> None:
    budget = min(budget, len(matrix))
    groups = exact_groups(matrix, budget)
    value, fewest, smallest = best_by_enumeration(matrix, budget)
    assert score(matrix, groups) == pytest.approx(value, abs=1e-8)
    assert len(groups) == fewest
    assert sum(len(trains) for trains, _ in groups) == smallest


@given(matrix=small_matrices, data=st.data())
@settings(deadline=None)
def test_a_constant_per_target_changes_no_grouping(matrix: Floats, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, len(matrix)))
    constants = data.draw(npst.arrays(np.float64, len(matrix), elements=st.integers(-4, 4).map(float)))
    assert exact_groups(matrix + constants, budget) == exact_groups(matrix, budget)


@given(matrix=small_matrices, data=st.data())
@settings(deadline=None)
def test_groups_cover_every_task_once_and_hold_two_or_more(matrix: Floats, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, len(matrix)))
    groups = exact_groups(matrix, budget)
    assert len(groups) <= budget
    assert sorted(j for _, serves in groups for j in serves) == list(range(len(matrix)))
    assert all(serves and serves <= trains and len(trains) > 1 for trains, serves in groups)


def test_permuting_the_tasks_permutes_the_groups() -> None:
    matrix = np.random.default_rng(0).standard_normal((11, 11))
    order = np.random.default_rng(1).permutation(11)
    there = {(frozenset(map(int, order[list(g)])), frozenset(map(int, order[list(s)])))
             for g, s in exact_groups(matrix[np.ix_(order, order)], 4)}  # fmt: skip
    assert there == set(exact_groups(matrix, 4))


@pytest.mark.parametrize(
    ("matrix", "budget", "expected", "value"),
    [
        (CELEBA, 1, [("123456789", "123456789")], -962.1490667175444),
        (CELEBA, 2, [("17", "17"), ("23456789", "2345689")], -894.9763683354549),
        (CELEBA, 3, [("17", "17"), ("24", "24"), ("2356789", "35689")], None),
        (CELEBA, 4, [("17", "17"), ("24", "24"), ("234789", "389"), ("567", "56")], None),
        (TASKONOMY, 3, [("12", "12"), ("23", "3"), ("45", "45")], None),
        (TASKONOMY, 5, [("12", "12"), ("23", "3"), ("45", "45")], None),
    ],
)
def test_published_matrices_give_their_known_optima(
    matrix: Floats, budget: int, expected: list[tuple[str, str]], value: float | None
) -> None:
    groups = exact_groups(matrix, budget)
    assert [
        ("".join(str(i + 1) for i in sorted(g)), "".join(str(i + 1) for i in sorted(s))) for g, s in groups
    ] == expected
    if value is not None:
        assert score(matrix, groups) == pytest.approx(value, abs=0.03)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1e-320, 1e300])
def test_all_equal_affinities_give_one_group(value: float) -> None:
    assert exact_groups(np.full((5, 5), value), 5) == ((frozenset(range(5)), frozenset(range(5))),)


@pytest.mark.parametrize(("first", "second"), [(0.3, 0.1 + 0.2), (0.1 + 0.2, 0.3)])
def test_equal_helpers_come_in_index_order_whatever_their_last_bit(first: float, second: float) -> None:
    assert first != second
    matrix = np.array([[0, 5, first], [5, 0, second], [0, 0, 0]])
    groups = exact_groups(matrix, 2)
    assert groups == ((frozenset({0, 1}), frozenset({0, 1})), (frozenset({0, 2}), frozenset({2})))


def test_ties_closer_than_rounding_take_the_fewest_groups() -> None:
    matrix = np.full((4, 4), 0.1)
    matrix[0, 1] += 1e-12
    assert len(exact_groups(matrix, 4)) == 1
    matrix[0, 1] += 1e-6
    assert len(exact_groups(matrix, 4)) > 1


def test_the_diagonal_is_not_read() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 5))
    other = matrix.copy()
    np.fill_diagonal(other, np.nan)
    assert exact_groups(other, 2) == exact_groups(matrix, 2)


def test_one_task_is_one_group() -> None:
    assert exact_groups([[np.nan]], 1) == ((frozenset({0}), frozenset({0})),)


def test_fourteen_tasks_are_no_worse_than_any_random_partition() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((14, 14))
    best = score(matrix, exact_groups(matrix, 4))
    for _ in range(200):
        label = rng.permutation(np.arange(14) % 4)
        blocks = [np.flatnonzero(label == k).tolist() for k in range(4)]
        assert score(matrix, [(block, block) for block in blocks]) <= best + 1e-9


@pytest.mark.parametrize(
    ("matrix", "budget", "message"),
    [
        (np.zeros((17, 17)), 2, "`matrix` must have at most 16 tasks for an exact answer, found 17"),
        (np.zeros((2, 3)), 1, r"`matrix` must be square.*\(2, 3\)"),
        (np.zeros((3, 3)), 4, "`budget` must be from 1 to the number of tasks, 3, found 4"),
        (np.zeros((3, 3)), 0, "`budget` must be from 1"),
        (np.zeros((3, 3)), 1.5, "`budget` must be a whole number, found 1.5"),
        ([[0, np.nan], [1, 0]], 1, r"`matrix` must be finite off its diagonal, found nan at \[0, 1\]"),
    ],
)
def test_wrong_input_is_explained(matrix: Floats, budget: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_groups(matrix, budget)
