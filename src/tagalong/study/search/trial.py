"""The networks trained by the search, and their losses on each half of the validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..network_result import NetworkResult
from ..relative_losses import Subset

MIN_LOSS = 1e-9  # losses are compared by their logarithms, and the loss of a separable task can be zero


@dataclass(frozen=True)
class Trial:
    """A network for the search to train.

    Attributes:
        tasks: the tasks to train on.
        seed: the seed for the initial weights and the row order.
        fraction: the length of the training run, as a fraction of a full run.
    """

    tasks: Subset
    seed: int
    fraction: float = 1.0


Trials = Mapping[Trial, NetworkResult]


def half_losses(result: NetworkResult, task: str) -> tuple[float, float]:
    """Returns a task's losses on the two halves of the validation rows, with NaN for a half without labels.

    If the losses on the halves are unknown or overflowed in single precision, both values are the loss on all rows.
    """
    first, second = result.halves.get(task, (math.nan, math.nan))
    if math.isnan(first) and math.isnan(second):
        first = second = result.val[task].loss
    return max(first, MIN_LOSS), max(second, MIN_LOSS)


def mean_half_loss(result: NetworkResult, task: str) -> float:
    """Returns the mean of the losses on the two halves, which approximates the loss on all rows."""
    known = [loss for loss in half_losses(result, task) if not math.isnan(loss)]
    return sum(known) / len(known)
