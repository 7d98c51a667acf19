"""Affinities that several experiments share, measured once and kept in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

if TYPE_CHECKING:
    from tagalong.study import Lab

    from .bench import Bench

EQUATION_1: Mapping[str, Any] = {"estimator": "lookahead", "update": "sgd"}
AS_PUBLISHED: Mapping[str, Any] = {"estimator": "lookahead", "update": "optimizer", "per_lr": True}


def every_step(lab: Lab, seeds: Sequence[int], **more: Any) -> dict[int, Affinity]:
    """Equation 1 at every step, by seed.

    Args:
        lab: whose problem is trained.
        seeds: of the trainings.
        **more: settings of the meter, such as `held_out`.
    """
    return measured(lab, seeds, every=1, **more)


def measured(lab: Lab, seeds: Sequence[int], **more: Any) -> dict[int, Affinity]:
    """Equation 1 with these further settings of the meter, by seed."""
    # Plain first: else the network stored would be the metered one, and its seconds with it.
    lab.networks([lab.job(lab.problem.names, seed) for seed in seeds], "all tasks together")
    found = lab.affinities(seeds, {**EQUATION_1, **more})
    return {seed: affinity for seed, (affinity, _) in found.items()}


def pooled(found: Mapping[int, Affinity]) -> Affinity:
    """The seeds together."""
    return reduce(Affinity.merge, found.values())


def named(bench: Bench, affinity: Affinity) -> Affinity:
    """With the paper's names of tasks."""
    return replace(affinity, tasks=tuple(bench.short(task) for task in affinity.tasks))


def between_tasks(affinity: Affinity, *, centred: bool = False) -> NDArray[np.float64]:
    """Affinities without self-affinities, as one row.

    Args:
        affinity: who helps whom.
        centred: less the mean onto each target, which no grouping depends on.
    """
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    if centred:
        others = others - np.nanmean(others, axis=0)
    return others[~np.eye(len(affinity.tasks), dtype=bool)]
