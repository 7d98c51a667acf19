"""The cost of measuring affinities, and the speed-up from measuring them less often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# The cost of measuring n = 9 tasks, in training steps. It explains the nine printed speed-ups.
PAPER_COST = 3.216


class MeasuringSchedule(NamedTuple):
    """A schedule for measuring affinities.

    Training stops at the end of the measurement window, as the printed numbers imply.

    Attributes:
        every: the number of steps between measurements.
        first: the start of the measurement window, as a fraction of training.
        last: the end of the measurement window, as a fraction of training.
    """

    every: int = 1
    first: float = 0.0
    last: float = 1.0

    def cost(self, measurement: float) -> float:
        """Returns the cost relative to training without measuring, given the cost of one measurement in steps."""
        return self.last + (self.last - self.first) / self.every * measurement


SCHEDULES = {
    **{f"every {n}": MeasuringSchedule(n) for n in (1, 5, 10, 25, 50, 100)},
    "first 25%": MeasuringSchedule(first=0.0, last=0.25),
    "middle 25%": MeasuringSchedule(first=0.375, last=0.625),
    "last 25%": MeasuringSchedule(first=0.75, last=1.0),
}


def speed_up(schedule: MeasuringSchedule, measurement: float) -> float:
    """Returns the speed-up of a schedule over measuring every step.

    Args:
        schedule: the schedule.
        measurement: the cost of one measurement, in training steps.

    Example:
        >>> round(speed_up(SCHEDULES["every 10"], PAPER_COST), 2)
        3.19
    """
    return MeasuringSchedule().cost(measurement) / schedule.cost(measurement)


def cost_range(printed: Mapping[str, float]) -> tuple[float, float]:
    """Returns the range of measurement costs that are consistent with the printed speed-ups, given rounding.

    Args:
        printed: the printed speed-ups by schedule name, rounded to two decimals.

    Example:
        >>> low, high = cost_range({"every 10": 3.19, "last 25%": 2.34})
        >>> round(low, 3), round(high, 3)
        (3.207, 3.226)
    """

    def cost(schedule: MeasuringSchedule, ratio: float) -> float:
        fraction = (schedule.last - schedule.first) / schedule.every
        return (ratio * schedule.last - 1) / (1 - ratio * fraction)

    # If every step of a shorter training run is measured, the speed-up does not depend on the cost of a measurement.
    informative = {SCHEDULES[name]: found for name, found in printed.items() if SCHEDULES[name][:2] != (1, 0.0)}
    return (
        max(cost(schedule, found - 0.005) for schedule, found in informative.items()),
        min(cost(schedule, found + 0.005) for schedule, found in informative.items()),
    )
