"""What measuring less often saves, from what one measurement costs."""

from __future__ import annotations

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
