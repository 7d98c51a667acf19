"""The intact files that are attacked, and the commands and functions that read them."""

import gzip
import importlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attack_tables import TARGETS, plain_rows, table_text
from tagalong import Affinity, select_groups
from tagalong.cli import main
from tagalong.learn import Problem, Recipe, Task, trainer
from tagalong.problems import load_problem
from tagalong.study import Best, ExternalStudy, Study, executors, finished_run, study
from tagalong.study import plan as make_plan
from tagalong_paper.truth import TruthTable

RECIPE = ("--recipe", "epochs=2", "--recipe", "batch_size=32", "--device", "cpu")
COMPARED = ("--methods", "mtl,stl,tag,auto", "--budgets", "2", "--seeds", "2", "--effort", "6", *RECIPE)
FACES = (
    "faces",
    "--tasks",
    "Mustache,Wearing_Hat",
    "--with",
    "rows=100",
    "--methods",
    "mtl,stl",
    "--seeds",
    "2",
    *RECIPE,
)
TASKS = ("age", "ill", "fit", "tall")
VARYING = {"seconds", "latency", "settings", "checksum"}  # entries of results that differ from run to run
SLOW_IMPORTS = ("pandas", "plotly.graph_objects", "scipy.optimize", "torch._dynamo", "tagalong.report", "yaml")


class Ended(Exception):
    """A command ended with an exit status other than 0."""


def tagalong(*arguments: object) -> None:
    """Runs a command line in this process."""
    status = main([str(argument) for argument in arguments])
    if status:
        raise Ended(status)


@dataclass(frozen=True)
class Command:
    """Something that reads files of a folder.

    Attributes:
        name: its name in the table.
        folder: the folder that it needs a copy of.
        call: runs it in the current directory, which contains a copy of the folder, and returns numbers to compare.
        also: a file outside the folder to damage.
    """

    name: str
    folder: str
    call: Callable[[], str]
    also: str = ""

    def __str__(self) -> str:
        return self.name


def run_table(out: str) -> str:
    tagalong("run", "table.csv", "--targets", ",".join(TARGETS), *COMPARED, "--out", out, "--quiet")
    return _run_numbers(out, "new.csv")


def run_faces() -> str:
    tagalong("run", *FACES, "--out", "faces", "--quiet")
    return _run_numbers("faces", np.load("faces.npy"))


def run_own() -> str:
    Study(_own_problem(), "own", device="cpu").run(["mtl", "stl"], seeds=2)
    return _run_numbers("own", np.load("own.npy"))


def _run_numbers(out: str, rows: Any) -> str:
    results = json.loads(Path(out, "results.json").read_text())
    predicted = {task: values.tolist() for task, values in Best.load(out).predict(rows).items()}
    return json.dumps([_without_varying(results), predicted], sort_keys=True)


def _without_varying(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_varying(part) for name, part in value.items() if name not in VARYING}
    return [_without_varying(part) for part in value] if isinstance(value, list) else value


def _own_problem() -> Problem:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(90, 3))
    targets = inputs @ rng.normal(size=(3, 2)) + rng.normal(size=(90, 2))
    encoder = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU())
    tasks = [Task(name, kind="regression") for name in TASKS[:2]]
    return Problem.from_arrays(inputs, targets, tasks, encoder=encoder, recipe=Recipe(epochs=2, batch_size=32))


def report(folder: str) -> str:
    tagalong("report", folder, "--quiet")
    return re.sub(r"[0-9a-f-]{32,36}", "", Path(folder, "report.html").read_text())  # plotly draws new ids


def plan(file: str) -> str:
    tagalong("plan", file, "--budgets", "2", "--out", "written.csv", "--quiet")
    return Path("written.csv").read_text()


def external_results() -> str:
    return json.dumps(_without_varying(ExternalStudy(TASKS, "external").results().to_document()))


def load_truth() -> str:
    table = TruthTable.load("files/truth.npz")
    arrays = [table.val, table.test, table.early, table.epochs, *table.affinities.values(), *table.errors.values()]
    return repr([table.tasks, table.fractions, table.costs, table.about, *(array.tolist() for array in arrays)])


def command(*arguments: object) -> Callable[[], str]:
    def call() -> str:
        tagalong(*arguments)
        return ""

    return call


COMMANDS = (
    Command("run", "table", lambda: run_table("table")),
    Command("run (partial)", "paused", lambda: run_table("paused")),
    Command("run", "faces", run_faces),
    Command("run", "own", run_own),
    Command("predict", "table", command("predict", "table", "new.csv"), also="new.csv"),
    Command("predict (gzip)", "none", command("predict", "table", "new.csv.gz"), also="new.csv.gz"),
    Command("predict", "faces", command("predict", "faces", "faces.npy"), also="faces.npy"),
    Command("predict", "own", command("predict", "own", "own.npy")),
    Command("predict --trust", "own", command("predict", "own", "own.npy", "--trust")),
    Command("report", "table", lambda: report("table")),
    Command("report", "external", lambda: report("external")),
    Command("report (compare)", "table", command("report", "table", "external", "--json")),
    Command("verdict", "table", command("verdict", "table", "--json")),
    Command("results", "external", external_results),
    Command("group", "table", command("group", "table/affinity.json", "--budget", "2", "--json")),
    Command("group", "files", command("group", "files/affinity.json", "--budget", "2", "--json", "--resamples", "5")),
    Command("group (CSV)", "files", command("group", "files/affinity.csv", "--budget", "2", "--json")),
    Command("group (scores)", "files", command("group", "files/scores.csv", "--budget", "2", "--json")),
    Command("group (JSON)", "files", command("group", "files/scores.json", "--budget", "2", "--json")),
    *(
        Command(
            f"group {option}",
            "files",
            command("group", "files/affinity.csv", "--budget", "2", "--json", option, f"files/{file}"),
        )
        for option, file in (("--compare", "grouping.json"), ("--compare", "grouping.yaml"), ("--cost", "costs.csv"))
    ),
    Command("plan", "files", lambda: plan("files/affinity.json")),
    Command("plan (CSV)", "files", lambda: plan("files/affinity.csv")),
    Command("verdict", "files", command("verdict", "files/plan.csv", "--json")),
    Command("TruthTable.load", "files", load_truth),
)
run_odd = Command("run", "none", lambda: _run_odd())
predict_odd = Command("predict", "none", lambda: _predict_odd())


