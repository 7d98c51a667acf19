"""Finds the best network for each set of served tasks, with pairwise scores.

With c(i) the sum of the scores of task i onto the served tasks, a network of m tasks has the value Σ c(i) / (m − 1).
The best helpers for each m are therefore the tasks with the largest c(i), which are found by sorting.
"""

from __future__ import annotations

import numpy as np

from ..problem import Bools, Floats, SelectionProblem


def best_values(
    problem: SelectionProblem, members: Bools, price: float = 0.0, contributions: Floats | None = None
) -> Floats:
    """Returns the value of the best network for each served set, minus its price, or −inf if there is none.

    Args:
        problem: a problem with pairwise scores.
        members: the served sets [sets, tasks].
        price: the price per trained task.
        contributions: the sum of the scores of each task onto each served set [sets, tasks], if already known.
    """
    if contributions is None:
        contributions = members @ problem.pairwise_scores.T
    value = values_with_helpers(members, contributions, problem.max_size, price).max(axis=1)
    single = members.sum(axis=1) == 1
    value[single] = np.maximum(value[single], problem.single_task_scores[members[single].argmax(axis=1)] - price)
    return np.where(members.any(axis=1), value, -np.inf)


def values_with_helpers(members: Bools, contributions: Floats, max_size: int, price: float = 0.0) -> Floats:
    """Returns the value of each served set (row) with its best 0, 1, 2, … helpers (columns).

    The value of a group of one task is −inf.
    """
    inside = np.where(members, contributions, 0.0).sum(axis=1)
    offered = -np.sort(np.where(members, np.inf, -contributions), axis=1)
    gained = np.cumsum(np.concatenate([inside[:, None], offered], axis=1), axis=1)
    size = members.sum(axis=1)[:, None] + np.arange(members.shape[1] + 1)
    allowed = (size >= 2) & (size <= min(max_size, members.shape[1]))
    return np.where(allowed, gained / np.maximum(size - 1, 1) - price * size, -np.inf)
