"""When to measure: at fixed intervals, within a time budget, or a few source tasks at a time."""

from __future__ import annotations

import copy
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tagalong.errors import is_integer, is_positive, is_positive_integer


class Schedule(ABC):
    """Decides which calls to the meter are measured, and which source tasks are measured in each.

    Subclass it for a schedule of your own; only `due` is needed.

    Example:
        >>> class LastQuarter(Schedule):
        ...     def due(self, call):
        ...         return call >= 750
    """

    @abstractmethod
    def due(self, call: int) -> bool:
        """Whether call number `call` (starting at 0) is measured."""

    def choose(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        """Returns the `present` tasks to measure as sources, given how often each task was measured before."""
        return present


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


class Auto(Schedule):
    """Measures as often as `max_overhead` allows.

    The first call is always measured, so that an unsuitable closure fails immediately. The duration of the first call
    is ignored, since kernels are still warming up. From the second measurement on, the interval depends on timings, so
    the measured calls differ from run to run.

    Args:
        max_overhead: The maximum number of seconds spent measuring per second of plain training.
    """

    WARM_UP = 10

    def __init__(self, max_overhead: float = 0.1) -> None:
        if not is_positive(max_overhead) and max_overhead != math.inf:
            raise ValueError(f"`max_overhead` must be a positive number, such as 0.1 for 10%, found {max_overhead!r}")
        self.max_overhead = float(max_overhead)
        self._next = 0

    def due(self, call: int) -> bool:
        return call >= self._next

    def timed(self, call: int, measured_seconds: float, plain_seconds: float) -> None:
        """Receives the duration of the last measurement and the average duration of a plain step, in seconds."""
        interval = self.WARM_UP
        if call >= self.WARM_UP and plain_seconds > 0:
            interval = max(1, math.ceil(measured_seconds / (self.max_overhead * plain_seconds)))
        self._next = call + interval


class RoundRobin(Every):
    """Measures only `sources` source tasks at each measured step, choosing those measured least often so far.

    This costs as many FLOPs per measured pair as measuring all tasks at once, but spreads them more evenly over
    training.

    Args:
        every: The interval in calls.
        sources: The number of source tasks per measured step.

    Example:
        >>> RoundRobin(every=5).choose(["a", "b"], {"a": 1, "b": 0}, seed=0)
        ['b']
    """

    def __init__(self, every: int = 1, sources: int = 1) -> None:
        super().__init__(every)
        self.sources = _check_positive("sources", sources)

    def choose(self, present: Sequence[str], counts: Mapping[str, int], seed: int) -> Sequence[str]:
        # Ties are broken at random; otherwise periodic data (one loader per task) could starve some pairs.
        order = list(present)
        random.Random(f"{seed} {sum(counts.values())}").shuffle(order)
        chosen = sorted(order, key=lambda task: counts.get(task, 0))[: self.sources]
        return [task for task in present if task in chosen]


def as_schedule(every: int | str | Schedule, max_overhead: float) -> Schedule:
    # Converts the `every` argument to a schedule. Schedules are copied, since they may have state.
    if isinstance(every, Schedule):
        return copy.deepcopy(every)
    if every == "auto":
        return Auto(max_overhead)
    if is_integer(every):
        return Every(every)
    raise ValueError(f"`every` must be a positive integer, 'auto' or a schedule, found {every!r}")


def _check_positive(name: str, value: int) -> int:
    if not is_positive_integer(value):
        raise ValueError(f"`{name}` must be a positive integer, found {value!r}")
    return int(value)


class Stopwatch:
    """Measures the time between starts and stops, at first from its creation.

    On CUDA, it uses events, so that queued work is timed without waiting for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: list[Any] = []  # starts and stops in turn
        self.start()

    def start(self) -> None:
        if self._device.type != "cuda":
            self._times.append(time.perf_counter())
        else:
            event = torch.cuda.Event(enable_timing=True)
            self._times.append(torch.cuda.current_stream(self._device).record_event(event))

    stop = start

    def seconds(self) -> float:
        # Returns the time in seconds, after waiting for queued work to finish.
        if len(self._times) % 2:
            self.stop()
        starts, stops = self._times[::2], self._times[1::2]
        if self._device.type != "cuda":
            return float(sum(stops) - sum(starts))
        stops[-1].synchronize()
        return float(sum(start.elapsed_time(stop) for start, stop in zip(starts, stops, strict=True))) / 1000.0


class TrainingClock:
    """Tracks the time spent training and measuring, based only on when the meter is called.

    Measurements are read when the next one is added, long after the work is done, so training never waits for them.
    """

    def __init__(self) -> None:
        self._total = self._measuring = 0.0
        self._calls = 0  # that have finished
        self._last_call: float | None = None
        self._unread: tuple[int, Stopwatch] | None = None  # the last measurement, and the number of its call

    def tick(self) -> None:
        # Starts timing a call and stops timing the previous one.
        now = time.perf_counter()
        if self._last_call is not None:
            self._total += now - self._last_call
            self._calls += 1
        self._last_call = now

    def add_measurement(self, watch: Stopwatch) -> None:
        watch.stop()
        self._read()
        self._unread = self._calls, watch

    def _read(self) -> float:
        # Returns the time spent on plain training in finished calls.
        if self._unread is not None and self._unread[0] < self._calls:
            self._measuring += self._unread[1].seconds()
            self._unread = None
        return max(self._total - self._measuring, 0.0)

    @property
    def plain_step_seconds(self) -> float:
        # The average time of a step without a measurement, in seconds; 0 before the first step.
        return self._read() / max(1, self._calls)

    @property
    def overhead(self) -> float:
        plain = self._read()
        return self._measuring / plain if plain > 0 else 0.0
