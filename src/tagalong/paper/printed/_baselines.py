"""One network for all tasks, and one for each: the appendix's tables of baseline methods.

CelebA: test error in percent, mean of three runs; Taskonomy: test loss of one run. Totals as printed: some are not the
sums of their columns, see `tagalong paper errata`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .._matrices import CELEBA, TASKONOMY


class Baseline(NamedTuple):
    """A line of a table: the result of each task, their standard errors where printed, and the total."""

    results: Mapping[str, float]
    total: float
    stderr: Mapping[str, float] | None = None


def celeba(total: float, results: tuple[float, ...], stderr: tuple[float, ...] | None = None) -> Baseline:
    """A line about a1 … a9."""
    errors = None if stderr is None else dict(zip(CELEBA, stderr, strict=True))
    return Baseline(dict(zip(CELEBA, results, strict=True)), total, errors)


def taskonomy(total: float, results: tuple[float, ...]) -> Baseline:
    """A line about the five losses."""
    return Baseline(dict(zip(TASKONOMY, results, strict=True)), total)


# fmt: off
BASELINES: Mapping[str, Mapping[str, Baseline]] = {
    "celeba": {
        "mtl": celeba(50.00, (6.54, 11.09, 4.19, 12.59, 2.60, 2.73, 4.81, 4.74, 0.70),
                      (0.026, 0.009, 0.017, 0.085, 0.003, 0.128, 0.010, 0.012, 0.007)),
        "stl": celeba(49.99, (6.56, 11.37, 4.19, 12.58, 2.69, 3.06, 4.97, 4.83, 0.71),
                      (0.003, 0.009, 0.025, 0.102, 0.017, 0.010, 0.006, 0.010, 0.007)),
        "uw": celeba(49.92, (6.51, 11.43, 4.18, 11.91, 2.50, 2.95, 4.81, 4.89, 0.74),
                     (0.038, 0.034, 0.015, 0.132, 0.028, 0.010, 0.026, 0.028, 0.007)),
        "gradnorm": celeba(50.11, (6.44, 11.09, 4.01, 12.38, 2.65, 2.96, 4.89, 4.87, 0.81),
                           (0.033, 0.021, 0.051, 0.097, 0.022, 0.017, 0.015, 0.003, 0.009)),
        "pcgrad": celeba(49.99, (6.57, 10.95, 4.04, 12.73, 2.67, 2.87, 4.76, 4.76, 0.64),
                         (0.015, 0.020, 0.015, 0.033, 0.013, 0.021, 0.006, 0.015, 0.010)),
    },
    "taskonomy": {
        "mtl": taskonomy(0.5940, (0.0586, 0.2879, 0.1076, 0.0428, 0.1079)),
        "stl": taskonomy(0.5347, (0.0509, 0.2616, 0.0975, 0.0337, 0.0910)),
        "gradnorm": taskonomy(0.5708, (0.0542, 0.2818, 0.1011, 0.0305, 0.1032)),
    },
}
# fmt: on
