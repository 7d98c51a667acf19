"""Scores networks: computes outputs, losses and all error measures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.score import Score

from .averaging import average_answers
from .network import Network, evaluation_mode
from .problem import Problem
from .rows import Rows, rows_at_once
from .task import Task

TIE_TOLERANCE = 1e-6  # relative to the largest score
UNKNOWN_SCORE = Score(float("nan"), float("nan"))  # the score of a task in a network that diverged


def scores_on(problem: Problem, network: Network, rows: Rows) -> dict[str, Score]:
    """Returns the loss and error of each task, including the loss of each row."""
    return average_scores_on(problem, [network], rows)


@torch.no_grad()
def average_scores_on(problem: Problem, networks: Sequence[Network], rows: Rows) -> dict[str, Score]:
    """Returns the loss and error of each task, from the average answer of the networks that have a head for it.

    Outputs are kept only for tasks whose error is not the loss itself.
    """
    tasks = [problem.task(name) for name in dict.fromkeys(name for network in networks for name in network.tasks)]
    averages = {task.name: task.averaging for task in tasks}
    losses: dict[str, list[NDArray[np.float64]]] = {task.name: [] for task in tasks}
    kept_pairs: dict[str, list[tuple[Tensor, Tensor]]] = {task.name: [] for task in tasks}
    with ExitStack() as stack:
        for network in networks:
            stack.enter_context(evaluation_mode(network))
        for inputs, targets in rows.chunks():
            outputs = average_answers([network(inputs) for network in networks], averages)
            for task in tasks:
                answers = clip_outputs(outputs[task.name], problem.scales.get(task.name))
                pair = answers.unsqueeze(0), targets[task.name]
                losses[task.name].append(row_losses_of(task, *pair))
                if not task.error_is_loss:
                    kept_pairs[task.name].append(pair)
    scores = {}
    for task in tasks:
        outputs_and_targets = None
        if not task.error_is_loss:
            all_outputs, all_targets = zip(*kept_pairs[task.name], strict=True)
            outputs_and_targets = torch.cat(all_outputs, 1), torch.cat(all_targets)
        row_losses, scale = np.concatenate(losses[task.name], 1), problem.scales.get(task.name)
        (scores[task.name],) = _make_scores(task, row_losses, outputs_and_targets, scale, [rows.weights])
    return scores


@torch.no_grad()
def scores_of_outputs(
    task: Task,
    outputs: Tensor,
    targets: Tensor,
    scale: tuple[float, ...] | None,
    weights: Sequence[Tensor | None],
) -> list[Score]:
    """Returns the score of each network for a task, given outputs [networks, rows, …] and the weights of its rows."""
    outputs = clip_outputs(outputs, scale)
    return _make_scores(task, row_losses_of(task, outputs, targets), (outputs, targets), scale, weights)


def score_outputs(
    task: Task,
    outputs: Tensor,
    targets: Tensor,
    scale: tuple[float, ...] | None = None,
    weights: Tensor | None = None,
) -> Score:
    """Returns the loss and error of given outputs, including the loss of each row.

    Args:
        task: the task.
        outputs: the outputs [rows, …] for the task.
        targets: the targets, with NaN for missing labels.
        scale: see `Problem.scales`. Errors are in the units of the original data.
        weights: the weight of each row, or None if all rows count the same.

    Example:
        >>> score_outputs(Task("age", "regression"), torch.tensor([1.0, 2.0]), torch.tensor([3.0, torch.nan])).loss
        4.0
    """
    one_network = clip_outputs(outputs, scale).unsqueeze(0)
    rows = row_losses_of(task, one_network, targets)
    (score,) = _make_scores(task, rows, (one_network, targets), scale, [weights], np.float64)
    return score


def clip_outputs(outputs: Tensor, scale: tuple[float, ...] | None) -> Tensor:
    """Clips standardized answers to the range that the scale allows, if any; see `Problem.scales`."""
    if scale is None or len(scale) == 2:
        return outputs
    mean, deviation, low, high = scale
    clipped = outputs.clamp((low - mean) / deviation, (high - mean) / deviation)
    return torch.where(outputs.isfinite(), clipped, outputs)  # so that networks that diverged have no finite loss


def _make_scores(
    task: Task,
    rows: NDArray[np.float64],
    outputs_and_targets: tuple[Tensor, Tensor] | None,
    scale: tuple[float, ...] | None,
    weights: Sequence[Tensor | None],
    dtype: type[np.floating[Any]] = np.float32,
) -> list[Score]:
    """Returns the score of each network, given losses [networks, rows], and outputs unless the error is the loss."""
    by_network = None  # [networks, rows]
    if any(own is not None for own in weights):
        by_network = torch.stack([torch.ones(rows.shape[1]) if own is None else own.double().cpu() for own in weights])
        rows = weighted_losses(rows, by_network.numpy())
    losses = _mean_losses(rows)
    errors = losses
    if outputs_and_targets is not None:
        errors = _errors(task, *outputs_and_targets, scale, losses, by_network)
    return [Score(*values) for values in zip(losses, errors, rows.astype(dtype), strict=True)]


def weighted_losses(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiplies losses by weights whose mean over the labeled rows is 1. Rows of weight 0 count as unlabeled."""
    weights = np.where(np.isfinite(rows) & (weights > 0), weights, np.nan)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")  # networks without labels
        return np.asarray(rows * (weights / np.nanmean(weights, 1, keepdims=True)))


