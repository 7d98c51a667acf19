"""What all benchmarks share: options, clocks, progress messages, and tables that are printed and saved as JSON."""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch reads it when it is imported

import torch
from torch.profiler import ProfilerActivity, profile

Row = dict[str, Any]  # a line of a table: values by the titles of their columns
T = TypeVar("T")


def make_parser(doc: str, *, device: bool = True) -> argparse.ArgumentParser:
    """Creates a parser that knows `--json` and, if wanted, `--device` and `--threads`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="save the results here")
    if device:
        parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
        parser.add_argument("--threads", type=int, help="number of CPU threads; torch's default if omitted")
    return parser


def start(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the options, sets the number of threads and prints the machine."""
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{machine(options.device)}\n", flush=True)
    return options


def machine(device: torch.device) -> str:
    """Names the device and the versions that numbers depend on."""
    where = f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} in use"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return f"{where}; Python {platform.python_version()}, torch {torch.__version__}"


def numbers(text: str) -> tuple[int, ...]:
    """Reads an option such as 3,6,20."""
    return tuple(int(number) for number in text.split(","))


def span(text: str) -> range:
    """Reads an option that is a number of repetitions, or a range of them such as 3-5."""
    first, _, last = text.rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


def progress(message: str) -> None:
    """Prints a line to standard error, separate from the table."""
    print(message, file=sys.stderr, flush=True)


def save_json(path: Path | None, results: object) -> None:
    """Saves results, if there is a path. If the process is killed, the file is either the old or the new one."""
    if path is None:
        return
    written = path.with_name(f"{path.name}.new")
    written.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(written, path)


def table(rows: Sequence[Row], formats: Mapping[str, str] | None = None) -> str:
    """Formats a Markdown table whose columns are aligned in plain text too.

    Args:
        rows: the lines. None is shown as a dash, and a missing value as an empty cell.
        formats: format specifications by column, such as ".2f".
    """
    formats = formats or {}
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(column, ""), formats.get(column, "")) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _cell(value: object, spec: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return format(value, spec).replace("-", "−")


def mean_and_error(values: Sequence[float]) -> str:
    """Formats a mean, with its standard error if there are several values."""
    if not values:
        return ""
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.1f}{error}".replace("-", "−")


def replace_part(path: Path, name: str, content: str) -> None:
    """Replaces the text of a page between two comments, which `summary.py` has written."""
    opening, closing = f"<!-- summary.py: {name} -->\n", f"<!-- end of {name} -->"
    before, opened, rest = path.read_text(encoding="utf-8").partition(opening)
    _, closed, after = rest.partition(closing)
    if not opened or not closed:
        sys.exit(f"{path.name} has no part between {opening.strip()} and {closing}")
    path.write_text(f"{before}{opening}\n{content}\n\n{closing}{after}", encoding="utf-8")


def time_step(step: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Returns seconds per step over `repeats` consecutive steps, from CUDA events or the CPU time of this process.

    CPU time does not depend on other processes that share the core.
    """
    if device.type != "cuda":
        begun = time.process_time()
        for _ in range(repeats):
            step()
        return (time.process_time() - begun) / repeats
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(repeats):
        step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1000 / repeats


def measure_peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Returns the peak memory of one step, above what was allocated before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # Add up every allocation and release of the CPU allocator that the profiler lists.
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

    def __init__(self, device: torch.device, *, wall: bool = False) -> None:
        self.cuda, self.seconds, self.peak = device.type == "cuda", 0.0, 0.0
        self._now = time.perf_counter if wall or self.cuda or torch.get_num_threads() > 1 else time.process_time

    def time(self, work: Callable[[], T]) -> T:
        before = self._reset_peak()
        begun = self._now()
        done = work()
        if self.cuda:
            torch.cuda.synchronize()
        self.seconds += self._now() - begun
        peak = torch.cuda.max_memory_allocated() if self.cuda else _process_bytes("VmHWM")
        self.peak = max(self.peak, (peak - before) / 2**20)
        return done

    def measure_peak(self, work: Callable[[], object]) -> None:
        """Measures only the peak, after returning free memory to the system, which slows down what follows."""
        gc.collect()
        with suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        seconds = self.seconds
        self.time(work)
        self.seconds = seconds

    def _reset_peak(self) -> int:
        """Starts a new peak, and returns the memory in use."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        with suppress(OSError):  # without this permission, only a new peak of the whole process is visible
            Path("/proc/self/clear_refs").write_text("5")
        return _process_bytes("VmRSS")


def _process_bytes(field: str) -> int:
    """Reads the memory of this process: "VmRSS" in use, or "VmHWM" at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
