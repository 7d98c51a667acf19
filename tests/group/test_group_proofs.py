"""Proofs are valid on problems too large for enumeration: solvers agree, and no bound is exceeded."""

from typing import Any

import numpy as np
import pytest

from group_oracle import Floats, assert_valid, score_of
from tagalong.affinity import Affinity
from tagalong.group import select_groups


def random_matrix(n: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((n, n))


def planted(n: int, groups: int, noise: float) -> tuple[Floats, list[set[str]]]:
    """Returns affinities of tasks that help their own group, and the groups."""
    random = np.random.default_rng(n)
    place = random.permutation(np.arange(n) % groups)
    matrix = (place[:, None] == place) + noise * random.standard_normal((n, n))
    return matrix, [set(map(str, np.flatnonzero(place == group))) for group in range(groups)]


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_the_search_is_never_below_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(6, 11))
    matrix = random.standard_normal((n, n)) + (random.random((n, n)) < 0.3) * 2
    options: Any = {"allow_single": bool(seed % 2), "max_size": None if seed < 2 else n - 2}
    for budget in (2, n // 2, n):
        exact, searched = (select_groups(matrix, budget, solver=solver, **options) for solver in ("exact", "search"))
        assert searched.bound >= exact.value - 1e-8
        assert 0.95 * exact.value <= searched.value <= exact.value + 1e-8


@pytest.mark.parametrize(("n", "groups", "noise"), [(30, 5, 0.3), (60, 4, 0.2)])
def test_planted_groups_of_many_tasks_are_found_with_a_bound(n: int, groups: int, noise: float) -> None:
    matrix, expected = planted(n, groups, noise)
    grouping = select_groups(matrix, groups)
    assert_valid(grouping, n)
    assert sorted(map(sorted, expected)) == sorted(sorted(group.serves) for group in grouping.groups)
    assert grouping.value == pytest.approx(score_of(matrix, grouping))
    assert 0 <= grouping.gap < 0.05
    assert grouping.gap == pytest.approx((grouping.bound - grouping.value) / grouping.value)
    assert (grouping.gap == 0) == (grouping.status == "optimal")


def test_the_search_satisfies_links_and_sizes_and_repeats_with_its_seed() -> None:
    matrix, _ = planted(30, 3, 2.0)
    linked = {"0", "7", "19"}
    options: Any = {"max_size": 7, "must_link": [linked], "seed": 3, "solver": "search"}
    grouping = select_groups(matrix, 6, **options)
    assert_valid(grouping, 30)
    assert linked <= grouping.served_by("0").serves
    assert all(len(group.trains) <= 7 for group in grouping.groups)
    assert grouping == select_groups(matrix, 6, **options)


@pytest.mark.parametrize("solver", ["exact", "search"])
def test_tight_packings_are_found_and_impossible_ones_raise_an_error(solver: Any) -> None:
    links = [("0", "1", "2"), ("3", "4", "5"), ("6", "7"), ("8", "9"), ("10", "11")]
    matrix = random_matrix(12, 12)
    grouping = select_groups(matrix, 2, solver=solver, max_size=6, must_link=links)
    assert sorted(len(group.serves) for group in grouping.groups) == [6, 6]
    with pytest.raises(ValueError, match="`budget`"):
        select_groups(matrix, 2, solver=solver, max_size=5, must_link=links)


def test_permuting_the_tasks_changes_nothing() -> None:
    matrix, order = random_matrix(11, 0), np.random.default_rng(1).permutation(11)
    tasks = [f"task {i}" for i in range(11)]
    one = select_groups(Affinity.from_matrix(matrix, tasks), 4)
    other = select_groups(Affinity.from_matrix(matrix[np.ix_(order, order)], [tasks[i] for i in order]), 4)
    assert one.groups == other.groups
    assert one.value == pytest.approx(other.value)


class StopAfter:
    """Returns True after the given number of calls."""

    def __init__(self, questions: int) -> None:
        self.calls, self.questions = 0, questions

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls > self.questions


@pytest.mark.parametrize(("solver", "n"), [("exact", 10), ("milp", 7), ("search", 10), ("auto", 14)])
def test_a_stopped_solve_returns_the_best_found_with_its_bound(solver: Any, n: int) -> None:
    matrix = random_matrix(n, n)
    best = select_groups(matrix, 3)
    for questions in (0, 1, 30, 10**9):
        stop = StopAfter(questions)
        grouping = select_groups(matrix, 3, solver=solver, stop=stop)
        assert stop.calls
        assert_valid(grouping, n)
        assert grouping.value == pytest.approx(score_of(matrix, grouping))
        assert grouping.bound >= best.value - 1e-8
        if grouping.status == "optimal":
            assert grouping.value == pytest.approx(best.value)
    assert grouping.status == "optimal" or solver == "search"


@pytest.mark.parametrize("limit", [None, 1e-6])
def test_a_time_limit_returns_the_best_found_with_its_bound(
    limit: float | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = random_matrix(18, 0)
    best = select_groups(matrix, 4, solver="search")
    monkeypatch.setattr("tagalong.group.select.DEFAULT_SECONDS", 0.2)
    monkeypatch.setattr("tagalong.group.problem.SECONDS_BETWEEN_REPORTS", 0.0)
    caplog.set_level("INFO")
    quick = select_groups(matrix, 4, time_limit=limit)
    assert_valid(quick, 18)
    assert quick.status == "feasible"
    assert quick.bound >= best.value
    assert quick.value == pytest.approx(score_of(matrix, quick))
    assert ("total" in caplog.text) == (limit is None)  # progress is logged


def test_stopping_also_ends_the_resamples() -> None:
    history = np.random.default_rng(0).standard_normal((50, 4, 4))
    affinity = Affinity.from_history(history, list("abcd"))
    resampled = select_groups(affinity, 2, resamples=100, stop=StopAfter(40)).resampled
    assert resampled is not None
    assert 0 < resampled.resamples < 100
    assert select_groups(affinity, 2, stop=lambda: True).resampled is None
