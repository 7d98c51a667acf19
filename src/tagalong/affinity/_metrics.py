"""Affinities as numbers with names, as loggers take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._check import Floats


def named_values(name: str, tasks: Sequence[str], values: Floats) -> dict[str, float]:
    """One number per pair of different tasks with a value; loggers show the sources of one target together.

    Example:
        >>> named_values("lookahead", ["age", "ill"], np.array([[9.0, 0.5], [np.nan, 9.0]]))
        {'lookahead onto ill/age': 0.5}
    """
    return {
        f"{name} onto {target}/{source}": float(values[i, j])
        for j, target in enumerate(tasks)
        for i, source in enumerate(tasks)
        if i != j and np.isfinite(values[i, j])
    }
