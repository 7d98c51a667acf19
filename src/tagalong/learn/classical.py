"""Gradient boosting and ridge or logistic regression, as networks whose heads are fitted instead of trained.

There is one estimator per task. Once it is fitted, its trees or coefficients are tensors of the task's head, so that
such a model is stored, asked, averaged with others and exported like any network, and needs only torch for it.
"""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tagalong.errors import require_package

from .base_rate import floor_probabilities
from .network import ModuleFactory
from .recipe import Recipe
from .rows import Rows, Split
from .task import Kind, Task

Array = NDArray[Any]
LEARNING_RATE, MOST_TREES, PATIENCE = 0.05, 1000, 50  # of boosting; patience is in trees
TREES_WITHOUT_VALIDATION = 100  # if no validation row has a label
RIDGE_STRENGTHS = np.logspace(-2, 5, 15)  # for standardized inputs
LOGISTIC_STRENGTHS = np.logspace(-4, 0, 5)  # inverse, as in scikit-learn
MANY_ROWS, FOLDS, FOLDS_OF_MANY = 1000, 5, 3
FEWEST_LABELS = 5  # with fewer, the answer is a constant
ABSENT = -30.0  # the logit of a class without training labels, before the floor of probabilities
TREES_AT_ONCE = 256
TREE_ARRAYS = ("feature", "threshold", "missing_left", "left", "right", "value", "is_leaf")
Table = tuple[Array, Array, Array]  # inputs, labels and weights
FittedTrees = tuple[list[dict[str, Any]], Array]  # the arrays and the column of each tree, and the baseline


class Inputs(ModuleFactory):
    """Creates an encoder that returns its inputs, for heads that are fitted."""

    def __call__(self, width: float = 1.0) -> nn.Module:
        return nn.Identity()


