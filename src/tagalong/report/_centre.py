"""Where the colours of a heat map turn from hurting to helping."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

Floats = NDArray[np.float64]
Centre = Literal["zero", "target"]

RESAMPLES = 200  # the error of the error is then five percent


def from_centre(affinity: Affinity, centre: Centre) -> tuple[Floats, Floats]:
    """How far each affinity lies from the centre, and the standard error of that distance."""
    if centre not in ("zero", "target"):
        raise ValueError(f'`centre` must be "zero" or "target", found {centre!r}')
    if centre == "zero":
        return affinity.mean, affinity.stderr
    return _from_level(affinity.mean), _level_error(affinity)


def _from_level(matrices: Floats) -> Floats:
    """Distance of each affinity onto a target from the mean over the target's other tasks."""
    others = np.isfinite(matrices) & ~np.eye(matrices.shape[-1], dtype=bool)
    sums = np.where(others, matrices, 0.0).sum(axis=-2, keepdims=True)
    return np.asarray(matrices - sums / np.maximum(others.sum(axis=-2, keepdims=True), 1))


def _level_error(affinity: Affinity) -> Floats:
    """Errors common to all sources of a target cancel in the distance from their mean, as resamples show."""
    if len(affinity.steps) < 2:
        return affinity.stderr
    draws = _from_level(affinity.bootstrap(RESAMPLES))
    known = np.isfinite(draws).all(axis=0) & np.isfinite(affinity.stderr)
    return np.where(known, np.where(known, draws, 0.0).std(axis=0), np.nan)
