"""Affinities as named numbers, for loggers."""

import math

from tagalong.affinity import Affinity


def affinity_metrics(affinity: Affinity, prefix: str = "affinity") -> dict[str, float]:
    """One number per pair that was measured, named ``prefix/source/target``.

    >>> affinity_metrics(Affinity.from_matrix([[0.5, 0.1], [-0.2, 0.4]], ["a", "b"]))
    {'affinity/a/a': 0.5, 'affinity/a/b': 0.1, 'affinity/b/a': -0.2, 'affinity/b/b': 0.4}
    """
    return {
        f"{prefix}/{source}/{target}": float(value)
        for source, row in zip(affinity.tasks, affinity.mean, strict=True)
        for target, value in zip(affinity.tasks, row, strict=True)
        if math.isfinite(value)
    }
