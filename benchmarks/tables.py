"""Which model is best for all targets of a table? Test skill and time of networks, boosting, ridge and averages.

    python benchmarks/tables.py FOLDER --data DIR --models mlp tabm boosting ridge tabm+boosting --json results.json
    python benchmarks/tables.py FOLDER --tables adme star --models mlp tabm:members=8,patience=8 --device cuda
    python benchmarks/tables.py FOLDER --data DIR --time

Each model of each split is kept in FOLDER as a file with its answers, so that a stopped benchmark continues, and that
averages of models (`tabm+boosting`) cost nothing. Prepared tables are kept there too, so that networks can be trained
where only torch, numpy and scipy are installed: `--models` without names only prepares. What is known about a split is
added to the results in the file of `--json`. If that has all of `FAMILIES`, the second table says what choosing among
them on validation rows costs; the third, what a student keeps of its teachers' gain.

A network may have settings: `members`, `hidden` (such as 128x64), `bins`, `lr`, `batch` (a multiple of the default),
`patience`, `dropout`, `seed`. `package` is TabM from PyPI with its authors' recipe, which needs `pip install tabm`.
`student:of=tabm-boosting,mixtures=3` is an MLP taught by these models, with three mixtures of two rows for each row,
and `student:of=copies` has three MLPs as teachers.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
    read_preparation,
    row_influences,
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
FAMILIES = ("ridge", "boosting", "tabm")  # by cost, the cheapest first
SMALL = 2000  # rows
TOLERANCE = (0.3, 1.0)  # points that a cheaper family may fall short by, at least and at most
Results = dict[str, dict[str, dict[str, Any]]]  # by table, split, and model, or "single" and "average": what is chosen


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="where answers are kept")
    parser.add_argument("--tables", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--models", nargs="*", default=["ridge", "boosting", "mlp", "tabm"])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--data", type=Path, help="folder with tables/, tox21/, qm9/ and nhanes.tsv")
    parser.add_argument("--share", default="0/1", help="train only every n-th model, e.g. 2/8, to divide the work")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing new after this time")
    parser.add_argument("--time", action="store_true", help="time `tagalong run` on diabetes and 3,600 movies instead")
    options = start(parser)
    if options.time:
        print(table([time_run(name, options.data) for name in ("diabetes", "movies")]))
        return
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
    if shares > 1:
        return
    results: Results = {}
    if options.json is not None and options.json.exists():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    for name in options.tables:
        for split in options.splits:
            if (options.folder / f"{name}-{split}.pt").exists():
                known = results.setdefault(name, {}).setdefault(str(split), {})
                known |= judge(options.folder, name, split, [*options.models, *FAMILIES])
    save_json(options.json, results)
    for lines in (skills(results, options.tables, options.models), regrets(results), students(results)):
        if lines:
            print(table(lines) + "\n")


def load(folder: Path, name: str, split: int, data: Path | None) -> Problem:
    """Returns a prepared table, with the default MLP."""
    path = folder / f"{name}-{split}.pt"
    if not path.exists():
        from base_tables import TABLES  # needs pandas and scikit-learn

        problem = TABLES[name](data, split)
        tasks = [{"name": task.name, "kind": task.kind, "classes": task.classes} for task in problem.tasks]
        rows = {part: (rows.inputs, dict(rows.targets), rows.groups) for part, rows in problem.splits.items()}
        document = problem.table.to_document()
        torch.save({"tasks": tasks, "rows": rows, "scales": dict(problem.scales), "table": document}, path)
    stored = torch.load(path, weights_only=True)
    parts = [Split(*stored["rows"][part]) for part in ("train", *PARTS)]
    tasks = tuple(Task(**task) for task in stored["tasks"])
    network = default_network(parts[0].inputs, "mlp")
    return Problem(name, tasks, *parts, scales=stored["scales"], table=read_preparation(stored["table"]), **network)


def measure(problem: Problem, model: str, device: torch.device) -> dict[str, Any]:
    """Trains a model. Returns its answers and its time, which is that of the process on a CPU."""
    now = time.perf_counter if device.type == "cuda" else time.process_time
    begun = now()
    kind, _, text = model.partition(":")
    settings = dict(setting.split("=") for setting in text.split(",") if setting)
    seed = int(settings.get("seed", 0))
    if kind == "package":
        from tabm_package import train_package

        answers = train_package(problem, device)
        return {"answers": dict(zip(PARTS, answers, strict=True)), "seconds": now() - begun}
    if kind in FITTED:
        chosen = problem.with_network(kind)
        trained = train(problem, Job(problem.names, network=kind), device=device)
    elif kind == "student":
        chosen, jobs = problem, [Job(problem.names, network=name) for name in settings["of"].split("-")]
        if settings["of"] == "copies":
            jobs = [Job(problem.names, copy) for copy in (1, 2, 3)]
        teachers = [train(problem, job, device=device) for job in jobs]
        trained = teach(problem, teachers, mixtures=float(settings.get("mixtures", 0)), device=device)
    else:
        chosen = with_network(problem, kind, settings)
        trained = train(chosen, Job(problem.names, seed), device=device)
    seconds = now() - begun
    network = build_network(chosen, problem.names, 0)
    network.load_state_dict(dict(trained.state))
    answers = {part: outputs_on(network, problem.splits[part].inputs) for part in PARTS}
    return {"answers": answers, "seconds": seconds}


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


def judge(folder: Path, name: str, split: int, models: Sequence[str]) -> dict[str, Any]:
    """Returns the skill in points of each model whose answers are kept, and which ones validation rows choose."""
    problem = load(folder, name, split, None)
    constants, units = {part: constant_losses(problem, part) for part in PARTS}, skill_units(problem)
    files = {model: folder / f"{name}-{split}-{model}.pt" for model in "+".join(models).split("+")}
    kept = {model: torch.load(path, weights_only=True) for model, path in files.items() if path.exists()}

    def rows_of(model: str, part: str) -> dict[str, Any]:
        """Returns the skill of an average of models on each row."""
        losses = {}
        for task in problem.tasks:
            outputs = [kept[own]["answers"][part][task.name] for own in model.split("+")]
            average = outputs[0] if len(outputs) == 1 else average_outputs(outputs, task.averaging)
            scale = problem.answer_scales.get(task.name)
            losses[task.name] = score_outputs(task, average, problem.splits[part].targets[task.name], scale).rows
        return row_skills(losses, constants[part], units)

    sets = ["+".join(chosen) for size in range(1, len(FAMILIES) + 1) for chosen in combinations(FAMILIES, size)]
    judged: dict[str, Any] = {}
    for model in dict.fromkeys([*models, *sets]):
        if set(model.split("+")) <= set(kept):
            judged[model] = {part: round(100 * mean_skill(task_skills(rows_of(model, part))), 3) for part in PARTS}
            judged[model]["seconds"] = round(sum(kept[own]["seconds"] for own in model.split("+")), 2)
    if set(sets) <= set(judged):
        judged["average"] = max(sets, key=lambda model: judged[model]["val"])
        # The cheapest family that falls short of the best by no more than the standard error.
        best = max(FAMILIES, key=lambda model: judged[model]["val"])
        for model in FAMILIES:
            lead = row_influences(rows_of(best, "val")) - row_influences(rows_of(model, "val"))
            error = 100 * float(lead.std() / math.sqrt(len(lead)))
            if judged[best]["val"] - judged[model]["val"] <= min(max(error, TOLERANCE[0]), TOLERANCE[1]):
                judged["single"] = model
                break
    judged["rows"] = sum(map(len, problem.splits.values()))
    return judged


def skills(results: Results, names: Sequence[str], models: Sequence[str]) -> list[Row]:
    """Returns a line for each model: its test skill in points, with standard errors over splits, and its mean time."""
    lines: list[Row] = []
    for model in models:
        line: Row = {"skill, points": model}
        found = {name: [own[model] for own in results.get(name, {}).values() if model in own] for name in names}
        for name, judged in found.items():
            line[name] = mean_and_error([own["test"] for own in judged])
        seconds = [own["seconds"] for judged in found.values() for own in judged]
        if seconds:
            line["seconds"] = f"{np.mean(seconds):.1f}"
        lines.append(line)
    return lines


def regrets(results: Results) -> list[Row]:
    """Returns a line for each table: what the families chosen on validation rows lack, in points of test skill."""
    lines: list[Row] = []
    gains: dict[str, list[tuple[float, float]]] = {"from 2,000 rows": [], "smaller": []}
    for name, by_split in results.items():
        splits = [split for split in by_split.values() if "single" in split]
        if not splits:
            continue
        means = {family: np.mean([split[family]["test"] for split in splits]) for family in FAMILIES}
        single, average = (
            np.mean([split[split[choice]]["test"] for split in splits]) for choice in ("single", "average")
        )
        best, rows = max(means, key=means.__getitem__), splits[0]["rows"]
        gain = means[best] - single, average - single
        gains["from 2,000 rows" if rows >= SMALL else "smaller"].append(gain)
        chosen = ", ".join(split["single"] for split in splits)
        lines.append({"table": name, "rows": f"{rows:,}", "best": best, "chosen": chosen} | named(gain))
    lines += [{"table": f"mean, {size}"} | named(np.mean(own, axis=0)) for size, own in gains.items() if own]
    return lines


def named(gain: Sequence[float]) -> Row:
    return dict(zip(("regret", "average over single"), (f"{one:+.2f}".replace("-", "−") for one in gain), strict=True))


def students(results: Results) -> list[Row]:
    """Returns a line for each MLP but one: the share of what boosting+tabm gains over an MLP that it keeps."""
    models = dict.fromkeys(model for by_split in results.values() for split in by_split.values() for model in split)
    ends, lines = ("mlp", "boosting+tabm"), []
    for model in models:
        if not model.startswith(("student", "mlp+")):
            continue
        line: Row = {"share of the gain": model}
        for name, by_split in results.items():
            splits = [split for split in by_split.values() if {model, *ends} <= set(split)]
            if splits:
                own, plain, best = (np.mean([split[key]["test"] for split in splits]) for key in (model, *ends))
                line[name] = f"{(own - plain) / (best - plain):.0%}".replace("-", "−")
        lines.append(line)
    return lines


def time_run(name: str, data: Path | None) -> Row:
    """Times `tagalong run` with its defaults."""
    from base_tables import read_frame

    frame, targets = read_frame(name, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.csv"
        frame.to_csv(path, index=False)
        command = [sys.executable, "-m", "tagalong", "run", str(path), "--targets", ",".join(targets), "--out", folder]
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {"table": name, "rows": len(frame), "seconds": round(time.perf_counter() - begun)}


if __name__ == "__main__":
    main()
