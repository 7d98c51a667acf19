"""The estimators follow scikit-learn's conventions and predict with the networks that their study recommends."""

import doctest
import importlib
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tagalong import Problem, Study, Task
from tagalong.integrations.sklearn import GroupedMultiTaskClassifier, GroupedMultiTaskRegressor
from tagalong.learn import MLP, Recipe

pytestmark = pytest.mark.usefixtures("one_thread")
# The checks fit dozens of times.
CHECKED = {"seeds": 1, "methods": ("mtl",), "epochs": 25, "lr": 0.02, "random_state": 0}
SHORT = {"seeds": 1, "methods": ("mtl",), "epochs": 2, "random_state": 0}


def unrelated_pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two unrelated pairs of tasks, with missing labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 12))
    heat, water = np.tanh(X[:, :6] @ rng.normal(size=6)), np.tanh(X[:, 6:] @ rng.normal(size=6))
    Y = np.stack([heat, 1.8 * heat + 0.3, water, -water], 1) + 0.1 * rng.normal(size=(rows, 4))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    return X, Y


SPLITS = "rows are split at random, so a row of weight 2 is not the same as two rows"


@parametrize_with_checks(
    [GroupedMultiTaskRegressor(**CHECKED), GroupedMultiTaskClassifier(**CHECKED)],
    expected_failed_checks=lambda estimator: {"check_sample_weight_equivalence_on_dense_data": SPLITS},
)
def test_scikit_learns_own_checks_pass(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_networks_are_those_of_the_underlying_study_in_the_precision_of_the_inputs(tmp_path, dtype) -> None:
    X, Y = unrelated_pairs(120)
    X, weights = X.astype(dtype), np.arange(120) % 4 + 1
    model = GroupedMultiTaskRegressor(
        budgets=np.int64(2), seeds=[4, 5], epochs=3, hidden_sizes=np.array([4]), out=tmp_path / "a", random_state=0
    ).fit(X, Y, weights)
    problem = Problem.from_arrays(
        torch.tensor(X),
        Y,
        [Task(name, kind="regression") for name in "0123"],
        encoder=MLP(12, (4,)),
        recipe=Recipe(lr=0.01, batch_size=64, epochs=3),
        split=(0.7, 0.15, 0.15),
        seed=int(np.random.RandomState(0).randint(2**31 - 1)),
        sample_weight=weights,
    )
    results = Study(problem, tmp_path / "b").run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=[4, 5])
    assert [record.val for record in model.results_.records] == [record.val for record in results.records]
    assert model.groups_ == results.best().groups == results.verdict().groups
    predicted = model.predict(X)
    np.testing.assert_array_equal(predicted, np.stack(list(results.best().predict(torch.tensor(X)).values()), 1))
    assert predicted.dtype == dtype


def test_groups_predict_if_grouping_is_worth_it() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    Y = np.repeat(X, 2, axis=1) + 0.3 * rng.normal(size=(400, 8))  # two of each: four pairs, and capacity for one
    model = GroupedMultiTaskRegressor(
        methods=("tag",), budgets=4, hidden_sizes=(2,), lr=0.05, batch_size=32, epochs=10, random_state=0
    ).fit(X, Y)
    assert model.results_.verdict().worth_it
    assert {group.serves for group in model.groups_} == {frozenset(pair) for pair in ("01", "23", "45", "67")}
    assert model.affinity_.tasks == tuple("01234567")
    assert len(model.best_.networks) == 4
    together = clone(model).set_params(methods=("mtl",)).fit(X, Y)
    assert [group.serves for group in together.groups_] == [frozenset("01234567")]
    assert model.score(X, Y) > 0.8 > together.score(X, Y)


def test_a_method_can_be_chosen_whatever_the_verdict_is() -> None:
    X, Y = unrelated_pairs(120)
    model = GroupedMultiTaskRegressor(choose="tag", seeds=1, epochs=2, random_state=0).fit(X, Y)
    assert not model.results_.verdict().worth_it, "one seed claims nothing"
    scale = model.results_.scale
    groupings = [record for record in model.results_.records if record.method == "tag"]
    assert model.groups_ == max(groupings, key=lambda record: scale.mean(record, "val")).groups
    alone = clone(model).set_params(choose="stl").fit(X, Y)
    assert [len(group.serves) for group in alone.groups_] == [1, 1, 1, 1]


