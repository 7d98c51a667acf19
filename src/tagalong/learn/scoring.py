"""Scores networks: computes outputs, losses and all error measures."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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


@torch.no_grad()
def outputs_on(network: Network, inputs: Tensor, at_once: int | None = None) -> dict[str, Tensor]:
    """Returns the outputs of every task in evaluation mode."""
    with evaluation_mode(network):
        parts = [network(part) for part in inputs.split(at_once or rows_at_once(inputs))]
    return {task: torch.cat([part[task] for part in parts]) for task in network.tasks}


def outputs_on_rows(networks: Sequence[Network], rows: Rows) -> list[dict[str, Tensor]]:
    """Returns the outputs of every network for each of its tasks, on the CPU. The rows are read once."""
    chunks: list[list[dict[str, Tensor]]] = [[] for _ in networks]
    for inputs, _ in rows.chunks():
        for network, own in zip(networks, chunks, strict=True):
            outputs = outputs_on(network, inputs)
            own.append({task: values.cpu() for task, values in outputs.items()})
    return [{task: torch.cat([chunk[task] for chunk in own]) for task in own[0]} for own in chunks]


@torch.no_grad()
def average_scores_on(problem: Problem, networks: Sequence[Network], rows: Rows) -> dict[str, Score]:
    """Returns the loss and error of each task, from the average answer of the networks that have a head for it.

    Outputs are kept only for tasks whose error is not the loss itself.
    """
    tasks = [problem.task(name) for name in dict.fromkeys(name for network in networks for name in network.tasks)]
    averages = {task.name: task.averaging for task in tasks}
    chunks: dict[str, list[tuple[Any, ...]]] = {task.name: [] for task in tasks}
    for inputs, targets in rows.chunks():
        outputs = average_answers([outputs_on(network, inputs) for network in networks], averages)
        for task in tasks:
            answers, labels = outputs[task.name].unsqueeze(0), targets[task.name]
            if labels.dim() == 1:  # a CPU computes so few losses sooner than a GPU starts
                answers, labels = answers.cpu(), labels.cpu()
            losses = row_losses_of(task, answers, labels, problem.answer_scales.get(task.name))
            chunks[task.name].append((losses,) if task.error_is_loss else (losses, answers, labels))
    scores = {}
    for task in tasks:
        all_losses, *kept = zip(*chunks[task.name], strict=True)
        outputs_and_targets = (torch.cat(kept[0], 1), torch.cat(kept[1])) if kept else None
        scale, row_losses = problem.answer_scales.get(task.name), np.concatenate(all_losses, 1)
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
    return _make_scores(task, row_losses_of(task, outputs, targets, scale), (outputs, targets), scale, weights)


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
        scale: see `Problem.answer_scales`. Errors are in the units of the original data.
        weights: the weight of each row, or None if all rows count the same.

    Example:
        >>> score_outputs(Task("age", "regression"), torch.tensor([1.0, 2.0]), torch.tensor([3.0, torch.nan])).loss
        4.0
    """
    (score,) = scores_of_outputs(task, outputs.unsqueeze(0), targets, scale, [weights])
    return score


def clip_outputs(task: Task, outputs: Tensor, scale: tuple[float, ...] | None) -> Tensor:
    """Clips outputs [networks, rows, …] to the range of the scale, if it has one; see `Problem.answer_scales`."""
    if scale is None or len(scale) == 2:
        return outputs
    mean, deviation, low, high = scale
    if task.kind == "multiclass":
        outputs = outputs.log_softmax(2)
    clipped = outputs.clamp((low - mean) / deviation, (high - mean) / deviation)
    return torch.where(outputs.isfinite(), clipped, outputs)  # so that networks that diverged have no finite loss


def row_losses_of(
    task: Task, outputs: Tensor, targets: Tensor, scale: tuple[float, ...] | None = None
) -> NDArray[np.float64]:
    """Returns the losses [networks, rows] of clipped outputs, with NaN for missing labels."""
    outputs = clip_outputs(task, outputs, scale)
    if task.loss is None:
        # The loss of a row depends on no other row, so the rows of all networks are computed as if they were of one.
        count, values = len(outputs), targets.double()
        repeated = values.expand(count, *values.shape).flatten(0, 1)
        pair = task.row_losses(outputs.double().flatten(0, 1), repeated)
        losses, present = (part.unflatten(0, (count, -1)) for part in pair)
    else:  # may need another dtype than float64
        losses, present = map(torch.stack, zip(*(task.row_losses(own, targets) for own in outputs), strict=True))
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())


