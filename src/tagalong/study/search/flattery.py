"""The losses of networks on each half of the validation rows, and by how much early stopping flatters them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tagalong.learn import Trained

MIN_LOSS = 1e-9  # losses are compared by their logarithms, and the loss of a separable task can be zero


def half_losses(result: Trained, task: str) -> tuple[float, float]:
    """Returns a task's losses on the two halves of the validation rows, with NaN for a half without labels.

    If the losses on the halves are unknown or overflowed in single precision, both values are the loss on all rows.
    """
    first, second = result.halves.get(task, (math.nan, math.nan))
    if math.isnan(first) and math.isnan(second):
        first = second = result.val[task].loss
    return max(first, MIN_LOSS), max(second, MIN_LOSS)


def mean_half_loss(result: Trained, task: str) -> float:
    """Returns the mean of the losses on the two halves, which approximates the loss on all rows."""
    known = [loss for loss in half_losses(result, task) if not math.isnan(loss)]
    return sum(known) / len(known)


def small_set_flattery(results: Iterable[Trained], n_tasks: int) -> dict[int, float]:
    """Returns how much more early stopping flatters networks for few tasks than networks for all tasks.

    All tasks of a network share the epoch that the validation rows choose, so a task gains the more from its luck, the
    fewer tasks there are. The estimates for single networks are noisy (see `Trained.flattery`). So a line is
    fitted to them: flattery = a + b / (number of tasks), where b is not negative.

    Args:
        results: the results of networks. Those without estimates are left out.
        n_tasks: the number of all tasks.

    Returns:
        For each number of tasks, by how much relative losses are too low, compared with those of networks for all
        tasks.

    Example:
        >>> small_set_flattery([], 2)
        {1: 0.0, 2: 0.0}
    """
    known = [result for result in results if result.flattery and not result.diverged]
    counts = np.array([len(result.flattery) for result in known], dtype=np.float64)
    slope = 0.0
    if len(set(counts)) > 1:
        flattery = np.array([_mean_relative_flattery(result) for result in known])
        # the mean over m tasks has about 1/m of the variance of one task
        slope = max(0.0, float(np.polyfit(1 / counts, flattery, 1, w=np.sqrt(counts))[0]))
    return {count: slope * (1 / count - 1 / n_tasks) for count in range(1, n_tasks + 1)}


def _mean_relative_flattery(result: Trained) -> float:
    ratios = [value / max(abs(result.val[task].loss), MIN_LOSS) for task, value in result.flattery.items()]
    return math.fsum(ratios) / len(ratios)
