"""Schedules for measuring: at fixed intervals, within a time budget, or a few source tasks at a time."""

from __future__ import annotations

import copy
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tagalong.errors import InvalidInput, is_integer, is_positive, is_positive_integer


class Schedule(ABC):
    """Decides which calls to the meter are measured, and which source tasks are measured in each.

    Subclass it for a schedule of your own; only `due` is needed.

    Attributes:
        clocked: Whether `timed` must be called after every measurement.

    Example:
        >>> class LastQuarter(Schedule):
        ...     def due(self, call):
        ...         return call >= 750
    """

    clocked = False

    @abstractmethod
    def due(self, call: int) -> bool:
        """Whether call number `call` (starting at 0) is measured."""

    def choose(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        """Returns the `present` tasks to measure as sources, given how often each task was measured before."""
        return present

    def choose_targets(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        """Returns the `present` tasks to measure as targets, given how often each was measured with the sources."""
        return present

    def overhead(self, ratio: float) -> float:
        """Returns the seconds spent measuring per second of training if each measurement takes `ratio` plain steps."""
        return ratio

    def timed(self, call: int, measured_seconds: float, plain_seconds: float) -> None:
        """Receives the duration of the last measurement and the average duration of a plain step, in seconds."""
        return

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state returned by `state_dict`."""
        return


class Every(Schedule):
    """Measures every `interval`-th call, starting with the first.

    Example:
        >>> [call for call in range(10) if Every(4).due(call)]
        [0, 4, 8]
    """

    def __init__(self, interval: int) -> None:
        self.interval = _check_positive("every", interval)

    def due(self, call: int) -> bool:
        return call % self.interval == 0

    def overhead(self, ratio: float) -> float:
        return ratio / self.interval


class Auto(Schedule):
    """Measures as often as `max_overhead` allows.

    The first call is always measured, so that an unsuitable closure fails immediately. The duration of the first call
    is ignored, since kernels are still warming up. From the second measurement on, the interval depends on timings, so
    the measured calls differ from run to run.

    Args:
        max_overhead: The maximum number of seconds spent measuring per second of plain training.
    """

    WARM_UP = 10
    clocked = True

    def __init__(self, max_overhead: float = 0.1) -> None:
        if not is_positive(max_overhead) and max_overhead != math.inf:
            expected = "must be a positive number, such as 0.1 for 10% more time"
            raise InvalidInput("max_overhead", expected, repr(max_overhead))
        self.max_overhead = float(max_overhead)
        self._next = 0

    def due(self, call: int) -> bool:
        return call >= self._next

    def overhead(self, ratio: float) -> float:
        return min(ratio, self.max_overhead)

    def timed(self, call: int, measured_seconds: float, plain_seconds: float) -> None:
        if call < self.WARM_UP or plain_seconds <= 0:
            self._next = call + self.WARM_UP
        else:
            self._next = call + max(1, math.ceil(measured_seconds / (self.max_overhead * plain_seconds)))

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = int(state["next"])


class RoundRobin(Every):
    """Measures only `sources` source tasks at each measured step, choosing those measured least often so far.

    This costs as many FLOPs per measured pair as measuring all tasks at once, but spreads them more evenly over
    training.

    Args:
        every: The interval in calls.
        sources: The number of source tasks per measured step.
        targets: The number of target tasks per measured step, chosen in the same way among the pairs with the sources;
            all by default. This saves time only with one closure per task.

    Example:
        >>> RoundRobin(every=5).choose(["a", "b"], {"a": 1, "b": 0}, seed=0)
        ['b']
    """

    def __init__(self, every: int = 1, sources: int = 1, targets: int | None = None) -> None:
        super().__init__(every)
        self.sources = _check_positive("sources", sources)
        self.targets = None if targets is None else _check_positive("targets", targets)

    def choose(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        return _least_measured(present, counts, self.sources, f"{seed} {sum(counts.values())}")

    def choose_targets(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        if self.targets is None:
            return present
        return _least_measured(present, counts, self.targets, f"{seed} targets {sum(counts.values())}")


def _least_measured(present: Sequence[str], counts: Mapping[str, int], number: int, seed: str) -> list[str]:
    # Ties are broken at random; otherwise periodic data (one loader per task) could starve some pairs.
    order = list(present)
    random.Random(seed).shuffle(order)
    chosen = set(sorted(order, key=lambda task: counts.get(task, 0))[:number])
    return [task for task in present if task in chosen]


def as_schedule(every: int | str | Schedule, max_overhead: float) -> Schedule:
    """Converts the `every` argument to a schedule. Schedules are copied, since they may have state."""
    if isinstance(every, Schedule):
        return copy.deepcopy(every)
    if every == "auto":
        return Auto(max_overhead)
    if is_integer(every):
        return Every(every)
    raise InvalidInput("every", "must be a positive integer, 'auto' or a schedule", repr(every))


def _check_positive(name: str, value: int) -> int:
    if not is_positive_integer(value):
        raise InvalidInput(name, "must be a positive integer", repr(value))
    return int(value)
