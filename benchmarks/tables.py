"""Which model is best for all targets of a table? Test skill and time of networks, boosting, ridge and averages.

    python benchmarks/tables.py FOLDER --data DIR --models mlp tabm boosting xgboost ridge tabm+boosting
    python benchmarks/tables.py FOLDER --tables adme star --models mlp tabm:members=8,patience=8 --device cuda

Each model of each split is kept in FOLDER as a file with its answers, so that a stopped benchmark continues, and that
averages of models (`tabm+boosting`) cost nothing. Prepared tables are kept there too, so that networks can be trained
where only torch, numpy and scipy are installed: `--models` without names only prepares. A network may have settings:
`members`, `hidden` (such as 128x64), `bins`, `lr`, `batch` (a multiple of the default), `patience`, `dropout`, `seed`.
`student:of=tabm-boosting,mixtures=3` is an MLP taught by these models, with three mixtures of two rows for each row.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness import Row, make_parser, mean_and_error, progress, save_json, start, table
from tagalong.learn import (
    FITTED,
    MLP,
    Job,
    Problem,
    Split,
    TabM,
    TabMHeads,
    Task,
    average_outputs,
    build_network,
    constant_losses,
    mean_skill,
    outputs_on,
    quantile_edges,
    row_skills,
    score_outputs,
    skill_units,
    task_skills,
    teach,
    train,
)
from tagalong.learn.table_networks import default_network

NAMES = ("nhanes", "tox21", "qm9-3000", "digits", "diabetes", "adme", "movies", "star")
PARTS = ("val", "test")
Answers = dict[str, dict[str, Tensor]]  # the outputs [rows, outputs] of each task on the rows of each part


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="where results are kept")
    parser.add_argument("--tables", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--models", nargs="*", default=["ridge", "boosting", "mlp", "tabm"])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--data", type=Path, help="folder with tables/, tox21/, qm9/ and nhanes.tsv")
    parser.add_argument("--share", default="0/1", help="train only every n-th model, e.g. 2/8, to divide the work")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing new after this time")
    options = start(parser)
    options.folder.mkdir(parents=True, exist_ok=True)
    own, shares = map(int, options.share.split("/"))
    begun = time.monotonic()
    single = list(dict.fromkeys(name for model in options.models for name in model.split("+")))
    work = [(split, model, name) for split in options.splits for model in single for name in options.tables]
    if not work:
        for name in options.tables:
            for split in options.splits:
                load(options.folder, name, split, options.data)
    for split, model, name in work[own::shares]:
        path = options.folder / f"{name}-{split}-{model}.pt"
        if not path.exists() and time.monotonic() - begun < options.seconds:
            result = measure(load(options.folder, name, split, options.data), model, options.device)
            torch.save(result, path)
            progress(f"{name}, split {split}, {model}: {result['seconds']:.1f} s")
    if shares == 1:
        lines = summarize(options.folder, options.tables, options.models, options.splits)
        save_json(options.json, lines)
        print(table(lines))


def load(folder: Path, name: str, split: int, data: Path | None) -> Problem:
    """Returns a prepared table, with the default MLP."""
    path = folder / f"{name}-{split}.pt"
    if not path.exists():
        from base_tables import TABLES  # needs pandas and scikit-learn

        problem = TABLES[name](data, split)
        tasks = [{"name": task.name, "kind": task.kind, "classes": task.classes} for task in problem.tasks]
        rows = {part: (rows.inputs, dict(rows.targets), rows.groups) for part, rows in problem.splits.items()}
        torch.save({"tasks": tasks, "rows": rows, "scales": dict(problem.scales)}, path)
    stored = torch.load(path, weights_only=True)
    parts = [Split(*stored["rows"][part]) for part in ("train", *PARTS)]
    tasks = tuple(Task(**task) for task in stored["tasks"])
    return Problem(name, tasks, *parts, scales=stored["scales"], **default_network(parts[0].inputs, "mlp"))


def measure(problem: Problem, model: str, device: torch.device) -> dict[str, Any]:
    """Trains a model. Returns its answers and its time, which is that of the process on a CPU."""
    now = time.perf_counter if device.type == "cuda" else time.process_time
    begun = now()
    kind, _, text = model.partition(":")
    settings = dict(setting.split("=") for setting in text.split(",") if setting)
    seed = int(settings.get("seed", 0))
    if kind in FITTED:
        chosen = problem.with_network(kind)
        trained = train(problem, Job(problem.names, network=kind), device=device)
    elif kind == "student":
        chosen = problem
        jobs = [Job(problem.names, seed, network=name) for name in settings["of"].split("-")]
        teachers = [train(problem, job, device=device) for job in jobs]
        trained = teach(problem, teachers, seed=seed, mixtures=float(settings.get("mixtures", 0)), device=device)
    else:
        chosen = with_network(problem, kind, settings)
        trained = train(chosen, Job(problem.names, seed), device=device)
    seconds = now() - begun
    network = build_network(chosen, problem.names, 0)
    network.load_state_dict(dict(trained.state))
    answers = {part: outputs_on(network, problem.splits[part].inputs) for part in PARTS}
    return {"answers": answers, "seconds": seconds, "epochs": len(trained.curve)}


def with_network(problem: Problem, kind: str, settings: Mapping[str, str]) -> Problem:
    """Returns the problem with a default network whose settings are changed."""
    fields = {"head": None} | default_network(problem.train.inputs, kind)
    encoder, recipe = fields["encoder"], fields["recipe"]
    hidden = tuple(map(int, settings["hidden"].split("x"))) if "hidden" in settings else encoder.hidden
    edges = quantile_edges(problem.train.inputs, int(settings["bins"])) if "bins" in settings else encoder.edges
    edges = () if settings.get("bins") == "0" else edges
    dropout = float(settings.get("dropout", encoder.dropout))
    if kind == "tabm":
        members = int(settings.get("members", encoder.members))
        new = TabM(encoder.features, hidden, dropout, members, edges)
        fields |= {"head": TabMHeads(members)}
    else:
        new = MLP(encoder.features, hidden, dropout, edges)
    recipe = replace(
        recipe,
        lr=float(settings.get("lr", recipe.lr)),
        batch_size=int(recipe.batch_size * float(settings.get("batch", 1))),
        patience=int(settings.get("patience", recipe.patience)),
        weight_decay=float(settings.get("decay", recipe.weight_decay)),
    )
    return replace(problem, **fields | {"encoder": new, "recipe": recipe})


def summarize(folder: Path, names: Sequence[str], models: Sequence[str], splits: Sequence[int]) -> list[Row]:
    """Returns a line for each model: its test skill in points, with standard errors over splits, and its mean time."""
    lines: list[Row] = [{"skill, points": model} for model in models]
    for name in names:
        skills: dict[str, list[float]] = {}
        for split in splits:
            problem = load(folder, name, split, None) if (folder / f"{name}-{split}.pt").exists() else None
            if problem is None:
                continue
            yardsticks = constant_losses(problem, "test"), skill_units(problem)
            for model in models:
                results = [read(folder / f"{name}-{split}-{part}.pt") for part in model.split("+")]
                if all(results):
                    skills.setdefault(model, []).append(100 * skill_of(problem, results, *yardsticks))
        for line in lines:
            line[name] = mean_and_error(skills.get(line["skill, points"], []))
    for line in lines:
        paths = [folder / f"{name}-{split}-{line['skill, points']}.pt" for name in names for split in splits]
        found = [result for path in paths if (result := read(path))]
        if found:
            line["seconds"] = f"{np.mean([result['seconds'] for result in found]):.1f}"
    return lines


def read(path: Path) -> dict[str, Any] | None:
    return torch.load(path, weights_only=True) if path.exists() else None


def skill_of(
    problem: Problem, results: Sequence[Mapping[str, Any]], constants: Mapping[str, Any], units: Mapping[str, float]
) -> float:
    """Returns the mean test skill of the average of some models."""
    losses = {}
    for task in problem.tasks:
        outputs = [result["answers"]["test"][task.name] for result in results]
        average = outputs[0] if len(outputs) == 1 else average_outputs(outputs, task.averaging)
        losses[task.name] = score_outputs(task, average, problem.test.targets[task.name]).rows
    return mean_skill(task_skills(row_skills(losses, constants, units)))


if __name__ == "__main__":
    main()
