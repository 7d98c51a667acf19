"""Losses relative to those of a reference network, in the format that `select_groups` expects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .runner import Runner

Subset = frozenset[str]
Losses = Callable[[Subset, str, int], float]
Reference = Literal["alone", "together"]
MAX_RATIO = 1e9  # a reference loss of zero must not make all other networks infinitely worse


def relative_change(loss: float, reference: float) -> float:
    """Returns the relative change from `reference` to `loss`.

    A negative change is better, even when the losses are negative.

    Example:
        >>> relative_change(0.9, 1.0) < 0, relative_change(-1.1, -1.0) < 0, relative_change(0.0, 0.0)
        (True, True, 0.0)
    """
    if loss == reference:
        return 0.0
    return (loss - reference) / abs(reference) if reference else math.copysign(math.inf, loss)


def relative_loss_table(
    subsets: Iterable[Subset], tasks: Sequence[str], seeds: Sequence[int], losses: Losses, reference: Reference
) -> dict[Subset, dict[str, float]]:
    """Returns each task's loss relative to that of a reference network with the same seed, averaged over seeds.

    The value is one plus the relative change used by the verdict. For positive losses, this is the ratio of the two
    losses. The value does not depend on the scale of a target, and lower is better even when losses are negative.

    Args:
        subsets: the tasks of each network.
        tasks: all tasks.
        seeds: the seeds to average over.
        losses: a function that returns the loss for a subset, a task and a seed.
        reference: the reference network. "alone" is the network trained only on the task (or, if it diverged, the
            network for all tasks), and "together" is the network for all tasks.

    Returns:
        The relative losses by network and task, with NaN if the network diverged for any seed.

    Example:
        >>> losses = {("age", 1): -2.0, ("age", 2): -1.0, ("ill", 1): 3.0, ("ill", 2): 2.0}
        >>> pair = frozenset({"age", "ill"})
        >>> def loss(subset, task, seed):
        ...     return losses[task, len(subset)]
        >>> found = relative_loss_table([pair], ["age", "ill"], [0], loss, "alone")[pair]
        >>> [round(found[task], 3) for task in ("age", "ill")]
        [1.5, 0.667]
    """
    together = frozenset(tasks)

    def ratio(subset: Subset, task: str, seed: int) -> float:
        base = losses(frozenset([task]) if reference == "alone" else together, task, seed)
        base = losses(together, task, seed) if math.isnan(base) else base
        return float(np.clip(1 + relative_change(losses(subset, task, seed), base), -MAX_RATIO, MAX_RATIO))

    return {
        subset: {task: float(np.mean([ratio(subset, task, seed) for seed in seeds])) for task in subset}
        for subset in subsets
    }


def relative_losses(
    runner: Runner,
    subsets: Iterable[Subset],
    seeds: Sequence[int],
    *,
    split: Literal["val", "test"],
    reference: Reference,
) -> dict[Subset, dict[str, float]]:
    """Returns the `relative_loss_table` of networks provided by a runner.

    Diverged networks rank below all other networks.

    Args:
        runner: the runner that trains the networks or looks them up.
        subsets: the tasks of each network.
        seeds: the seeds to average over.
        split: the split on which losses are computed.
        reference: the reference network (see `relative_loss_table`).
    """
    wanted, names = list(subsets), runner.tasks
    references = [frozenset([name]) for name in names] if reference == "alone" else [frozenset(names)]
    jobs = [runner.job(subset, seed) for subset in [*wanted, *references] for seed in seeds]
    rows = runner.networks(jobs, diverged=True)
    if any(row.diverged for row in rows.values()):
        rows |= runner.networks(runner.job(names, seed) for seed in seeds)

    def loss(subset: Subset, task: str, seed: int) -> float:
        return float(getattr(rows[runner.job(subset, seed)], split)[task].loss)

    return _fill_diverged(relative_loss_table(wanted, names, seeds, loss, reference), len(names))


def _fill_diverged(table: dict[Subset, dict[str, float]], n_tasks: int) -> dict[Subset, dict[str, float]]:
    """Replaces NaN with a value so large that the affected groups are chosen only as a last resort."""
    known = [value for values in table.values() for value in values.values() if not math.isnan(value)]
    if len(known) == sum(map(len, table.values())):
        return table
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    worst = high + n_tasks**2 * (high - low + 1)
    return {
        subset: {task: worst if math.isnan(value) else value for task, value in values.items()}
        for subset, values in table.items()
    }


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
