"""Losses relative to those of a reference network, in the format that `select_groups` expects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

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
