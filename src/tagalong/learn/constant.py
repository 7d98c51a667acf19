"""The best constant prediction of each task, which a network must beat to have learned anything."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.score import Score

from .base_rate import base_rates, constant_output, has_constant, read_targets
from .losses import mean_loss
from .network import build_network
from .problem import Problem
from .scoring import outputs_on, row_losses_of, score_outputs, weighted_losses
from .task import Task

FITTED_VALUES = 2**22  # training labels that a constant is fitted to, at most
FITTING_STEPS = 100


def constant_scores(problem: Problem, part: str, fit_on: str = "train") -> dict[str, Score]:
    """Returns the scores of the best constants, including the loss of each row.

    Tasks without a best constant are left out.

    Args:
        problem: the problem.
        part: the rows to score, "train", "val" or "test".
        fit_on: the rows for whose labels the constants are best.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(100) % 2
        >>> problem = Problem.from_arrays(np.random.default_rng(0).normal(size=(100, 3)), {"ill": labels}, ["ill"])
        >>> round(constant_scores(problem, "test")["ill"].loss, 2)
        0.69
    """
    tasks = [task for task in problem.tasks if has_constant(problem, task)]
    names = [task.name for task in tasks]
    fit_rows, score_rows = problem.splits[fit_on].only(names), problem.splits[part].only(names)
    fitted = read_targets(fit_rows)
    scored = fitted if part == fit_on else read_targets(score_rows)
    scores = {}
    for task in tasks:
        labels, targets = fitted[task.name], scored[task.name]
        if labels.isfinite().any():
            outputs = constant_output(task, labels, fit_rows.weights).expand(len(targets), -1)
            scale = problem.scales.get(task.name)
            scores[task.name] = score_outputs(task, outputs, targets, scale, score_rows.weights)
    return scores


def skill_constants(problem: Problem) -> dict[str, Tensor]:
    """Returns the constant output [outputs, …] of each task that skill is measured against.

    It is the best one for the task's own loss on the training labels: see `constant_output`, or fitted if the task has
    a loss of its own or several labels per row, with one value for each channel. Tasks whose `constant_loss` is given,
    which have no training labels, or whose loss cannot be minimized are left out.
    """
    constants = {}
    for task in problem.tasks:
        if task.constant_loss is not None:
            continue
        constant = base_rates(problem).get(task.name) if has_constant(problem, task) else _fit(problem, task)
        if constant is not None:
            constants[task.name] = constant
    return constants


def _fit(problem: Problem, task: Task) -> Tensor | None:
    """Minimizes the mean loss over evenly spaced training rows, and returns None if it never is finite."""
    rows = problem.train.only([task.name])
    inputs, targets = rows.batch(torch.arange(min(2, len(rows))))
    like = outputs_on(build_network(problem, [task.name], seed=0), inputs)[task.name]  # [rows, channels, …]
    if like.dim() < 2:
        return None
    count = max(1, min(len(rows), FITTED_VALUES // max(1, targets[task.name][0].numel())))
    chosen = torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()
    labels = rows.batch(chosen)[1][task.name].cpu()
    weights = None if rows.weights is None else rows.weights[chosen]
    if not labels.isfinite().any():
        return None

    def loss_of(constant: Tensor) -> Tensor:
        return mean_loss(task, constant.expand(len(labels), *like.shape[1:]), labels, weights)

    # An absolute error is best at the median, which gradients do not reach exactly.
    starts = [like.new_zeros(like.shape[1], *[1] * (like.dim() - 2))]
    channels = labels.unsqueeze(1) if labels.dim() < like.dim() else labels
    if channels.shape[1] == like.shape[1]:
        values = channels.transpose(0, 1).flatten(1).to(like)
        starts += [values.nanmedian(1)[0].view_as(starts[0]), values.nanmean(1).view_as(starts[0])]
    fitted = min(starts, key=lambda start: float(loss_of(start).nan_to_num(torch.inf))).clone().requires_grad_()
    optimizer = torch.optim.LBFGS([fitted], max_iter=FITTING_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(fitted)
        loss.backward()
        return loss

    optimizer.step(closure)
    best = min([*starts, fitted.detach()], key=lambda constant: float(loss_of(constant).nan_to_num(torch.inf)))
    return best.expand(like.shape[1:]) if loss_of(best).isfinite() else None


def constant_losses(
    problem: Problem, part: str, constants: Mapping[str, Tensor] | None = None
) -> dict[str, NDArray[np.float64]]:
    """Returns the loss of each row with a constant for each task, times the weight of the row, as in `Score.rows`.

    Args:
        problem: the problem.
        part: "train", "val" or "test".
        constants: the constants. If None, those that skill is measured against.
    """
    weights = problem.splits[part].weights
    losses = _unweighted_losses(problem, part, skill_constants(problem) if constants is None else constants)
    if weights is None:
        return losses
    return {task: weighted_losses(rows[None], weights.double().numpy()[None])[0] for task, rows in losses.items()}


def skill_units(problem: Problem, constants: Mapping[str, Tensor] | None = None) -> dict[str, float]:
    """Returns the loss of each task's constant on all labelled rows, which is the unit of its skill.

    Args:
        problem: the problem.
        constants: the constants. If None, those that skill is measured against. A task is left out if it has none, or
            if the constant is always right.
    """
    constants = skill_constants(problem) if constants is None else constants
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for part, rows in problem.splits.items():
        for task, losses in _unweighted_losses(problem, part, constants).items():
            weights = np.ones(len(losses)) if rows.weights is None else rows.weights.double().numpy()
            counted = np.isfinite(losses) & (weights > 0)
            sums[task] = sums.get(task, 0.0) + float(losses[counted] @ weights[counted])
            counts[task] = counts.get(task, 0.0) + float(weights[counted].sum())
    return {task: total / counts[task] for task, total in sums.items() if total > 0}


def _unweighted_losses(problem: Problem, part: str, constants: Mapping[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    tasks = [task for task in problem.tasks if task.constant_loss is not None or task.name in constants]
    rows = problem.splits[part].only([task.name for task in tasks])
    losses = {}
    parts: dict[str, list[NDArray[np.float64]]] = {task.name: [] for task in tasks if task.constant_loss is None}
    for _, targets in rows.chunks():
        for name, chunks in parts.items():
            outputs = constants[name].to(targets[name].device).expand(1, len(targets[name]), *constants[name].shape)
            chunks.append(row_losses_of(problem.task(name), outputs, targets[name])[0])
    for task in tasks:
        if task.constant_loss is None:
            losses[task.name] = np.concatenate(parts[task.name])
        else:
            losses[task.name] = np.where(rows.labelled(task.name).cpu().numpy(), task.constant_loss, np.nan)
    return losses
