"""Confidence intervals that account for noise due to seeds, test rows and the choice of grouping."""

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
    """Returns half the width of the confidence interval for a mean change over seeds.

    The interval combines two independent sources of noise: the seeds and the test rows.

    Args:
        changes: the change of the chosen grouping for each seed, with at least two seeds.
        tried: the changes of every grouping that could have been chosen, including this one (see `seed_half_width`).
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
    """Returns half the width of the confidence interval for a mean over seeds.

    The mean may be the best of several. The interval is based on Student's t-distribution over the seeds of the chosen
    grouping. If several groupings were tried with the same seeds, the chosen one is more likely to have been lucky.
    This luck also affects the test losses. The interval is then at least as wide as the Bonferroni interval for this
    number of comparisons, with pooled variance.

    Args:
        chosen: the change of the chosen grouping for each seed.
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
    """Returns the standard error of a grouping's mean relative change due to the finite number of rows.

    The change is the mean of several ratios between mean losses over the same rows. The delta method gives the
    influence of each row (Cochran, Sampling Techniques, section 6.4). Influences are averaged over seeds first, since
    all seeds use the same rows.

    Args:
        candidate: for each seed, each task's loss on every row from the network that serves it, with NaN for rows
            without a label.
        mtl: the corresponding losses of the network for all tasks, with the seeds in the same order.
        clusters: one cluster label per row. Rows in the same cluster (e.g. a patient or a scene) count as one.

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


def _influence(candidate: Rows, mtl: Rows) -> NDArray[np.float64]:
    """Returns the influence of each row on the relative change, averaged over tasks."""
    by_task = [_task_influence(np.asarray(candidate[task]), np.asarray(mtl[task])) for task in mtl]
    return np.asarray(np.mean(by_task, axis=0))


def _task_influence(candidate: NDArray[Any], mtl: NDArray[Any]) -> NDArray[np.float64]:
    candidate, mtl = candidate.astype(np.float64), mtl.astype(np.float64)
    present = np.isfinite(candidate) & np.isfinite(mtl)
    if not present.any():
        return np.zeros(len(candidate))
    loss, base = candidate[present].mean(), mtl[present].mean()
    influence: NDArray[np.float64] = np.zeros(len(candidate))
    if base and not np.array_equal(candidate[present], mtl[present]):
        added = (candidate[present] - loss) / base - loss * (mtl[present] - base) / base**2
        influence[present] = np.sign(base) * added
    return influence / np.count_nonzero(present)


def row_noise(
    records: Sequence[Record],
    get_rows: Callable[[Record], Rows],
    clusters: Any = None,
    confirming_seeds: Collection[int] = (),
    unlearnt: Collection[str] = (),
) -> dict[Label, float]:
    """Returns `row_stderr` for each method and budget that groups tasks, relative to `mtl` with the same seeds.

    Args:
        records: the records of a study.
        get_rows: a function that takes a record and returns each task's loss on every test row, from the network that
            serves the task.
        clusters: one cluster label per test row, or None if rows are independent.
        confirming_seeds: seeds that were not used to choose groups. If a method has records for these seeds, only those
            records are used.
        unlearnt: the tasks that do not count.
    """

    def get_counted_rows(record: Record) -> Rows:
        return {task: losses for task, losses in get_rows(record).items() if task not in unlearnt}

    found = by_label(records)
    together = {record.seed: get_counted_rows(record) for record in found.get(TOGETHER, [])}
    noise = {}
    for label, mine in found.items():
        converged = not any(record.diverged for record in mine)
        paired = [record for record in mine if converged and record.seed in together and record.groups]
        paired = [record for record in paired if record.seed in confirming_seeds] or paired
        theirs = [together[record.seed] for record in paired]
        if label != TOGETHER and any(theirs):
            error = row_stderr([get_counted_rows(record) for record in paired], theirs, clusters)
            if math.isfinite(error):  # one row tells nothing about noise
                noise[label] = error
    return noise
