"""`Task`: a target to predict, with its loss, head and error measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.errors import (
    InvalidInput,
    is_integer,
    is_nonnegative,
    is_positive,
    is_positive_integer,
    one_of,
    raise_problems,
)

from .averaging import AVERAGES, AVERAGES_BY_KIND, Average

Kind = Literal["binary", "multiclass", "regression", "custom"]
Loss = Callable[[Tensor, Tensor], Tensor]
ERROR_MEASURES = {  # by kind; the first one is the default
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
        is_multiclass, weights = self.kind == "multiclass", self.class_weights
        classes = {"binary": 2, "multiclass": self.classes}.get(self.kind, 0)
        measures = ERROR_MEASURES.get(self.kind, ())
        checks = [  # the argument, whether it is valid, and what is
            ("name", isinstance(self.name, str) and self.name != "", "must be a non-empty string"),
            ("kind", self.kind in ERROR_MEASURES, one_of(ERROR_MEASURES)),
            ("classes", not is_multiclass or is_integer(self.classes, 2), "must be an integer ≥ 2"),
            ("loss", self.kind != "custom" or self.loss is not None, "is required for a custom task"),
            ("error", not isinstance(self.error, str) or self.error in measures, one_of(measures)),
            ("average", self.average in (None, *AVERAGES), one_of(AVERAGES)),
            ("weight", is_positive(self.weight), "must be a positive number"),
            (
                "constant_loss",
                self.constant_loss is None or is_positive(self.constant_loss),
                "must be a positive number",
            ),
            ("outputs", self.outputs is None or is_positive_integer(self.outputs), "must be a positive integer"),
            (
                "average",
                not self.soft_targets or self.loss is None or self.average is not None,
                "is required for soft targets of a loss of its own",
            ),
            (
                "outputs",
                self.kind != "binary" or self.loss is not None or self.outputs in (None, 1),
                "must be 1 for a binary task; for more classes, use `kind='multiclass'`",
            ),
            (
                "class_weights",
                weights is None or (len(weights) == classes and all(map(is_nonnegative, weights))),
                f"must contain {classes} non-negative numbers for this kind of task",
            ),
        ]
        wrong = [(argument, expected) for argument, is_valid, expected in checks if not is_valid]
        task = f"task {self.name!r}"
        raise_problems([InvalidInput(f"{task}: `{name}`", text, repr(getattr(self, name))) for name, text in wrong])
        if weights is not None:
            object.__setattr__(self, "class_weights", tuple(map(float, weights)))

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.kind}, error {self.error_name!r})"

    @property
    def error_name(self) -> str:
        """The name of the error measure."""
        if self.error is None:
            return ERROR_MEASURES[self.kind][0]
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
        if self.kind == "multiclass":
            weights = None
            if self.class_weights is not None:
                weights = _to_tensor(tuple(self.class_weights), outputs.dtype, outputs.device)
            classes = targets if targets.dim() == outputs.dim() else targets.long()  # probabilities or labels
            return functional.cross_entropy(outputs, classes, weight=weights, reduction="none")
        values = squeeze_like(outputs, targets)
        if values.shape != targets.shape:
            raise self._shape_error(values, outputs, targets)
        if self.kind == "regression":
            return functional.mse_loss(values, targets, reduction="none")
        if self.class_weights is None:
            return functional.binary_cross_entropy_with_logits(values, targets, reduction="none")
        # Linear in the target, like the unweighted loss: a probability has the expected loss of a label drawn from it.
        negative, positive = self.class_weights
        losses_of_positives, losses_of_negatives = -functional.logsigmoid(values), -functional.logsigmoid(-values)
        return negative * (1 - targets) * losses_of_negatives + positive * targets * losses_of_positives


@lru_cache
def _to_tensor(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor that is copied to the device only once, since CUDA graphs cannot copy from the CPU."""
    return torch.tensor(values, dtype=dtype, device=device)


def squeeze_like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Removes the second dimension of outputs [rows, 1] if the targets have the shape [rows]."""
    return outputs.squeeze(1) if outputs.dim() == targets.dim() + 1 else outputs
