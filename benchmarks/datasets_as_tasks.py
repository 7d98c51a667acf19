"""
Datasets as tasks: does `streaming` find planted families, and what does it cost? (See the README.)

$ python benchmarks/datasets_as_tasks.py --width 64 --layers 2 --length 16 --datasets 50 200 1000
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.profiler import profile

from markdown import progress, table
from planted_datasets import (
    PRETRAINING_DATASETS,
    VOCABULARY,
    PlantedDatasets,
    Setting,
    Transformer,
    loss_of,
    pretrained,
    with_lora,
)
from profiling import time_step
from tagalong import Affinity, AffinityMeter
from tagalong.measure import RoundRobin

COLUMNS = (
    *("datasets", "tuning", "share", "estimator", "steps", "nearest in family", "AUC", "accuracy"),
    *("step", "overhead"),
)
CHECKPOINTS = (5, 10, 20)
BREAKDOWN_COLUMNS = (
    *("datasets", "tuning", "parameters", "host: projection", "host: running means"),
    *("launches", "launches of observe", "device", "device, observe"),
)
OBSERVED = 64  # steps per round that are observed; the meter digests this many projections at once
LAUNCHES = ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync")
TARGETS = 8  # tasks whose losses a lookahead measures at a step


@dataclass
class Run:
    """A network that is fine-tuned on one dataset per step."""

    setting: Setting
    tuning: str
    seed: int

    def __post_init__(self) -> None:
        count, families = self.setting.datasets, self.setting.families
        first = VOCABULARY + PRETRAINING_DATASETS
        self.data = PlantedDatasets(self.setting, count=count, families=families, first_token=first, seed=self.seed)
        model = pretrained(self.setting, self.seed)
        self.model: Transformer = with_lora(model, self.setting) if self.tuning == "LoRA" else model
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=self.setting.lr)
        self.draw = np.random.default_rng(self.seed)

    def step(self, dataset: int, meter: AffinityMeter | None = None) -> None:
        loss = loss_of(self.model, *self.data.batch(dataset))
        loss.backward()
        if meter is not None:
            meter.observe(str(dataset))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def order(self) -> NDArray[np.intp]:
        """Returns each dataset once, in random order."""
        return self.draw.permutation(self.setting.datasets)

    @torch.no_grad()
    def accuracy(self, datasets: int = 50) -> float:
        batches = [self.data.batch(k) for k in range(min(datasets, self.setting.datasets))]
        return float(torch.stack([(self.model(x).argmax(2) == y).float().mean() for x, y in batches]).mean())


def quality(affinity: Affinity, family: NDArray[np.intp]) -> tuple[float, float]:
    """Returns how often a task's best partner is of its family, and the AUC of the affinities for "same family"."""
    order = [int(task) for task in affinity.tasks]
    groups, values = family[order], affinity.mean.copy()
    np.fill_diagonal(values, np.nan)
    known = np.isfinite(values)
    best = np.where(known, values, -np.inf).argmax(axis=0)
    same = (groups[:, None] == groups)[known]
    ranks = np.empty(len(same))
    ranks[np.argsort(values[known])] = np.arange(1, len(same) + 1)
    positives = same.sum()
    auc = (ranks[same].sum() - positives * (positives + 1) / 2) / (positives * (len(same) - positives))
    return float((groups[best] == groups).mean()), float(auc)


