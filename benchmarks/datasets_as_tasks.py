"""Datasets as tasks: does `streaming` find planted families, and what does it cost? (See the README.)

python benchmarks/datasets_as_tasks.py --width 64 --layers 2 --length 16 --datasets 50 200 1000
python benchmarks/datasets_as_tasks.py --steps 0 --pretraining 5 --rounds 9        # only the cost
"""

import argparse
import itertools
from functools import partial
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from harness import Clock, Row, make_parser, progress, save_json, start, table, time_step
from planted_datasets import PRETRAINING_DATASETS, VOCABULARY, PlantedDatasets, Setting, loss_of, pretrained, with_lora
from tagalong import Affinity, AffinityMeter

CHECKPOINTS = (5, 10, 20)
OBSERVED = 64  # steps per round that are observed; the meter digests this many projections at once
SAMPLE = 3  # datasets that a lookahead measures together at a step
FORMATS = {"share": ".0%", "nearest in family": ".0%", "AUC": ".3f", "step, ms": ".3g"}
FORMATS |= dict.fromkeys(("overhead", "least", "most"), ".1%")


def main() -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(device=torch.device("cpu"), threads=1)
    parser.add_argument("--datasets", type=int, nargs="+", default=[50])
    parser.add_argument("--tuning", nargs="+", choices=("LoRA", "full"), default=["LoRA", "full"])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5], help="what a dataset shares with its family")
    parser.add_argument("--steps", type=int, default=20, help="steps per dataset; 0 to measure the overhead only")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for the overhead; 0 to skip it")
    parser.add_argument("--lookahead", action="store_true", help="also measure lookaheads, which takes much longer")
    for name in ("width", "layers", "batch", "length", "pretraining"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Setting, name))
    options = start(parser)
    sizes = {name: getattr(options, name) for name in ("width", "layers", "batch", "length", "pretraining", "device")}
    rows: list[Row] = []
    for datasets, tuning, share in itertools.product(options.datasets, options.tuning, options.shares):
        about = {"datasets": datasets, "tuning": tuning, "share": share}
        setting = Setting(datasets=datasets, share=share, **sizes)
        rows += [about | row for row in measure_streaming(FineTuning(setting, tuning), options)]
        if options.lookahead:
            rows.append(about | measure_lookahead(FineTuning(setting, tuning), options.steps))
        progress(f"{datasets} datasets, {tuning}, {share:.0%}")
    print(table(rows, FORMATS))
    save_json(options.json, rows)


class FineTuning:
    """A network that is fine-tuned on one dataset per step."""

    def __init__(self, setting: Setting, tuning: str) -> None:
        self.setting = setting
        first = VOCABULARY + PRETRAINING_DATASETS
        self.data = PlantedDatasets(
            setting, count=setting.datasets, families=setting.families, first_token=first, seed=0
        )
        model = pretrained(setting)
        self.model = with_lora(model, setting) if tuning == "LoRA" else model
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=setting.lr)
        self.draw = np.random.default_rng(0)

    def step(self, dataset: int, meter: AffinityMeter | None = None) -> None:
        loss_of(self.model, *self.data.batch(dataset)).backward()
        if meter is not None:
            meter.observe(str(dataset))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def order(self) -> list[int]:
        """Returns each dataset once, in random order."""
        return self.draw.permutation(self.setting.datasets).tolist()

    @torch.no_grad()
    def accuracy(self) -> float:
        batches = [self.data.batch(dataset) for dataset in range(min(50, self.setting.datasets))]
        return float(torch.stack([(self.model(x).argmax(2) == y).float().mean() for x, y in batches]).mean())

    def judge(self, affinity: Affinity, before: float) -> Row:
        """Returns how well an affinity finds the families, and the accuracy before fine-tuning and now."""
        nearest, auc = quality(affinity, self.data.family.numpy())
        return {"nearest in family": nearest, "AUC": auc, "accuracy": f"{before:.0%} → {self.accuracy():.0%}"}


