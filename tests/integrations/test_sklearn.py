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

QUICK = {"seeds": 1, "methods": ("mtl", "tag"), "epochs": 40, "random_state": 0}
SHORT = {"seeds": 1, "methods": ("mtl",), "epochs": 2, "random_state": 0}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def unrelated_pairs(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Returns two unrelated pairs of tasks, for which one small network is too small."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 12))
    heat, water = np.tanh(X[:, :6] @ rng.normal(size=6)), np.tanh(X[:, 6:] @ rng.normal(size=6))
    Y = np.stack([heat, 1.8 * heat + 0.3, water, -water], 1) + 0.1 * rng.normal(size=(rows, 4))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    return X, Y


# The classifier trains one network only: its checks fit dozens of times, and measuring is the same for both.
@parametrize_with_checks(
    [GroupedMultiTaskRegressor(**QUICK), GroupedMultiTaskClassifier(**QUICK | {"methods": ("mtl",)})]
)
def test_scikit_learns_own_checks_pass(estimator, check) -> None:
    check(estimator)


def test_the_networks_are_those_of_the_underlying_study(tmp_path) -> None:
    X, Y = unrelated_pairs(200)
    model = GroupedMultiTaskRegressor(
        budgets=2, seeds=[4, 5], epochs=3, hidden_sizes=(4,), out=tmp_path / "a", random_state=0
    )
    model.fit(X, Y)
    assert model.results_.out == tmp_path / "a"
    split_seed = int(np.random.RandomState(0).randint(2**31 - 1))
    problem = Problem.from_arrays(
        torch.tensor(X),
        Y,
        [Task(name, kind="regression") for name in "0123"],
        encoder=MLP(12, (4,)),
        recipe=Recipe(lr=0.01, batch_size=64, epochs=3),
        split=(0.7, 0.15, 0.15),
        seed=split_seed,
    )
    results = Study(problem, tmp_path / "b").run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=[4, 5])
    assert [record.val for record in model.results_.records] == [record.val for record in results.records]
    assert model.groups_ == results.best().groups == results.verdict().groups
    expected = np.stack(list(results.best().predict(torch.tensor(X)).values()), 1)
    np.testing.assert_array_equal(model.predict(X), expected)


def test_groups_predict_if_grouping_is_worth_it() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    Y = np.repeat(X, 2, axis=1) + 0.3 * rng.normal(size=(400, 8))  # two of each: four pairs, and capacity for one
    model = GroupedMultiTaskRegressor(
        methods=("tag",), budgets=4, hidden_sizes=(2,), lr=0.05, batch_size=32, epochs=10, random_state=0
    ).fit(X, Y)
    assert model.results_.verdict().worth_it
    assert model.groups_ == model.results_.verdict().groups
    assert {group.serves for group in model.groups_} == {frozenset(pair) for pair in ("01", "23", "45", "67")}
    assert model.affinity_.tasks == tuple("01234567")
    assert len(model.best_.networks) == 4
    together = clone(model).set_params(methods=("mtl",)).fit(X, Y)
    assert [group.serves for group in together.groups_] == [frozenset("01234567")]
    assert model.score(X, Y) > 0.8 > together.score(X, Y)


def test_a_method_can_be_chosen_whatever_the_verdict_is() -> None:
    X, Y = unrelated_pairs(120)
    model = GroupedMultiTaskRegressor(choose="tag", seeds=1, epochs=2, random_state=0).fit(X, Y)
    assert model.results_.verdict().recommended == ("mtl", None), "one seed claims nothing"
    records = {record.budget: record for record in model.results_.records if record.method == "tag"}
    assert sorted(records) == [2, 3, 4]
    (together,) = (record for record in model.results_.records if record.method == "mtl")
    best = min(records.values(), key=lambda record: record.change(together, "val"))
    assert model.groups_ == best.groups
    alone = clone(model).set_params(choose="stl").fit(X, Y)
    assert sorted(len(group.serves) for group in alone.groups_) == [1, 1, 1, 1]
    wide = clone(model).set_params(methods=("mtl-wide2",), choose="mtl-wide2").fit(X, Y)
    assert wide.best_.networks[0].encoder[0].out_features == 128


def test_missing_labels_are_neither_trained_on_nor_scored() -> None:
    X, Y = unrelated_pairs(120)
    model = GroupedMultiTaskRegressor(**SHORT).fit(X, Y)
    known = np.isfinite(Y)
    found = model.predict(X)
    assert found.shape == Y.shape
    assert np.isfinite(found).all()
    r2 = [
        1 - ((Y[k, t] - found[k, t]) ** 2).sum() / ((Y[k, t] - Y[k, t].mean()) ** 2).sum()
        for t, k in enumerate(known.T)
    ]
    assert model.score(X, Y) == pytest.approx(np.mean(r2))
    with pytest.raises(ValueError, match=r"`y` must have 4 columns, as in the call to fit\(\), found 3"):
        model.score(X, Y[:, :3])
    with pytest.raises(ValueError, match="`y` must contain at least one label to compute a score, found none"):
        model.score(X, np.full_like(Y, np.nan))


