"""How long a step takes and how much memory it needs at its peak, on CPU and CUDA."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def seconds(step: Step, repeats: int, device: torch.device) -> float:
    """Seconds per step over `repeats` steps in a row: CUDA events, or the CPU time of this process.

    CPU time, because other processes that take the core away for a while would count otherwise.
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


def peak_bytes(step: Step, device: torch.device) -> int:
    """The most that one step has allocated at once, above what was there before it."""
    if device.type != "cuda":
        return _peak_bytes_on_cpu(step)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_bytes_on_cpu(step: Step) -> int:
    """From the profiler's list of every allocation and release of the CPU allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
