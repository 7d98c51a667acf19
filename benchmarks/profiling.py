"""Measures the time of a training step and its peak memory, on the CPU and on CUDA."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


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
