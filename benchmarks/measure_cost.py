"""The cost of a measured training step, as a ratio to a plain step in the same run (see the README in this folder)."""

import argparse
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch reads it when it is imported

import torch

from contenders import GRAPH_KEPT, LR, MOMENTUM, PLAIN, USUAL, Contender, SetupFactory, make_contenders
from markdown import progress, table
from networks import ENCODERS, SATURATING_BATCH
from profiling import measure_peak_bytes, time_step

TOLERANCE = 1.1
COLUMNS = (
    "network",
    "n",
    "contender",
    "ms",
    "× plain",
    "floor",
    "/ floor",
    "time target",
    "memory",
    "own",
    "limit",
)


@dataclass
class Row:
    """One row of the table; memory is in copies of the shared parameters.

    Attributes:
        ratio: The time of a step divided by that of a plain step.
        floor: The smallest ratio possible, from the number of passes.
        meets_target: Whether the time is near the floor and not above that of the usual loop.
        memory: The peak above that of a plain step.
        own_memory: The peak above that of a plain step that keeps its graph, as any second gradient requires.
        memory_limit: The limit for `own_memory`.
    """

    network: str
    tasks: int
    contender: str
    milliseconds: float | None
    ratio: float | None
    floor: float | None
    meets_target: bool | None
    memory: float
    own_memory: float | None
    memory_limit: float | None


def main() -> None:
    options = arguments()
    device = torch.device(options.device)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if options.threads:
        torch.set_num_threads(options.threads)
    print(heading(device, options), "\n", flush=True)
    rows: list[Row] = []
    for network in options.networks:
        for tasks in options.tasks:
            rows += compare(network, tasks, options, device)
    print(table(COLUMNS, map(cells, rows)))
    if options.json:
        found = {"setting": heading(device, options), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--batch", type=int, help="rows per batch; by default, enough to saturate a large GPU, or 8 on a CPU"
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[3, 9, 40], help="numbers of tasks")
    parser.add_argument("--networks", nargs="+", choices=list(ENCODERS), default=list(ENCODERS))
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds per contender")
    parser.add_argument(
        "--threads", type=int, help="number of CPU threads; by default 1 on a CPU, torch's default on a GPU"
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    cpu = torch.device(options.device).type == "cpu"
    options.batches = {
        network: options.batch or (8 if cpu else SATURATING_BATCH[network]) for network in options.networks
    }
    # Use one thread: with more threads than free cores, other processes would distort the timings.
    options.threads = options.threads or (1 if cpu else None)
    return options


def heading(device: torch.device, options: argparse.Namespace) -> str:
    if device.type == "cuda":
        tf32 = f"TF32 {_on_or_off(torch.backends.cudnn.allow_tf32)} in convolutions"
        tf32 += f" and {_on_or_off(torch.backends.cuda.matmul.allow_tf32)} in matrix products"
        where = f"{torch.cuda.get_device_name(device)}, cudnn.benchmark on, {tf32}"
    else:
        where = f"CPU ({os.cpu_count()} cores, {torch.get_num_threads()} in use)"
    batches = ", ".join(f"batch {rows} ({network})" for network, rows in options.batches.items())
    return f"{where}; torch {torch.__version__}; {batches}; 64×64, float32; SGD, lr {LR}, momentum {MOMENTUM}"


def _on_or_off(switch: bool) -> str:
    return "on" if switch else "off"


def compare(network: str, tasks: int, options: argparse.Namespace, device: torch.device) -> list[Row]:
    """Times all contenders on one network in turn, so that a slow phase of the machine affects all of them."""
    setups = SetupFactory(network, tasks, options.batches[network], device)
    contenders = list(make_contenders(setups))
    copy = setups.make().shared_bytes
    peaks: dict[str, float] = {}
    repeats: dict[str, int] = {}
    for contender in contenders:
        progress(f"{network}, n = {tasks}: {contender.name}, memory")
        peaks[contender.name], repeats[contender.name] = warm_up(contender, device)
    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders if contender.timed}
    for round_ in range(options.rounds):
        progress(f"{network}, n = {tasks}: round {round_ + 1} of {options.rounds}")
        for contender in contenders:
            if contender.timed:
                samples[contender.name].append(time_step(contender.step, repeats[contender.name], device))
    times = {name: median(sample) for name, sample in samples.items()}
    return [make_row(network, tasks, c, times, {name: peak / copy for name, peak in peaks.items()}) for c in contenders]


def warm_up(contender: Contender, device: torch.device) -> tuple[int, int]:
    """Returns peak bytes and steps per sample after a first step, in which a meter checks more and reuses less."""
    for _ in range(3 if device.type == "cuda" else 1):
        last = time_step(contender.step, 1, device)
    return measure_peak_bytes(contender.step, device), steps_in_sample(last)


def steps_in_sample(step: float, sample: float = 0.3) -> int:
    """Returns how many steps of `step` seconds each make a sample long enough to time reliably."""
    return max(1, min(50, math.ceil(sample / step)))


def make_row(network: str, tasks: int, contender: Contender, times: dict[str, float], copies: dict[str, float]) -> Row:
    name = contender.name
    time = times.get(name)
    ratio = time / times[PLAIN] if time else None
    meets = None
    if contender.time_target and ratio and contender.floor and time:
        meets = ratio <= TOLERANCE * contender.floor and (not contender.rival or time <= times[USUAL])
    return Row(
        network,
        tasks,
        name,
        1000 * time if time else None,
        ratio,
        contender.floor if contender.timed else None,
        meets,
        copies[name] - copies[PLAIN],
        None if name in (PLAIN, GRAPH_KEPT) else copies[name] - copies[GRAPH_KEPT],
        contender.copies,
    )


def cells(row: Row) -> tuple[str, ...]:
    over_floor = row.ratio / row.floor if row.ratio and row.floor else None
    met = "–" if row.meets_target is None else "met" if row.meets_target else "missed"
    ms, ratio, floor, over = (_format(value) for value in (row.milliseconds, row.ratio, row.floor, over_floor))
    memory, own, limit = (_format(value) for value in (row.memory, row.own_memory, row.memory_limit))
    return row.network, str(row.tasks), row.contender, ms, ratio, floor, over, met, memory, own, limit


def _format(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


if __name__ == "__main__":
    main()
