"""How much time is saved when affinities are measured less often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Of the nine printed speed-ups; a measurement of n = 9 tasks is worth so many plain steps.
PAPER_COST = 3.216


class Schedule(NamedTuple):
    """When affinities are measured: every so many steps, from one share of the training to another.

    Training to measure ends with the window, as the printed numbers imply.
    """

    every: int = 1
    first: float = 0.0
    last: float = 1.0

    def cost(self, measurement: float) -> float:
        """In plain trainings, with the cost of a measurement in plain steps."""
        return self.last + (self.last - self.first) / self.every * measurement


SCHEDULES = {
    **{f"every {n}": Schedule(n) for n in (1, 5, 10, 25, 50, 100)},
    "first 25 %": Schedule(first=0.0, last=0.25),
    "middle 25 %": Schedule(first=0.375, last=0.625),
    "last 25 %": Schedule(first=0.75, last=1.0),
}


def speed_up(schedule: Schedule, measurement: float) -> float:
    """How many times cheaper than measuring at every step.

    Args:
        schedule: when to measure.
        measurement: what one costs, in plain steps.

    Example:
        >>> round(speed_up(SCHEDULES["every 10"], PAPER_COST), 2)
        3.19
    """
    return Schedule().cost(measurement) / schedule.cost(measurement)


def costs_giving(printed: Mapping[str, float]) -> tuple[float, float]:
    """The lowest and the highest cost of a measurement that give these speed-ups to the second digit.

    Args:
        printed: speed-ups by the name of their schedule.

    Example:
        >>> low, high = costs_giving({"every 10": 3.19, "last 25 %": 2.34})
        >>> round(low, 3), round(high, 3)
        (3.207, 3.226)
    """

    def cost(schedule: Schedule, faster: float) -> float:
        share = (schedule.last - schedule.first) / schedule.every
        return (faster * schedule.last - 1) / (1 - faster * share)

    # Where every step until the end is measured the speed-up is the same whatever a measurement costs.
    telling = {SCHEDULES[name]: found for name, found in printed.items() if SCHEDULES[name][:2] != (1, 0.0)}
    return (
        max(cost(schedule, found - 0.005) for schedule, found in telling.items()),
        min(cost(schedule, found + 0.005) for schedule, found in telling.items()),
    )
