"""Schedules for measuring: at fixed intervals, in a window, a given number of times, or within a time budget."""

from __future__ import annotations

import copy
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tagalong.errors import InvalidInput, is_integer, is_positive, is_positive_integer


class Schedule(ABC):
    """Decides which calls to the meter are measured, and which source tasks are measured in each.

    Attributes:
        clocked: Whether `timed` must be called after every measurement.
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
        return ratio * self.fraction

    @property
    def fraction(self) -> float:
        """The fraction of calls that are measured; 1 unless a subclass overrides it."""
        return 1.0

    def timed(self, call: int, measured_seconds: float, plain_seconds: float) -> None:
        """Receives the duration of the last measurement and the average duration of a plain step, in seconds."""
        raise TypeError(f"{type(self).__name__} does not use timings")

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

    @property
    def fraction(self) -> float:
        return 1 / self.interval


class Window(Schedule):
    """Measures every `every`-th call within a window of the training.

    Args:
        steps: The total number of calls during training.
        part: The ``"first"``, ``"middle"`` or ``"last"`` quarter of the training as in the paper (0–25%, 37.5–62.5%,
            75–100%), or the start and end of the window as fractions.
        every: The interval within the window, in calls.

    Example:
        >>> [call for call in range(16) if Window(16, "middle").due(call)]
        [6, 7, 8, 9]
    """

    PARTS = {"first": (0.0, 0.25), "middle": (0.375, 0.625), "last": (0.75, 1.0)}  # noqa: RUF012 - a constant

    def __init__(
        self, steps: int, part: Literal["first", "middle", "last"] | tuple[float, float] = "first", every: int = 1
    ) -> None:
        if isinstance(part, str) and part not in self.PARTS:
            raise InvalidInput("part", "must be 'first', 'middle', 'last' or two fractions", repr(part))
        low, high = self.PARTS[part] if isinstance(part, str) else part
        if not 0 <= low < high <= 1:
            raise InvalidInput("part", "must be two fractions with 0 ≤ start < end ≤ 1", repr((low, high)))
        self.steps = _check_positive("steps", steps)
        self.first, self.end = round(low * self.steps), round(high * self.steps)
        self.every = _check_positive("every", every)

    def due(self, call: int) -> bool:
        return self.first <= call < self.end and (call - self.first) % self.every == 0

    @property
    def fraction(self) -> float:
        return len(range(self.first, self.end, self.every)) / self.steps


class About(Schedule):
    """Takes about `measurements` measurements in total, spread evenly over `steps` calls.

    Example:
        >>> [call for call in range(12) if About(3, steps=12).due(call)]
        [0, 4, 8]
    """

    def __init__(self, measurements: int, steps: int) -> None:
        self.measurements, self.steps = _check_positive("measurements", measurements), _check_positive("steps", steps)

    def due(self, call: int) -> bool:
        if self.measurements >= self.steps:
            return True
        return call == 0 or call * self.measurements // self.steps > (call - 1) * self.measurements // self.steps

    @property
    def fraction(self) -> float:
        return min(1.0, self.measurements / self.steps)


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


class RoundRobin(Schedule):
    """Measures only `sources` source tasks at each measured step, choosing those measured least often so far.

    This costs as many FLOPs per measured pair as measuring all tasks at once, but spreads them more evenly over
    training.

    Args:
        every: The interval in calls, or another schedule.
        sources: The number of source tasks per measured step.
        targets: The number of target tasks per measured step, chosen in the same way among the pairs with the sources;
            all by default. This saves time only with one closure per task.

    Example:
        >>> RoundRobin(every=5).choose(["a", "b"], {"a": 1, "b": 0}, seed=0)
        ['b']
    """

    def __init__(self, every: int | Schedule = 1, sources: int = 1, targets: int | None = None) -> None:
        self.inner = every if isinstance(every, Schedule) else Every(every)
        self.sources = _check_positive("sources", sources)
        self.targets = None if targets is None else _check_positive("targets", targets)
        self.clocked = self.inner.clocked

    def due(self, call: int) -> bool:
        return self.inner.due(call)

    def overhead(self, ratio: float) -> float:
        return self.inner.overhead(ratio)

    def choose(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        return _least_measured(present, counts, self.sources, f"{seed} {sum(counts.values())}")

    def choose_targets(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        if self.targets is None:
            return present
        return _least_measured(present, counts, self.targets, f"{seed} targets {sum(counts.values())}")

    def timed(self, call: int, measured_seconds: float, plain_seconds: float) -> None:
        self.inner.timed(call, measured_seconds, plain_seconds)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state)


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
    if isinstance(every, str) and every == "auto":
        return Auto(max_overhead)
    if is_integer(every):
        return Every(int(every))
    raise InvalidInput("every", "must be a positive integer, 'auto' or a schedule", repr(every))


def _check_positive(name: str, value: int) -> int:
    if not is_positive_integer(value):
        raise InvalidInput(name, "must be a positive integer", repr(value))
    return int(value)
