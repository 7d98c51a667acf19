"""The leaderboard: estimators in the tables, pairs, and estimators of other packages."""

import itertools
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from tagalong import select_groups
from tagalong.learn import Recipe
from tagalong.measure import Estimator
from tagalong.problems import load_problem
from tagalong_paper.truth import (
    Standing,
    TruthTable,
    average,
    leaderboard,
    load_truth,
    marginal_effects,
    pair_gains,
    standings,
)
from tagalong_paper.truth.standings import correlation, load_table_problem, measure_estimate


class Drop(Estimator):
    """The decrease of the loss."""

    name, needs, ratio = "drop", frozenset({"after"}), False

    def __call__(self, seen):
        return seen.before - seen.after


def find_standing(name: str, seeds: int) -> Standing:
    return next(one for one in leaderboard(["nhanes"], budgets=(2,), seeds=seeds) if one.estimator == name)


def test_random_groups_are_averaged_over_all_partitions() -> None:
    table, random = load_truth("nhanes"), find_standing("random groups", seeds=1)
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
    table, copies = load_truth("nhanes"), find_standing("copies", seeds=1)
    losses = np.exp(table.copies[2][1])
    assert losses.shape == (28, len(table.tasks))  # pairs of eight seeds
    assert copies.changes[2] == pytest.approx(losses.mean() - 1)
    assert copies.changes[2] < 0
    assert copies.cost == 0


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
    assert found.marginal == pytest.approx(correlation(marginal_effects(logs), marginal_effects(table.test.mean(0))))
    assert found.cost == 511


def test_one_half_of_the_seeds_is_judged_by_the_other_half() -> None:
    table, found = load_truth("nhanes"), find_standing("truth, half the seeds", seeds=2)
    correlations, changes = [], []
    for half in ([0, 1, 2, 3], [1, 2, 3, 4]):
        other = [seed for seed in range(8) if seed not in half]
        logs = [table.test[seeds].mean(0) for seeds in (half, other)]
        correlations.append([correlation(*map(effects, logs)) for effects in (pair_gains, marginal_effects)])
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


def test_own_estimators_are_measured_and_one_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    truth = np.nan_to_num(marginal_effects(load_truth("nhanes").test.mean(0)))
    own: dict[str, Any] = {
        "breaks": lambda problem, seed: 1 / 0,
        "small": lambda problem, seed: (np.zeros((2, 2)), 0.5),
        "knows": lambda problem, seed: (truth, 0.5),
    }
    missing = EntryPoint("missing", "no_such_package:estimator", "tagalong.estimators")
    monkeypatch.setattr(standings, "entry_points", lambda group: [missing])
    monkeypatch.setattr(standings, "load_table_problem", lambda table: object())
    found = {one.estimator: one for one in leaderboard(["nhanes"], budgets=(2,), seeds=1, estimators=own)}
    assert found.keys() & {*own, "missing"} == {"knows"}
    assert found["knows"].marginal == pytest.approx(1)
    assert found["knows"].cost == 0.5
    assert len(caplog.records) == 3


def test_new_estimators_are_measured_with_the_network_and_recipe_of_the_table() -> None:
    table = load_truth("nhanes")
    problem = load_table_problem(table)
    assert problem is not None
    assert repr(problem.encoder) == f"MLP({problem.train.inputs.shape[1]}, hidden=(32,), dropout=0.0)"
    assert problem.recipe == Recipe(**table.about["recipe"])
    assert problem.recipe.epochs == 40


def test_a_meter_estimator_is_measured_while_all_tasks_train() -> None:
    problem = load_problem("nhanes").only(["systolic", "hdl"])
    problem = replace(problem, recipe=replace(problem.recipe, epochs=1))
    estimate = measure_estimate(load_truth("nhanes"), problem, Drop(), seed=0)
    assert estimate.gains.shape == (2, 2)
    assert estimate.cost > 0
    np.testing.assert_array_equal(measure_estimate(load_truth("nhanes"), problem, Drop, seed=0).gains, estimate.gains)


@pytest.mark.parametrize(
    ("argument", "value"), [("tables", ["nhanse"]), ("tables", "nhanes"), ("budgets", (2, 10)), ("seeds", 0)]
)
def test_an_invalid_argument_is_named(argument: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        leaderboard(**{"tables": ["nhanes"], argument: value})
