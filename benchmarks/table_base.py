"""How good is one network for all targets of a table, compared with the default network and with boosting?

    python benchmarks/table_base.py export --data DATA --folder runs/tables          # where scikit-learn is installed
    python benchmarks/table_base.py networks --folder runs/tables --device cuda --workers 12 --json networks.json
    python benchmarks/table_base.py boosting --folder runs/tables --json boosting.json
    python benchmarks/table_base.py show networks.json boosting.json
    python benchmarks/table_base.py price --folder runs/tables --tables nhanes

`networks` trains all settings on several splits of each table, with several seeds and learning rates. Validation rows
decide when to stop, and test rows are only reported. `boosting` trains scikit-learn's HistGradientBoosting, one model
per task, with as many trees as are best on the validation rows.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import base_tables
from markdown import progress, table
from tagalong.learn import (
    MLP,
    Diverged,
    Job,
    Problem,
    Recipe,
    TabM,
    TabMHeads,
    Trained,
    boosting_scores,
    train,
    train_many,
)
from tagalong.learn.piecewise_linear import quantile_edges
from tagalong.learn.table_networks import batch_size_for, default_network

RATES = (1e-3, 3e-3)
SEEDS = (0, 1)
MEMORY = 10 * 2**30  # of the GPU, for each process
Run = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A network and its recipe.

    Attributes:
        hidden: the sizes of the hidden layers.
        bins: the number of bins of each numeric column, see `PiecewiseLinear`.
        dropout: the dropout probability.
        decay: the weight decay.
        members: the number of members of TabM, or 0 for an MLP.
        batch: the batch size, or None to choose it by the number of rows.
        start: where heads start, see `Recipe.start_heads`.
        schedule: the learning-rate schedule.
    """

    hidden: tuple[int, ...]
    bins: int = 0
    dropout: float = 0.1
    decay: float = 0.01
    members: int = 0
    batch: int | None = None
    start: str = "base_rate"
    schedule: str = "constant"

    @property
    def name(self) -> str:
        """A short name."""
        layers = f"{self.hidden[0]}x{len(self.hidden)}"
        name = f"{'tabm' if self.members else 'mlp'} {layers} b{self.bins} d{self.dropout:g} w{self.decay:g}"
        extras = [
            f" m{self.members}" if self.members else "",
            f" batch{self.batch}" if self.batch else "",
            " random" if self.start == "random" else "",
            f" {self.schedule}" if self.schedule != "constant" else "",
        ]
        return name + "".join(extras)

    def apply(self, problem: Problem) -> Problem:
        """Returns the problem with this network and recipe."""
        inputs = problem.train.inputs
        edges = quantile_edges(inputs, self.bins) if self.bins else ()
        head: TabMHeads | None = None
        encoder: MLP | TabM = MLP(inputs.shape[1], self.hidden, self.dropout, edges)
        if self.members:
            encoder, head = (
                TabM(inputs.shape[1], self.hidden, self.dropout, self.members, edges),
                TabMHeads(self.members),
            )
        recipe = Recipe(
            weight_decay=self.decay,
            batch_size=self.batch or batch_size_for(len(problem.train)),
            epochs=400,
            patience=16,
            start_heads=self.start,
            schedule=self.schedule,
            period=20,
            factor=0.5,
        )
        return replace(problem, encoder=encoder, head=head, recipe=recipe)


def mlp(width: int, layers: int = 2, **others: Any) -> Setting:
    """Returns the setting of an MLP."""
    return Setting((width,) * layers, **others)


def tabm(width: int, layers: int = 2, members: int = 32, **others: Any) -> Setting:
    """Returns the setting of TabM."""
    return Setting((width,) * layers, members=members, **others)


SETTINGS = {
    setting.name: setting
    for setting in (
        mlp(128),
        mlp(128, dropout=0.0),
        mlp(128, bins=16, dropout=0.0),
        mlp(128, bins=16),
        mlp(256, bins=16),
        mlp(256, bins=16, dropout=0.3),
        mlp(128, 1, dropout=0.3),
        mlp(256, 1, dropout=0.5),
        mlp(256, dropout=0.5, decay=0.3),
        tabm(64),
        tabm(128),
        tabm(128, bins=16),
        tabm(256),
        tabm(256, bins=16),
    )
}
OLD = "old default"  # two layers of 64 units with `Recipe()`
DEFAULTS = ("mlp", "tabm")  # the default networks now


def run_stack(name: str, split: int, setting: str, given: argparse.Namespace, deadline: float) -> list[Run]:
    """Trains all networks of one setting on one split together, unless it is too late to start."""
    if time.time() > deadline:
        return []
    torch.set_num_threads(1)
    logging.disable()
    problem = base_tables.load(name, split, given.data, given.folder)
    chosen, rates = choose(problem, setting, given.rates)
    jobs = [Job(chosen.names, seed, lr=rate) for rate in rates for seed in given.seeds]
    started = time.time()
    trained = list(_finished(train_many(chosen, jobs, device=given.device, memory=MEMORY)))
    seconds = time.time() - started
    about = {"table": name, "split": split, "setting": setting, "stack_seconds": round(seconds, 2)}
    return [about | _describe(network) for network in trained]


def choose(problem: Problem, setting: str, rates: Sequence[float]) -> tuple[Problem, Sequence[float]]:
    """Returns the problem with the network of a setting, and the learning rates to try."""
    if setting == OLD:
        return replace(problem, encoder=MLP(problem.train.inputs.shape[1]), head=None, recipe=Recipe()), [Recipe().lr]
    if setting in DEFAULTS:
        chosen = replace(problem, **default_network(problem.train.inputs, setting))
        return chosen, [chosen.recipe.lr]
    return SETTINGS[setting].apply(problem), rates


