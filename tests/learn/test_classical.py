"""Boosting and ridge as networks: the answers of the libraries' own estimators, kept as tensors."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.learn import (
    MLP,
    Job,
    Network,
    Problem,
    Split,
    Task,
    Trained,
    average_scores_on,
    build_network,
    constant_output,
    describe_network,
    rebuild_network,
    score_outputs,
    train,
    train_many,
)
from tagalong.learn.boosting import JointLosses
from tagalong.learn.classical import LOGISTIC_STRENGTHS, RIDGE_STRENGTHS
from tagalong.learn.preparation import raw_view

Floats = NDArray[np.float64]
TASKS = (
    Task("age", "regression"),
    Task("ill", class_weights=(1.0, 4.0)),
    Task("stage", "multiclass", classes=4),  # the fourth class occurs in test rows only
)
FITTED = ("ridge", "boosting", "xgboost", "lightgbm", "xgboost-vector")


def make_problem(weighted: bool = False, rows: int = 400) -> Problem:
    """Inputs with a heavy tail, and labels that depend on them, a tenth of which are missing."""
    rng = np.random.default_rng(0)

    def split(rows: int) -> Split:
        inputs = rng.normal(size=(rows, 4)) * np.array([1, 1, 30, 0])  # the last one is constant
        inputs[:, 1] = np.exp(inputs[:, 1])
        values = inputs[:, 0] + np.log(inputs[:, 1]) * (inputs[:, 2] > 0) + 0.5 * rng.normal(size=rows)
        labels = {"age": values, "ill": values > 0.5, "stage": np.digitize(values, [-0.5, 1])}
        targets = {task: np.where(rng.random(rows) < 0.1, np.nan, own) for task, own in labels.items()}
        weights = torch.tensor(rng.integers(0, 3, rows), dtype=torch.float32) if weighted else None
        tensors = {task: torch.tensor(own, dtype=torch.float32) for task, own in targets.items()}
        return Split(torch.tensor(inputs, dtype=torch.float32), tensors, None, weights)

    parts = split(rows), split(150), split(150)
    parts[2].targets["stage"][0] = 3
    return Problem("drawn", TASKS, *parts, MLP(4, (2,)), scales={"age": (40.0, 12.0)})


def make_table(rows: int = 500) -> Problem:
    """Categories, of which some are rare, and numbers, with missing values in both."""
    rng = np.random.default_rng(0)
    towns = rng.choice([f"town {number}" for number in range(12)], rows, p=np.arange(1, 13) / 78)
    sizes = rng.normal(size=rows)
    values = np.char.str_len(towns) + sizes * (towns < "town 3") + np.isin(towns, ["town 10", "town 4"])
    frame = pd.DataFrame({"size": sizes, "town": towns, "color": rng.choice(["red", "blue"], rows), "weight": values})
    frame["heavy"] = (values > 7).astype(float)
    frame.loc[::9, "size"] = np.nan
    frame.loc[::7, "town"] = None
    frame.loc[frame["town"].eq("town 2") | (frame.index % 5 == 0), ["weight", "heavy"]] = np.nan
    split = [np.arange(300), np.arange(300, 400), np.arange(400, rows)]
    return Problem.from_table(frame, ["weight", "heavy"], split=split)


def network_of(problem: Problem, trained: Trained) -> Network:
    network = build_network(problem.with_network(trained.job.network), trained.job.tasks, 0)
    assert trained.state is not None
    network.load_state_dict(dict(trained.state))
    return network


def labelled(problem: Problem, part: str, task: Task) -> tuple[Floats, Floats, Floats]:
    """Inputs, labels and weights of the rows with a label; weights include those of classes."""
    rows = problem.splits[part]
    labels = rows.targets[task.name].double().numpy()
    weights = np.ones(len(labels)) if rows.weights is None else rows.weights.double().numpy()
    used = np.isfinite(labels) & (weights > 0)
    weights = weights[used]
    if task.class_weights is not None:
        weights = weights * np.array(task.class_weights)[labels[used].astype(int)]
    return rows.inputs.numpy()[used], labels[used], weights


@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_is_scikit_learns_within_the_range_of_the_training_rows(weighted: bool) -> None:
    problem = make_problem(weighted)
    inputs, labels, weights = labelled(problem, "train", TASKS[0])
    scaler = StandardScaler().fit(inputs)
    model = RidgeCV(RIDGE_STRENGTHS).fit(scaler.transform(inputs), labels, weights)
    network = network_of(problem, train(problem, Job(("age",), network="ridge")))
    far = 100 * problem.test.inputs
    clipped = np.clip(far.numpy(), inputs.min(0), inputs.max(0))
    np.testing.assert_allclose(
        network(far)["age"][:, 0], model.predict(scaler.transform(clipped)), rtol=1e-3, atol=1e-4
    )


def assert_same_answers(task: Task, found: torch.Tensor, expected: torch.Tensor) -> None:
    if task.kind == "multiclass":
        found, expected = found.log_softmax(1), expected.log_softmax(1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_logistic_regression_has_one_of_the_strengths() -> None:
    problem = make_problem()
    inputs, labels, weights = labelled(problem, "train", TASKS[1])
    scaler = StandardScaler().fit(inputs)
    network = network_of(problem, train(problem, Job(("ill",), network="ridge")))
    found = network(torch.tensor(inputs))["ill"][:, 0]
    by_strength = []
    for strength in LOGISTIC_STRENGTHS:
        model = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(scaler.transform(inputs), labels, weights)
        own = torch.tensor(model.decision_function(scaler.transform(inputs)))
        by_strength.append(float((own - found).abs().max()))
    assert min(by_strength) < 0.05


@pytest.mark.parametrize("name", FITTED)
def test_the_fit_beats_a_constant_and_the_loss_is_that_of_its_answers(name: str) -> None:
    problem = make_problem()
    trained = train(problem, Job(problem.names, network=name))
    network = network_of(problem, trained)
    for task in TASKS:
        targets = problem.test.targets[task.name]
        scale, answers = problem.answer_scales.get(task.name), network(problem.test.inputs)[task.name]
        score = score_outputs(task, answers, targets, scale)
        assert trained.test[task.name].loss == pytest.approx(score.loss, rel=1e-5)
        labels = problem.train.targets[task.name]
        constant = constant_output(task, labels).float().expand(len(targets), -1)
        assert score.loss < 0.9 * score_outputs(task, constant, targets).loss
    assert (trained.best_epoch, trained.steps, trained.diverged) == (0, 1, False)


def library_margins(library: str, task: Task, train: Any, val: Any, rows: Floats) -> Floats:
    """The raw answers of a library's own model, trained with the settings of `BoostedHeads`."""
    (inputs, labels, weights), checks = train, val[:2]
    is_regression = task.kind == "regression"
    if library == "boosting":  # all numbers of trees, of which the validation rows choose one
        estimator = HistGradientBoostingRegressor if is_regression else HistGradientBoostingClassifier
        model = estimator(max_iter=400, learning_rate=0.05, early_stopping=False, random_state=0)
        model.fit(inputs, labels, weights)
        stages = model.staged_predict if is_regression else model.staged_decision_function
        losses = []
        for margins in stages(val[0]):
            outputs = torch.tensor(margins).reshape(len(val[1]), -1)
            own, _ = replace(task, classes=3, class_weights=None).row_losses(outputs, torch.tensor(val[1]))
            losses.append(val[2] @ own.numpy())
        assert np.argmin(losses) < 350, "more trees would be better"
        return np.asarray(list(stages(rows))[int(np.argmin(losses))])
    if library == "xgboost":
        kind = xgboost.XGBRegressor if is_regression else xgboost.XGBClassifier
        model = kind(learning_rate=0.05, n_estimators=1000, early_stopping_rounds=50)
        model.fit(inputs, labels, sample_weight=weights, eval_set=[checks], sample_weight_eval_set=[val[2]], verbose=0)
        return np.asarray(model.predict(rows, output_margin=True))
    if library == "lightgbm":
        kind = lightgbm.LGBMRegressor if is_regression else lightgbm.LGBMClassifier
        model = kind(learning_rate=0.05, n_estimators=1000, verbosity=-1)
        stopping = [lightgbm.early_stopping(50, verbose=False)]
        sets = {"eval_X": checks[0], "eval_y": checks[1], "eval_sample_weight": [val[2]], "callbacks": stopping}
        return np.asarray(model.fit(inputs, labels, weights, **sets).booster_.predict(rows, raw_score=True))
    catboost = pytest.importorskip("catboost")
    kind = catboost.CatBoostRegressor if is_regression else catboost.CatBoostClassifier
    model = kind(
        iterations=1000, learning_rate=0.05, random_seed=0, od_wait=50, od_type="Iter", allow_writing_files=False
    )
    model.fit(inputs, labels, sample_weight=weights, eval_set=catboost.Pool(*checks, weight=val[2]), verbose=False)
    return np.asarray(model.predict(rows, prediction_type="RawFormulaVal"))


