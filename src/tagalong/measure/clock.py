"""Times training and measuring without synchronizing with the device."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch


class Stopwatch:
    """Measures the time from its creation to `stop()`. On CUDA, it uses events, so queued work is timed correctly."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: list[float | torch.cuda.Event] = []  # starts and stops in turn
        self.start()

    def start(self) -> None:
        """Goes on measuring after `stop()`; the time in between does not count."""
        self._times.append(self._record_time())

    def stop(self) -> None:
        self._times.append(self._record_time())

    def seconds(self) -> float:
        """Returns the elapsed time in seconds, after waiting for queued work to finish."""
        if len(self._times) % 2:
            self.stop()
        return sum(map(_seconds_between, self._times[::2], self._times[1::2]))

    def _record_time(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds_between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float):
        assert isinstance(end, float)
        return end - start
    assert isinstance(end, torch.cuda.Event)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


class TrainingClock:
    """Tracks the time spent training and measuring, based only on when the meter is called.

    Timings are read long after the work is done, so training never waits for the device.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._total = self._measuring = 0.0
        self._calls = 0
        self._current: list[Stopwatch] = []
        self._finished: list[Stopwatch] = []

    def tick(self) -> None:
        """Starts timing a call and stops timing the previous one."""
        now = time.perf_counter()
        if self._last is not None:
            self._total += now - self._last
            self._calls += 1
            self._finished += self._current
        self._last, self._current = now, []

    def add_measurement(self, watch: Stopwatch) -> None:
        watch.stop()
        self._read_finished()
        self._current = [watch]

    @property
    def plain_step_seconds(self) -> float:
        """The average time of a step without a measurement, in seconds; 0 before the first step."""
        self._read_finished()
        return max(self._total - self._measuring, 0.0) / self._calls if self._calls else 0.0

    @property
    def overhead(self) -> float:
        self._read_finished()
        training = self._total - self._measuring
        return self._measuring / training if training > 0 else 0.0

    def _read_finished(self) -> None:
        self._measuring += sum(watch.seconds() for watch in self._finished)
        self._finished = []

    def state_dict(self) -> dict[str, float]:
        self._read_finished()
        return {"total": self._total, "measuring": self._measuring, "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._total, self._measuring = float(state["total"]), float(state["measuring"])
        self._calls, self._last, self._current, self._finished = int(state["calls"]), None, [], []
