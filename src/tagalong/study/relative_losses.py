"""Losses relative to a reference network, as `select_groups` takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from .backend import Backend

Subset = frozenset[str]
Losses = Callable[[Subset, str, int], float]
Reference = Literal["alone", "together"]
MOST = 1e9  # the largest ratio: a reference with a loss of zero must not make all others infinitely worse


def relative(mine: float, theirs: float) -> float:
    """Returns the change from their loss to mine relative to theirs; negative is better, also for negative losses.

    Example:
        >>> relative(0.9, 1.0) < 0, relative(-1.1, -1.0) < 0, relative(0.0, 0.0)
        (True, True, 0.0)
    """
    if mine == theirs:
        return 0.0
    return (mine - theirs) / abs(theirs) if theirs else math.copysign(math.inf, mine)


def relative_table(
    subsets: Iterable[Subset], tasks: Sequence[str], seeds: Sequence[int], losses: Losses, reference: Reference
) -> dict[Subset, dict[str, float]]:
    """Returns the loss of every task relative to that of a reference network with the same seed, averaged over seeds.

    This is one plus the relative change that the verdict compares; for positive losses it is their ratio. So rescaling
    a target changes nothing, and lower is better for negative losses too.

    Args:
        subsets: the tasks of each network.
        tasks: all tasks.
        seeds: the seeds to average over.
        losses: returns the loss of a task in the network of a subset with a seed.
        reference: a network for the task alone (if that diverged, for all tasks), or one for all tasks together.

    Returns:
        Relative losses by network and task; NaN if a network diverged with one of the seeds.

    Example:
        >>> losses = {("age", 1): -2.0, ("age", 2): -1.0, ("ill", 1): 3.0, ("ill", 2): 2.0}
        >>> pair = frozenset({"age", "ill"})
        >>> def loss(subset, task, seed):
        ...     return losses[task, len(subset)]
        >>> found = relative_table([pair], ["age", "ill"], [0], loss, "alone")[pair]
        >>> [round(found[task], 3) for task in ("age", "ill")]
        [1.5, 0.667]
    """
    together = frozenset(tasks)

    def ratio(subset: Subset, task: str, seed: int) -> float:
        base = losses(frozenset([task]) if reference == "alone" else together, task, seed)
        base = losses(together, task, seed) if math.isnan(base) else base
        return float(np.clip(1 + relative(losses(subset, task, seed), base), -MOST, MOST))

    return {
        subset: {task: float(np.mean([ratio(subset, task, seed) for seed in seeds])) for task in subset}
        for subset in subsets
    }


def relative_losses(
    backend: Backend,
    subsets: Iterable[Subset],
    seeds: Sequence[int],
    *,
    part: Literal["val", "test"],
    reference: Reference,
) -> dict[Subset, dict[str, float]]:
    """Returns the relative table of networks of a backend; a network that diverged is worse than any mean of others.

    Args:
        backend: trains the networks, or looks them up.
        subsets: the tasks of each network.
        seeds: the seeds to average over.
        part: the rows to compute losses on.
        reference: see `relative_table`.
    """
    wanted, names = list(subsets), backend.tasks
    references = [frozenset([name]) for name in names] if reference == "alone" else [frozenset(names)]
    jobs = [backend.job(subset, seed) for subset in [*wanted, *references] for seed in seeds]
    rows = backend.networks(jobs, diverged=True)
    if any(row.diverged for row in rows.values()):
        rows |= backend.networks(backend.job(names, seed) for seed in seeds)

    def loss(subset: Subset, task: str, seed: int) -> float:
        return float(getattr(rows[backend.job(subset, seed)], part)[task].loss)

    return _without_gaps(relative_table(wanted, names, seeds, loss, reference), len(names))


def _without_gaps(table: dict[Subset, dict[str, float]], tasks: int) -> dict[Subset, dict[str, float]]:
    """Replaces NaN by a value so large that groups with it, or predicted from it, are chosen only as a last resort."""
    known = [value for values in table.values() for value in values.values() if not math.isnan(value)]
    if len(known) == sum(map(len, table.values())):
        return table
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    worst = high + tasks**2 * (high - low + 1)
    return {
        subset: {task: worst if math.isnan(value) else value for task, value in values.items()}
        for subset, values in table.items()
    }
