"""Gradient boosting as heads of networks: trees of several libraries, kept as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .fitted_heads import (
    Array,
    FittedHead,
    FittedHeads,
    Labelled,
    SeparateHeads,
    can_be_fitted,
    label_weights,
    labelled_rows,
    outputs_of_classes,
)
from .network import ModuleFactory
from .preparation import raw_view
from .rows import Split
from .task import Task
from .tree_libraries import LIBRARIES, boost_xgboost_vectors, join_trees

TREES_AT_ONCE = 256
MOST_CODES = 62  # of categories, which are bits of an integer


class RawColumns(ModuleFactory):
    """Creates an encoder that turns the inputs of networks into the columns of the table, see `raw_view`.

    Args:
        blocks: see `Table.blocks`.
    """

    def __init__(self, blocks: Sequence[tuple[bool, int]]) -> None:
        self.blocks = tuple((bool(is_category), int(size)) for is_category, size in blocks)

    def __call__(self, width: float = 1.0) -> nn.Module:
        return RawView(self.blocks)


class RawView(nn.Module):
    def __init__(self, blocks: Sequence[tuple[bool, int]]) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, inputs: Tensor) -> Tensor:
        return raw_view(inputs, self.blocks)


class TreesHead(FittedHead):
    """A sum of decision trees, whose nodes are numbered across all trees. A leaf is its own child.

    Args:
        outputs: the number of outputs.
    """

    roots: Tensor  # [trees]
    feature: Tensor  # [nodes]
    threshold: Tensor  # [nodes]; numbers up to it go left
    categories: Tensor  # [nodes], of categories: bit k says whether code k goes left
    missing_left: Tensor  # [nodes]
    left: Tensor  # [nodes]
    right: Tensor  # [nodes]
    value: Tensor  # [nodes, outputs], of leaves

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        for name in ("roots", "feature", "left", "right"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(0))
        self.register_buffer("categories", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("missing_left", torch.zeros(0, dtype=torch.bool))
        self.register_buffer("value", torch.zeros(0, outputs))
        self.depth, self.multiplications, self.has_categories = 0, 0, False

    def prepare(self) -> None:
        """Counts the decisions on the longest way to a leaf, and the visited nodes, which are the cost of a row."""
        nodes, self.depth = self.roots.long(), 0
        while len(nodes := nodes[self.left[nodes] != nodes]):
            nodes = torch.cat([self.left[nodes], self.right[nodes]]).long()
            self.depth += 1
        self.multiplications = len(self.roots) * self.depth
        self.has_categories = bool(self.categories.any())

    def forward(self, inputs: Tensor) -> Tensor:
        dtype, inputs = inputs.dtype, inputs.float()
        answers = self.constant.double().expand(inputs.shape[0], -1)
        for roots in self.roots.split(TREES_AT_ONCE):
            nodes = roots.long().expand(inputs.shape[0], -1)  # [rows, trees]
            for _ in range(self.depth):
                values = inputs.gather(1, self.feature[nodes].long())
                goes_left = values <= self.threshold[nodes]
                if self.has_categories:
                    bits, codes = self.categories[nodes], values.nan_to_num().clamp(0, MOST_CODES).long()
                    goes_left = torch.where(bits != 0, (bits >> codes) & 1 == 1, goes_left)
                goes_left = torch.where(values.isnan(), self.missing_left[nodes], goes_left)
                nodes = torch.where(goes_left, self.left[nodes], self.right[nodes]).long()
            answers = answers + self.value[nodes].sum(1, dtype=torch.float64)
        return answers.to(dtype)


class BoostedHeads(SeparateHeads):
    """Creates heads of gradient boosting, which adds trees until the validation loss has not decreased for a while.

    Args:
        library: one of `LIBRARIES`.
    """

    takes_categories = True

    def __init__(self, library: str = "scikit-learn") -> None:
        self.library = library

    def __call__(self, task: Task, features: int) -> FittedHead:
        return TreesHead(task.head_size)

    def fit_task(self, head: TreesHead, task: Task, levels: Sequence[int], train: Labelled, val: Labelled) -> None:
        kind, classes = task.kind, np.unique(train[1]).astype(int)
        if kind == "multiclass":  # libraries number the classes that occur in training rows
            is_known = np.isin(val[1], classes)
            val = val[0][is_known], val[1][is_known], val[2][is_known]
            train, val = ((rows, np.searchsorted(classes, labels), weights) for rows, labels, weights in (train, val))
            kind = "binary" if len(classes) == 2 else kind
        outputs = len(classes) if kind == "multiclass" else 1
        trees, constant = LIBRARIES[self.library](kind, outputs, levels, train, val if len(val[1]) else None)
        joined = join_trees(trees, outputs)
        values, constant = outputs_of_classes(task, classes, joined["value"].T, constant)
        head.fill(**joined | {"value": values.T, "constant": constant})


class VectorBoostedHeads(FittedHeads):
    """Creates heads that share trees, whose leaves hold a value for each output of all tasks. XGBoost trains them.

    The trees lower the sum of all tasks' losses, each relative to that of the task's best constant. XGBoost does not
    split by categories here, so that the inputs are those of networks.
    """

    def __call__(self, task: Task, features: int) -> FittedHead:
        return TreesHead(task.head_size)

    def fit(self, heads: Iterable[Any], tasks: Sequence[Task], levels: Sequence[int], train: Split, val: Split) -> None:
        heads = list(heads)
        constants = torch.cat([head.constant for head in heads]).double()
        losses, val_losses = JointLosses(tasks, train), JointLosses(tasks, val)
        scales = 1 / losses(constants.expand(len(train), -1))
        scales[[not can_be_fitted(labelled_rows(train, task)[1]) for task in tasks]] = 0

        def objective(answers: Array, rows: Any) -> tuple[Array, Array]:
            return losses.derivatives(torch.from_numpy(answers).double(), scales)

        def metric(answers: Array, rows: Any) -> tuple[str, float]:
            return "loss", float(scales @ val_losses(torch.from_numpy(answers).double()))

        parts = [train, val] if any(shares.any() for shares in val_losses.shares) else [train]
        inputs = [rows.inputs.cpu().float().numpy() for rows in parts]
        joined = join_trees(boost_xgboost_vectors(inputs, constants.numpy(), objective, metric), len(constants))
        last = np.cumsum([task.head_size for task in tasks])[:-1]
        for head, values in zip(heads, np.split(joined["value"], last, 1), strict=True):
            head.fill(**joined | {"value": values})


class JointLosses:
    """The mean loss of each task on some rows, given answers for all outputs of all tasks."""

    def __init__(self, tasks: Sequence[Task], rows: Split) -> None:
        self.tasks = [replace(task, class_weights=None) for task in tasks]  # which the weights of rows include
        self.labels = [rows.targets[task.name].double().cpu() for task in tasks]
        self.sizes = [task.head_size for task in tasks]
        weights = [label_weights(rows, task) for task in tasks]
        self.shares = [own / own.sum().clamp(min=1e-9) for own in weights]  # of each row in the loss

    def __call__(self, answers: Tensor) -> Tensor:
        """Returns the losses [tasks] for answers [rows, outputs]."""
        losses, outputs = [], answers.split(self.sizes, 1)
        for task, own, labels, shares in zip(self.tasks, outputs, self.labels, self.shares, strict=True):
            losses.append(shares @ task.row_losses(own, labels)[0])
        return torch.stack(losses)

    def derivatives(self, answers: Tensor, scales: Tensor) -> tuple[Array, Array]:
        """Returns the gradient and the diagonal of the Hessian of the scaled sum of losses, times the rows."""
        answers.requires_grad_()
        (gradient,) = torch.autograd.grad(len(answers) * scales @ self(answers), answers)
        curvatures = []
        for task, own, shares, scale in zip(self.tasks, answers.split(self.sizes, 1), self.shares, scales, strict=True):
            curvature = torch.full_like(own, 2.0)
            if task.kind != "regression":
                chances = own.sigmoid() if task.kind == "binary" else own.softmax(1)
                curvature = chances * (1 - chances)
            curvatures.append(len(answers) * scale * shares[:, None] * curvature)
        return gradient.numpy(), torch.cat(curvatures, 1).detach().numpy()
