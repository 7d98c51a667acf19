"""Heads that are fitted instead of trained: boosting, and ridge or logistic regression.

Once a head is fitted, its trees or coefficients are tensors, so that such a model is stored, asked, averaged with
others and exported like any network, and needs only torch for it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .network import ModuleFactory
from .rows import Split
from .task import Task

Array = NDArray[Any]
Labelled = tuple[Array, Array, Array]  # inputs, labels and weights
FEWEST_LABELS = 5  # with fewer, the answer is a constant
ABSENT = -30.0  # the logit of a class without training labels, before the floor of probabilities


class Inputs(ModuleFactory):
    """Creates an encoder that returns its inputs, for heads that are fitted."""

    def __call__(self, width: float = 1.0) -> nn.Module:
        return nn.Identity()


class FittedHead(nn.Module):
    """A head whose buffers are fitted, and may have any shape.

    Args:
        outputs: the number of outputs.
    """

    constant: Tensor  # [outputs], added to every answer

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("constant", torch.zeros(outputs))

    def fill(self, **tensors: Any) -> None:
        """Sets buffers."""
        for name, values in tensors.items():
            like = self.get_buffer(name)
            tensor = torch.as_tensor(np.asarray(values)).to(like.device, like.dtype)
            setattr(self, name, tensor.clone(memory_format=torch.contiguous_format))
        self.prepare()

    def prepare(self) -> None:
        """Is called after buffers have changed."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name, _ in self.named_buffers():
            if prefix + name in state_dict:
                setattr(self, name, state_dict[prefix + name].clone())
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.prepare()


class FittedHeads(ModuleFactory):
    """Base class of factories whose heads are fitted instead of trained.

    Attributes:
        takes_categories: whether inputs may be missing or codes of categories.
    """

    takes_categories = False

    @abstractmethod
    def __call__(self, task: Task, features: int) -> FittedHead:
        """Creates a head that is not fitted yet."""

    @abstractmethod
    def fit(self, heads: Iterable[Any], tasks: Sequence[Task], levels: Sequence[int], train: Split, val: Split) -> None:
        """Fits the heads of some tasks, which answer with the best constant so far.

        Args:
            heads: the heads.
            tasks: their tasks.
            levels: how many categories each input has, or 0 for numbers.
            train: the training rows, with the inputs of heads.
            val: the validation rows.
        """


class SeparateHeads(FittedHeads):
    """Base class of factories that fit each head on its own."""

    @abstractmethod
    def fit_task(self, head: Any, task: Task, levels: Sequence[int], train: Labelled, val: Labelled) -> None:
        """Fits a head on the labelled rows of a task. The training labels have at least two values."""

    def fit(self, heads: Iterable[Any], tasks: Sequence[Task], levels: Sequence[int], train: Split, val: Split) -> None:
        for head, task in zip(heads, tasks, strict=True):
            rows = labelled_rows(train, task)
            if can_be_fitted(rows[1]):
                self.fit_task(head, task, levels, rows, labelled_rows(val, task))


def label_weights(rows: Split, task: Task) -> Tensor:
    """Returns how much each row counts for a task, including the weight of its class, and 0 without a label."""
    labels = rows.targets[task.name].double().cpu()
    weights = labels.isfinite().double()
    if rows.weights is not None:
        weights *= rows.weights.to(weights)
    if task.class_weights is not None:
        weights *= weights.new_tensor(task.class_weights)[labels.nan_to_num().long()]
    return weights


def labelled_rows(rows: Split, task: Task) -> Labelled:
    """Returns the rows that count for a task."""
    weights = label_weights(rows, task)
    used = weights > 0
    labels = rows.targets[task.name].double().cpu()
    return rows.inputs.cpu()[used].float().numpy(), labels[used].numpy(), weights[used].numpy()


def can_be_fitted(labels: Array) -> bool:
    return len(labels) >= FEWEST_LABELS and len(np.unique(labels)) > 1


def outputs_of_classes(task: Task, classes: Array, values: Array, constant: Array) -> tuple[Array, Array]:
    """Returns values [outputs, …] and constants [outputs] for all classes, given those of the classes that occur.

    If only two classes of a multiclass task occur, they have one output: the log-odds of the second one.
    """
    if task.kind != "multiclass":
        return values, constant
    if len(classes) == 2:
        values, constant = np.vstack([0 * values, values]), np.append(0.0, constant)
    every, constants = np.zeros((task.head_size, values.shape[1])), np.full(task.head_size, ABSENT)
    every[classes], constants[classes] = values, constant
    return every, constants
