"""Networks that the search tries, and what their results show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..relative_losses import Subset
from ..store import NetworkResult

LEAST = 1e-9  # losses are compared by their logarithms, and a separable task can have none at all


@dataclass(frozen=True)
class Trial:
    """A network to train.

    Attributes:
        tasks: that it trains.
        seed: of its weights and rows.
        fraction: how much of a training, 1 for the whole of it.
    """

    tasks: Subset
    seed: int
    fraction: float = 1.0


Trials = Mapping[Trial, NetworkResult]


def half_losses(result: NetworkResult, task: str) -> tuple[float, float]:
    """Returns the losses of a task on either half of the validation rows.

    NaN for a half without labels. The loss on all rows stands for either where halves were not kept, or were beyond
    what single precision holds.
    """
    first, second = result.halves.get(task, (math.nan, math.nan))
    if math.isnan(first) and math.isnan(second):
        first = second = result.val[task].loss
    return max(first, LEAST), max(second, LEAST)


def mean_half_loss(result: NetworkResult, task: str) -> float:
    """Returns the loss on all validation rows, near enough: halves have about as many labels."""
    known = [loss for loss in half_losses(result, task) if not math.isnan(loss)]
    return sum(known) / len(known)
