"""Models that are fitted instead of trained, by name, and ridge or logistic regression, the simplest of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tagalong.errors import require_package

from .base_rate import output_range
from .boosting import BoostedHeads, RawColumns, VectorBoostedHeads
from .fitted_heads import Array, FittedHead, FittedHeads, Inputs, Labelled, SeparateHeads, outputs_of_classes
from .network import ModuleFactory
from .preparation import Scaling, Table
from .recipe import Recipe
from .rows import Rows, Split
from .task import Task
from .tree_libraries import LIBRARIES

RIDGE_STRENGTHS = np.logspace(-2, 5, 15)  # for standardized inputs
LOGISTIC_STRENGTHS = np.logspace(-4, 0, 5)  # inverse, as in scikit-learn
MANY_ROWS, FOLDS, FOLDS_OF_MANY = 1000, 5, 3


class LinearHead(FittedHead):
    """A linear function of the inputs, which are clipped to the range of the training rows.

    Args:
        features: the number of inputs.
        outputs: the number of outputs.
    """

    lowest: Tensor
    highest: Tensor
    weight: Tensor

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(outputs)
        self.register_buffer("lowest", torch.zeros(features))
        self.register_buffer("highest", torch.zeros(features))
        self.register_buffer("weight", torch.zeros(outputs, features))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs.clamp(self.lowest, self.highest), self.weight, self.constant)


class RidgeHeads(SeparateHeads):
    """Creates heads of ridge regression or logistic regression, whose strength cross-validation chooses."""

    def __call__(self, task: Task, features: int) -> FittedHead:
        return LinearHead(features, task.head_size)

    def fit_task(self, head: LinearHead, task: Task, levels: Sequence[int], train: Labelled, val: Labelled) -> None:
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
        head.fill(lowest=inputs.min(0), highest=inputs.max(0), weight=weight, constant=bias - weight @ mean)


def _fit_logistic(task: Task, train: Labelled) -> tuple[Array, Array]:
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
            coefficients.append(outputs_of_classes(task, model.classes_.astype(int), model.coef_, model.intercept_))
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
                logits = outputs if task.kind == "binary" else outputs.log_softmax(1)
                outputs = logits.clamp(*output_range(task.kind, len(rows)))
                row_losses, _ = unweighted.row_losses(outputs, torch.from_numpy(labels[left_out]))
                losses[number] += weights[left_out] @ row_losses.numpy()
        return path(np.arange(len(labels)))[int(losses.argmin())]


# Networks that can be trained instead of a problem's own, by name (see `Job.network`).
FITTED: Mapping[str, FittedHeads] = {
    "ridge": RidgeHeads(),
    "boosting": BoostedHeads(),
    "xgboost": BoostedHeads("xgboost"),
    "lightgbm": BoostedHeads("lightgbm"),
    "catboost": BoostedHeads("catboost"),
    "xgboost-vector": VectorBoostedHeads(),
}


def fitted_network(name: str, preparation: Scaling | Table | None) -> dict[str, Any]:
    """Returns the encoder, head and recipe of a network with fitted heads.

    Trees get the columns of a table. Linear models get the inputs of networks, and so do trees for arrays.

    Raises:
        ImportError: The library that fits them is not installed.
    """
    package = name.removesuffix("-vector")
    if package in LIBRARIES:
        require_package(f"the network {name!r}", package, package)
    encoder: ModuleFactory = Inputs()
    if FITTED[name].takes_categories and isinstance(preparation, Table):
        encoder = RawColumns(preparation.blocks)
    return {"encoder": encoder, "head": FITTED[name], "recipe": Recipe(epochs=1)}


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
