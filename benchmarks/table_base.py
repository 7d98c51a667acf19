"""How good is one network for all targets of a table, compared with an older default and with boosting?

    python benchmarks/table_base.py --data DIR --splits 0 1 --json base.json
    python benchmarks/table_base.py --tables nhanes friedman --models mlp boosting --seeds 0
    python benchmarks/table_base.py --json base.json --tables           # only prints what has been measured

Every model is trained on several splits of each table. Validation rows decide when to stop, and test rows are only
reported. With `--json`, results are saved after each training, and those that are there already are kept.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from base_tables import TABLES
from harness import Row, make_parser, mean_and_error, progress, save_json, start, table
from tagalong.learn import MLP, Job, Problem, Recipe, boosting_scores, train
from tagalong.learn.table_networks import default_network

OLD, NETWORKS = "old default", ("mlp", "tabm")  # two layers of 64 units with `Recipe()`; the default networks now
MODELS = (OLD, *NETWORKS, "boosting")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, help="maximum number of epochs, for a quick trial")
    parser.add_argument("--data", type=Path, help="folder with tox21/, qm9/ and nhanes.tsv")
    options = start(parser)
    rows: list[Row] = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    measured = {(row["table"], row["split"], row["model"], row["seed"]) for row in rows}
    for name in options.tables:
        for split in options.splits:
            problem = TABLES[name](options.data, split)
            for model in (OLD, *options.models):
                for seed in options.seeds if model != "boosting" else (0,):
                    if (name, split, model, seed) in measured:
                        continue
                    about = {"table": name, "split": split, "model": model, "seed": seed}
                    measured.add((*about.values(),))
                    rows.append(about | measure(problem, model, seed, options.device, options.epochs))
                    progress(f"{name}, split {split}, {model}: {rows[-1]['seconds']:.0f} s")
                    save_json(options.json, rows)
    print(f"{show_changes(rows)}\n\n{show_prices(rows)}")


def measure(problem: Problem, model: str, seed: int, device: torch.device, epochs: int | None) -> Row:
    """Trains a model; returns its test losses and its time, which is that of the process on a CPU."""
    now = time.perf_counter if device.type == "cuda" else time.process_time
    begun = now()
    if model == "boosting":
        scores = boosting_scores(problem)["test"]
        return {"test": {task: score.loss for task, score in scores.items()}, "seconds": now() - begun}
    if model == OLD:
        inputs = problem.train.inputs.shape[1]
        problem = replace(problem, encoder=MLP(inputs), head=None, recipe=Recipe())
    else:
        network = {"head": None} | default_network(problem.train.inputs, model)
        problem = replace(problem, **network)
    if epochs is not None:
        problem = replace(problem, recipe=replace(problem.recipe, epochs=epochs))
    trained = train(problem, Job(problem.names, seed), device=device)
    losses = {task: score.loss for task, score in trained.test.items()}
    return {"test": losses, "seconds": now() - begun, "epochs": len(trained.curve)}


def show_changes(rows: Sequence[Row]) -> str:
    """Formats the changes of the test loss against the old default on the same split, in percent.

    Losses are averaged over seeds first, changes over tasks. Standard errors are over splits.
    """
    lines = []
    for model in MODELS[1:]:
        line: Row = {"change of the test loss, %": model}
        for name in dict.fromkeys(row["table"] for row in rows):
            splits = sorted({row["split"] for row in rows if (row["table"], row["model"]) == (name, model)})
            line[name] = mean_and_error([change_from_old(rows, name, split, model) for split in splits])
        lines.append(line)
    return table(lines)


def change_from_old(rows: Sequence[Row], name: str, split: int, model: str) -> float:
    losses = {}
    for kind in (OLD, model):
        runs = [row["test"] for row in rows if (row["table"], row["split"], row["model"]) == (name, split, kind)]
        losses[kind] = {task: mean(run[task] for run in runs) for task in runs[0]}
    return 100 * mean(losses[model][task] / before - 1 for task, before in losses[OLD].items())


def show_prices(rows: Sequence[Row]) -> str:
    """Formats the time of an epoch of each network, relative to the old default."""
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows):
        line: Row = {"time of an epoch": name}
        seconds = {}
        for model in (OLD, *NETWORKS):
            runs = [row for row in rows if (row["table"], row["model"]) == (name, model)]
            if runs:
                seconds[model] = sum(row["seconds"] for row in runs) / sum(row["epochs"] for row in runs)
                line[model] = f"{seconds[model] / seconds[OLD]:.1f}×"
        lines.append(line)
    return table(lines)


if __name__ == "__main__":
    main()
