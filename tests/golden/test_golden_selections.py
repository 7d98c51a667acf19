"""Selected groups: the published optima, brute force on small instances, and recorded results on larger ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from group_oracle import best_by_enumeration, networks_of
from published import EXPECTED, OPTIONS, groups_of, optimal_groups, read_affinity
from tagalong import Affinity, Grouping, select_groups
from tagalong.group import Candidate, score_grouping

Floats = NDArray[np.float64]
Golden = Callable[..., None]


@pytest.mark.parametrize("problem", EXPECTED)
def test_published_matrices_give_their_known_optima(problem: str) -> None:
    groupings = select_groups(read_affinity(problem), range(1, 6), **OPTIONS[problem])
    assert [str(budget) for budget in groupings] == list(EXPECTED[problem])
    for budget, grouping in groupings.items():
        expected = EXPECTED[problem][str(budget)]
        assert grouping.value == grouping.bound == pytest.approx(expected["optimal_sum"], rel=1e-9)
        assert dict(grouping.per_task) == pytest.approx(expected["per_task_score"], rel=1e-9)
        assert groups_of(grouping) == optimal_groups(problem, int(budget))
        assert (grouping.status, len(grouping.ties)) == ("optimal", expected["n_optimal_group_sets"] - 1)


@pytest.mark.parametrize("problem", [problem for problem in EXPECTED if problem.endswith("hoa")])
def test_results_of_pairs_are_completed_as_hoa_does(problem: str) -> None:
    scores = read_affinity(problem)
    table = {
        frozenset({one, two}): {one: scores.mean[j, i], two: scores.mean[i, j]}
        for i, one in enumerate(scores.tasks)
        for j, two in enumerate(scores.tasks)
    }
    for budget in (1, 3, 5):
        grouping = select_groups(table, budget, complete="pairs", objective=OPTIONS[problem]["objective"])
        assert grouping.value == pytest.approx(EXPECTED[problem][str(budget)]["optimal_sum"], rel=1e-9)
        assert groups_of(grouping) == optimal_groups(problem, budget)


@pytest.mark.parametrize("problem", EXPECTED)
def test_printed_groupings_score_as_known(problem: str) -> None:
    for expected in EXPECTED[problem].values():
        if printed := expected.get("paper_reported"):
            groups = [group["members"] for group in printed["groups"]]
            grouping = score_grouping(read_affinity(problem), groups, **OPTIONS[problem])
            assert grouping.value == pytest.approx(printed["objective_sum_on_fixture"], rel=1e-9)
            for task, (index,) in printed["best_serving_on_fixture"].items():
                assert grouping.served_by(task).trains == set(groups[index])


def named(tasks: Any) -> frozenset[str]:
    return frozenset(map(str, tasks))


@pytest.mark.parametrize("seed", range(50))
def test_small_instances_equal_brute_force(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, sign, singles = int(draw.integers(3, 8)), int(draw.choice([1, -1])), bool(draw.integers(2))
    limit: float = min(n, int(draw.integers(1, 5)))
    budget = int(limit)
    options: dict[str, Any] = {"objective": "max" if sign == 1 else "min", "allow_single": singles}
    must: list[frozenset[int]] = []

    if seed % 5 == 0:  # results of some groups, and of all tasks together
        every = networks_of(draw.normal(size=(n, n)), lambda _: 1, singles=singles)
        networks = [network for network in every if len(network[0]) == n or draw.random() < 0.3]
        listed = [Candidate(named(trains), {str(t): s for t, s in score.items()}) for trains, score, _ in networks]
        scores: Any = {c.trains: c.values for c in listed} if draw.integers(2) else listed
    else:  # a matrix, with some of the options
        scores, cost = draw.normal(size=(n, n)), lambda _: 1.0
        weights = draw.uniform(0.5, 2, n) if seed % 5 == 1 else np.ones(n)
        if seed % 5 == 1:
            options["weights"] = {str(task): weight for task, weight in enumerate(weights)}
            options["max_size"] = int(draw.integers(2, n))
        if seed % 5 == 2:
            cost = options["cost"] = lambda group: 1 + 0.5 * len(group)
            options["max_cost"] = 1 + 0.5 * draw.integers(2, n + 1)
            options["max_total_cost"] = limit = 2.5 * budget + 1
            budget = n
        networks = networks_of(scores, cost, singles=singles, largest=options.get("max_size"))
        networks = [network for network in networks if network[2] <= options.get("max_cost", n)]
        if seed % 5 >= 3:
            must, apart = ([frozenset(draw.choice(n, 2, replace=False).tolist())] for _ in range(2))
            options |= {"must_link": list(map(named, must)), "cannot_link": list(map(named, apart))}
            networks = [network for network in networks if not apart[0] <= network[0]]
        networks = [(trains, {t: weights[t] * s for t, s in score.items()}, c) for trains, score, c in networks]

    best = best_by_enumeration(networks, n, limit, sign=sign, must=must)
    if np.isnan(best):
        with pytest.raises(ValueError, match=r"budget|cost|link"):
            select_groups(scores, budget, **options)
        return
    grouping = select_groups(scores, budget, **options)
    assert grouping.value == grouping.bound == pytest.approx(best, abs=1e-9)
    assert grouping.status == "optimal"
    # The groups are allowed, serve every task once, and have the value that is stated.
    allowed = {named(trains): (score, cost) for trains, score, cost in networks}
    assert sorted(task for group in grouping.groups for task in group.serves) == list(map(str, range(n)))
    total = sum(allowed[group.trains][0][int(task)] for group in grouping.groups for task in group.serves)
    assert total == pytest.approx(best, abs=1e-9)
    assert sum(allowed[group.trains][1] for group in grouping.groups) <= limit
    assert all(sum(named(link) <= group.serves for group in grouping.groups) == 1 for link in must)


def planted(n: int, families: int, noise: float) -> Floats:
    """Returns affinities of tasks that help their own family, with a level for every source and target."""
    draw = np.random.default_rng(n)
    levels = 0.3 * draw.normal(size=(2, n))
    own = np.arange(n) % families
    return (own[:, None] == own) + levels[0][:, None] + levels[1] + noise * draw.normal(size=(n, n))


def record(grouping: Grouping) -> dict[str, Any]:
    groups = [{"trains": " ".join(sorted(g.trains)), "serves": " ".join(sorted(g.serves))} for g in grouping.groups]
    return {name: getattr(grouping, name) for name in ("value", "bound", "status")} | {"groups": groups}


@pytest.mark.parametrize(
    ("n", "budget", "solver"), [(12, 3, "exact"), (16, 4, "exact"), (30, 5, "search"), (60, 6, "search")]
)
def test_larger_instances(golden: Golden, n: int, budget: int, solver: Any) -> None:
    grouping = select_groups(planted(n, budget, noise=1.0), budget, solver=solver, seed=0)
    golden(f"{n} tasks", record(grouping), rtol=1e-9 if solver == "exact" else 1e-6)  # the bound is found numerically


def noisy_history() -> Affinity:
    history = planted(6, 2, noise=0.5) + 5 * np.random.default_rng(0).normal(size=(40, 6, 6))
    return Affinity.from_history(history, list("abcdef"))


def test_stability_from_a_history(golden: Golden) -> None:
    grouping = select_groups(noisy_history(), 2, resamples=50, seed=0)
    resampled = grouping.resampled
    assert resampled is not None
    shares = {"share": resampled.share, "same": resampled.same, "together": list(map(list, resampled.together))}
    golden("stability", record(grouping) | shares)


def test_stability_without_a_history(golden: Golden) -> None:
    affinity = noisy_history()
    streamed = Affinity.from_matrix(affinity.mean, affinity.tasks, stderr=affinity.stderr)
    golden("stability without a history", select_groups(streamed, 2, resamples=50, seed=0).stability)


def test_unmeasured_pairs_are_completed(golden: Golden) -> None:
    matrix = planted(9, 3, noise=0.2)
    matrix[np.random.default_rng(0).random((9, 9)) < 0.25] = np.nan
    grouping = select_groups(matrix, 3, resamples=20, seed=0)
    completed = {name: getattr(grouping, name) for name in ("unmeasured", "stability")}
    # Predictions are found by iteration.
    golden("unmeasured pairs", record(grouping) | completed | {"per_task": dict(grouping.per_task)}, rtol=1e-6)


def test_scores_of_groups_chosen_by_hand(golden: Golden) -> None:
    groups = [{"0", "2", "4"}, {"1", "3", "5"}, {"0", "1", "2", "3"}]
    weights = {str(task): task + 1 for task in range(6)}
    grouping = score_grouping(planted(6, 2, noise=0.5), groups, objective="min", weights=weights)
    golden("groups chosen by hand", record(grouping) | {"per_task": dict(grouping.per_task)})
