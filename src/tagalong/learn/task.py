"""What is to be learnt: one target, its loss, its head and which error measure it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tagalong.errors import from_zero, refuse

Kind = Literal["binary", "multiclass", "regression", "custom"]
Loss = Callable[[Tensor, Tensor], Tensor]
DEFAULT_ERRORS = {"binary": "error rate", "multiclass": "error rate", "regression": "mae", "custom": "loss"}
ERRORS = {
    "binary": ("error rate", "auroc", "auprc", "loss"),
    "multiclass": ("error rate", "loss"),
    "regression": ("mae", "rmse", "r2", "loss"),
    "custom": ("loss",),
}


@dataclass(frozen=True)
class Task:
    """One target.

    Attributes:
        name: of the task; the column of a table.
        kind: "binary" (labels 0 and 1), "multiclass" (labels 0, 1, …), "regression", or "custom".
        classes: of a multiclass task.
        outputs: size of the head; by default what the kind needs.
        loss: of outputs [rows, …] and targets [rows, …] without NaN, one value per row or per element of the target;
            by default cross-entropy or the squared error. Without branches on values, so that networks can be batched.
        error: what is reported beside the loss, lower is better: "error rate", "auroc" and "auprc" (reported as one
            minus the area), "mae", "rmse", "r2" (one minus it), "loss", or a function of outputs and targets that
            gives a number.
        class_weights: of a binary (negatives, positives) or multiclass task: each row's loss is multiplied by the
            weight of its class. The mean is over rows, not over weights, so that a row counts the same in any batch.
        weight: of this task's loss in the sum of a network.
        head: makes the head from the number of features of the encoder; by default one linear layer.

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

    def __post_init__(self) -> None:
        refuse(self._problems())
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))

    def _problems(self) -> list[str]:
        problems = []
        name = f"task {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            problems.append(f"`name` must be a non-empty string, found {self.name!r}")
        if self.kind not in DEFAULT_ERRORS:
            return [*problems, f"{name}: `kind` must be one of {_listed(DEFAULT_ERRORS)}, found {self.kind!r}"]
        if self.kind == "multiclass" and (self.classes is None or self.classes < 2):
            problems.append(f"{name}: `classes` must be a number from 2, found {self.classes!r}")
        if self.kind == "custom" and self.loss is None:
            problems.append(f"{name}: a custom task needs `loss`, found none")
        if isinstance(self.error, str) and self.error not in ERRORS[self.kind]:
            problems.append(f"{name}: `error` must be one of {_listed(ERRORS[self.kind])}, found {self.error!r}")
        if not (from_zero(self.weight) and self.weight):
            problems.append(f"{name}: `weight` must be a positive number, found {self.weight!r}")
        return [*problems, *self._size_problems(name)]

    def _size_problems(self, name: str) -> list[str]:
        problems = []
        if self.outputs is not None and (not isinstance(self.outputs, int) or self.outputs < 1):
            problems.append(f"{name}: `outputs` must be a whole number from 1, found {self.outputs!r}")
        if self.kind == "binary" and self.loss is None and self.outputs not in (None, 1):
            problems.append(f"{name}: `outputs` of a binary task must be 1, found {self.outputs!r}; use 'multiclass'")
        wanted = {"binary": 2, "multiclass": self.classes}.get(self.kind, 0)
        if self.class_weights is not None and len(self.class_weights) != wanted:
            found = len(self.class_weights)
            problems.append(f"{name}: `class_weights` must be {wanted} numbers for this kind of task, found {found}")
        elif self.class_weights is not None and not all(map(from_zero, self.class_weights)):
            problems.append(f"{name}: `class_weights` must be numbers from 0, found {self.class_weights!r}")
        return problems

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.kind}, error {self.error_name!r})"

    @property
    def error_name(self) -> str:
        """What the error is called."""
        if self.error is None:
            return DEFAULT_ERRORS[self.kind]
        return self.error if isinstance(self.error, str) else getattr(self.error, "__name__", "error")

    @property
    def error_is_loss(self) -> bool:
        """Whether the error is the mean loss itself."""
        return not callable(self.error) and self.error_name == "loss"

    @property
    def head_size(self) -> int:
        """How many outputs the head has."""
        return self.outputs or (self.classes if self.kind == "multiclass" else 1) or 1

    def make_head(self, features: int) -> nn.Module:
        """A head on so many features."""
        return self.head(features) if self.head is not None else nn.Linear(features, self.head_size)

    def row_losses(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every row, 0 where the label is missing, and which labels are there (1 or 0).

        A row with several labels (a dense target) has the mean over those that are there.
        """
        present = torch.isfinite(targets)
        losses = self._losses(outputs, torch.where(present, targets, torch.zeros_like(targets)))
        if losses.dim() == 0 or losses.shape != targets.shape[: losses.dim()]:
            raise self._misfit(losses, outputs, targets)
        if losses.dim() < present.dim():
            present = present.flatten(losses.dim()).all(-1)
        losses = torch.where(present, losses, torch.zeros_like(losses))
        if losses.dim() == 1:
            return losses, present.to(losses.dtype)
        number = present.flatten(1).sum(1).to(losses.dtype)
        return losses.flatten(1).sum(1) / number.clamp(min=1), (number > 0).to(losses.dtype)

    def _misfit(self, found: Tensor, outputs: Tensor, targets: Tensor) -> ValueError:
        return ValueError(
            f"task {self.name!r}: `loss` must give a value per row or per element of the targets "
            f"{list(targets.shape)}, found {list(found.shape)} from outputs {list(outputs.shape)}; use "
            "reduction='none', and a head whose outputs fit the targets"
        )

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.loss is not None:
            return self.loss(outputs, targets)
        if self.kind != "multiclass":
            values = beside(outputs, targets)
            if values.shape != targets.shape:
                raise self._misfit(values, outputs, targets)
            return (values - targets).square() if self.kind == "regression" else self._binary(values, targets)
        weights = None if self.class_weights is None else outputs.new_tensor(self.class_weights)
        return functional.cross_entropy(outputs, targets.long(), weight=weights, reduction="none")

    def _binary(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        if self.class_weights is None:
            return losses
        negative, positive = self.class_weights
        return losses * torch.where(targets > 0.5, positive, negative)


def beside(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs [rows, 1] beside targets [rows]."""
    return outputs.squeeze(1) if outputs.dim() == targets.dim() + 1 else outputs


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
