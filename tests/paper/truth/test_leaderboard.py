"""The leaderboard: estimators in the tables, pairs, and estimators of other packages."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tagalong import select_groups
from tagalong.measure import Estimator
from tagalong.problems import load_problem
from tagalong_paper.truth import (
    Standing,
    TruthTable,
    average,
    leaderboard,
    load_truth,
    marginal_effects,
    marginal_effects_of,
    standings,
)
from tagalong_paper.truth.estimates import correlation, load_table_problem, measure_estimate, pair_gains_of
from tagalong_paper.truth.standings import COPIES, RANDOM, TRUTH


class Drop(Estimator):
    """The decrease of the loss."""

    name, needs, ratio = "drop", frozenset({"after"}), False

    def __call__(self, seen):
        return seen.before - seen.after


def test_every_estimator_is_scored_on_every_table() -> None:
    table = load_truth("nhanes")
    found = leaderboard(["nhanes"], budgets=(2,), seeds=1)
    names = {one.estimator for one in found}
    assert set(table.affinities) < names
    assert {"pairs (HOA)", "pairs, 1/4 trained", "centered_cosine train mean", "best by validation"} < names
    assert {RANDOM, COPIES, TRUTH} < names
    assert all(-1 <= one.pairs <= 1 for one in found if one.estimator not in (RANDOM, COPIES))
    assert all(np.isfinite(one.changes[2]) and one.cost >= 0 for one in found)


def find_standing(name: str, seeds: int) -> Standing:
    return next(one for one in leaderboard(["nhanes"], budgets=(2,), seeds=seeds) if one.estimator == name)


def test_random_groups_are_averaged_over_all_partitions() -> None:
    table, random = load_truth("nhanes"), find_standing(RANDOM, seeds=1)
    first, *others = table.tasks
    changes = []
    for size in range(len(others)):
        for joined in itertools.combinations(others, size):
            blocks = {first, *joined}, set(others) - set(joined)
            changes.append(table.change({task: block for block in blocks for task in block}))
    assert len(changes) == 255
    assert random.changes[2] == pytest.approx(np.mean(changes))
    assert np.isnan([random.pairs, random.marginal]).all()
    assert random.cost == 0


def test_copies_are_averaged_over_all_sets_of_seeds() -> None:
    table, copies = load_truth("nhanes"), find_standing(COPIES, seeds=1)
    losses = np.exp(table.copies[2][1])
    assert losses.shape == (28, len(table.tasks))  # pairs of eight seeds
    assert copies.changes[2] == pytest.approx(losses.mean() - 1)
    assert copies.changes[2] < 0
    assert copies.cost == 0


def test_tables_without_copies_have_no_row_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    older = replace(load_truth("nhanes"), copies={})
    monkeypatch.setattr(standings, "load_truth", lambda name: older)
    names = {one.estimator for one in leaderboard(["nhanes"], budgets=(2,), seeds=1)}
    assert RANDOM in names
    assert COPIES not in names


def relative_losses(table: TruthTable, logs: np.ndarray) -> dict[frozenset[str], dict[str, float]]:
    """Returns the loss of each task in each subset, relative to the network for all tasks."""
    found: dict[frozenset[str], dict[str, float]] = {}
    for members, row in zip(table.subsets, logs, strict=True):
        at = np.flatnonzero(members)
        subset = frozenset(table.tasks[i] for i in at)
        found[subset] = {table.tasks[i]: float(np.exp(row[i] - logs[-1, i])) for i in at}
    return found


def test_best_by_validation_chooses_among_all_subsets() -> None:
    table, found = load_truth("nhanes"), find_standing("best by validation", seeds=1)
    logs = table.val[0].mean(0)
    groups = select_groups(relative_losses(table, logs), 2, objective="min").groups
    served = {task: group.trains for group in groups for task in group.serves}
    assert found.changes[2] == pytest.approx(table.change(served))
    assert found.marginal == pytest.approx(correlation(marginal_effects_of(logs), marginal_effects(table)))
    assert found.cost == 511


def test_one_half_of_the_seeds_is_judged_by_the_other_half() -> None:
    table, found = load_truth("nhanes"), find_standing(TRUTH, seeds=2)
    correlations, changes = [], []
    for half in ([0, 1, 2, 3], [1, 2, 3, 4]):
        other = [seed for seed in range(8) if seed not in half]
        logs = [table.test[seeds].mean(0) for seeds in (half, other)]
        correlations.append([correlation(*map(effects, logs)) for effects in (pair_gains_of, marginal_effects_of)])
        groups = select_groups(relative_losses(table, logs[0]), 2, objective="min").groups
        changes.append(table.change({task: group.trains for group in groups for task in group.serves}, other))
    assert [found.pairs, found.marginal] == pytest.approx(np.mean(correlations, axis=0))
    assert found.changes[2] == pytest.approx(np.mean(changes))
    assert found.cost == 4 * 511


def test_only_estimators_scored_on_every_table_are_averaged() -> None:
    def one(name: str, table: str, value: float) -> Standing:
        return Standing(name, table, value, 2 * value, {2: -value}, 1.0, 3)

    (mean,) = average([one("a", "x", 0.2), one("b", "x", 0.9), one("a", "y", 0.4)])
    assert (mean.estimator, mean.table) == ("a", "all tables")
    assert (mean.pairs, mean.marginal, mean.changes[2]) == pytest.approx((0.3, 0.6, -0.3))


def test_own_estimators_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    table = load_truth("nhanes")
    truth = marginal_effects(table)
    own = {"knows": lambda problem, seed: (np.nan_to_num(truth), 0.5)}
    monkeypatch.setattr(standings, "load_table_problem", lambda table: object())
    found = leaderboard(["nhanes"], budgets=(2,), seeds=1, estimators=own)
    knows = next(one for one in found if one.estimator == "knows")
    assert knows.marginal == pytest.approx(1)
    assert knows.cost == 0.5


def test_a_failing_estimator_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(problem: object, seed: int) -> tuple[np.ndarray, float]:
        raise RuntimeError("out of ideas")

    theirs = {
        "breaks": breaks,
        "small": lambda problem, seed: (np.zeros((2, 2)), 0.5),
        "fine": lambda problem, seed: (np.eye(9), 0.5),
    }
    monkeypatch.setattr(standings, "plugin_estimators", lambda: theirs)
    monkeypatch.setattr(standings, "load_table_problem", lambda table: object())
    names = {one.estimator for one in leaderboard(["nhanes"], budgets=(2,), seeds=1)}
    assert names & set(theirs) == {"fine"}
    assert "could not measure the estimator 'breaks' on nhanes: out of ideas" in caplog.text
    assert "must have the shape (9, 9), source by target, found (2, 2)" in caplog.text


def test_new_estimators_are_measured_with_the_network_and_recipe_of_the_table() -> None:
    table = load_truth("nhanes")
    problem = load_table_problem(table)
    assert problem is not None
    assert repr(problem.encoder) == f"MLP({problem.train.inputs.shape[1]}, hidden=(32,), dropout=0.0)"
    assert problem.recipe.definition == table.about["recipe"]
    assert problem.recipe.epochs == 40


def test_a_meter_estimator_is_measured_while_all_tasks_train() -> None:
    problem = load_problem("nhanes").only(["systolic", "hdl"])
    problem = replace(problem, recipe=replace(problem.recipe, epochs=1))
    estimate = measure_estimate(load_truth("nhanes"), problem, Drop(), seed=0)
    assert estimate.gains.shape == (2, 2)
    assert estimate.cost > 0
    np.testing.assert_array_equal(measure_estimate(load_truth("nhanes"), problem, Drop, seed=0).gains, estimate.gains)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": 3}, r"`budgets` must be a list, found 3; write \[3\]"),
        ({"budgets": "23"}, "`budgets` must be a list, found '23'"),
        ({"tables": "nhanes"}, r"`tables` must be a list, found 'nhanes'; write \['nhanes'\]"),
        ({"seeds": "3"}, "`seeds` must be a positive integer, found '3'"),
        ({"seeds": 2.5}, "`seeds` must be a positive integer, found 2.5"),
        ({"seeds": 0}, "`seeds` must be a positive integer, found 0"),
    ],
)
def test_invalid_arguments_are_errors(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        leaderboard(**{"tables": ["nhanes"], **given})
