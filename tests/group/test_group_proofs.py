"""Proofs are valid: solvers agree, certificates hold, and bounds are not exceeded."""

from typing import Any

import numpy as np
import pytest

from group_oracle import Floats, assert_valid, score_of
from tagalong.affinity import Affinity
from tagalong.group import Certificate, check_certificate, select_groups, select_groups_by_budget


def random_matrix(n: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((n, n))


def names(n: int) -> list[str]:
    return list(map(str, range(n)))


@pytest.mark.parametrize("n", [8, 10, 11, 12, 13, 14, 15])
@pytest.mark.parametrize("singles", [False, True])
def test_the_linear_program_equals_the_dynamic_program(n: int, singles: bool) -> None:
    matrix = random_matrix(n, n)
    for budget in (2, 4):
        options: Any = {"allow_single": singles, "max_size": n - 3 if budget > 2 else None}
        exact = select_groups(matrix, budget, solver="exact", **options)
        found = select_groups(matrix, budget, solver="lp", **options)
        assert found.status == "optimal"
        assert found.value == pytest.approx(exact.value, abs=1e-8)
        assert found.groups == exact.groups


def test_the_linear_program_proves_instances_with_a_fractional_optimum() -> None:
    # Among these seeds some programs are not tight: then the columns in doubt go to the integer program.
    loose = 0
    for seed in range(8):
        matrix = np.round(random_matrix(8, seed), 1)
        grouping = select_groups(matrix, 3, solver="lp")
        assert grouping.status == "optimal"
        assert grouping.value == pytest.approx(select_groups(matrix, 3).value, abs=1e-8)
        assert grouping.certificate is not None
        loose += grouping.certificate.bound(3) > grouping.value + 1e-6
    assert loose


@pytest.mark.parametrize("objective", ["max", "min"])
def test_certificates_hold_and_prove_the_value(objective: Any) -> None:
    n, matrix = 14, random_matrix(14, 0)
    weights = {"3": 2.5}
    grouping = select_groups(matrix, 4, objective=objective, weights=weights)
    certificate = grouping.certificate
    assert grouping.solver == "lp"
    assert certificate is not None
    assert check_certificate(matrix, names(n), certificate, objective=objective, weights=weights)
    assert certificate.bound(4) == pytest.approx(grouping.value, abs=1e-8)


def test_a_certificate_with_links_holds_with_them() -> None:
    matrix, links = random_matrix(9, 3), [("0", "1"), ("1", "2"), ("7", "8")]
    grouping = select_groups(matrix, 4, solver="lp", must_link=links)
    assert grouping.certificate is not None
    assert check_certificate(matrix, names(9), grouping.certificate, must_link=links)
    assert not check_certificate(matrix, names(9), grouping.certificate)


def test_a_certificate_with_too_low_prices_fails() -> None:
    matrix = random_matrix(10, 1)
    grouping = select_groups(matrix, 3, solver="lp")
    assert grouping.certificate is not None
    tasks, network = dict(grouping.certificate.tasks), grouping.certificate.network
    assert check_certificate(matrix, names(10), Certificate(tasks, network))
    assert not check_certificate(matrix, names(10), Certificate(tasks, network - 1e-6))
    for task in names(10):
        cheaper = Certificate(tasks | {task: tasks[task] - 1e-6}, network)
        assert not check_certificate(matrix, names(10), cheaper)
    assert not check_certificate(matrix + 0.01, names(10), grouping.certificate)
    negative = Certificate(dict.fromkeys(names(10), 99.0), -1.0)
    assert not check_certificate(matrix, names(10), negative)


def test_a_certificate_holds_for_the_groups_it_was_made_for() -> None:
    matrix = random_matrix(6, 2)
    np.fill_diagonal(matrix, 9.0)
    grouping = select_groups(matrix, 5, solver="lp", max_size=3)
    assert grouping.certificate is not None
    assert check_certificate(matrix, names(6), grouping.certificate, max_size=3)
    assert not check_certificate(matrix, names(6), grouping.certificate, max_size=3, allow_single=True)


@pytest.mark.parametrize("seed", range(6))
def test_the_simple_bound_is_never_below_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 11))
    matrix = random.standard_normal((n, n)) + (random.random((n, n)) < 0.3) * 2
    for budget in (1, 2, n // 2, n):
        options: Any = {"allow_single": bool(seed % 2), "max_size": None if seed < 4 else max(2, n - 2)}
        try:
            exact = select_groups(matrix, budget, **options)
        except ValueError:
            continue
        found = select_groups(matrix, budget, solver="search", **options)
        assert found.bound >= exact.value - 1e-8
        assert found.value <= exact.value + 1e-8


def test_search_finds_proven_optima() -> None:
    for seed in range(3):
        matrix = random_matrix(11, seed)
        assert select_groups(matrix, 3, solver="search").value == pytest.approx(select_groups(matrix, 3).value)


def planted(n: int, groups: int, noise: float) -> tuple[Floats, list[set[str]]]:
    random = np.random.default_rng(0)
    place = random.integers(groups, size=n)
    matrix = (place[:, None] == place) + noise * random.standard_normal((n, n))
    return matrix, [{str(i) for i in np.flatnonzero(place == group)} for group in range(groups)]


def test_planted_groups_of_many_tasks_are_found_with_a_bound() -> None:
    matrix, groups = planted(60, 4, 0.2)
    grouping = select_groups(matrix, 4)
    assert_valid(grouping, 60)
    assert sorted(map(sorted, groups)) == sorted(sorted(group.serves) for group in grouping.groups)
    assert grouping.solver == "search"
    assert grouping.status == "feasible"
    assert 0 < grouping.gap < 0.05
    assert grouping.value == pytest.approx(score_of(matrix, grouping))


def test_search_satisfies_links_and_sizes() -> None:
    matrix, _ = planted(30, 3, 0.5)
    linked = {"0", "7", "19"}
    grouping = select_groups(matrix, 6, max_size=7, must_link=[linked])
    assert_valid(grouping, 30)
    assert linked <= grouping.served_by("0").serves
    assert all(len(group.trains) <= 7 for group in grouping.groups)


def test_the_same_seed_gives_the_same_answer() -> None:
    matrix, _ = planted(25, 3, 2.0)
    assert select_groups(matrix, 4, seed=3, solver="search") == select_groups(matrix, 4, seed=3, solver="search")
    matrix, _ = planted(40, 6, 1.0)  # ends when the work it may do is done, not by the clock
    first = select_groups(matrix, 6, seed=3)
    assert first.status == "feasible"
    assert first == select_groups(matrix, 6, seed=3)


def test_a_time_limit_returns_the_best_found_with_its_bound() -> None:
    matrix = random_matrix(18, 0)
    quick = select_groups(matrix, 4, time_limit=1e-6)
    assert_valid(quick, 18)
    assert quick.status == "feasible"
    assert quick.bound >= select_groups(matrix, 4, solver="search").value
    assert quick.value == pytest.approx(score_of(matrix, quick))


def test_solving_budgets_together_equals_solving_them_one_by_one() -> None:
    matrix = random_matrix(9, 5)
    together = select_groups_by_budget(matrix, range(1, 10))
    assert together == {budget: select_groups(matrix, budget) for budget in range(1, 10)}
    values = [grouping.value for grouping in together.values()]
    assert values == sorted(values)


def test_permuting_the_tasks_changes_nothing() -> None:
    matrix, order = random_matrix(11, 0), np.random.default_rng(1).permutation(11)
    tasks = [f"task {i}" for i in range(11)]
    one = select_groups(Affinity.from_matrix(matrix, tasks), 4)
    other = select_groups(Affinity.from_matrix(matrix[np.ix_(order, order)], [tasks[i] for i in order]), 4)
    assert one.groups == other.groups
    assert one.value == pytest.approx(other.value)