def _mean_losses(rows: NDArray[np.float64]) -> list[float]:
    """Returns the mean loss of each network over the rows with labels, or NaN if there are none."""
    means = np.full(len(rows), np.nan)
    known = np.isfinite(rows).any(1)
    means[known] = np.nanmean(rows[known], 1)
    return means.tolist()


def row_losses_of(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """Returns the losses [networks, rows], with NaN for missing labels."""
    if task.loss is None:
        # The loss of a row depends on no other row, so the rows of all networks are computed as if they were of one.
        count, values = len(outputs), targets.double()
        repeated = values.expand(count, *values.shape).flatten(0, 1)
        pair = task.row_losses(outputs.double().flatten(0, 1), repeated)
        losses, present = (part.unflatten(0, (count, -1)) for part in pair)
    else:  # may need another dtype than float64
        losses, present = map(torch.stack, zip(*(task.row_losses(own, targets) for own in outputs), strict=True))
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())


@torch.no_grad()
def outputs_on(network: Network, inputs: Tensor, at_once: int | None = None) -> dict[str, Tensor]:
    """Returns the outputs of every task in evaluation mode."""
    with evaluation_mode(network):
        parts = [network(part) for part in inputs.split(at_once or rows_at_once(inputs))]
    return {task: torch.cat([part[task] for part in parts]) for task in network.tasks}


@torch.no_grad()
def outputs_on_rows(networks: Sequence[Network], rows: Rows) -> list[dict[str, Tensor]]:
    """Returns the outputs of every network for each of its tasks, on the CPU. The rows are read once."""
    found: list[dict[str, list[Tensor]]] = [{task: [] for task in network.tasks} for network in networks]
    with ExitStack() as stack:
        for network in networks:
            stack.enter_context(evaluation_mode(network))
        for inputs, _ in rows.chunks():
            for network, parts in zip(networks, found, strict=True):
                for task, values in network(inputs).items():
                    parts[task].append(values.cpu())
    return [{task: torch.cat(values) for task, values in parts.items()} for parts in found]


@torch.no_grad()
def _errors(
    task: Task,
    outputs: Tensor,
    targets: Tensor,
    scale: tuple[float, ...] | None,
    losses: list[float],
    weights: Tensor | None,
) -> list[float]:
    """Returns the error of each network, given outputs [networks, rows, …] and weights [networks, rows].

    Missing labels are ignored, and the error is NaN if all are missing. Dense targets are compared element by element.
    A custom error function receives only rows without missing labels.
    """
    if task.error_is_loss:
        return losses
    if weights is not None:  # rows of weight 0 are left out, which differ between networks
        errors = []
        for own, row_weights in zip(outputs, weights.to(targets.device), strict=True):
            rows = row_weights > 0
            errors += _errors_of_rows(task, own[None, rows], targets[rows], scale, row_weights[rows])
        return errors
    return _errors_of_rows(task, outputs, targets, scale, None)


