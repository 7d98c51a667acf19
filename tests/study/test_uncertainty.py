"""The uncertainty from a finite test set: the delta method compared with resampling rows, and its laws."""

import numpy as np
import pytest

from tagalong.group import Group
from tagalong.study import Record, Score, row_stderr
from tagalong.study.uncertainty import row_noise

TASKS = ("a", "b")


def losses(rng: np.random.Generator, rows: int, seeds: int = 3) -> tuple[list, list]:
    """Returns losses of two groupings, mostly hard on the same rows, with missing labels."""
    hard = {task: rng.gamma(2.0, size=rows) for task in TASKS}
    missing = {task: rng.random(rows) < 0.1 for task in TASKS}

    def one(factor: float) -> dict:
        found = {task: factor * hard[task] * rng.gamma(50.0, 1 / 50, size=rows) for task in TASKS}
        return {task: np.where(missing[task], np.nan, values) for task, values in found.items()}

    return [one(0.9) for _ in range(seeds)], [one(1.0) for _ in range(seeds)]


def change(mine: list, theirs: list, rows: np.ndarray) -> float:
    """Computes the change directly."""
    changes = [
        np.nanmean(m[task][rows]) / np.nanmean(t[task][rows]) - 1
        for m, t in zip(mine, theirs, strict=True)
        for task in TASKS
    ]
    return float(np.mean(changes))


def bootstrap(mine: list, theirs: list, clusters: np.ndarray, resamples: int = 1500) -> float:
    rng = np.random.default_rng(1)
    names = np.unique(clusters)
    members = {name: np.flatnonzero(clusters == name) for name in names}
    found = []
    for _ in range(resamples):
        drawn = rng.choice(names, size=len(names))
        found.append(change(mine, theirs, np.concatenate([members[name] for name in drawn])))
    return float(np.std(found))


def test_row_stderr_equals_that_of_resampled_rows() -> None:
    mine, theirs = losses(np.random.default_rng(0), 400)
    assert row_stderr(mine, theirs) == pytest.approx(bootstrap(mine, theirs, np.arange(400)), rel=0.08)


def test_rows_of_a_cluster_count_as_one() -> None:
    mine, theirs = losses(np.random.default_rng(0), 100)
    repeated = [[{task: np.repeat(values, 4) for task, values in one.items()} for one in x] for x in (mine, theirs)]
    clusters = np.repeat(np.arange(100), 4)
    assert row_stderr(*repeated, clusters=clusters) == pytest.approx(row_stderr(mine, theirs))
    assert row_stderr(*repeated) < 0.6 * row_stderr(mine, theirs)
    assert row_stderr(*repeated, clusters=clusters) == pytest.approx(bootstrap(*repeated, clusters), rel=0.1)


def test_rescaling_a_target_changes_nothing() -> None:
    mine, theirs = losses(np.random.default_rng(0), 50)
    scaled = [[{**one, "a": 1000 * one["a"]} for one in x] for x in (mine, theirs)]
    assert row_stderr(*scaled) == pytest.approx(row_stderr(mine, theirs))


def test_the_same_network_and_missing_tasks_have_no_noise() -> None:
    mine, _ = losses(np.random.default_rng(0), 50)
    assert row_stderr(mine, mine) == 0.0
    empty = [{task: np.full(50, np.nan) for task in TASKS}]
    assert row_stderr(empty, empty) == 0.0


def test_one_row_gives_no_standard_error() -> None:
    assert row_stderr([{"a": np.array([1.0])}], [{"a": np.array([2.0])}]) == float("inf")


def record(method: str, budget: int | None, seed: int, groups: tuple[Group, ...]) -> Record:
    outcomes = {task: Score(1.0, 0.0) for task in TASKS}
    return Record(method, budget, seed, groups, outcomes, outcomes)


def test_every_grouping_gets_its_noise_paired_by_seed() -> None:
    alone = (Group("a", "a"), Group("b", "b"))
    records = [record("mtl", None, seed, (Group("ab", "ab"),)) for seed in (0, 1, 2)]
    records += [record("stl", None, seed, alone) for seed in (2, 1, 0)]  # in another order
    records += [record("random", 2, 0, ())]
    mine, theirs = losses(np.random.default_rng(0), 60)
    rows = {("stl", seed): mine[seed] for seed in range(3)} | {("mtl", seed): theirs[seed] for seed in range(3)}
    found = row_noise(records, lambda one: rows[one.method, one.seed])
    assert found == {("stl", None): pytest.approx(row_stderr(mine, theirs))}
    fresh = row_noise(records, lambda one: rows[one.method, one.seed], confirming_seeds=[2])
    assert fresh == {("stl", None): pytest.approx(row_stderr(mine[2:], theirs[2:]))}