def test_missing_labels_are_neither_trained_on_nor_scored() -> None:
    X, Y = unrelated_pairs(120)
    model = GroupedMultiTaskRegressor(**SHORT).fit(X, Y)
    predicted = model.predict(X)
    wrong, spread = (np.nansum((Y - other) ** 2, 0) for other in (predicted, np.nanmean(Y, 0)))
    assert model.score(X, Y) == pytest.approx(np.mean(1 - wrong / spread))
    for labels in (Y[:, :3], np.full_like(Y, np.nan)):
        with pytest.raises(ValueError, match="`y`"):
            model.score(X, labels)


def test_classes_of_every_type_are_predicted_as_they_were_given() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    Y = np.empty((300, 3), dtype=object)
    Y[:, 0] = np.where(X[:, 0] > 0, "warm", "cold")
    Y[:, 1] = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7]) + 5
    Y[:, 2] = X[:, 2] > 0
    Y[::7, 0], Y[::5, 1] = None, np.nan
    model = GroupedMultiTaskClassifier(**SHORT | {"epochs": 40}).fit(X, Y)
    assert [classes.tolist() for classes in model.classes_] == [["cold", "warm"], [5, 6, 7], [False, True]]
    predicted, right = model.predict(X), []
    for task, (classes, probabilities) in enumerate(zip(model.classes_, model.predict_proba(X), strict=True)):
        np.testing.assert_allclose(probabilities.sum(1), 1)
        assert predicted[:, task].tolist() == classes[probabilities.argmax(1)].tolist()
        known = pd.notna(Y[:, task])
        right.append(np.mean(predicted[known, task] == Y[known, task]))
    assert model.score(X, Y) == pytest.approx(np.mean(right))
    assert min(right) > 0.85


def test_features_and_tasks_are_named_by_the_columns_of_frames() -> None:
    X, Y = unrelated_pairs(60)
    rows = pd.DataFrame(X, columns=[f"sensor {k}" for k in range(12)])
    model = GroupedMultiTaskRegressor(**SHORT).fit(rows, pd.DataFrame(Y, columns=["c", "f", "humid", "dry"]))
    assert model.groups_[0].serves == {*model.task_names_} == {"c", "f", "humid", "dry"}
    assert (model.n_features_in_, model.feature_names_in_[0]) == (12, "sensor 0")
    one = GroupedMultiTaskRegressor(**SHORT).fit(rows, pd.Series(Y[:, 0], name="c"))
    assert one.task_names_ == ("c",)
    assert one.predict(rows).shape == (60,)


def test_pipelines_searches_and_pickles_work_with_missing_labels() -> None:
    X, Y = unrelated_pairs(90)
    pipeline = make_pipeline(StandardScaler(), GroupedMultiTaskRegressor(**SHORT))
    search = GridSearchCV(pipeline, {"groupedmultitaskregressor__epochs": [1, 4]}, cv=KFold(2)).fit(X, Y)
    assert search.best_params_ == {"groupedmultitaskregressor__epochs": 4}
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    assert str(again.best_estimator_[-1].results_) == str(search.best_estimator_[-1].results_)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"choose": "stl"}, "`choose`"),
        ({"hidden_sizes": (0,)}, "`hidden_sizes`"),
        ({"lr": -1}, "`lr`"),
        ({"test_fraction": 0.9}, "`validation_fraction` and `test_fraction`"),
        ({"methods": ["random"], "choose": "random"}, "`choose`"),
        ({"budgets": 9, "seeds": 0}, "`seeds`"),
    ],
)
def test_invalid_arguments_are_named_before_training(arguments, words) -> None:
    model = GroupedMultiTaskRegressor(**{"methods": ["tag"], **arguments})
    with pytest.raises(ValueError, match=words):
        model.fit(*unrelated_pairs(60))
    with pytest.raises(NotFittedError):
        model.predict(np.zeros((2, 12)))


def test_labels_that_cannot_be_learnt_are_refused() -> None:
    X, Y = unrelated_pairs(60)
    with pytest.raises(ValueError, match="`y`"):
        GroupedMultiTaskRegressor().fit(X, pd.DataFrame(Y, columns=["c", 1, "1", "dry"]))
    with pytest.raises(ValueError, match="`y`: '1'"):
        GroupedMultiTaskClassifier().fit(X, np.stack([X[:, 0] > 0, X[:, 0] > -99], 1))


def test_the_examples_of_the_docstrings_run() -> None:
    found = doctest.testmod(importlib.import_module("tagalong.integrations.sklearn"))
    assert found.failed == 0
    assert found.attempted > 8
