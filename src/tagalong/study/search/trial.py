"""Networks that the search trains, and their losses on halves of the validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..relative_losses import Subset
from ..store import NetworkResult

LEAST = 1e-9  # losses are compared by their logarithms, and that of a separable task can be zero


@dataclass(frozen=True)
class Trial:
    """A network to train.

    Attributes:
        tasks: the tasks that it trains.
        seed: the seed of its weights and the order of rows.
        fraction: the fraction of a full training.
    """

    tasks: Subset
    seed: int
    fraction: float = 1.0


Trials = Mapping[Trial, NetworkResult]


def half_losses(result: NetworkResult, task: str) -> tuple[float, float]:
    """Returns the losses of a task on the two halves of the validation rows; NaN for a half without labels.

    If halves were not kept, or overflowed in single precision, both are the loss on all rows.
    """
    first, second = result.halves.get(task, (math.nan, math.nan))
    if math.isnan(first) and math.isnan(second):
        first = second = result.val[task].loss
    return max(first, LEAST), max(second, LEAST)


def mean_half_loss(result: NetworkResult, task: str) -> float:
    """Returns the mean of the losses on the halves, about the loss on all rows: they have about as many labels."""
    known = [loss for loss in half_losses(result, task) if not math.isnan(loss)]
    return sum(known) / len(known)
