"""Losses of whole networks beside a reference, as `select_groups` takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from ._lab import Lab, Subset
from ._record import ratio as loss_ratio
from ._row import Row


def relative_losses(
    lab: Lab,
    subsets: Iterable[Subset],
    seeds: Sequence[int],
    *,
    part: Literal["val", "test"],
    reference: Literal["alone", "together"],
) -> dict[Subset, dict[str, float]]:
    """The loss of every task of these networks over that of a reference with the same seed, averaged over seeds.

    Ratios, so that rescaling a target changes nothing.

    Args:
        lab: has the networks, or trains them.
        subsets: the tasks of each network.
        seeds: to average over.
        part: which rows.
        reference: a network for the task alone, or one for all tasks together.
    """
    wanted = list(subsets)
    rows = lab.networks(lab.job(subset, seed) for subset in wanted for seed in seeds)
    names = lab.problem.names
    bases = lab.networks(lab.job([t] if reference == "alone" else names, seed) for t in names for seed in seeds)

    def ratio(subset: Subset, task: str, seed: int) -> float:
        base = bases[lab.job([task] if reference == "alone" else names, seed)]
        return loss_ratio(_loss(rows[lab.job(subset, seed)], part, task), _loss(base, part, task))

    return {
        subset: {task: float(np.mean([ratio(subset, task, seed) for seed in seeds])) for task in subset}
        for subset in wanted
    }


def _loss(row: Row, part: str, task: str) -> float:
    return float(getattr(row, part)[task].loss)
