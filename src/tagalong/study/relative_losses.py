"""Losses relative to those of a reference network, in the format that `select_groups` expects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from .runner import Runner

Subset = frozenset[str]
MAX_RATIO = 1e9  # a reference loss of zero must not make all other networks infinitely worse


def relative_losses(
    runner: Runner,
    subsets: Iterable[Subset],
    seeds: Sequence[int],
    *,
    split: Literal["val", "test"],
    reference: Literal["alone", "together"],
) -> dict[Subset, dict[str, float]]:
    """Returns each task's loss relative to that of a reference network with the same seed, averaged over seeds.

    The values do not depend on the scale of a target. Diverged networks rank below all other networks, so that the
    groups are chosen only as a last resort.

    Args:
        runner: the runner that trains the networks or looks them up.
        subsets: the tasks of each network.
        seeds: the seeds to average over.
        split: the split on which losses are computed.
        reference: the reference network. "alone" is the network trained only on the task (or, if it diverged, the
            network for all tasks), and "together" is the network for all tasks.
    """
    wanted, together = list(subsets), frozenset(runner.tasks)
    references = [frozenset([task]) for task in runner.tasks] if reference == "alone" else [together]
    results = runner.networks(
        [runner.job(subset, seed) for subset in [*wanted, *references] for seed in seeds], diverged=True
    )
    if any(trained.diverged for trained in results.values()):
        results |= runner.networks(runner.job(together, seed) for seed in seeds)

    def loss(subset: Subset, task: str, seed: int) -> float:
        return float(getattr(results[runner.job(subset, seed)], split)[task].loss)

    table: dict[Subset, dict[str, float]] = {}
    for subset in wanted:
        table[subset] = {}
        for task in subset:
            ratios = []
            for seed in seeds:
                base = loss(frozenset([task]) if reference == "alone" else together, task, seed)
                if math.isnan(base):
                    base = loss(together, task, seed)
                ratios.append(relative_loss(loss(subset, task, seed), base))
            table[subset][task] = sum(ratios) / len(ratios)

    known = [value for values in table.values() for value in values.values() if not math.isnan(value)] or [1.0]
    worst = max(known) + len(together) ** 2 * (max(known) - min(known) + 1)
    for values in table.values():
        values |= {task: worst for task, value in values.items() if math.isnan(value)}
    return table


def relative_loss(loss: float, reference: float) -> float:
    """Returns one plus the relative change from a reference loss, which for positive losses is the ratio of both.

    Lower is better even if losses are negative.

    Example:
        >>> relative_loss(1.0, 2.0), relative_loss(-2.0, -1.0), relative_loss(0.0, 0.0)
        (0.5, 0.0, 1.0)
        >>> relative_loss(-1.0, 1.0), relative_loss(1.0, -1.0), relative_loss(1.0, 0.0)
        (-1.0, 3.0, 1000000000.0)
    """
    if loss == reference:
        return 1.0
    change = (loss - reference) / abs(reference) if reference else math.copysign(math.inf, loss)
    return float(np.clip(1 + change, -MAX_RATIO, MAX_RATIO))  # NaN stays NaN
