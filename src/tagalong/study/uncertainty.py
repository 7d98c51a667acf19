"""Confidence intervals of a change, which account for the noise of seeds, of test rows, and of the choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from .records import TOGETHER, Label, Record, by_label
from .summary import mean, stderr

CONFIDENCE = 0.95


def interval_half_width(
    changes: Sequence[float],
    tried: Sequence[Sequence[float]] = (),
    row_stderr: float = 0.0,
    confidence: float = CONFIDENCE,
) -> float:
    """Returns half the width of the confidence interval of a mean change over seeds.

    It combines two independent sources of noise: the seeds and the test rows.

    Args:
        changes: the change of the chosen grouping with each seed; at least two.
        tried: the changes of every grouping that could have been chosen, including this one; see `seed_half_width`.
        row_stderr: the standard error due to the finite number of test rows.
        confidence: the confidence level.

    Example:
        >>> round(interval_half_width([-1.0, 0.0, 1.0]), 2)
        2.48
        >>> round(interval_half_width([-1.0, 0.0, 1.0], row_stderr=2.0), 2)
        4.64
    """
    rows = ndtri((1 + confidence) / 2) * row_stderr
    return math.hypot(seed_half_width(changes, tried, confidence), rows)


def seed_half_width(
    chosen: Sequence[float], tried: Sequence[Sequence[float]] = (), confidence: float = CONFIDENCE
) -> float:
    """Returns half the width of the confidence interval of a mean over seeds, possibly the best of multiple means.

    The interval is based on Student's t-distribution over the seeds of the chosen grouping. If other groupings were
    tried with the same seeds, lucky networks are more likely to be chosen, and their luck also affects the test losses.
    The interval is then at least as wide as the Bonferroni interval for that number of comparisons, with the variance
    pooled over all of them.

    Args:
        chosen: the change of the chosen grouping with each seed.
        tried: the changes of every grouping that could have been chosen, including this one.
        confidence: the confidence level.

    Example:
        >>> round(seed_half_width([-1.0, 0.0, 1.0]), 2)  # 4.3 times the standard error, 0.58
        2.48
    """
    tail = (1 - confidence) / 2
    alone = float(stdtrit(len(chosen) - 1, 1 - tail)) * stderr(chosen)
    if len(tried) < 2:
        return alone
    try:
        pooled = math.sqrt(mean([stderr(changes) ** 2 for changes in tried]))
    except OverflowError:
        return math.inf
    dof = sum(len(changes) - 1 for changes in tried)
    return max(alone, float(stdtrit(dof, 1 - tail / len(tried))) * pooled)


Rows = Mapping[str, NDArray[Any]]


def row_stderr(candidate: Sequence[Rows], mtl: Sequence[Rows], clusters: Any = None) -> float:
    """Returns the standard error of a grouping's mean relative change that is due to the finite number of rows.

    The change is a mean of ratios of mean losses over the same rows. The delta method gives the influence of each row
    (Cochran, Sampling Techniques, section 6.4). Influences are averaged over seeds first, since all seeds share the
    same rows.

    Args:
        candidate: for each seed, each task's loss on every row, from the network that serves it; NaN for rows without
            a label.
        mtl: the same losses for the network for all tasks, with the seeds in the same order.
        clusters: one cluster label per row; rows in the same cluster (e.g. a patient or a scene) count as one.

    Example:
        >>> together = [{"age": np.array([1.0, 2.0, 3.0, 4.0])}]
        >>> row_stderr([{"age": np.array([0.5, 1.0, 1.5, 2.0])}], together)  # every loss is halved: no doubt
        0.0
    """
    influence = np.mean([_influence(mine, theirs) for mine, theirs in zip(candidate, mtl, strict=True)], axis=0)
    if clusters is not None:
        _, cluster = np.unique(np.asarray(clusters), return_inverse=True)
        influence = np.bincount(cluster.reshape(-1), weights=influence)
    count = len(influence)
    return math.sqrt(float(np.square(influence).sum()) * count / (count - 1)) if count > 1 else math.inf


def _influence(mine: Rows, theirs: Rows) -> NDArray[np.float64]:
    """Returns the influence of each row on the relative change, averaged over tasks."""
    by_task = [_task_influence(np.asarray(mine[task]), np.asarray(theirs[task])) for task in theirs]
    return np.asarray(np.mean(by_task, axis=0))


def _task_influence(mine: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
    present = np.isfinite(mine) & np.isfinite(theirs)
    if not present.any():
        return np.zeros(len(mine))
    loss, base = mine[present].mean(), theirs[present].mean()
    influence: NDArray[np.float64] = np.zeros(len(mine))
    if base and not np.array_equal(mine[present], theirs[present]):
        added = (mine[present] - loss) / base - loss * (theirs[present] - base) / base**2
        influence[present] = np.sign(base) * added
    return influence / np.count_nonzero(present)


def row_noise(
    records: Sequence[Record],
    rows_of: Callable[[Record], Rows],
    clusters: Any = None,
    confirming: Collection[int] = (),
) -> dict[Label, float]:
    """Returns the `row_stderr` of each method and budget that groups, compared with `mtl` with the same seeds.

    Args:
        records: the records of a study.
        rows_of: returns each task's loss on every test row for a record, from the network that serves the task.
        clusters: one cluster label per test row; None if rows are independent.
        confirming: seeds that were not used for any choice; if a method has records with them, only these count.
    """
    found = by_label(records)
    together = {record.seed: rows_of(record) for record in found.get(TOGETHER, [])}
    noise = {}
    for label, mine in found.items():
        converged = not any(record.diverged for record in mine)
        paired = [record for record in mine if converged and record.seed in together and record.groups]
        paired = [record for record in paired if record.seed in confirming] or paired
        if paired and label != TOGETHER:
            theirs = [together[record.seed] for record in paired]
            error = row_stderr([rows_of(record) for record in paired], theirs, clusters)
            if math.isfinite(error):  # one row tells nothing about noise
                noise[label] = error
    return noise
