"""The best constant prediction of each task, which a network must beat to have learned anything."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.score import Score

from .base_rate import read_targets
from .losses import mean_loss
from .network import build_network
from .problem import Problem
from .rows import Rows
from .scoring import outputs_on, row_losses_of, score_outputs, weighted_losses
from .task import Task

FITTED_VALUES = 2**22  # training labels that a constant is fitted to, at most
FITTING_STEPS = 100


def constant_scores(problem: Problem, part: str) -> dict[str, Score]:
    """Returns the scores of the best constants for the training labels, including the loss of each row.

    Tasks without a best constant (see `has_constant`) are left out.

    Args:
        problem: the problem.
        part: the rows to score, "train", "val" or "test".

    Example:
        >>> import numpy as np
        >>> labels = np.arange(100) % 2
        >>> problem = Problem.from_arrays(np.random.default_rng(0).normal(size=(100, 3)), {"ill": labels}, ["ill"])
        >>> round(constant_scores(problem, "test")["ill"].loss, 2)
        0.69
    """
    rows, scores = problem.splits[part].only(problem.base_rates), {}
    for name, targets in read_targets(rows).items():
        outputs = problem.base_rates[name].expand(len(targets), -1)
        scores[name] = score_outputs(
            problem.task(name), outputs, targets, problem.answer_scales.get(name), rows.weights
        )
    return scores


def skill_constants(problem: Problem) -> dict[str, Tensor]:
    """Returns the constant output [outputs, …] of each task that skill is measured against.

    It is the best one for the task's own loss on the training labels: see `constant_output`, or fitted if the task has
    a loss of its own or several labels per row, with one value for each channel. Tasks whose `constant_loss` is given,
    which have no training labels, or whose loss cannot be minimized are left out.
    """
    constants = {}
    for task in problem.tasks:
        constant = problem.base_rates.get(task.name)
        if constant is None and task.constant_loss is None:
            constant = _fit(problem, task)
        if constant is not None and task.constant_loss is None:
            constants[task.name] = constant
    return constants


def _fit(problem: Problem, task: Task) -> Tensor | None:
    """Minimizes the mean loss over evenly spaced training rows, and returns None if it never is finite."""
    rows = problem.train.only([task.name])
    inputs, targets = rows.batch(torch.arange(min(2, len(rows))))
    like = outputs_on(build_network(problem, [task.name], seed=0), inputs)[task.name].cpu()  # [rows, channels, …]
    count = max(1, min(len(rows), FITTED_VALUES // max(1, targets[task.name][0].numel())))
    chosen = torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()
    labels = rows.batch(chosen)[1][task.name].cpu()
    weights = torch.ones(count) if rows.weights is None else rows.weights[chosen].cpu()
    labels[weights == 0] = torch.nan
    if like.dim() < 2 or not labels.isfinite().any():
        return None

    def loss_of(constant: Tensor) -> Tensor:
        loss = mean_loss(task, constant.expand(len(labels), *like.shape[1:]), labels, weights)
        return loss.nan_to_num(torch.inf, torch.inf)

    # An absolute error is best at the median, which gradients do not reach exactly.
    starts = [like.new_zeros(like.shape[1], *[1] * (like.dim() - 2))]
    channels = labels.unsqueeze(1) if labels.dim() < like.dim() else labels
    if channels.shape[1] == like.shape[1]:
        values = channels.transpose(0, 1).flatten(1).to(like)  # [channels, labels]
        shares = weights.to(like).repeat_interleave(values.shape[1] // count).where(values.isfinite(), 0)
        ordered, order = values.sort(1)
        below = shares.gather(1, order).cumsum(1) < shares.sum(1, keepdim=True) / 2
        means = (shares * values.nan_to_num()).sum(1) / shares.sum(1)
        starts += [ordered.gather(1, below.sum(1, keepdim=True)).view_as(starts[0]), means.view_as(starts[0])]
    fitted = min(starts, key=loss_of).clone().requires_grad_()
    optimizer = torch.optim.LBFGS([fitted], max_iter=FITTING_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(fitted)
        loss.backward()
        return loss

    optimizer.step(closure)
    best = min([*starts, fitted.detach()], key=loss_of)
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
    rows = problem.splits[part]
    losses = _unweighted_losses(problem, part, skill_constants(problem) if constants is None else constants)
    if rows.weights is None:
        return losses
    weights = _row_weights(rows)[None]
    return {task: weighted_losses(own[None], weights)[0] for task, own in losses.items()}


def skill_units(problem: Problem, constants: Mapping[str, Tensor] | None = None) -> dict[str, float]:
    """Returns the loss of each task's constant on all labelled rows, which is the unit of its skill.

    Args:
        problem: the problem.
        constants: the constants. If None, those that skill is measured against. A task is left out if it has none, or
            if the constant is always right.
    """
    constants = skill_constants(problem) if constants is None else constants
    parts = [_unweighted_losses(problem, part, constants) for part in problem.splits]
    weights = np.concatenate([_row_weights(rows) for rows in problem.splits.values()])
    units = {}
    for task in parts[0]:
        losses = np.concatenate([by_task[task] for by_task in parts])
        counted = np.isfinite(losses) & (weights > 0)
        total = float(losses[counted] @ weights[counted])
        if total > 0:
            units[task] = total / float(weights[counted].sum())
    return units


def _row_weights(rows: Rows) -> NDArray[np.float64]:
    return np.ones(len(rows)) if rows.weights is None else rows.weights.double().numpy()


def _unweighted_losses(problem: Problem, part: str, constants: Mapping[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    names = [task.name for task in problem.tasks if task.constant_loss is not None or task.name in constants]
    rows = problem.splits[part].only(names)
    losses: dict[str, list[NDArray[np.float64]]] = {name: [] for name in names}
    for _, targets in rows.chunks():
        for name, labels in targets.items():
            task = problem.task(name)
            if task.constant_loss is None:
                outputs = constants[name].to(labels.device).expand(1, len(labels), *constants[name].shape)
                losses[name].append(row_losses_of(task, outputs, labels, problem.answer_scales.get(name))[0])
            else:
                has_label = labels.isfinite().unsqueeze(1).flatten(1).any(1)
                losses[name].append(np.where(has_label.cpu().numpy(), task.constant_loss, np.nan))
    return {name: np.concatenate(chunks) for name, chunks in losses.items()}