@pytest.mark.parametrize(("weighted", "has_missing"), [(False, False), (True, True)])
@pytest.mark.parametrize("library", ["boosting", "xgboost", "lightgbm", "catboost"])
def test_boosting_answers_as_the_library_does(library: str, weighted: bool, has_missing: bool) -> None:
    problem = make_problem(weighted)
    if has_missing:  # libraries learn which way missing values go; otherwise, they have a rule
        problem.train.inputs[::4, 0] = problem.train.inputs[1::4, 2] = torch.nan
        problem.val.inputs[::4, 0] = torch.nan
    rows = problem.test.inputs.clone()
    rows[::3, 0] = torch.nan
    for task in TASKS:
        train_rows, val = (labelled(problem, part, task) for part in ("train", "val"))
        margins = library_margins(library, task, train_rows, val, rows.numpy()).reshape(len(rows), -1)
        found = network_of(problem, train(problem, Job((task.name,), network=library)))(rows)[task.name]
        if task.kind == "multiclass":  # the fourth class has no training rows
            margins = np.hstack([margins, np.full((len(rows), 1), -30.0)])
        assert_same_answers(task, found, torch.tensor(margins))


def test_vector_leaves_answer_as_the_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, boosters, train_xgboost = make_problem(weighted=True), [], xgboost.train

    def train_and_keep(*given: Any, **named: Any) -> xgboost.Booster:
        boosters.append(train_xgboost(*given, **named))
        return boosters[0]

    monkeypatch.setattr(xgboost, "train", train_and_keep)
    network = network_of(problem, train(problem, Job(problem.names, network="xgboost-vector")))
    rows = problem.test.inputs
    start = torch.cat([head.constant for head in network.heads]).expand(len(rows), -1)
    inputs = xgboost.DMatrix(rows.numpy(), base_margin=start.numpy())
    margins = boosters[0].predict(inputs, output_margin=True, iteration_range=(0, boosters[0].best_iteration + 1))
    outputs, last = network(rows), np.cumsum([task.head_size for task in problem.tasks])[:-1]
    for task, own in zip(problem.tasks, np.split(margins, last, 1), strict=True):
        assert_same_answers(task, outputs[task.name], torch.tensor(own))
    assert all(torch.equal(head.threshold, network.heads[0].threshold) for head in network.heads)


