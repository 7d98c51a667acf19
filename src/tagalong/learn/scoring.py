"""Outputs of a network on some rows, and what each task's loss and error are there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .network import Network, evaluating
from .problem import Problem
from .rows import Rows, rows_at_once
from .task import Task, error_of
from .trained import Score


@torch.no_grad()
def outputs_on(network: Network, inputs: Tensor, at_once: int | None = None) -> dict[str, Tensor]:
    """The outputs of every task in evaluation mode."""
    with evaluating(network):
        parts = [network(part) for part in inputs.split(at_once or rows_at_once(inputs))]
    return {task: torch.cat([part[task] for part in parts]) for task in network.tasks}


def mean_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the rows that have a label; 0 if none has."""
    return loss_and_labels(task, outputs, targets)[0]


def loss_and_labels(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss over the rows that have a label, and how many have one."""
    losses, present = task.row_losses(outputs, targets)
    labels = present.sum()
    return losses.sum() / labels.clamp(min=1), labels


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
                losses[task.name].append(row_losses(task, *pair))
                if not task.error_is_loss:
                    kept[task.name].append(pair)
    return {task.name: _score(problem, task, losses[task.name], kept[task.name]) for task in tasks}


def score(problem: Problem, task: Task, outputs: Tensor, targets: Tensor) -> Score:
    """Loss and error of one task; losses in the units trained on, errors in those of the data."""
    return _score(problem, task, [row_losses(task, outputs, targets)], [(outputs, targets)])


def row_losses(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """The loss of each row, NaN where its label is missing."""
    losses, present = task.row_losses(*precise(task, outputs, targets))
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())


def precise(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """In float64; as they were trained on for a loss of the user's own, which may hold tensors of that precision."""
    return (outputs.double(), targets.double()) if task.loss is None else (outputs, targets)


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
