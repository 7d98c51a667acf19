"""Error measures: lower is better, whatever the textbook's direction."""

from __future__ import annotations

import torch
from torch import Tensor

from ._task import Task, beside

TIED = 1e-6  # of the largest score


def error_of(task: Task, outputs: Tensor, targets: Tensor, scale: tuple[float, float] | None, loss: float) -> float:
    """The error of a task on rows, missing labels left out; NaN without any label.

    Dense targets are compared element by element; a task's own function gets the rows whose labels are all there.

    Args:
        task: whose error.
        outputs: of the network.
        targets: with NaN where a label is missing.
        scale: (mean, standard deviation) that targets were standardised with; errors are in the data's units.
        loss: the mean loss, for tasks whose error it is.
    """
    if task.error_is_loss:
        return loss
    present = torch.isfinite(targets)
    outputs, targets = outputs.detach().double(), targets.double()
    if scale is not None:
        mean, deviation = scale
        outputs, targets = outputs * deviation + mean, targets * deviation + mean
    if callable(task.error):
        rows = present.flatten(1).all(1) if present.dim() > 1 else present
        return float(task.error(outputs[rows], targets[rows])) if rows.any() else float("nan")
    guesses = outputs.argmax(1) if task.kind == "multiclass" else beside(outputs, targets)
    found = MEASURES[task.error_name](guesses[present], targets[present])
    return float(found) if present.any() else float("nan")


def wrong(guesses: Tensor, targets: Tensor) -> Tensor:
    """The share of wrong answers; guesses are classes, or logits of the positive class.

    Example:
        >>> wrong(torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 0.0])).item()
        0.5
    """
    guesses = guesses > 0 if guesses.is_floating_point() else guesses
    return (guesses.double() != targets).double().mean()


def auroc(scores: Tensor, targets: Tensor) -> Tensor:
    """One minus the area under the ROC curve: the share of (negative, positive) pairs in the wrong order, ties half.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0])).item()
        0.125
    """
    positives, negatives = _counts(scores, targets)
    above = negatives.cumsum(0) - negatives / 2
    return (positives * above).sum() / (positives.sum() * negatives.sum())


def auprc(scores: Tensor, targets: Tensor) -> Tensor:
    """One minus average precision: the area under the steps of precision over recall, equal scores taken together.

    Example:
        >>> auprc(torch.tensor([0.2, 0.4, 0.7, 0.9]), torch.tensor([1.0, 0.0, 0.0, 1.0])).item()  # 1 - (1 + 1/2) / 2
        0.25
    """
    positives, negatives = _counts(scores, targets)
    if not negatives.any():
        return scores.new_tensor(torch.nan)
    hits = positives.cumsum(0)
    precision = hits / (hits + negatives.cumsum(0))
    return 1 - (positives * precision).sum() / positives.sum()


def _counts(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """How many positives and negatives have each score, from the highest score down.

    Scores that differ by rounding are equal: in which order a network of dead units ranks rows would else depend on the
    company it was trained in.
    """
    step = TIED * scores.abs().max() if len(scores) else scores.new_tensor(0.0)
    if torch.isfinite(step) and step > 0:
        scores = (scores / step).round()
    distinct, place = torch.unique(-scores, return_inverse=True)
    none = targets.new_zeros(len(distinct))
    positive = (targets > 0.5).to(targets.dtype)
    return none.index_add(0, place, positive), none.index_add(0, place, 1 - positive)


def mae(guesses: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error."""
    return (guesses - targets).abs().mean()


def rmse(guesses: Tensor, targets: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return (guesses - targets).square().mean().sqrt()


def unexplained(guesses: Tensor, targets: Tensor) -> Tensor:
    """One minus R²: the share of the targets' variance that is left; NaN for constant targets.

    Example:
        >>> unexplained(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0])).item()
        1.0
    """
    around = (targets - targets.mean()).square().sum()
    left = (guesses - targets).square().sum()
    return torch.where(around > 0, left / around, torch.nan)


MEASURES = {"error rate": wrong, "auroc": auroc, "auprc": auprc, "mae": mae, "rmse": rmse, "r2": unexplained}