def lookahead(setting: Setting, tuning: str, seed: int, steps: int) -> list[dict[str, object]]:
    """Measures, at every step, how a step on one dataset changes the losses of a few others."""
    run = Run(setting, tuning, seed)
    before, names = run.accuracy(), [str(k) for k in range(setting.datasets)]
    every = RoundRobin(every=1, sources=1, targets=TARGETS)
    meter = AffinityMeter(run.model, run.optimizer, model=run.model, every=every, tasks=names, seed=seed)
    losses = {task: (partial(run.data.batch, int(task)), lambda batch: loss_of(run.model, *batch)) for task in names}
    training, measuring = [], []
    for _ in range(steps):
        for dataset in run.order():
            starts = [_now(run.model)]
            run.step(int(dataset))
            starts.append(_now(run.model))
            meter.measure_only(losses)
            training.append(starts[1] - starts[0])
            measuring.append(_now(run.model) - starts[1])
    nearest, auc = quality(meter.affinity(), run.data.family.numpy())
    found = {"steps": steps, "nearest": nearest, "auc": auc, "before": before, "after": run.accuracy()}
    progress(f"{setting.datasets} {tuning} {setting.share} lookahead: {nearest:.3f} {auc:.3f}")
    cost = {"seconds": median(training), "overhead": sum(measuring) / sum(training)}
    return [{"estimator": "lookahead", **cost, "tuning": tuning, "seed": seed, **asdict(setting), **found}]


def overhead(run: Run, meter: AffinityMeter, rounds: int) -> dict[str, float]:
    """Returns the seconds of a plain step, and what `observe` adds to it as a fraction: medians over rounds.

    Steps with and without `observe` take turns, so that the load of the machine affects both alike. On a GPU, they are
    timed with CUDA events, and several steps make up a turn, because reading the events waits for the device.
    """
    plain, added = [], []
    device = torch.device(run.setting.device)
    turn = OBSERVED if device.type == "cuda" else 1
    for number in range(rounds):
        seconds = [0.0, 0.0]
        for first in range(0, OBSERVED, turn):
            for observed in (False, True) if number % 2 else (True, False):
                datasets = iter(range(first, first + turn))
                step = partial(_next_step, run, datasets, meter if observed else None)
                seconds[observed] += turn * time_step(step, turn, device)
        plain.append(seconds[0] / OBSERVED)
        added.append(seconds[1] / seconds[0] - 1)
    return {"seconds": median(plain), "overhead": median(added), "least": min(added), "most": max(added)}


def _next_step(run: Run, datasets: Iterator[int], meter: AffinityMeter | None) -> None:
    run.step(next(datasets) % run.setting.datasets, meter)


def breakdown(run: Run, meter: AffinityMeter) -> tuple[str, ...]:
    """Returns what `observe` costs per step on the host and on the device, and how much work it launches."""
    seconds = []
    for k in range(4 * OBSERVED):
        loss_of(run.model, *run.data.batch(k % run.setting.datasets)).backward()
        start = time.perf_counter()
        meter.observe(str(k % run.setting.datasets))
        seconds.append(time.perf_counter() - start)
        run.optimizer.step()
        run.optimizer.zero_grad()
    projection = median(seconds)
    means = sum(value - projection for value in sorted(seconds)[-4:]) / len(seconds)
    (launches, device), (more_launches, longer) = (_work(run, chosen) for chosen in (None, meter))
    trained = [p for p in run.model.parameters() if p.requires_grad]
    return (
        str(run.setting.datasets),
        run.tuning,
        f"{sum(p.numel() for p in trained):,} in {len(trained)} tensors",
        *(f"{1e6 * value:.0f} µs" for value in (projection, means)),
        *(f"{launches:.0f}", f"{more_launches - launches:.1f}", f"{device:.0f} µs", f"{longer - device:.0f} µs"),
    )


def _work(run: Run, meter: AffinityMeter | None) -> tuple[float, float]:
    """Returns how many kernels a step launches (on a CPU, operators), and how many microseconds they take."""
    with profile(activities=None) as profiler:
        for k in range(OBSERVED):
            run.step(k % run.setting.datasets, meter)
        if run.setting.device != "cpu":
            torch.cuda.synchronize()
    events = profiler.key_averages()
    if run.setting.device == "cpu":
        work = [event for event in events if event.key.startswith("aten::")]
        times = sum(event.self_cpu_time_total for event in work)
    else:
        work = [event for event in events if any(name in event.key for name in LAUNCHES)]
        times = sum(event.self_device_time_total for event in events)
    return sum(event.count for event in work) / OBSERVED, times / OBSERVED