def test_classes_of_every_type_are_predicted_as_they_were_given() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    Y = np.empty((300, 3), dtype=object)
    Y[:, 0] = np.where(X[:, 0] > 0, "warm", "cold")
    Y[:, 1] = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7]) + 5
    Y[:, 2] = X[:, 2] > 0
    Y[::7, 0], Y[::5, 1] = None, np.nan
    model = GroupedMultiTaskClassifier(**QUICK).fit(X, Y)
    assert [classes.tolist() for classes in model.classes_] == [["cold", "warm"], [5, 6, 7], [False, True]]
    probabilities = model.predict_proba(X)
    assert [of_task.shape for of_task in probabilities] == [(300, 2), (300, 3), (300, 2)]
    for of_task in probabilities:
        np.testing.assert_allclose(of_task.sum(1), 1)
    found = model.predict(X)
    for task, (classes, of_task) in enumerate(zip(model.classes_, probabilities, strict=True)):
        assert found[:, task].tolist() == classes[of_task.argmax(1)].tolist()
    known = np.array([[label is not None and label == label for label in row] for row in Y])
    right = [np.mean(found[k, t] == Y[k, t]) for t, k in enumerate(known.T)]
    assert model.score(X, Y) == pytest.approx(np.mean(right))
    assert min(right) > 0.85


def test_features_and_tasks_are_named_by_the_columns_of_frames() -> None:
    X, Y = unrelated_pairs(60)
    rows = pd.DataFrame(X, columns=[f"sensor {k}" for k in range(12)])
    model = GroupedMultiTaskRegressor(**SHORT).fit(rows, pd.DataFrame(Y, columns=["c", "f", "humid", "dry"]))
    assert model.task_names_ == ("c", "f", "humid", "dry")
    assert model.groups_[0].serves == {"c", "f", "humid", "dry"}
    assert (model.n_features_in_, model.feature_names_in_[0]) == (12, "sensor 0")
    assert model.affinity_ is None, "no method measured"
    one = GroupedMultiTaskRegressor(**SHORT).fit(rows, pd.Series(Y[:, 0], name="c"))
    assert one.task_names_ == ("c",)
    assert one.predict(rows).shape == (60,)
    with pytest.raises(ValueError, match="the columns of `y` must be distinct"):
        GroupedMultiTaskRegressor().fit(rows, pd.DataFrame(Y, columns=["c", 1, "1", "dry"]))


def test_pipelines_searches_and_pickles_work_with_missing_labels() -> None:
    X, Y = unrelated_pairs(90)
    pipeline = make_pipeline(StandardScaler(), GroupedMultiTaskRegressor(**SHORT))
    search = GridSearchCV(pipeline, {"groupedmultitaskregressor__epochs": [1, 4]}, cv=KFold(2)).fit(X, Y)
    assert search.best_params_ == {"groupedmultitaskregressor__epochs": 4}
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    inside = again.best_estimator_[-1]
    assert str(inside.results_) == str(search.best_estimator_[-1].results_)
    assert inside.groups_ == search.best_estimator_[-1].groups_
    classes = np.where(np.isnan(Y), np.nan, Y > 0)
    grid = {"lr": [0.001, 0.02]}
    assert GridSearchCV(GroupedMultiTaskClassifier(**SHORT), grid, cv=KFold(2)).fit(X, classes).best_score_ > 0.4


def test_numpy_numbers_are_accepted_as_parameters() -> None:
    X, Y = unrelated_pairs(60)
    drawn = {"epochs": np.int64(2), "seeds": np.int64(1), "budgets": np.int64(2), "lr": np.float64(0.01)}
    model = GroupedMultiTaskRegressor(methods=["tag"], hidden_sizes=np.array([3]), random_state=0, **drawn).fit(X, Y)
    assert {record.budget for record in model.results_.records} == {None, 2}


def test_networks_are_trained_in_the_precision_of_the_inputs() -> None:
    X, Y = unrelated_pairs(60)
    for dtype in (np.float32, np.float64):
        assert GroupedMultiTaskRegressor(**SHORT).fit(X.astype(dtype), Y).predict(X).dtype == dtype


def test_one_error_before_training_lists_all_invalid_arguments() -> None:
    X, Y = unrelated_pairs(60)
    wrong = GroupedMultiTaskRegressor(
        methods=["tag"], budgets=9, seeds=0, choose="stl", hidden_sizes=(0,), lr=-1, test_fraction=0.9
    )
    with pytest.raises(ValueError, match="several problems") as error:
        wrong.fit(X, Y)
    for message in (
        "`validation_fraction` and `test_fraction` must be positive and sum to less than 1, found 0.15 and 0.9",
        "`choose` must be one of 'verdict', 'mtl', 'tag', found 'stl'",
        "`hidden_sizes` must be a list of positive integers, found (0,)",
        "`lr` must be a positive number, found -1",
    ):
        assert message in str(error.value)
    with pytest.raises(ValueError, match=r"(?s)`choose` must be .*'random'.*`budgets` must be between .*`seeds` must"):
        GroupedMultiTaskRegressor(methods=["random"], choose="random", budgets=9, seeds=0).fit(X, Y)
    with pytest.raises(ValueError, match="`y`: '1' must have at least two classes, found 1"):
        GroupedMultiTaskClassifier().fit(X, np.stack([X[:, 0] > 0, X[:, 0] > -99], 1))
    with pytest.raises(NotFittedError):
        wrong.predict(X)


def test_the_examples_of_the_docstrings_run() -> None:
    found = doctest.testmod(importlib.import_module("tagalong.integrations.sklearn"))
    assert found.failed == 0
    assert found.attempted > 8
