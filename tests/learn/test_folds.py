"""`Problem.folds`: each row is tested once, groups stay together, and nothing is fitted to validation or test rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tagalong import Problem, Task
from tagalong.learn import Recipe
from tagalong.learn.splitting import split_folds
from tagalong.learn.targets import read_target

ROWS = 120


def table(**columns: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    dose, age = random.lognormal(size=ROWS), random.normal(50, 9, ROWS)
    dose[::7] = np.nan
    town = random.choice(["Ulm", "Bonn", "Kiel"], ROWS)
    ill = (random.random(ROWS) < 0.3).astype(float)
    return {"dose": dose, "age": age, "town": town, "weight": age + random.normal(size=ROWS), "ill": ill, **columns}


def table_problem(**settings: Any) -> Problem:
    return Problem.from_table(table(), ["weight", "ill"], encoder="mlp", **settings)


@pytest.mark.parametrize("count", [3, 5])
def test_each_row_is_tested_once_validated_once_and_trains_otherwise(count: int) -> None:
    folds = list(table_problem().folds(count))
    assert len(folds) == count
    numbers = [fold.row_numbers for fold in folds]
    assert sorted(np.concatenate([fold.test for fold in numbers])) == list(range(ROWS))
    for fold, following in zip(numbers, numbers[1:] + numbers[:1], strict=True):
        assert np.array_equal(fold.val, following.test)
        assert sorted(np.concatenate(fold)) == list(range(ROWS))
        assert abs(len(fold.test) - ROWS / count) <= 2


def array_problem(**settings: Any) -> Problem:
    random = np.random.default_rng(1)
    weights = random.random(60)
    return Problem.from_arrays(
        random.normal(5, 2, (60, 3)), random.normal(size=60), ["age"], sample_weight=weights, **settings
    )


def image_problem(**settings: Any) -> Problem:
    random = np.random.default_rng(1)
    images, ages = random.integers(0, 256, (60, 2, 4, 4)).astype(np.uint8), random.normal(size=60)
    return Problem.from_arrays(images, ages, ["age"], encoder=torch.nn.Flatten, **settings)


@pytest.mark.parametrize("make", [table_problem, array_problem, image_problem])
def test_each_fold_is_the_problem_of_its_rows(make: Callable[..., Problem]) -> None:
    """As if rows were assigned to splits by hand, so nothing is fitted to validation or test rows."""
    for fold in make().folds():
        expected = make(split=tuple(fold.row_numbers))
        assert fold.fingerprint == expected.fingerprint  # inputs, labels and weights
        assert fold.scales == expected.scales
        assert fold.table.to_document() == expected.table.to_document()
        assert repr(fold.encoder) == repr(expected.encoder)
        assert fold.recipe == expected.recipe


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 25), st.integers(3, 5), st.integers(0, 9))
def test_groups_are_never_split(groups: int, folds: int, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.r_[np.arange(groups), np.arange(80) % groups])
    target = read_target("age", np.arange(len(labels), dtype=float))
    splits = split_folds([target], folds, labels, seed)
    for split in splits:
        parts = [set(labels[rows]) for rows in split]
        assert all(parts)
        assert sum(map(len, parts)) == len(set(labels))
    assert sorted(np.concatenate([split.test for split in splits])) == list(range(len(labels)))


def test_rare_classes_and_sparse_labels_are_spread_over_all_folds() -> None:
    random = np.random.default_rng(2)
    rare, sparse, kinds = np.zeros(200), np.full(200, np.nan), random.integers(0, 2, 200).astype(float)
    rare[:11], sparse[5:27], kinds[:7] = 1, np.arange(22.0), 2
    tasks = [Task("rare"), Task("sparse", "regression"), Task("kind", "multiclass", classes=3)]
    problem = Problem.from_arrays(random.normal(size=(200, 2)), np.stack([rare, sparse, kinds], 1), tasks)
    for fold in problem.folds():
        tested = fold.test.targets
        assert 2 <= int((tested["rare"] == 1).sum()) <= 3
        assert 4 <= int(tested["sparse"].isfinite().sum()) <= 5
        assert 1 <= int((tested["kind"] == 2).sum()) <= 2


def test_folds_depend_only_on_the_data_and_the_seed() -> None:
    problem = table_problem(seed=3)
    again, other = pickle.loads(pickle.dumps(problem)), table_problem(seed=4)
    assert [fold.fingerprint for fold in again.folds()] == [fold.fingerprint for fold in problem.folds()]
    assert other.folds()[0].fingerprint != problem.folds()[0].fingerprint


def test_changed_settings_and_tasks_are_kept() -> None:
    problem = table_problem()
    tasks = (Task("ill", weight=2.0), problem.task("weight"))
    changed = replace(problem, tasks=tasks, recipe=replace(problem.recipe, epochs=2, patience=None))
    fold = changed.folds()[1]
    assert (fold.tasks, fold.recipe.epochs, fold.recipe.patience) == (tasks, 2, None)
    assert changed.only(["ill"]).folds()[0].train.tasks == ("ill",)
    own = replace(problem, encoder=torch.nn.Identity(), recipe=Recipe(epochs=1))
    assert isinstance(own.folds()[0].encoder, torch.nn.Identity)
    assert own.folds()[0].recipe == Recipe(epochs=1)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: table_problem().folds(2), "folds"),
        (lambda: table_problem().folds()[0].folds(), "problem"),
        (lambda: table_problem(split=(range(80), range(80, 100), range(100, ROWS))).folds(), "problem"),
        (lambda: Problem.from_arrays(np.eye(20), np.arange(20.0), ["a"], groups=np.arange(20) % 4).folds(), "5 groups"),
    ],
)
def test_what_cannot_be_split_into_folds_is_refused(make: Any, argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        make()
