"""How long training and measuring take, without making the device wait."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch


class Stopwatch:
    """Measures from its making to `stop()`; on CUDA with events, so that queued work counts where it belongs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._mark()
        self._end: float | torch.cuda.Event | None = None

    def stop(self) -> None:
        self._end = self._mark()

    def seconds(self) -> float:
        """Waits for the work to be done, where it is still queued."""
        if self._end is None:
            self.stop()
        if isinstance(self._start, float):
            assert isinstance(self._end, float)
            return self._end - self._start
        assert isinstance(self._end, torch.cuda.Event)
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1000.0

    def _mark(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


class TrainingClock:
    """How long training and measuring have taken, from the calls of the meter alone.

    Timings are read late, long after the work is done, so that training does not wait for the device.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._total = self._measuring = 0.0
        self._calls = 0
        self._under_way: list[Stopwatch] = []
        self._over: list[Stopwatch] = []

    def tick(self) -> None:
        """Starts the timing of a call, and ends that of the call before."""
        now = time.perf_counter()
        if self._last is not None:
            self._total += now - self._last
            self._calls += 1
            self._over += self._under_way
        self._last, self._under_way = now, []

    def measured(self, watch: Stopwatch) -> None:
        watch.stop()
        self._settle()
        self._under_way = [watch]

    @property
    def plain(self) -> float:
        """Seconds of a step without measuring, on average; 0 before there was one."""
        self._settle()
        return max(self._total - self._measuring, 0.0) / self._calls if self._calls else 0.0

    @property
    def overhead(self) -> float:
        self._settle()
        training = self._total - self._measuring
        return self._measuring / training if training > 0 else 0.0

    def _settle(self) -> None:
        self._measuring += sum(watch.seconds() for watch in self._over)
        self._over = []

    def state_dict(self) -> dict[str, float]:
        self._settle()
        return {"total": self._total, "measuring": self._measuring, "calls": self._calls}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._total, self._measuring = float(state["total"]), float(state["measuring"])
        self._calls, self._last, self._under_way, self._over = int(state["calls"]), None, [], []
