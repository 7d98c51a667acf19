"""Numbers that the paper prints (Fifty et al., NeurIPS 2021), table by table. Ours are never among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .groupings import Printed, _printed
from .matrices import CELEBA, TASKONOMY


class Speed(NamedTuple):
    """How well groups do relative to random ones, in percent, and how much faster they are found."""

    performance: float
    speed_up: float


# Table "Performance of each task when trained with its partner task relative to the expected performance from random
# groupings", in percent: the best partner by test, the one chosen by affinity, the worst.
PARTNER: Mapping[str, tuple[float, float, float]] = {
    "a1": (2.60, 2.60, -3.03),
    "a2": (1.53, 1.29, -1.95),
    "a3": (2.37, 1.72, -3.04),
    "a4": (2.67, 0.72, -4.14),
    "a5": (2.75, 2.29, -3.87),
    "a6": (2.04, 0.00, -2.08),
    "a7": (2.40, 0.74, -2.43),
    "a8": (1.61, -1.59, -1.59),
    "a9": (8.38, 8.38, -6.21),
}
PARTNER_PEARSON = 0.93  # printed as "0.93%"

# Table of speed: change in total test accuracy over 2, 3 and 4 groups relative to random, and the speed-up.
SPEED: Mapping[str, Speed] = {
    "every 1": Speed(5.13, 1.00),
    "every 5": Speed(5.13, 2.56),
    "every 10": Speed(5.13, 3.19),
    "every 25": Speed(4.84, 3.73),
    "every 50": Speed(3.73, 3.96),
    "every 100": Speed(2.06, 4.08),
    "first 25 %": Speed(3.67, 4.00),
    "middle 25 %": Speed(4.31, 2.95),
    "last 25 %": Speed(4.02, 2.34),
}

# Table of hyperparameters: accuracy of groupings of other settings in the base setting, relative to its own best.
HYPERPARAMETERS: Mapping[int, Mapping[str, float]] = {
    2: {"half the batch": -0.61, "twice the lr": -1.22},
    3: {"half the batch": -0.25, "twice the lr": -2.90},
    4: {"half the batch": -1.87, "twice the lr": -3.21},
}

# Table of differences: highest minus lowest normalised affinity onto each task.
SPREAD: Mapping[str, float] = {
    "a1": 0.35, "a2": 0.39, "a3": 0.16, "a4": 0.31, "a5": 0.47, "a6": 0.31, "a7": 0.43, "a8": 0.04, "a9": 0.17,
}  # fmt: skip

# Text of section 5.1: what PCGrad adds to TAG's groups, in percent, by number of groups.
PCGRAD_GAIN: Mapping[int, float] = {2: 0.85, 3: 0.18, 4: -0.08}

# Text of section 5.2: affinity on train against validation loss.
VALIDATION_PEARSON = 0.9804
EVERY_STEP_ERROR, VALIDATION_ERROR = 49.574, 49.576  # average total error over 2, 3 and 4 groups


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


# fmt: off
CAPACITY: Mapping[str, Mapping[tuple[str, int], Baseline]] = {
    "celeba": {
        ("mtl", 2): celeba(51.02, (6.42, 10.76, 4.35, 13.01, 2.66, 3.05, 4.76, 5.20, 0.80)),
        ("mtl", 3): celeba(51.05, (6.43, 11.65, 4.21, 12.69, 2.61, 2.94, 4.87, 4.86, 0.80)),
        ("mtl", 4): celeba(50.57, (6.91, 11.23, 4.31, 12.51, 2.57, 3.01, 4.59, 4.81, 0.64)),
        ("uw", 2): celeba(50.36, (6.40, 11.01, 4.36, 12.54, 2.63, 3.03, 4.68, 5.00, 0.71)),
        ("uw", 3): celeba(50.00, (6.36, 11.32, 4.27, 12.12, 2.51, 2.94, 4.93, 4.76, 0.79)),
        ("uw", 4): celeba(50.71, (6.70, 11.49, 4.37, 12.35, 2.63, 3.07, 4.61, 4.83, 0.64)),
        ("gradnorm", 2): celeba(50.57, (6.38, 10.98, 4.13, 12.57, 2.71, 3.00, 4.73, 5.21, 0.86)),
        ("gradnorm", 3): celeba(51.00, (6.38, 11.67, 4.35, 12.35, 2.61, 3.00, 4.93, 4.86, 0.85)),
        ("gradnorm", 4): celeba(51.74, (6.56, 11.49, 4.33, 13.29, 2.57, 3.07, 4.82, 4.82, 0.78)),
    },
    "taskonomy": {
        ("mtl", 2): taskonomy(0.5892, (0.0536, 0.2664, 0.1078, 0.0441, 0.1173)),
        ("mtl", 3): taskonomy(0.5866, (0.0538, 0.2891, 0.1090, 0.0363, 0.0984)),
        ("gradnorm", 2): taskonomy(0.5891, (0.0552, 0.2977, 0.1013, 0.0289, 0.1060)),
        ("gradnorm", 3): taskonomy(0.5827, (0.0570, 0.2806, 0.1044, 0.0401, 0.1006)),
    },
}
# fmt: on


# fmt: off
OPTIMAL: Mapping[str, Mapping[int, Printed]] = {
    "celeba": {
        2: _printed(
            49.37,
            ("a2 a3 a4",
             {"a1": 6.6, "a2": 11.21, "a3": 4.4, "a4": 11.91, "a5": 2.6, "a6": 2.87, "a7": 4.81, "a8": 4.58},
             (0.009, 0.017, 0.007, 0.051, 0.009, 0.003, 0.015, 0.009)),
            ("", {"a2": 11.14, "a3": 4.03, "a4": 11.9, "a9": 0.75}, (0.044, 0.012, 0.02, 0.018)),
        ),
        3: _printed(
            48.92,
            ("a1 a7 a9", {"a1": 6.34, "a5": 2.57, "a6": 2.91, "a7": 4.74, "a8": 4.7, "a9": 0.78},
             (0.067, 0.012, 0.019, 0.031, 0.017, 0.012)),
            ("", {"a2": 11.14, "a3": 4.03, "a4": 11.9, "a9": 0.75}, (0.044, 0.012, 0.02, 0.018)),
            ("a9", {"a1": 6.25, "a7": 4.67, "a9": 0.71}, (0.045, 0.009, 0.006)),
        ),
        4: _printed(
            48.57,
            ("a2 a3", {"a2": 11.2, "a3": 4.09, "a4": 11.77}, (0.049, 0.022, 0.197)),
            ("a7", {"a3": 4.0, "a6": 2.9, "a7": 4.85, "a9": 0.75}, (0.023, 0.02, 0.041, 0.01)),
            ("a9", {"a1": 6.25, "a7": 4.67, "a9": 0.71}, (0.045, 0.009, 0.006)),
            ("a4 a9", {"a2": 10.96, "a4": 12.74, "a5": 2.56, "a8": 4.75, "a9": 0.77},
             (0.045, 0.136, 0.031, 0.072, 0.022)),
        ),
    },
    "taskonomy": {
        2: _printed(
            0.5176,
            ("", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("n", {"n": 0.1096, "t": 0.0271, "k": 0.075}),
        ),
        3: _printed(
            0.4862,
            ("s n", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("", {"s": 0.05, "n": 0.1025, "t": 0.0242}),
            ("n", {"n": 0.111, "k": 0.0568}),
        ),
    },
}
# fmt: on