def _finished(networks: Iterator[Trained]) -> Iterator[Trained]:
    try:
        yield from networks
    except Diverged as error:
        progress(str(error))


def _describe(network: Trained) -> Run:
    return {
        "lr": network.job.lr,
        "seed": network.job.seed,
        "val": {task: round(score.loss, 6) for task, score in network.val.items()},
        "test": {task: round(score.loss, 6) for task, score in network.test.items()},
        "best_epoch": network.best_epoch,
        "epochs": len(network.curve),
        "steps": network.steps,
        "parameters": network.parameters,
    }


def run_boosting(name: str, split: int, given: argparse.Namespace) -> list[Run]:
    """Trains one boosted model per task."""
    problem = base_tables.load(name, split, given.data, given.folder)
    started = time.process_time()
    scores = boosting_scores(problem)
    losses = {part: {task: round(score.loss, 6) for task, score in own.items()} for part, own in scores.items()}
    seconds = round(time.process_time() - started, 2)
    return [{"table": name, "split": split, "setting": "boosting", "seconds": seconds, **losses}]


def stacks(given: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    """Yields what to train: the first splits first, in case the time is up before all are trained."""
    settings = [OLD, *DEFAULTS, *SETTINGS] if given.settings is None else given.settings
    for split in given.splits:
        for name in given.tables:
            for setting in settings:
                yield name, split, setting


def measure(given: argparse.Namespace) -> list[Run]:
    """Trains all stacks in several processes. Results are saved as they arrive."""
    started = saved = time.time()
    deadline = started + 60 * given.minutes
    found: list[Run] = []
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        futures = {pool.submit(run_stack, *stack, given, deadline): stack for stack in stacks(given)}
        for done, future in enumerate(as_completed(futures), 1):
            try:
                found += future.result()
            except Exception as error:
                progress(f"{futures[future]}: {type(error).__name__}: {error}")
            if time.time() > saved + 10 or done == len(futures):
                saved = time.time()
                progress(f"{done} of {len(futures)} stacks, {len(found)} networks, {saved - started:.0f} s")
                given.json.write_text(json.dumps(found))
    return found


def price(name: str, given: argparse.Namespace) -> str:
    """Returns the CPU time of an epoch of each default network, relative to the old default."""
    problem = base_tables.load(name, given.splits[0], given.data, given.folder)
    seconds = {}
    for setting in (OLD, *DEFAULTS):
        chosen, _ = choose(problem, setting, given.rates)
        train(chosen, Job(chosen.names, epochs=1))
        started = time.process_time()
        train(chosen, Job(chosen.names, epochs=2))
        seconds[setting] = time.process_time() - started
    ratios = [f"{setting} {seconds[setting] / seconds[OLD]:.1f}×" for setting in DEFAULTS]
    return f"{name}, CPU time of an epoch relative to the old default: {', '.join(ratios)}"


def show(runs: list[Run]) -> str:
    """Formats the changes of the test loss against the old default on the same split, the mean over tasks, in percent.

    Losses are averaged over seeds first. Standard errors are over splits.
    """
    losses: dict[tuple[str, str], dict[int, list[Run]]] = {}
    for run in runs:
        name = f"{run['setting']}, lr {run['lr']:g}" if run["setting"] in SETTINGS else run["setting"]
        losses.setdefault((name, run["table"]), {}).setdefault(run["split"], []).append(run["test"])
    tables = [name for name in base_tables.TABLES if (OLD, name) in losses]
    names = list(dict.fromkeys(name for name, _ in losses if name != OLD))
    lines = [[name, *(_compare(losses.get((name, one), {}), losses[OLD, one]) for one in tables)] for name in names]
    return table(["change of the test loss", *tables], lines)


def _compare(own: dict[int, list[Run]], base: dict[int, list[Run]]) -> str:
    changes = []
    for split in own.keys() & base.keys():
        before, after = (_mean_losses(found[split]) for found in (base, own))
        changes.append(100 * statistics.mean(after[task] / before[task] - 1 for task in before))
    if not changes:
        return ""
    error = f" ± {statistics.stdev(changes) / len(changes) ** 0.5:.1f}" if len(changes) > 1 else ""
    return f"{statistics.mean(changes):+.1f}{error}%".replace("-", "−")


def _mean_losses(runs: list[dict[str, float]]) -> dict[str, float]:
    return {task: statistics.mean(run[task] for run in runs) for task in runs[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["export", "networks", "boosting", "show", "price"])
    parser.add_argument("files", nargs="*", type=Path, help="results to show")
    parser.add_argument("--tables", nargs="+", choices=base_tables.TABLES, default=list(base_tables.TABLES))
    parser.add_argument("--settings", nargs="+", choices=[OLD, *DEFAULTS, *SETTINGS])
    parser.add_argument("--splits", type=int, nargs="+", default=range(4))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--data", type=Path, help="a folder with tox21/ and qm9/")
    parser.add_argument("--folder", type=Path, help="the folder of exported tables")
    parser.add_argument("--json", type=Path, help="where to save all losses")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="after which no more networks are started")
    given = parser.parse_args(arguments)
    if given.command == "export":
        base_tables.export(given.tables, given.splits, given.data, given.folder)
    elif given.command == "networks":
        measure(given)
    elif given.command == "boosting":
        found: list[Run] = []
        for name in given.tables:
            for split in given.splits:
                found += run_boosting(name, split, given)
                progress(f"{name}, split {split}: {found[-1]['seconds']} s")
                given.json.write_text(json.dumps(found))
    elif given.command == "price":
        torch.set_num_threads(1)
        for name in given.tables:
            print(price(name, given))
    else:
        print(show([run for file in given.files for run in json.loads(file.read_text())]))


if __name__ == "__main__":
    main()