def test_derivatives_of_joint_losses_are_those_of_finite_differences() -> None:
    losses = JointLosses(TASKS, make_problem(weighted=True, rows=20).train)
    answers = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    gradient, curvature = losses.derivatives(answers.clone(), scales)
    step = 1e-4
    for row, output in ((0, 0), (3, 1), (5, 2), (7, 5)):
        change = torch.zeros_like(answers)
        change[row, output] = step
        below, here, above = (20 * float(scales @ losses(answers + sign * change)) for sign in (-1, 0, 1))
        assert gradient[row, output] == pytest.approx((above - below) / (2 * step), abs=1e-6)
        assert curvature[row, output] == pytest.approx((above - 2 * here + below) / step**2, abs=1e-4)


def hist_gradient(categories: list[int], trees: int) -> Any:
    is_category = np.isin(np.arange(3), categories)
    return HistGradientBoostingRegressor(
        learning_rate=0.05, early_stopping=False, random_state=0, max_iter=trees, categorical_features=is_category
    )


def xgb(categories: list[int], trees: int) -> Any:
    types = ["c" if number in categories else "q" for number in range(3)]
    return xgboost.XGBRegressor(learning_rate=0.05, n_estimators=trees, enable_categorical=True, feature_types=types)


def lgbm(categories: list[int], trees: int) -> Any:
    model = lightgbm.LGBMRegressor(learning_rate=0.05, n_estimators=trees, verbosity=-1)
    fit = model.fit
    model.fit = lambda inputs, labels: fit(inputs, labels, categorical_feature=categories)
    return model


