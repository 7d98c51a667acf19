"""Estimates how much lower a validation loss is because the validation rows also chose the epoch.

A network keeps the weights of the epoch with the lowest validation loss. Some of that is luck, which other rows do not
share. All tasks of a network share one epoch, so the fewer tasks there are, the more each of them gains: without a
correction, networks for few tasks look better than networks for many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def first_half(rows: int, groups: Tensor | None = None) -> Tensor:
    """Returns whether each row is in the first of two halves. Rows of the same group are in the same half.

    Example:
        >>> first_half(4).tolist(), first_half(4, torch.tensor([7, 7, 8, 9])).tolist()
        ([True, False, True, False], [True, True, False, True])
    """
    number = torch.arange(rows) if groups is None else torch.unique(groups.cpu(), return_inverse=True)[1]
    return number % 2 == 0


def halve_rows(
    losses: Mapping[str, NDArray[np.float32] | None], groups: Tensor | None = None
) -> dict[str, tuple[float, float]]:
    """Returns each task's mean loss on each half of the rows, or an empty dict if the per-row losses are unknown.

    Args:
        losses: the per-row losses of each task, with NaN for rows without a label.
        groups: the group of each row. Rows in the same group are assigned to the same half.

    Example:
        >>> halve_rows({"age": np.array([1.0, 2.0, 3.0, float("nan")])})
        {'age': (2.0, 2.0)}
    """
    rows = {task: values for task, values in losses.items() if values is not None}
    if len(rows) < len(losses) or not rows:
        return {}
    first = first_half(len(next(iter(rows.values()))), groups).numpy()
    return {task: (_mean_loss(values[first]), _mean_loss(values[~first])) for task, values in rows.items()}


def _mean_loss(losses: NDArray[np.float32]) -> float:
    present = losses[np.isfinite(losses)].astype(np.float64)
    return float(present.mean()) if len(present) else math.nan


def stopping_flattery(curve: ArrayLike, weights: Sequence[float]) -> NDArray[np.float64]:
    """Returns, for each task, how much too low its validation loss is in the epoch that the validation rows chose.

    Each half of the rows chooses an epoch. Its loss is lower on the half that chose it than on the other half. Half of
    that remains if there are twice as many rows.

    Args:
        curve: the losses [epochs, tasks, 2] on each half of the validation rows. A loss that is NaN in all epochs marks
            a half without labels for a task, whose flattery is then unknown and counts as 0. Other epochs with a loss
            that is not finite are left out.
        weights: the weight of each task in the loss that chooses the epoch.

    Example:
        >>> stopping_flattery([[[1.0, 1.2]], [[0.8, 1.4]]], [1.0])
        array([0.1])
    """
    losses = np.asarray(curve, dtype=np.float64)
    unlabelled: NDArray[np.bool_] = np.asarray(np.isnan(losses).all(axis=0))  # [tasks, 2]
    losses = np.where(unlabelled, 0.0, losses)
    losses = losses[np.isfinite(losses).all(axis=(1, 2))]
    if not len(losses):
        return np.zeros(len(weights))
    first, second = np.einsum("etp,t->ep", losses, np.asarray(weights, dtype=np.float64)).argmin(axis=0)
    # The gaps of both halves: divided by 2 for their mean, and by 2 again since half of it remains for all rows.
    gaps = losses[second, :, 0] - losses[first, :, 0] + losses[first, :, 1] - losses[second, :, 1]
    return np.where(unlabelled.any(axis=1), 0.0, gaps / 4)