def weighted_losses(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiplies losses by weights whose mean over the labeled rows is 1. Rows of weight 0 count as unlabeled."""
    weights = np.where(np.isfinite(rows) & (weights > 0), weights, np.nan)
    return np.asarray(rows * (weights / _mean_of_known(weights)[:, None]))


def _mean_of_known(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean of each row [networks, rows] apart from NaN, or NaN if there is nothing else."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")  # networks without labels
        return np.asarray(np.nanmean(rows, 1))


@torch.no_grad()
def _make_scores(
    task: Task,
    rows: NDArray[np.float64],
    outputs_and_targets: tuple[Tensor, Tensor] | None,
    scale: tuple[float, ...] | None,
    weights: Sequence[Tensor | None],
) -> list[Score]:
    """Returns the score of each network, given losses [networks, rows], and outputs unless the error is the loss."""
    row_weights = torch.stack([torch.ones(rows.shape[1]) if own is None else own.double().cpu() for own in weights])
    if any(own is not None for own in weights):
        rows = weighted_losses(rows, row_weights.numpy())
    losses = _mean_of_known(rows).tolist()
    errors = losses
    if outputs_and_targets is not None and not task.error_is_loss:
        errors = _errors(task, *outputs_and_targets, scale, row_weights)
    with np.errstate(over="ignore"):  # losses that are too large for single precision are infinite
        single = rows.astype(np.float32)
    return [Score(*values) for values in zip(losses, errors, single, strict=True)]


def _errors(
    task: Task, outputs: Tensor, targets: Tensor, scale: tuple[float, ...] | None, weights: Tensor
) -> list[float]:
    """Returns the error of each network, given outputs [networks, rows, …] and weights [networks, rows].

    Missing labels are ignored, and the error is NaN if all are missing. Dense targets are compared element by element.
    A custom error function receives only rows without missing labels and with a weight. Probabilities are not clipped,
    so that no scores become equal.
    """
    if task.kind == "regression":
        outputs = clip_outputs(task, outputs, scale)
    present, weights = torch.isfinite(targets), weights.to(targets.device)
    mean, deviation = (0.0, 1.0) if scale is None else scale[:2]
    answers, actual = (values.double() * deviation + mean for values in (outputs, targets))
    if callable(task.error):
        complete = present.flatten(1).all(1) if present.dim() > 1 else present
        counted = [complete & (own > 0) for own in weights]
        return [
            float(task.error(own[rows], actual[rows])) if rows.any() else float("nan")
            for own, rows in zip(answers, counted, strict=True)
        ]

    # From here on, [networks, labels]
    if task.kind == "multiclass":
        answers = answers.argmax(2)
    elif answers.dim() == targets.dim() + 2:
        answers = answers.squeeze(2)
    predicted, labels = answers[:, present], actual[present]
    weights = weights.view(*weights.shape, *[1] * (present.dim() - 1)).expand(-1, *present.shape)[:, present]
    if task.error_name in ("auroc", "auprc"):
        return [_ranking_error(task.error_name, *own, labels) for own in zip(predicted, weights, strict=True)]
    if task.error_name == "error rate":
        classes = predicted if task.kind == "multiclass" else predicted > 0
        deviations = (classes != labels).double()
    else:
        deviations = (predicted - labels).abs()
    if task.error_name in ("rmse", "r2"):
        deviations = deviations.square()
    errors = _weighted_mean(deviations, weights)
    if task.error_name == "rmse":
        errors = errors.sqrt()
    if task.error_name == "r2":  # one minus R², which is unknown for labels that are all the same
        variances = _weighted_mean((labels - _weighted_mean(labels, weights)[:, None]).square(), weights)
        errors = torch.where(variances > 0, errors / variances, torch.nan)
    means: list[float] = errors.tolist()
    return means


def _weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, values * weights, 0).sum(-1) / weights.sum(-1)


def _ranking_error(name: str, scores: Tensor, weights: Tensor, labels: Tensor) -> float:
    """Returns one minus the area under a curve, or NaN if all labels are the same.

    Scores that differ only by rounding error count as equal. Otherwise, a network with dead units would rank rows
    differently depending on which networks it was trained with.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    areas = {"auroc": roc_auc_score, "auprc": average_precision_score}
    used = weights > 0
    scores, labels, weights = scores[used], labels[used] > 0.5, weights[used]
    if labels.all() or not labels.any():
        return float("nan")
    step = TIE_TOLERANCE * scores.abs().max()
    if torch.isfinite(step) and step > 0:
        scores = (scores / step).round()
    ranks = scores.unique(return_inverse=True)[1]  # which are finite, unlike the scores of some networks
    return 1 - float(areas[name](*(values.cpu().numpy() for values in (labels, ranks)), sample_weight=weights.cpu()))
