"""The cost of a measured training step, as a ratio to a plain step in the same run (see the README in this folder).

python benchmarks/measure_cost.py                 # on CUDA if available, otherwise on the CPU (several minutes)
python benchmarks/measure_cost.py --device cpu --networks celeba --tasks 9 --rounds 5
"""

import argparse
import math
from statistics import median

import torch

from contenders import GRAPH_KEPT, PLAIN, USUAL, Contender, make_contenders
from harness import Row, make_parser, measure_peak_bytes, progress, save_json, start, table, time_step
from image_networks import ENCODERS, SATURATING_BATCH, random_batch

TOLERANCE = 1.1  # of the time target, above the floor
SAMPLE_SECONDS = 0.3  # long enough to time reliably
FORMATS = dict.fromkeys(("ms", "× plain", "floor", "/ floor", "memory", "own", "limit"), ".2f")


def main() -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(threads=1)  # with more threads than free cores, other processes would distort the timings
    parser.add_argument("--batch", type=int, help="rows; by default, enough to saturate a large GPU, or 8 on a CPU")
    parser.add_argument("--tasks", type=int, nargs="+", default=[3, 9, 40], help="numbers of tasks")
    parser.add_argument("--networks", nargs="+", choices=list(ENCODERS), default=list(ENCODERS))
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds per contender")
    options = start(parser)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows: list[Row] = []
    for network in options.networks:
        for tasks in options.tasks:
            rows += compare(network, tasks, options)
    print(table(rows, FORMATS))
    save_json(options.json, rows)


def compare(network: str, tasks: int, options: argparse.Namespace) -> list[Row]:
    """Times all contenders on one network in turn, so that a slow phase of the machine affects all of them."""
    device = options.device
    batch = options.batch or (8 if device.type == "cpu" else SATURATING_BATCH[network])
    batches = [random_batch(batch, tasks, device) for _ in range(2)]
    contenders = list(make_contenders(network, tasks, batches))
    peaks, repeats = {}, {}
    for contender in contenders:
        progress(f"{network}, n = {tasks}: {contender.name}, memory")
        # In the first step, a meter checks more and reuses less.
        for _ in range(3 if device.type == "cuda" else 1):
            seconds = time_step(contender.step, 1, device)
        repeats[contender.name] = max(1, min(50, math.ceil(SAMPLE_SECONDS / seconds)))
        peaks[contender.name] = measure_peak_bytes(contender.step, device)

    timed = [contender for contender in contenders if contender.floor is not None]
    samples: dict[str, list[float]] = {contender.name: [] for contender in timed}
    for number in range(options.rounds):
        progress(f"{network}, n = {tasks}: round {number + 1} of {options.rounds}")
        for contender in timed:
            samples[contender.name].append(time_step(contender.step, repeats[contender.name], device))
    times = {name: median(sample) for name, sample in samples.items()}

    shared_bytes = sum(parameter.nbytes for parameter in ENCODERS[network][0]().parameters())
    copies = {name: peak / shared_bytes for name, peak in peaks.items()}
    return [{"network": network, "n": tasks, **make_row(contender, times, copies)} for contender in contenders]


def make_row(contender: Contender, times: dict[str, float], copies: dict[str, float]) -> Row:
    """Returns a line of the table; memory is in copies of the shared parameters."""
    name = contender.name
    row: Row = {"contender": name, "ms": None, "× plain": None, "floor": None, "/ floor": None, "time target": None}
    if contender.floor is not None:
        ratio = times[name] / times[PLAIN]
        row |= {
            "ms": 1000 * times[name],
            "× plain": ratio,
            "floor": contender.floor,
            "/ floor": ratio / contender.floor,
        }
        if contender.time_target:
            met = ratio <= TOLERANCE * contender.floor and (not contender.rival or times[name] <= times[USUAL])
            row["time target"] = "met" if met else "missed"
    # Any second gradient requires the graph that a plain step frees.
    own = None if name in (PLAIN, GRAPH_KEPT) else copies[name] - copies[GRAPH_KEPT]
    return row | {"memory": copies[name] - copies[PLAIN], "own": own, "limit": contender.copies}


if __name__ == "__main__":
    main()
