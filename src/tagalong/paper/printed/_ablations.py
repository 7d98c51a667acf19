"""What the paper prints about ablations, all on CelebA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