@pytest.mark.parametrize(("network", "make"), [("boosting", hist_gradient), ("xgboost", xgb), ("lightgbm", lgbm)])
def test_trees_see_the_columns_of_a_table(network: str, make: Callable[[list[int], int], Any]) -> None:
    problem = make_table()
    raw = {part: raw_view(rows.inputs, problem.table.blocks).numpy() for part, rows in problem.splits.items()}
    categories = [number for number, (is_category, _) in enumerate(problem.table.blocks) if is_category]
    fitted = network_of(problem, train(problem, Job(("weight",), network=network)))
    (head,) = fitted.heads
    _, labels, _ = labelled(problem, "train", problem.task("weight"))
    model = make(categories, len(head.roots)).fit(raw["train"][problem.train.labelled("weight").numpy()], labels)
    assert head.categories.any()
    found = fitted(problem.test.inputs)["weight"][:, 0]
    np.testing.assert_allclose(found, model.predict(raw["test"]), rtol=1e-4, atol=1e-5)


def test_catboost_sees_a_column_for_each_category() -> None:
    catboost = pytest.importorskip("catboost")
    problem = make_table()
    settings = {"learning_rate": 0.05, "random_seed": 0, "allow_writing_files": False, "verbose": False}
    network = network_of(problem, train(problem, Job(("weight",), network="catboost")))
    inputs = {}
    for part, rows in problem.splits.items():
        numbers = raw_view(rows.inputs, problem.table.blocks)[:, :1]
        levels = [name for name in problem.table.names if " = " in name and "other" not in name]
        places = [problem.table.names.index(name) for name in levels]
        inputs[part] = torch.cat([numbers, rows.inputs[:, places]], 1).numpy()
    _, labels, _ = labelled(problem, "train", problem.task("weight"))
    model = catboost.CatBoostRegressor(iterations=len(network.heads[0].roots), **settings)
    model.fit(inputs["train"][problem.train.labelled("weight").numpy()], labels)
    found = network(problem.test.inputs)["weight"][:, 0]
    np.testing.assert_allclose(found, model.predict(inputs["test"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ridge", "boosting"])
def test_tasks_do_not_depend_on_each_other_or_on_test_rows(name: str) -> None:
    problem = make_problem()
    together = train(problem, Job(problem.names, network=name))
    other = replace(problem, test=replace(problem.test, inputs=-problem.test.inputs))
    for number, task in enumerate(problem.names):
        alone = train(other, Job((task,), seed=7, network=name))
        assert alone.val[task] == together.val[task]
        own = {key.replace("heads.0", f"heads.{number}"): value for key, value in alone.state.items()}
        assert all(torch.equal(value, together.state[key]) for key, value in own.items())


@pytest.mark.parametrize("name", ["ridge", "boosting"])
def test_too_few_labels_or_classes_give_the_best_constant(name: str) -> None:
    problem = make_problem()
    targets = dict(problem.train.targets)
    targets["age"] = torch.where(torch.arange(400) < 3, torch.arange(400.0), torch.nan)
    targets["ill"] = torch.where(targets["ill"] > 0, torch.nan, targets["ill"])
    targets["stage"] = torch.full((400,), torch.nan)
    problem = replace(problem, train=replace(problem.train, targets=targets))
    trained = train(problem, Job(problem.names, network=name))
    outputs = network_of(problem, trained)(problem.test.inputs)
    assert torch.equal(outputs["age"], torch.ones(150, 1))
    assert outputs["ill"].sigmoid()[0].item() == pytest.approx(
        1 / (2 * targets["ill"].isfinite().sum().item() + 2), rel=0.1
    )
    torch.testing.assert_close(outputs["stage"].softmax(1), torch.full((150, 4), 0.25))


@pytest.mark.parametrize("name", ["ridge", "boosting"])
def test_two_of_several_classes_are_enough(name: str) -> None:
    problem = make_problem()
    targets = dict(problem.train.targets)
    targets["stage"] = torch.where(targets["stage"] == 1, torch.nan, targets["stage"])  # 0 and 2
    problem = replace(problem, train=replace(problem.train, targets=targets))
    network = network_of(problem, train(problem, Job(("stage",), network=name)))
    shares = network(problem.train.inputs)["stage"].softmax(1)
    count = int(targets["stage"].isfinite().sum())
    assert shares[:, [1, 3]].max() <= 0.5 / count + 1e-6
    right = shares.argmax(1) == targets["stage"]
    assert right.sum() > 0.75 * count


@pytest.mark.parametrize("name", ["ridge", "boosting"])
def test_a_model_is_described_averaged_and_exported_like_any_network(name: str) -> None:
    problem = make_problem()
    trained = train(problem, Job(problem.names, network=name))
    network = network_of(problem, trained)
    document = describe_network(problem.with_network(name), network, 4, 1.0)
    assert document is not None
    rebuilt = rebuild_network(document)
    rebuilt.load_state_dict(dict(trained.state), assign=True)
    rows = problem.test.inputs[:7]
    for task, outputs in rebuilt(rows).items():
        assert torch.equal(outputs, network(rows)[task])

    class OfOne(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.network(rows).values())

    dynamic = ({0: torch.export.Dim("rows", min=2)},)
    content = io.BytesIO()
    torch.export.save(torch.export.export(OfOne().eval(), (rows,), dynamic_shapes=dynamic), content)
    content.seek(0)
    exported = torch.export.load(content).module()(problem.test.inputs)
    for outputs, expected in zip(exported, network(problem.test.inputs).values(), strict=True):
        torch.testing.assert_close(outputs, expected)

    both = average_scores_on(problem, [network, build_network(problem, problem.names, 0)], problem.test)
    assert math.isfinite(both["age"].loss)


def test_jobs_of_networks_and_models_can_be_mixed() -> None:
    problem = make_problem()
    jobs = [Job(problem.names, seed) for seed in (0, 1)] + [Job(problem.names, network="ridge")]
    assert {trained.job for trained in train_many(problem, jobs)} == set(jobs)


OWN_LOSS = Task("age", "regression", loss=lambda outputs, targets: (outputs[:, 0] - targets).abs())


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": (OWN_LOSS,)},
        {"train": Split(torch.zeros(4, 3, 8, 8), {task.name: torch.zeros(4) for task in TASKS})},
        {"train": Split(torch.zeros(4, 4, dtype=torch.long), {task.name: torch.zeros(4) for task in TASKS})},
        {"train": Split(torch.zeros(4, 4), {task.name: torch.zeros(4, 2) for task in TASKS})},
    ],
)
def test_other_problems_have_no_such_networks(changes: dict[str, Any]) -> None:
    problem = replace(make_problem(), **changes)
    assert problem.alternatives == ()
    with pytest.raises(InvalidInput, match="network"):
        problem.with_network("boosting")
