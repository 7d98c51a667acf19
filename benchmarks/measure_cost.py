"""The cost of a measured training step, as a ratio to a plain step in the same run (see the README in this folder).

python benchmarks/measure_cost.py                 # on CUDA if available, otherwise on the CPU (several minutes)
python benchmarks/measure_cost.py --device cpu --networks celeba --tasks 9 --rounds 5
python benchmarks/measure_cost.py --device cpu --networks celeba --batch 2 --steps 100     # schedules
"""

import argparse
import math
from statistics import median

import torch

from contenders import GRAPH_KEPT, PLAIN, USUAL, Contender, TrainingSetup, make_contenders
from harness import Row, make_parser, measure_peak_bytes, progress, save_json, start, table, time_step
from image_networks import ENCODERS, SATURATING_BATCH, random_batch
from tagalong import AffinityMeter

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
    parser.add_argument("--steps", type=int, help="compare schedules instead, over so many training steps")
    options = start(parser)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if options.steps:
        rows = [compare_schedules(network, n, options) for network in options.networks for n in options.tasks]
        print(table(rows, {"plain, ms": ".1f"}))
        save_json(options.json, rows)
        return
    rows = []
    for network in options.networks:
        for tasks in options.tasks:
            rows += compare(network, tasks, options)
    print(table(rows, FORMATS))
    save_json(options.json, rows)


def compare(network: str, tasks: int, options: argparse.Namespace) -> list[Row]:
    """Times all contenders on one network in turn, so that a slow phase of the machine affects all of them."""
    device, batches = options.device, make_batches(network, tasks, options)
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


def compare_schedules(network: str, tasks: int, options: argparse.Namespace) -> Row:
    """Trains without a meter, with ``every=10`` and with ``every="auto"``, and returns how much longer that takes."""
    batches = make_batches(network, tasks, options)
    seconds, meters = [], []
    for every in (None, 10, "auto"):
        progress(f"{network}, n = {tasks}: every={every}")
        setup = TrainingSetup(network, [f"task {number}" for number in range(tasks)], batches)
        meter = None if every is None else AffinityMeter(setup.network.encoder, setup.optimizer, every=every)

        def step(setup: TrainingSetup = setup, meter: AffinityMeter | None = meter) -> None:
            losses = setup.closure() if meter is None else meter(setup.closure)
            torch.stack(list(losses.values())).sum().backward()
            setup.optimizer.step()
            setup.optimizer.zero_grad()

        step()  # the first measured call checks the closure
        seconds.append(time_step(step, options.steps, options.device))
        meters.append(meter)
    plain, every_tenth, automatic = seconds
    return {
        "network": network,
        "n": tasks,
        "plain, ms": 1000 * plain,
        "every=10": f"{100 * (every_tenth / plain - 1):+.0f}%",
        "every='auto'": f"{100 * (automatic / plain - 1):+.0f}%",
        "measured by auto": f"{meters[-1].measured} of {meters[-1].calls}",
    }


def make_batches(network: str, tasks: int, options: argparse.Namespace) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows = options.batch or (8 if options.device.type == "cpu" else SATURATING_BATCH[network])
    return [random_batch(rows, tasks, options.device) for _ in range(2)]


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
