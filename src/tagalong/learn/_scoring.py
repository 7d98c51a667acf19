"""Outputs of a network on some rows, and what each task's loss and error are there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ._errors import error_of
from ._network import Network, evaluating
from ._problem import Problem, Split
from ._task import Task
from ._trained import Score

ROWS_AT_ONCE = 4096


@torch.no_grad()
def outputs_on(network: Network, inputs: Tensor, rows_at_once: int = ROWS_AT_ONCE) -> dict[str, Tensor]:
    """The outputs of every task in evaluation mode."""
    with evaluating(network):
        parts = [network(part) for part in inputs.split(rows_at_once)]
    return {task: torch.cat([part[task] for part in parts]) for task in network.tasks}


def mean_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the rows that have a label; 0 if none has."""
    losses, present = task.row_losses(outputs, targets)
    return losses.sum() / present.sum().clamp(min=1)


def precise(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """In float64; as they were trained on for a loss of the user's own, which may hold tensors of that precision."""
    return (outputs.double(), targets.double()) if task.loss is None else (outputs, targets)


def scores_on(problem: Problem, outputs: Mapping[str, Tensor], split: Split) -> dict[str, Score]:
    """Loss and error of each task, with the loss of every row."""
    return {name: score(problem, problem.task(name), out, split.targets[name]) for name, out in outputs.items()}


def score(problem: Problem, task: Task, outputs: Tensor, targets: Tensor) -> Score:
    """Loss and error of one task; losses in the units trained on, errors in those of the data."""
    losses, present = task.row_losses(*precise(task, outputs, targets))
    rows = torch.where(present > 0, losses, torch.nan).double().cpu().numpy()
    loss = float(np.nanmean(rows)) if np.isfinite(rows).any() else float("nan")
    return Score(loss, error_of(task, outputs, targets, problem.scales.get(task.name), loss), rows.astype(np.float32))