class FittedHead(nn.Module):
    """A head whose buffers are fitted, and may have any shape.

    Args:
        kind: the kind of the task.
    """

    constant: str  # the name of the buffer that is added to every answer
    labels: Tensor  # how many training labels there are, which limits probabilities

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("labels", torch.ones(()))

    @abstractmethod
    def answer(self, inputs: Tensor) -> Tensor:
        """Returns the outputs before the floor of probabilities."""

    def forward(self, inputs: Tensor) -> Tensor:
        return floor_probabilities(self.kind, self.answer(inputs).to(inputs.dtype), self.labels)

    def fill(self, **tensors: Any) -> None:
        """Sets buffers."""
        for name, values in tensors.items():
            like = self.get_buffer(name)
            setattr(self, name, torch.as_tensor(np.asarray(values)).to(like.device, like.dtype))
        self.prepare()

    def prepare(self) -> None:
        """Is called after buffers have changed."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name, _ in self.named_buffers():
            if prefix + name in state_dict:
                setattr(self, name, state_dict[prefix + name].clone())
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.prepare()


class LinearHead(FittedHead):
    """A linear function of the inputs, which are clipped to the range of the training rows.

    Args:
        features: the number of inputs.
        outputs: the number of outputs.
        kind: the kind of the task.
    """

    constant = "bias"
    lowest: Tensor
    highest: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, features: int, outputs: int, kind: Kind) -> None:
        super().__init__(kind)
        self.register_buffer("lowest", torch.zeros(features))
        self.register_buffer("highest", torch.zeros(features))
        self.register_buffer("weight", torch.zeros(outputs, features))
        self.register_buffer("bias", torch.zeros(outputs))

    def answer(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs.clamp(self.lowest, self.highest), self.weight, self.bias)


class TreesHead(FittedHead):
    """A sum of decision trees, whose nodes are numbered across all trees. A leaf is its own child.

    Args:
        outputs: the number of outputs.
        kind: the kind of the task.
    """

    constant = "baseline"
    roots: Tensor  # [trees]
    columns: Tensor  # [trees], the output to which each tree adds
    feature: Tensor  # [nodes]
    threshold: Tensor  # [nodes]; values up to it go left
    missing_left: Tensor  # [nodes]
    left: Tensor  # [nodes]
    right: Tensor  # [nodes]
    value: Tensor  # [nodes], of leaves
    baseline: Tensor  # [outputs]

    def __init__(self, outputs: int, kind: Kind) -> None:
        super().__init__(kind)
        types = {"missing_left": torch.bool, "threshold": torch.float32, "value": torch.float32}
        for name in ("roots", "columns", "feature", "left", "right", *types):
            self.register_buffer(name, torch.zeros(0, dtype=types.get(name, torch.int32)))
        self.register_buffer("baseline", torch.zeros(outputs))
        self.depth = self.multiplications = 0

    def prepare(self) -> None:
        """Counts the decisions on the longest way to a leaf, and the visited nodes, which are the cost of a row."""
        nodes, self.depth = self.roots.long(), 0
        while len(nodes := nodes[self.left[nodes] != nodes]):
            nodes = torch.cat([self.left[nodes], self.right[nodes]]).long()
            self.depth += 1
        self.multiplications = len(self.roots) * self.depth

    def answer(self, inputs: Tensor) -> Tensor:
        inputs = inputs.float()
        answers = self.baseline.double().expand(inputs.shape[0], -1)
        for roots, columns in zip(self.roots.split(TREES_AT_ONCE), self.columns.split(TREES_AT_ONCE), strict=True):
            nodes = roots.long().expand(inputs.shape[0], -1)  # [rows, trees]
            for _ in range(self.depth):
                values = inputs.gather(1, self.feature[nodes].long())
                goes_left = torch.where(values.isnan(), self.missing_left[nodes], values <= self.threshold[nodes])
                nodes = torch.where(goes_left, self.left[nodes], self.right[nodes]).long()
            answers = answers.index_add(1, columns.long(), self.value[nodes].double())
        return answers


class FittedHeads(ModuleFactory):
    """Base class of factories whose heads are fitted instead of trained."""

    @abstractmethod
    def __call__(self, task: Task, features: int) -> FittedHead:
        """Creates a head that is not fitted yet."""

    @abstractmethod
    def fit(self, head: Any, task: Task, train: Table, val: Table) -> None:
        """Fits a head on the labelled rows of a task. The training labels have at least two values."""


def labelled_rows(rows: Split, task: Task) -> Table:
    """Returns the rows that count for a task. Their weights include those of their classes."""
    labels = rows.targets[task.name].double().cpu()
    weights = torch.ones_like(labels) if rows.weights is None else rows.weights.to(labels)
    used = labels.isfinite() & (weights > 0)
    labels, weights = labels[used], weights[used]
    if task.class_weights is not None:
        weights = weights * torch.tensor(task.class_weights)[labels.long()]
    return rows.inputs.cpu()[used].float().numpy(), labels.numpy(), weights.numpy()


class RidgeHeads(FittedHeads):
    """Creates heads of ridge regression or logistic regression, whose strength cross-validation chooses."""

    def __call__(self, task: Task, features: int) -> FittedHead:
        return LinearHead(features, task.head_size, task.kind)

    def fit(self, head: LinearHead, task: Task, train: Table, val: Table) -> None:
        from sklearn.linear_model import RidgeCV

        inputs, labels, weights = train
        mean, spread = inputs.mean(0, dtype=np.float64), inputs.std(0, dtype=np.float64)
        spread[spread == 0] = 1.0
        scaled = (inputs - mean) / spread
        if task.kind == "regression":
            model = RidgeCV(RIDGE_STRENGTHS).fit(scaled, labels, weights)
            weight, bias = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
        else:
            weight, bias = _fit_logistic(task, (scaled, labels, weights))
        weight = weight / spread
        head.fill(lowest=inputs.min(0), highest=inputs.max(0), weight=weight, bias=bias - weight @ mean)


def _fit_logistic(task: Task, train: Table) -> tuple[Array, Array]:
    """Returns the weights [outputs, features] and biases of the strength with the lowest loss on left-out rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold

    inputs, labels, weights = train
    unweighted = replace(task, class_weights=None)  # since the rows have the weights of their classes

    def path(rows: Array) -> list[tuple[Array, Array]]:
        """Fits each strength, starting from the one before."""
        model, coefficients = LogisticRegression(warm_start=True, max_iter=300, tol=1e-3), []
        for strength in LOGISTIC_STRENGTHS:
            model.set_params(C=strength).fit(inputs[rows], labels[rows], weights[rows])
            coefficients.append(_of_classes(task, model.classes_, model.coef_, model.intercept_))
        return coefficients

    folds = KFold(FOLDS if len(labels) < MANY_ROWS else FOLDS_OF_MANY, shuffle=True, random_state=0)
    losses = np.zeros(len(LOGISTIC_STRENGTHS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a path that has not converged is as good
        for rows, left_out in folds.split(inputs):
            if len(np.unique(labels[rows])) < 2:
                continue
            for number, (weight, bias) in enumerate(path(rows)):
                outputs = torch.from_numpy(inputs[left_out] @ weight.T + bias)
                outputs = floor_probabilities(task.kind, outputs, len(rows))
                row_losses, _ = unweighted.row_losses(outputs, torch.from_numpy(labels[left_out]))
                losses[number] += weights[left_out] @ row_losses.numpy()
        return path(np.arange(len(labels)))[int(losses.argmin())]


def _of_classes(task: Task, classes: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """Returns the weights and biases of all outputs, given those of the classes that occur."""
    if task.kind == "binary":
        return weight, bias
    if len(classes) == 2:  # there is one output, the log-odds of the second class
        weight, bias = np.vstack([0 * weight, weight]), np.append(0.0, bias)
    every, biases = np.zeros((task.head_size, weight.shape[1])), np.full(task.head_size, ABSENT)
    every[classes.astype(int)], biases[classes.astype(int)] = weight, bias
    return every, biases


class BoostedHeads(FittedHeads):
    """Creates heads of gradient boosting, which adds trees until the validation loss has not decreased for a while.

    Args:
        library: "scikit-learn" (`HistGradientBoosting`) or "xgboost".
    """

    def __init__(self, library: str = "scikit-learn") -> None:
        self.library = library

    def __call__(self, task: Task, features: int) -> FittedHead:
        return TreesHead(task.head_size, task.kind)

    def fit(self, head: TreesHead, task: Task, train: Table, val: Table) -> None:
        classes = np.unique(train[1]).astype(int)
        if task.kind == "multiclass":  # libraries number the classes that occur in training rows
            val = _select(val, np.isin(val[1], classes))
            train, val = ((rows, np.searchsorted(classes, labels), weights) for rows, labels, weights in (train, val))
        fit = _fit_xgboost if self.library == "xgboost" else _fit_hist_gradient
        trees, baseline = fit(task, train, val)
        columns = np.array([tree["column"] for tree in trees], dtype=int)
        if task.kind == "multiclass":
            _, baseline = _of_classes(task, classes, np.zeros((len(baseline), 1)), baseline)
            columns = classes[columns + (len(classes) == 2)]
        if not trees:
            head.fill(baseline=baseline)
            return
        sizes = [len(tree["value"]) for tree in trees]
        offsets = np.cumsum([0, *sizes])[:-1]
        joined = {name: np.concatenate([tree[name] for tree in trees]) for name in TREE_ARRAYS}
        is_leaf, nodes = joined.pop("is_leaf"), np.arange(sum(sizes))
        for side in ("left", "right"):
            joined[side] = np.where(is_leaf, nodes, joined[side] + np.repeat(offsets, sizes))
        head.fill(roots=offsets, columns=columns, baseline=baseline, **joined)


def _select(table: Table, rows: Array) -> Table:
    inputs, labels, weights = table
    return inputs[rows], labels[rows], weights[rows]


def _fit_hist_gradient(task: Task, train: Table, val: Table) -> FittedTrees:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if task.kind == "regression" else HistGradientBoostingClassifier
    settings = {"learning_rate": LEARNING_RATE, "max_iter": MOST_TREES, "random_state": 0}
    inputs, labels, weights = val
    if len(labels):
        model = kind(**settings, early_stopping=True, scoring="loss", n_iter_no_change=PATIENCE, tol=0)
        model.fit(*train, X_val=inputs, y_val=labels, sample_weight_val=weights)
        best = int(np.argmax(model.validation_score_))
    else:
        model, best = kind(**settings | {"max_iter": TREES_WITHOUT_VALIDATION}, early_stopping=False).fit(*train), None
    trees = []
    for predictors in model._predictors[:best]:
        for column, predictor in enumerate(predictors):
            nodes = predictor.nodes
            trees.append(
                {
                    "column": column,
                    "feature": nodes["feature_idx"],
                    "threshold": _round_down(nodes["num_threshold"]),
                    "missing_left": nodes["missing_go_to_left"] > 0,
                    "left": nodes["left"].astype(int),
                    "right": nodes["right"].astype(int),
                    "value": nodes["value"],
                    "is_leaf": nodes["is_leaf"] > 0,
                }
            )
    return trees, np.ravel(model._baseline_prediction)


def _round_down(thresholds: Array) -> Array:
    """Returns thresholds in single precision that separate the same numbers of single precision."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def _fit_xgboost(task: Task, train: Table, val: Table) -> FittedTrees:
    require_package("boosting with 'xgboost'", "xgboost", "xgboost")
    import xgboost

    classes = int(train[1].max()) + 1
    objective = {"regression": "reg:squarederror", "binary": "binary:logistic", "multiclass": "multi:softprob"}
    settings = {"eta": LEARNING_RATE, "objective": objective[task.kind], "tree_method": "hist", "seed": 0}
    if task.kind == "multiclass":
        settings |= {"num_class": classes} if classes > 2 else {"objective": objective["binary"]}
    rows = [xgboost.DMatrix(inputs, labels, weight=weights) for inputs, labels, weights in (train, val)]
    if len(val[1]):
        stopping: Any = {"evals": [(rows[1], "val")], "early_stopping_rounds": PATIENCE, "verbose_eval": False}
        booster = xgboost.train(settings, rows[0], MOST_TREES, **stopping)
        booster = booster[: booster.best_iteration + 1]
    else:
        booster = xgboost.train(settings, rows[0], TREES_WITHOUT_VALIDATION)
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]
    trees = []
    for tree, column in zip(model["trees"], model["tree_info"], strict=True):
        conditions = np.array(tree["split_conditions"], dtype=np.float32)  # of leaves, their values
        trees.append(
            {
                "column": column,
                "feature": np.array(tree["split_indices"]),
                "threshold": np.nextafter(conditions, np.float32(-np.inf)),  # only values below a condition go left
                "missing_left": np.array(tree["default_left"]) > 0,
                "left": np.array(tree["left_children"]),
                "right": np.array(tree["right_children"]),
                "value": conditions,
                "is_leaf": np.array(tree["left_children"]) < 0,
            }
        )
    first = xgboost.DMatrix(train[0][:1])
    leaves = booster.predict(first, pred_leaf=True).ravel().astype(int)
    baseline = booster.predict(first, output_margin=True).ravel().astype(np.float64)
    np.subtract.at(
        baseline, [tree["column"] for tree in trees], [t["value"][k] for t, k in zip(trees, leaves, strict=True)]
    )
    return trees, baseline


# Networks that can be trained instead of a problem's own, by name (see `Job.network`).
FITTED: Mapping[str, FittedHeads] = {
    "ridge": RidgeHeads(),
    "boosting": BoostedHeads(),
    "xgboost": BoostedHeads("xgboost"),
}


def fitted_network(name: str) -> dict[str, Any]:
    """Returns the encoder, head and recipe of a network with fitted heads."""
    return {"encoder": Inputs(), "head": FITTED[name], "recipe": Recipe(epochs=1)}


def why_not_fitted(tasks: Iterable[Task], splits: Iterable[Rows]) -> str | None:
    """Returns why heads cannot be fitted to these rows, or None if they can."""
    parts = [rows for rows in splits if isinstance(rows, Split)]
    if len(parts) < 3:
        return "rows are read from files"
    inputs, targets = parts[0].inputs, parts[0].targets
    if inputs.dim() != 2 or not inputs.is_floating_point():
        return "inputs are not a vector of numbers per row"
    if unusual := [task.name for task in tasks if task.loss is not None or targets[task.name].dim() > 1]:
        return f"tasks have losses of their own or several labels per row: {', '.join(unusual)}"
    return None