def _run_odd() -> str:
    options = ("--targets", "age,ill", "--methods", "mtl,stl", "--seeds", "1", *RECIPE, "--out", "out", "--quiet")
    tagalong("run", os.readlink("odd"), *options)
    return ""


def _predict_odd() -> str:
    tagalong("predict", "table", os.readlink("odd"))
    return ""


def prepare() -> None:
    """Makes small runs write every kind of file, and imports what would take long in every attempt."""
    finished_run.MAX_UNCACHED_TASKS = 2  # so that the report writes budgets.json
    study.write_run_report = lambda out: None  # slow, and attacked through its own command
    torch.set_num_threads(1)
    for module in SLOW_IMPORTS:
        importlib.import_module(module)


def make_sample() -> None:
    """Writes all files into the current directory."""
    rng = random.Random(0)
    Path("table.csv").write_text(table_text(plain_rows(rng, 90)))
    new = table_text(plain_rows(rng, 8))
    Path("new.csv").write_text(new)
    Path("new.csv.gz").write_bytes(gzip.compress(new.encode(), mtime=0))
    np.save("own.npy", _own_problem().test.inputs[:4].numpy())
    np.save("faces.npy", load_problem("faces", rows=100).test.inputs[:4].numpy())
    run_table("table")
    run_faces()
    run_own()
    _pause()
    _make_files(np.random.default_rng(0))
    report("table")
    report("external")


def _pause() -> None:
    """Makes a run that was interrupted after its first checkpoint."""
    save, executors.CHECKPOINT_SECONDS = trainer.save_checkpoint, 0.0

    def save_and_stop(path: Path, training: Any) -> None:
        save(path, training)
        raise KeyboardInterrupt

    trainer.save_checkpoint = save_and_stop
    try:
        run_table("paused")
    except Ended:
        pass
    finally:
        trainer.save_checkpoint = save
    assert list(Path("paused", "partial").glob("*.pt"))


def _make_files(rng: np.random.Generator) -> None:
    Path("files").mkdir()
    n = len(TASKS)
    affinity = Affinity.from_history(rng.normal(size=(30, n, n)), TASKS)
    affinity.save("files/affinity.json")
    affinity.save("files/affinity.csv")
    grouping = select_groups(affinity, 2)
    for suffix in ("json", "yaml"):
        Path(f"files/grouping.{suffix}").write_text(getattr(grouping, f"to_{suffix}")())
    groups = ["+".join(TASKS), *TASKS, "age+ill", "fit+tall"]
    scores = [[group, *(f"{rng.normal():.3f}" if task in group else "" for task in TASKS)] for group in groups]
    Path("files/scores.csv").write_text(table_text([["group", *TASKS], *scores]))
    matrix = rng.normal(size=(n, n)).round(3).tolist()
    Path("files/scores.json").write_text(json.dumps({"tasks": TASKS, "matrix": matrix}))
    Path("files/costs.csv").write_text(table_text([["tasks", "cost"], *([str(i + 1), "1"] for i in range(n))]))
    _fill_plan(make_plan(affinity, [2], seeds=2).to_csv("files/plan.csv"), rng)
    subsets = 2**n - 1
    table = TruthTable(
        TASKS,
        *(rng.normal(size=(2, subsets, n)) for _ in range(2)),
        rng.normal(size=(2, 2, subsets, n)),
        (0.25, 0.5),
        np.full((2, subsets), 3),
        {"cosine mean": affinity.mean},
        {"cosine mean": affinity.stderr},
    )
    table.save("files/truth.npz")
    _make_external(affinity, rng)


def _fill_plan(path: Path, rng: np.random.Generator) -> None:
    header, *lines = path.read_text().splitlines()
    columns = header.split(",")
    rows = [dict(zip(columns, line.split(","), strict=True)) for line in lines]
    for row in rows:
        row |= {name: f"{rng.uniform(1, 2):.3f}" for name in ("val_loss", "test_loss")}
    path.write_text(table_text([columns, *([row[name] for name in columns] for row in rows)]))


def _make_external(affinity: Affinity, rng: np.random.Generator) -> None:
    external = ExternalStudy(TASKS, "external")
    external.plan(affinity, budgets=[2], seeds=2)
    while (network := external.ask()) is not None:
        tasks, seed = network
        rows = {task: rng.uniform(1, 2, size=20) for task in tasks}
        losses = {task: float(values.mean()) for task, values in rows.items()}
        external.tell(tasks, seed, val=losses, test=losses, rows=rows)
    external.results()


def copy_folder(sample: Path, folder: str, target: Path) -> None:
    """Copies what a command on this folder needs; the other folders stay readable through links."""
    for path in sample.iterdir():
        if path.is_dir() and path.name != folder:
            (target / path.name).symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, target / path.name, ignore=shutil.ignore_patterns("report.html"))
        else:
            shutil.copy(path, target / path.name)