def quality(affinity: Affinity, family: NDArray[np.intp]) -> tuple[float, float]:
    """Returns how often a task's best partner is of its family, and the AUC of the affinities for "same family"."""
    groups, values = family[[int(task) for task in affinity.tasks]], affinity.mean.copy()
    np.fill_diagonal(values, np.nan)
    known = np.isfinite(values)
    best = np.where(known, values, -np.inf).argmax(axis=0)
    same = (groups[:, None] == groups)[known]
    ranks = np.empty(len(same))
    ranks[np.argsort(values[known])] = np.arange(1, len(same) + 1)
    positives = same.sum()
    auc = (ranks[same].sum() - positives * (positives + 1) / 2) / (positives * (len(same) - positives))
    return float((groups[best] == groups).mean()), float(auc)


def measure_streaming(run: FineTuning, options: argparse.Namespace) -> list[Row]:
    """Fine-tunes a network; returns one row per checkpoint, or a single one for the cost if there are no steps."""
    meter = AffinityMeter(run.model, run.optimizer, estimator="streaming", seed=0)
    before, rows = run.accuracy(), []
    for visit in range(1, options.steps + 1):
        for dataset in run.order():
            run.step(dataset, meter)
        if visit in CHECKPOINTS or visit == options.steps:
            rows.append({"estimator": "streaming", "steps": visit, **run.judge(meter.affinity(), before)})
    if not options.steps:
        rows.append({"estimator": "streaming", "steps": 0})
        measure_overhead(run, meter, 1)  # warms up
    cost = measure_overhead(run, meter, options.rounds) if options.rounds else {}
    return [row | cost for row in rows]


def measure_overhead(run: FineTuning, meter: AffinityMeter, rounds: int) -> Row:
    """Returns the time of a plain step, and what `observe` adds to it as a fraction: medians over rounds.

    Steps with and without `observe` take turns, so that the load of the machine affects both alike. On a GPU, they are
    timed with CUDA events, and several steps make up a turn, because reading the events waits for the device.
    """
    device = run.setting.device
    plain, added = [], []
    turn = OBSERVED if device.type == "cuda" else 1
    for number in range(rounds):
        seconds = [0.0, 0.0]
        for first in range(0, OBSERVED, turn):
            for observed in (False, True) if number % 2 else (True, False):
                datasets = itertools.count(first)

                def step(datasets: itertools.count = datasets, observed: bool = observed) -> None:
                    run.step(next(datasets) % run.setting.datasets, meter if observed else None)

                seconds[observed] += turn * time_step(step, turn, device)
        plain.append(seconds[0] / OBSERVED)
        added.append(seconds[1] / seconds[0] - 1)
    return {"step, ms": 1000 * median(plain), "overhead": median(added), "least": min(added), "most": max(added)}


def measure_lookahead(run: FineTuning, steps: int) -> Row:
    """Measures, at every step, how a step on one of a few datasets changes the losses of the others."""
    names = [str(dataset) for dataset in range(run.setting.datasets)]
    meter = AffinityMeter(run.model, run.optimizer, model=run.model, every=1, tasks=names, seed=0)
    before, training, measuring = run.accuracy(), Clock(run.setting.device), Clock(run.setting.device)
    for _ in range(steps):
        for dataset in run.order():
            training.time(partial(run.step, dataset))
            sample = run.draw.choice(run.setting.datasets, SAMPLE, replace=False).tolist()
            losses = {str(k): partial(loss_of, run.model, *run.data.batch(k)) for k in sample}
            measuring.time(partial(meter.measure_only, losses))
    row = {"estimator": "lookahead", "steps": steps, **run.judge(meter.affinity(), before)}
    milliseconds = 1000 * training.seconds / (steps * run.setting.datasets)
    return row | {"step, ms": milliseconds, "overhead": measuring.seconds / training.seconds}


if __name__ == "__main__":
    main()
