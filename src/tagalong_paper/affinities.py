"""Affinities that multiple experiments use, measured once and cached in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

if TYPE_CHECKING:
    from tagalong.study import TrainingBackend

    from .experiment_setup import ExperimentSetup

EQUATION_1: Mapping[str, Any] = {"estimator": "lookahead", "update": "sgd"}
AS_PUBLISHED: Mapping[str, Any] = {"estimator": "lookahead", "update": "optimizer", "per_lr": True}


def measure_every_step(backend: TrainingBackend, seeds: Sequence[int], **settings: Any) -> dict[int, Affinity]:
    """Measures the affinities of equation 1 at every step of joint training, and returns them by seed.

    Args:
        backend: the backend that trains the networks.
        seeds: the seeds of the networks.
        **settings: additional meter settings, such as `held_out`.
    """
    return measure_affinities(backend, seeds, every=1, **settings)


def measure_affinities(backend: TrainingBackend, seeds: Sequence[int], **settings: Any) -> dict[int, Affinity]:
    """Measures the affinities of equation 1 with additional meter settings, and returns them by seed."""
    # Train without a meter first. Otherwise, the store would record the time of the metered training.
    backend.networks([backend.job(backend.problem.names, seed) for seed in seeds], "all tasks together")
    measured = backend.affinities(seeds, {**EQUATION_1, **settings})
    return {seed: affinity for seed, (affinity, _) in measured.items()}


def pool_seeds(affinities: Mapping[int, Affinity]) -> Affinity:
    """Merges the affinities of all seeds into one."""
    return reduce(Affinity.merge, affinities.values())


def with_short_names(setup: ExperimentSetup, affinity: Affinity) -> Affinity:
    """Returns the affinity with its tasks renamed to the paper's short names."""
    return replace(affinity, tasks=tuple(setup.short_name(task) for task in affinity.tasks))


def off_diagonal(affinity: Affinity, *, centered: bool = False) -> NDArray[np.float64]:
    """Returns the affinities between different tasks as a flat array.

    Args:
        affinity: the affinities.
        centered: whether to subtract each target's mean, which does not affect the grouping.
    """
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    if centered:
        others = others - np.nanmean(others, axis=0)
    return others[~np.eye(len(affinity.tasks), dtype=bool)]
