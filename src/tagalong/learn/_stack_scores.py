"""Loss and error of every task of many networks, as `_scoring` gives them for one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._errors import error_of
from ._pair_losses import TOGETHER
from ._problem import Problem
from ._rows import held
from ._scoring import precise
from ._stack import Stack
from ._task import Task
from ._trained import Score


def scores_of_stack(problem: Problem, stack: Stack, trains: NDArray[np.bool_], part: str) -> list[dict[str, Score]]:
    """For every network the scores of its tasks on a part of the data.

    Args:
        problem: whose data.
        stack: the networks.
        trains: [networks, tasks], which tasks of the stack each network has.
        part: "val" or "test".
    """
    split = held(problem.splits[part], TOGETHER)
    device = next(iter(stack.tensors.values())).device
    outputs = stack.outputs_on(split.inputs.to(device), problem.recipe.batch_size)
    scores: list[dict[str, Score]] = [{} for _ in trains]
    for column, name in enumerate(stack.network.tasks):
        networks = np.flatnonzero(trains[:, column])
        if not len(networks):
            continue
        chosen = outputs.pop(name).index_select(0, torch.from_numpy(networks).to(device))
        task = problem.task(name)
        own = task.loss is not None or callable(task.error)  # which may hold tensors of the device
        where = device if own else torch.device("cpu")
        of_task = _scores(problem, task, chosen.to(where), split.targets[name].to(where))
        for network, score in zip(networks, of_task, strict=True):
            scores[network][name] = score
    return scores


def _scores(problem: Problem, task: Task, outputs: Tensor, targets: Tensor) -> list[Score]:
    """The scores of one task from outputs [networks, rows, …]; as `score` of one network, with one pass for losses."""
    scale = problem.scales.get(task.name)
    rows = _row_losses(task, *precise(task, outputs, targets))
    losses = [float(np.nanmean(own)) if np.isfinite(own).any() else float("nan") for own in rows]
    errors = [error_of(task, out, targets, scale, loss) for out, loss in zip(outputs, losses, strict=True)]
    return [Score(loss, error, own.astype(np.float32)) for loss, error, own in zip(losses, errors, rows, strict=True)]


def _row_losses(task: Task, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """[networks, rows], NaN where a label is missing."""
    losses, present = torch.vmap(lambda out: task.row_losses(out, targets))(outputs)
    return np.asarray(torch.where(present > 0, losses, torch.nan).double().cpu().numpy())