def _now(model: nn.Module) -> float:
    """Returns the time; on a CPU, that of this process, so that other jobs on the machine do not count."""
    if not next(model.parameters()).is_cuda:
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(
    setting: Setting, tuning: str, seed: int, steps: int, rounds: int, breakdowns: list[tuple[str, ...]] | None = None
) -> list[dict[str, object]]:
    """Fine-tunes a network and returns one row per checkpoint, or a single one for the cost if `steps` is 0."""
    run = Run(setting, tuning, seed)
    before = run.accuracy()
    meter = AffinityMeter(run.model, run.optimizer, estimator="streaming", seed=seed)
    rows: list[dict[str, object]] = []
    for visit in range(1, steps + 1):
        for dataset in run.order():
            run.step(int(dataset), meter)
        if visit in CHECKPOINTS or visit == steps:
            start = time.perf_counter()
            nearest, auc = quality(meter.affinity(), run.data.family.numpy())
            seconds = time.perf_counter() - start
            rows.append({"steps": visit, "nearest": nearest, "auc": auc, "before": before, "after": run.accuracy()})
            progress(f"{setting.datasets} {tuning} {setting.share} {visit}: {nearest:.3f} {auc:.3f} ({seconds:.1f} s)")
    if not steps:
        overhead(run, meter, 1)  # warms up
    cost = overhead(run, meter, rounds) if rounds else {}
    progress(f"{setting.datasets} {tuning}: {cost}")
    if breakdowns is not None:
        breakdowns.append(breakdown(run, meter))
    found = {"estimator": "streaming", **cost, "tuning": tuning, "seed": seed, **asdict(setting)}
    return [{**found, **row} for row in rows or [{"steps": 0}]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--datasets", type=int, nargs="+", default=[50])
    parser.add_argument("--tuning", nargs="+", choices=("LoRA", "full"), default=["LoRA", "full"])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5])
    parser.add_argument("--steps", type=int, default=20, help="steps per dataset; 0 to measure the overhead only")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="rounds for the overhead; 0 to skip it")
    parser.add_argument("--breakdown", action="store_true", help="also show where the time of `observe` goes")
    parser.add_argument("--lookahead", action="store_true", help="also measure lookaheads, which takes much longer")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--pretraining", type=int, default=300)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    names = ("device", "width", "layers", "batch", "length", "pretraining")
    base = Setting(**{name: getattr(args, name) for name in names})
    breakdowns: list[tuple[str, ...]] | None = [] if args.breakdown else None
    rows = [
        row
        for count in args.datasets
        for tuning in args.tuning
        for share in args.shares
        for seed in range(args.seeds)
        for row in measure(
            replace(base, datasets=count, share=share), tuning, seed, args.steps, args.rounds, breakdowns
        )
        + (lookahead(replace(base, datasets=count, share=share), tuning, seed, args.steps) if args.lookahead else [])
    ]
    print(table(COLUMNS, [_cells(row) for row in rows]))
    if breakdowns:
        print(f"\n{table(BREAKDOWN_COLUMNS, breakdowns)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    known = "nearest" in row
    return (
        str(row["datasets"]),
        str(row["tuning"]),
        f"{row['share']:.0%}",
        str(row["estimator"]),
        str(row["steps"]),
        f"{row['nearest']:.0%}" if known else "",
        f"{row['auc']:.3f}" if known else "",
        f"{row['before']:.0%} → {row['after']:.0%}" if known else "",
        f"{1000 * row['seconds']:.3g} ms" if "seconds" in row else "",  # type: ignore[operator]
        f"{row['overhead']:.1%}" if "overhead" in row else "",
    )


if __name__ == "__main__":
    main()
