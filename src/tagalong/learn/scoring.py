"""How networks do: outputs on some rows, the loss of each task, and its error by every measure there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .network import Network, evaluating
from .problem import Problem
from .rows import Rows, rows_at_once
from .task import Task, beside

TIED = 1e-6  # of the largest score


@dataclass(frozen=True, eq=False)
class Score:
    """How a task does on some rows.

    Attributes:
        loss: mean over the rows with a label.
        error: in the task's own measure; lower is better.
        rows: the loss of every row, NaN where the label is missing; None where it was not kept.
    """

    loss: float
    error: float
    rows: NDArray[np.float32] | None = field(default=None, repr=False)


UNKNOWN = Score(float("nan"), float("nan"))  # of a task in a network that diverged


@torch.no_grad()
def scores_on(problem: Problem, network: Network, rows: Rows) -> dict[str, Score]:
    """Loss and error of each task, with the loss of every row.

    Outputs are kept for as long as an error needs them: not at all where the error is the loss.
    """
    tasks = [problem.task(name) for name in network.tasks]
    losses: dict[str, list[NDArray[np.float64]]] = {task.name: [] for task in tasks}
    kept: dict[str, list[tuple[Tensor, Tensor]]] = {task.name: [] for task in tasks}
    with evaluating(network):
        for inputs, targets in rows.chunks():
            outputs = network(inputs)
            for task in tasks:
                pair = outputs[task.name], targets[task.name]
                losses[task.name].append(_row_losses(task, *pair))
                if not task.error_is_loss:
                    kept[task.name].append(pair)
    return {task.name: _score(problem, task, losses[task.name], kept[task.name]) for task in tasks}


def _score(
    problem: Problem, task: Task, losses: Sequence[NDArray[np.float64]], kept: Sequence[tuple[Tensor, Tensor]]
) -> Score:
    rows = np.concatenate(losses)
    loss = float(np.nanmean(rows)) if np.isfinite(rows).any() else float("nan")
    error = loss
    if not task.error_is_loss:
        outputs, targets = (torch.cat(part) for part in zip(*kept, strict=True))
        error = error_of(task, outputs, targets, problem.scales.get(task.name), loss)
    return Score(loss, error, rows.astype(np.float32))


def _row_losses(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """The loss of each row, NaN where its label is missing."""
    losses, present = task.row_losses(*precise(task, outputs, targets))
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())


def precise(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """In float64; as they were trained on for a loss of the user's own, which may hold tensors of that precision."""
    return (outputs.double(), targets.double()) if task.loss is None else (outputs, targets)


@torch.no_grad()
def losses_on(network: Network, tasks: Sequence[Task], rows: Rows) -> list[Tensor]:
    """The mean loss of each task in evaluation mode; of each row only its losses are kept."""
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in tasks]
    with evaluating(network):
        for inputs, targets in rows.chunks():
            outputs = network(inputs)
            for task, parts in zip(tasks, found, strict=True):
                parts.append(task.row_losses(outputs[task.name], targets[task.name]))
    sums = [[torch.cat(part).sum() for part in zip(*parts, strict=True)] for parts in found]
    return [loss / present.clamp(min=1) for loss, present in sums]


def mean_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the rows that have a label; 0 if none has."""
    return loss_and_labels(task, outputs, targets)[0]


def loss_and_labels(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss over the rows that have a label, and how many have one."""
    losses, present = task.row_losses(outputs, targets)
    labels = present.sum()
    return losses.sum() / labels.clamp(min=1), labels


@torch.no_grad()
def outputs_on(network: Network, inputs: Tensor, at_once: int | None = None) -> dict[str, Tensor]:
    """The outputs of every task in evaluation mode."""
    with evaluating(network):
        parts = [network(part) for part in inputs.split(at_once or rows_at_once(inputs))]
    return {task: torch.cat([part[task] for part in parts]) for task in network.tasks}


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
