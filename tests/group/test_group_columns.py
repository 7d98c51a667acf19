"""Column generation finds the same optima without a table of all sets, with valid bounds wherever it stops."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from group_oracle import Floats, assert_valid, score_of
from tagalong.group import select_groups
from tagalong.group.selection_problem import Limits, SelectionProblem, keeps_links_whole, membership, solution_value
from tagalong.group.solvers.column_generation import NodeBudget, Pricing, PricingQuery, solve_by_column_generation
from tagalong.group.solvers.local_search import solve_search
from tagalong.group.solvers.served_sets import served_values

values = st.integers(-40, 40).map(lambda number: number / 8)


def planted(n: int, noise: float, groups: int) -> Floats:
    random = np.random.default_rng(n)
    place = random.permutation(np.arange(n) % groups)
    return (place[:, None] == place) + noise * random.standard_normal((n, n))


def problem_of(n: int, seed: int, *, singles: bool, largest: int, links: tuple[int, ...] = ()) -> SelectionProblem:
    scores = np.random.default_rng(seed).uniform(-1, 1, (n, n))
    if not singles:
        np.fill_diagonal(scores, -np.inf)
    linked = sum(links)
    rest = [1 << i for i in range(n) if not linked >> i & 1]
    return SelectionProblem(n, scores, None, tuple(sorted([*links, *rest], key=lambda bits: bits & -bits)), largest)


@given(
    matrix=st.integers(2, 7).flatmap(lambda n: npst.arrays(np.float64, (n, n), elements=values)),
    data=st.data(),
    singles=st.booleans(),
    objective=st.sampled_from(["max", "min"]),
)
@settings(max_examples=100, deadline=None)
def test_column_generation_equals_the_dynamic_program(
    matrix: Floats, data: st.DataObject, singles: bool, objective: str
) -> None:
    n = len(matrix)
    budget, largest = data.draw(st.integers(1, n)), data.draw(st.integers(2, n))
    links = data.draw(st.lists(st.frozensets(st.integers(0, n - 1), min_size=2, max_size=3), max_size=2))
    options: Any = {
        "objective": objective,
        "allow_single": singles,
        "max_size": largest,
        "must_link": [set(map(str, link)) for link in links],
    }
    try:
        exact = select_groups(matrix, budget, solver="exact", **options)
    except ValueError:
        with pytest.raises(ValueError, match=r"no grouping .* can serve all tasks"):
            select_groups(matrix, budget, solver="columns", **options)
        return
    found = select_groups(matrix, budget, solver="columns", **options)
    assert_valid(found, n)
    assert found.status == "optimal"
    assert found.value == pytest.approx(exact.value, abs=1e-7)
    assert found.value == pytest.approx(score_of(matrix, found))
    assert all(len(group.trains) <= largest for group in found.groups)


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_equal_the_dynamic_program(seed: int) -> None:
    n = 8 + seed % 3
    matrix = np.random.default_rng(seed).standard_normal((n, n))
    for budget in (2, 3, 5):
        exact = select_groups(matrix, budget, allow_single=bool(seed % 2), solver="exact")
        found = select_groups(matrix, budget, allow_single=bool(seed % 2), solver="columns")
        assert found.status == "optimal"
        assert found.value == pytest.approx(exact.value, abs=1e-8)
        assert found.bound >= exact.value - 1e-8


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("links", [(), (0b11,), (0b1000010, 0b10101)])
def test_pricing_finds_exactly_the_sets_worth_more_than_their_prices(seed: int, links: tuple[int, ...]) -> None:
    n = 7
    problem = problem_of(n, seed, singles=bool(seed % 2), largest=n - seed % 4, links=links)
    random = np.random.default_rng(seed)
    prices, least = random.uniform(-0.5, 0.5, n), random.uniform(-0.5, 1.0)
    for link in links:  # one price for all tasks of a link, as the linear programme gives them
        prices[membership(np.array([link]), n)[0]] = random.uniform(-0.5, 0.5)
    sets = np.arange(1, 2**n)
    earned = served_values(problem)[1:] - membership(sets, n) @ prices
    paying = sets[(earned > least + 1e-9) & keeps_links_whole(sets, problem.links)]
    pricing, found = Pricing(problem), {}
    for every in (True, False):
        rows = pricing.find(PricingQuery(prices, least, every), NodeBudget(float("inf")), Limits())
        found[every] = set((rows @ (1 << np.arange(n))).tolist())
    assert found[True] == set(paying.tolist())
    assert found[False] <= found[True]
    if len(paying):
        assert int(sets[np.where(keeps_links_whole(sets, problem.links), earned, -np.inf).argmax()]) in found[False]


@pytest.mark.parametrize("nodes", [0, 1_000, 20_000, 10**9])
def test_bounds_hold_for_any_number_of_nodes(nodes: int) -> None:
    for seed in range(6):
        problem = problem_of(11, seed, singles=False, largest=11)
        best = solve_by_column_generation(problem, [3], Limits())[0]
        found = solve_by_column_generation(problem, [3], Limits(kicks=1), nodes)[0]
        assert found.bound >= solution_value(problem, best.choices) - 1e-9
        assert solution_value(problem, found.choices) <= found.bound + 1e-12


def test_few_nodes_still_give_the_result_of_the_search() -> None:
    scores = planted(28, 1.0, 5)
    np.fill_diagonal(scores, -np.inf)
    problem = SelectionProblem(28, scores / 4, None, tuple(1 << i for i in range(28)), 28)
    searched = solve_search(problem, [5], Limits())[0]
    found = solve_by_column_generation(problem, [5], Limits(), nodes=1_000)[0]
    assert not found.proven
    assert solution_value(problem, found.choices) >= solution_value(problem, searched.choices) - 1e-12
    assert found.bound <= searched.bound


@pytest.mark.parametrize(("n", "noise", "groups"), [(26, 0.3, 4), (26, 0.5, 4), (30, 0.5, 5), (40, 0.5, 7)])
def test_structured_problems_too_large_for_the_table_are_solved_optimally(n: int, noise: float, groups: int) -> None:
    matrix = planted(n, noise, groups)
    grouping = select_groups(matrix, groups)
    assert grouping.solver == "columns"
    assert grouping.status == "optimal"
    assert_valid(grouping, n)
    assert grouping.value == pytest.approx(score_of(matrix, grouping))
    assert grouping.certificate is not None
    assert grouping.certificate.bound(groups) == pytest.approx(grouping.value, abs=1e-6)


def test_a_fractional_optimum_is_closed_by_the_integer_program() -> None:
    loose = 0
    for seed in range(8):
        matrix = np.round(np.random.default_rng(seed).standard_normal((8, 8)), 1)
        grouping = select_groups(matrix, 3, solver="columns")
        assert grouping.status == "optimal"
        assert grouping.value == pytest.approx(select_groups(matrix, 3, solver="exact").value, abs=1e-8)
        assert grouping.certificate is not None
        loose += grouping.certificate.bound(3) > grouping.value + 1e-6
    assert loose
