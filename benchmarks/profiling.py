"""Measures the time of a training step and its peak memory, on the CPU and on CUDA."""

import ctypes
import gc
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]
T = TypeVar("T")


def time_step(step: Step, repeats: int, device: torch.device) -> float:
    """Returns seconds per step over `repeats` consecutive steps, from CUDA events or the CPU time of this process.

    CPU time does not depend on other processes that share the core.
    """
    if device.type != "cuda":
        start = time.process_time()
        for _ in range(repeats):
            step()
        return (time.process_time() - start) / repeats
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(repeats):
        step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1000 / repeats


def measure_peak_bytes(step: Step, device: torch.device) -> int:
    """Returns the peak memory of one step, above what was allocated before it."""
    if device.type != "cuda":
        return _measure_peak_bytes_on_cpu(step)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _measure_peak_bytes_on_cpu(step: Step) -> int:
    """Adds up every allocation and release of the CPU allocator that the profiler lists."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    allocated = peak = 0
    for _, change in changes:
        allocated += change
        peak = max(peak, allocated)
    return peak


class Clock:
    """Measures seconds, and peak memory in megabytes above what was allocated before.

    Uses the wall clock or, on one CPU thread, the CPU time of this process, which other processes do not affect.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda, self.seconds, self.peak = device.type == "cuda", 0.0, 0.0
        self.now = time.perf_counter if self.cuda or torch.get_num_threads() > 1 else time.process_time

    def time(self, work: Callable[[], T]) -> T:
        before = self._allocated()
        start = self.now()
        done = work()
        if self.cuda:
            torch.cuda.synchronize()
        self.seconds += self.now() - start
        self.peak = max(self.peak, (self._peak_bytes() - before) / 2**20)
        return done

    def _allocated(self) -> int:
        """Starts a new peak, and returns the memory in use."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        with suppress(OSError):  # without this permission, only a new peak of the whole process is visible
            Path("/proc/self/clear_refs").write_text("5")
        return _process_bytes("VmRSS")

    def measure_peak(self, work: Callable[[], T]) -> T:
        """Measures only the peak, after returning free memory to the system, which slows down what follows."""
        gc.collect()
        if not self.cuda:
            with suppress(OSError, AttributeError):  # only glibc has it
                ctypes.CDLL(None).malloc_trim(0)
        seconds, done = self.seconds, self.time(work)
        self.seconds = seconds
        return done

    def _peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated() if self.cuda else _process_bytes("VmHWM")


def _process_bytes(field: str) -> int:
    """Reads the memory of this process: "VmRSS" in use, or "VmHWM" at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
