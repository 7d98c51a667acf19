"""`Task`: a target to predict, with its loss, head and error measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.errors import InvalidInput, is_nonnegative, is_positive_integer

from .averaging import AVERAGES, AVERAGES_BY_KIND, Average

Kind = Literal["binary", "multiclass", "regression", "custom"]
Loss = Callable[[Tensor, Tensor], Tensor]
DEFAULT_ERROR_MEASURES = {"binary": "error rate", "multiclass": "error rate", "regression": "mae", "custom": "loss"}
ERROR_MEASURES = {
    "binary": ("error rate", "auroc", "auprc", "loss"),
    "multiclass": ("error rate", "loss"),
    "regression": ("mae", "rmse", "r2", "loss"),
    "custom": ("loss",),
}


@dataclass(frozen=True)
class Task:
    """One target that a network learns to predict.

    Attributes:
        name: the name of the task. In a table, this is the name of the task's column.
        kind: "binary" (labels 0 and 1), "multiclass" (labels 0, 1, …), "regression", or "custom".
        classes: the number of classes of a multiclass task.
        outputs: the number of outputs of the head. The default depends on the kind.
        loss: a function of outputs [rows, …] and targets [rows, …] (without NaN) that returns one value per row or per
            element of the target. The default is cross-entropy or the squared error. The function must not branch on
            values, since networks with such a function cannot be batched.
        error: the error measure, which is reported along with the loss. Lower is better. It is one of "error rate",
            "auroc" or "auprc" (reported as one minus the area), "mae", "rmse", "r2" (reported as one minus R²), "loss",
            or a function that computes a number from outputs and targets.
        class_weights: the weight of each class of a binary (negative, positive) or multiclass task. The loss of each
            row is multiplied by the weight of its class. The mean is taken over rows without normalizing the weights,
            so a row counts the same in every batch.
        weight: the weight of this task's loss in the loss of a network.
        head: a function that creates the head from the encoder's number of features. The default is a linear layer.
        average: how to average the answers of several networks: "outputs" (the mean of the outputs), "sigmoid" (the
            mean probability of label 1) or "softmax" (the mean probability of every class). The default depends on the
            kind. Tasks with a loss of their own have no default, and are served by one network unless it is set.
        soft_targets: whether `loss` also accepts the answers of other networks as targets, and values between a label
            and an answer (see `tagalong.learn.teach`). With `average="outputs"`, these are outputs in the shape of the
            targets; with "sigmoid", probabilities of label 1; with "softmax", probabilities [rows, classes]. Not needed
            for tasks without a loss of their own, which can always be taught.
        constant_loss: the mean loss of a constant answer, which the task's skill is measured against, if it is known.
            By default, the best constant is fitted to the training labels (see `tagalong.learn.skill_units`).

    Example:
        >>> Task("ill", error="auroc")
        Task('ill', binary, error 'auroc')
    """

    name: str
    kind: Kind = "binary"
    classes: int | None = None
    outputs: int | None = None
    loss: Loss | None = None
    error: str | Callable[[Tensor, Tensor], float] | None = None
    class_weights: Sequence[float] | None = None
    weight: float = 1.0
    head: Callable[[int], nn.Module] | None = None
    average: Average | None = None
    soft_targets: bool = False
    constant_loss: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise self._problem("name", "must be a non-empty string", self.name)
        if self.kind not in DEFAULT_ERROR_MEASURES:
            raise self._problem("kind", f"must be one of {_join_names(DEFAULT_ERROR_MEASURES)}", self.kind)
        if self.kind == "multiclass" and (self.classes is None or self.classes < 2):
            raise self._problem("classes", "must be an integer ≥ 2", self.classes)
        if self.kind == "custom" and self.loss is None:
            raise self._problem("loss", "is required for a custom task", None)
        if isinstance(self.error, str) and self.error not in ERROR_MEASURES[self.kind]:
            raise self._problem("error", f"must be one of {_join_names(ERROR_MEASURES[self.kind])}", self.error)
        if self.average not in (None, *AVERAGES):
            raise self._problem("average", f"must be one of {_join_names(AVERAGES)}", self.average)
        if self.soft_targets and self.loss is not None and self.average is None:
            raise self._problem("average", "is required for soft targets of a loss of its own", None)
        if not (is_nonnegative(self.weight) and self.weight):
            raise self._problem("weight", "must be a positive number", self.weight)
        if self.constant_loss is not None and not (is_nonnegative(self.constant_loss) and self.constant_loss):
            raise self._problem("constant_loss", "must be a positive number", self.constant_loss)
        if self.outputs is not None and not is_positive_integer(self.outputs):
            raise self._problem("outputs", "must be a positive integer", self.outputs)
        if self.kind == "binary" and self.loss is None and self.outputs not in (None, 1):
            hint = "use `kind='multiclass'`"
            raise self._problem("outputs", "must be 1 for a binary task", self.outputs, hint)
        if self.class_weights is None:
            return
        size = {"binary": 2, "multiclass": self.classes}.get(self.kind, 0)
        if len(self.class_weights) != size or not all(map(is_nonnegative, self.class_weights)):
            expected = f"must contain {size} non-negative numbers for this kind of task"
            raise self._problem("class_weights", expected, self.class_weights)
        object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))

    def _problem(self, argument: str, expected: str, found: object, hint: str = "") -> InvalidInput:
        return InvalidInput(f"task {self.name!r}: `{argument}`", expected, repr(found), hint)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.kind}, error {self.error_name!r})"

    @property
    def error_name(self) -> str:
        """The name of the error measure."""
        if self.error is None:
            return DEFAULT_ERROR_MEASURES[self.kind]
        return self.error if isinstance(self.error, str) else getattr(self.error, "__name__", "error")

    @property
    def error_is_loss(self) -> bool:
        """Whether the error is the mean loss itself."""
        return not callable(self.error) and self.error_name == "loss"

    @property
    def head_size(self) -> int:
        """The number of outputs of the head."""
        return self.outputs or (self.classes if self.kind == "multiclass" else 1) or 1

    @property
    def averaging(self) -> Average | None:
        """How to average the answers of several networks, or None if it is unknown."""
        return self.average or (AVERAGES_BY_KIND.get(self.kind) if self.loss is None else None)

    def make_head(self, features: int) -> nn.Module:
        """Creates a head for an encoder with this number of features."""
        return self.head(features) if self.head is not None else nn.Linear(features, self.head_size)

    def row_losses(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss of each row (0 if its label is missing) and whether the row has a label (1 or 0).

        If a row has multiple labels (a dense target), its loss is the mean over the labels that are not missing. If
        there are several outputs for each row, [rows · members, …], its loss is the mean over these members.
        """
        if len(outputs) > len(targets) > 0 and len(outputs) % len(targets) == 0:
            members = len(outputs) // len(targets)
            losses, present = self.row_losses(outputs, targets.repeat_interleave(members, 0))
            return losses.unflatten(0, (-1, members)).mean(1), present.unflatten(0, (-1, members))[:, 0]
        present = torch.isfinite(targets)
        losses = self.element_losses(outputs, torch.where(present, targets, torch.zeros_like(targets)))
        if losses.dim() == 0 or losses.shape != targets.shape[: losses.dim()]:
            raise self._shape_error(losses, outputs, targets)
        if losses.dim() < present.dim():
            present = present.flatten(losses.dim()).all(-1)
        losses = torch.where(present, losses, torch.zeros_like(losses))
        if losses.dim() == 1:
            return losses, present.to(losses.dtype)
        number = present.flatten(1).sum(1).to(losses.dtype)
        return losses.flatten(1).sum(1) / number.clamp(min=1), (number > 0).to(losses.dtype)

    def _shape_error(self, losses: Tensor, outputs: Tensor, targets: Tensor) -> InvalidInput:
        expected = f"one value per row or per element of the targets, which have shape {list(targets.shape)}"
        found = f"shape {list(losses.shape)} for outputs of shape {list(outputs.shape)}"
        hint = "use reduction='none', and a head whose outputs match the targets"
        return InvalidInput(f"task {self.name!r}: `loss`", f"must return {expected}", found, hint)

    def element_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of each element of the targets, or of each row. No label may be missing."""
        if self.loss is not None:
            return self.loss(outputs, targets)
        if self.kind != "multiclass":
            values = squeeze_like(outputs, targets)
            if values.shape != targets.shape:
                raise self._shape_error(values, outputs, targets)
            return (values - targets).square() if self.kind == "regression" else self._binary_losses(values, targets)
        weights = None
        if self.class_weights is not None:
            weights = _to_tensor(tuple(self.class_weights), outputs.dtype, outputs.device)
        classes = targets if targets.dim() == outputs.dim() else targets.long()  # probabilities or labels
        return functional.cross_entropy(outputs, classes, weight=weights, reduction="none")

    def _binary_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.class_weights is None:
            return _binary_cross_entropy(logits, targets)
        # Linear in the target, like the unweighted loss: a probability has the expected loss of a label drawn from it.
        negative, positive = self.class_weights
        losses_of_negatives = _binary_cross_entropy(logits, torch.zeros_like(targets))
        losses_of_positives = _binary_cross_entropy(logits, torch.ones_like(targets))
        return negative * (1 - targets) * losses_of_negatives + positive * targets * losses_of_positives


def _binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")


@lru_cache
def _to_tensor(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor that is copied to the device only once, since CUDA graphs cannot copy from the CPU."""
    return torch.tensor(values, dtype=dtype, device=device)


def squeeze_like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Removes the second dimension of outputs [rows, 1] if the targets have the shape [rows]."""
    return outputs.squeeze(1) if outputs.dim() == targets.dim() + 1 else outputs


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