def _errors_of_rows(
    task: Task, outputs: Tensor, targets: Tensor, scale: tuple[float, ...] | None, weights: Tensor | None
) -> list[float]:
    present = torch.isfinite(targets)
    if not present.any():
        return [float("nan")] * len(outputs)
    answers, actual = (_in_original_units(values.double(), scale) for values in (outputs, targets))
    if callable(task.error):
        rows = present.flatten(1).all(1) if present.dim() > 1 else present
        return [float(task.error(own[rows], actual[rows])) if rows.any() else float("nan") for own in answers]
    if task.kind == "multiclass":
        answers = answers.argmax(2)
    elif answers.dim() == targets.dim() + 2:
        answers = answers.squeeze(2)
    measure, predicted, labels = ERROR_MEASURES[task.error_name], answers[:, present], actual[present]
    if weights is not None:
        weights = weights.view(-1, *[1] * (present.dim() - 1)).expand_as(present)[present]
    if task.error_name in RANKING_MEASURES:
        on_cpu = None if weights is None else weights.cpu()
        return [float(measure(own, labels.cpu(), on_cpu)) for own in predicted.cpu()]
    errors: list[float] = measure(predicted, labels, weights).tolist()
    return errors


def _in_original_units(values: Tensor, scale: tuple[float, ...] | None) -> Tensor:
    return values if scale is None else values * scale[1] + scale[0]


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean(-1) if weights is None else (values * weights).sum(-1) / weights.sum()


def error_rate(predicted: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the fraction of wrong predictions, which are classes or logits of the positive class.

    Example:
        >>> error_rate(torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 0.0])).item()
        0.5
    """
    classes = predicted > 0 if predicted.is_floating_point() else predicted
    return _mean((classes.double() != targets).double(), weights)


def auroc(scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns one minus the area under the ROC curve, i.e. the fraction of misordered negative-positive pairs.

    A tie counts as half a misordered pair.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0])).item()
        0.125
    """
    positives, negatives = _class_counts(scores, targets, weights)
    above = negatives.cumsum(0) - negatives / 2
    return (positives * above).sum() / (positives.sum() * negatives.sum())


def auprc(scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns one minus the average precision. Equal scores are treated as one step of the precision-recall curve.

    Example:
        >>> auprc(torch.tensor([0.2, 0.4, 0.7, 0.9]), torch.tensor([1.0, 0.0, 0.0, 1.0])).item()  # 1 - (1 + 1/2) / 2
        0.25
    """
    positives, negatives = _class_counts(scores, targets, weights)
    if not negatives.any():
        return scores.new_tensor(torch.nan)
    hits = positives.cumsum(0)
    precision = hits / (hits + negatives.cumsum(0))
    return 1 - (positives * precision).sum() / positives.sum()


def _class_counts(scores: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the weight of positives and negatives with each score, from the highest score to the lowest.

    Scores that differ only by rounding error count as equal. Otherwise, a network with dead units would rank rows
    differently depending on which networks it was trained with.
    """
    step = TIE_TOLERANCE * scores.abs().max() if len(scores) else scores.new_tensor(0.0)
    if torch.isfinite(step) and step > 0:
        scores = (scores / step).round()
    distinct, place = torch.unique(-scores, return_inverse=True)
    none = targets.new_zeros(len(distinct))
    weights = torch.ones_like(targets) if weights is None else weights.to(targets)
    positives = weights * (targets > 0.5)
    return none.index_add(0, place, positives), none.index_add(0, place, weights - positives)


def mae(predicted: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the mean absolute error."""
    return _mean((predicted - targets).abs(), weights)


def rmse(predicted: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns the root mean squared error."""
    return _mean((predicted - targets).square(), weights).sqrt()


def one_minus_r2(predicted: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns one minus R² (the unexplained fraction of the targets' variance), or NaN for constant targets.

    Example:
        >>> one_minus_r2(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0])).item()
        1.0
    """
    weights = torch.ones_like(targets) if weights is None else weights
    total = (weights * (targets - _mean(targets, weights)).square()).sum()
    residual = (weights * (predicted - targets).square()).sum(-1)
    return torch.where(total > 0, residual / total, torch.nan)


ERROR_MEASURES = {
    "error rate": error_rate,
    "auroc": auroc,
    "auprc": auprc,
    "mae": mae,
    "rmse": rmse,
    "r2": one_minus_r2,
}
RANKING_MEASURES = ("auroc", "auprc")  # computed network by network
