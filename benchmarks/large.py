"""What large tables, many tasks and many networks cost: the time and the memory of each command.

    python benchmarks/large.py                               # everything (more than half an hour on two cores)
    python benchmarks/large.py --what table --rows 100000    # one table; `read` and `tagalong run`
    python benchmarks/large.py --what tasks                  # 1,000 tasks; `tagalong group` and the page of a run
    python benchmarks/large.py --what networks               # a run folder of 10,235 networks; continuing it, its page

All data are drawn from fixed seeds. Every line of the table is a process of its own: wall time, CPU time (user and
system) and peak memory are those that the operating system reports when it ends (`wait4`). The run of many tasks and
the folder of many networks are synthetic: their networks are not trained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markdown import progress, table

if TYPE_CHECKING:  # the parent stays small, since the peak memory of a process starts with that of its parent
    from tagalong.learn import Job, Problem
    from tagalong.study import Record
    from tagalong.study.network_result import NetworkResult

CLUSTER = 25  # number of tasks that help each other
TOWNS = ("Bonn", "Halle", "Jena", "Kiel", "Trier", "Ulm")
ROWS_PER_PIECE = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("table", "tasks", "networks"), nargs="*")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--targets", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20, help="number of measured steps of the affinity")
    parser.add_argument("--budget", type=int, default=40)
    parser.add_argument("--subsets", type=int, default=11, help="tasks whose subsets are the networks of the folder")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each of these networks")
    parser.add_argument("--folder", type=Path, help="where to write the data; a temporary folder by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        STEPS[options.step[0]](*options.step[1:])
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for what in options.what or PARTS for row in PARTS[what](options, folder)]
    print(table(list(rows[0]), [[_format(value) for value in row.values()] for row in rows]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure_table(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measures reading a large table, and `tagalong run` on it."""
    path, out = folder / "large.csv", folder / "large-run"
    _step("write_table", path, options.rows, options.columns, options.targets)
    size = f"{options.rows:,} rows × {options.columns} columns, {_megabytes(path)} MB"
    targets = [f"y{i}" for i in range(options.targets)]
    run = ["run", path, "--targets", ",".join(targets), "--categorical", "town", "--methods", "mtl,stl,tag"]
    rows = [_measure(f"read a table ({size})", _own_step("read_table", path, options.targets))]
    rows.append(
        _measure(
            "tagalong run --methods mtl,stl,tag", _tagalong(*run, "--recipe", f"epochs={options.epochs}", "--out", out)
        )
    )
    progress(f"run.sqlite: {_megabytes(out / 'run.sqlite')} MB, report.html: {_megabytes(out / 'report.html')} MB")
    return rows


def measure_tasks(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measures grouping many tasks, and the report of a run with many tasks."""
    out = folder / "many-tasks"
    affinity = out / "affinity.json"
    _step("write_tasks", out, options.tasks, options.steps, options.budget)
    what, budget = f"{options.tasks:,} tasks", str(options.budget)
    group = _measure(f"tagalong group -b {budget} ({what})", _tagalong("group", affinity, "-b", budget))
    shown = _measure(f"print(affinity) ({what})", _own_step("print_affinity", affinity))
    page = _measure(f"tagalong report ({what})", _tagalong("report", out))
    progress(f"report.html: {_megabytes(out / 'report.html')} MB")
    return [group, shown, page]


def measure_networks(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measures continuing a run with many networks, and writing its page."""
    out = folder / "many-networks"
    sizes = (options.subsets, options.seeds)
    _step("write_networks", out, *sizes)
    count = options.seeds * (2**options.subsets - 1) - 1
    what = f"{count:,} networks, {_megabytes(out / 'run.sqlite')} MB"
    start = _measure(f"continue until training starts ({what})", _own_step("start_run", out, *sizes))
    finish = _measure("continue to the end; one network to train", _own_step("finish_run", out, *sizes))
    page = _measure(f"tagalong report ({count:,} networks)", _tagalong("report", out))
    progress(f"report.html: {_megabytes(out / 'report.html')} MB")
    return [start, finish, page]


PARTS = {"table": measure_table, "tasks": measure_tasks, "networks": measure_networks}


def _measure(what: str, command: Sequence[str]) -> dict[str, Any]:
    """Runs a command and returns its wall time, CPU time and peak memory."""
    progress(what)
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{what}: exit status {process.returncode}")
    seconds, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
    return {"what": what, "seconds": seconds, "CPU seconds": cpu, "peak MB": used.ru_maxrss / 1024}


def _tagalong(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "tagalong", *map(str, arguments)]


def _own_step(*arguments: Any) -> list[str]:
    return [sys.executable, __file__, "--step", *map(str, arguments)]


def _step(*arguments: Any) -> None:
    """Runs a step whose cost does not matter in a process of its own."""
    progress(" ".join(map(str, arguments)))
    subprocess.run(_own_step(*arguments), check=True)


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:,.1f}"


def write_table(path: str, rows: str, columns: str, targets: str) -> None:
    """Writes a table of numbers with some missing cells, a text column, and targets of two kinds."""
    import numpy as np

    random, features = np.random.default_rng(0), int(columns) - int(targets) - 1
    first, second = random.normal(size=(features, 4)), random.normal(size=(4, int(targets)))
    with Path(path).open("w", encoding="utf-8") as file:
        names = [*(f"x{i}" for i in range(features)), "town", *(f"y{i}" for i in range(int(targets)))]
        file.write(",".join(names) + "\n")
        for start in range(0, int(rows), ROWS_PER_PIECE):
            count = min(ROWS_PER_PIECE, int(rows) - start)
            inputs, town = random.normal(size=(count, features)), random.integers(0, len(TOWNS), count)
            labels = np.tanh(inputs @ first / features**0.5) @ second + 0.1 * (town[:, None] % 3)
            labels += 0.5 * random.normal(size=labels.shape)
            labels[:, ::2] = labels[:, ::2] > 0  # every second task is binary
            cells = [*(_numbers(column) for column in inputs.T), [TOWNS[i] for i in town], *map(_numbers, labels.T)]
            for column in cells[:features:4]:
                for row in np.flatnonzero(random.random(count) < 0.02):
                    column[row] = ""
            file.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))


def _numbers(column: Any) -> list[str]:
    return [f"{value:.5g}" for value in column.tolist()]


def read_table(path: str, targets: str) -> None:
    from tagalong.learn import Problem

    Problem.from_table(path, [f"y{i}" for i in range(int(targets))], categorical=["town"])


def write_tasks(out: str, tasks: str, steps: str, budget: str) -> None:
    """Writes the files of a run whose tasks form clusters; its losses are made up."""
    import numpy as np

    from tagalong import Affinity
    from tagalong.group import Group
    from tagalong.study import ProblemInfo, Results

    n, random = int(tasks), np.random.default_rng(0)
    names = tuple(f"task_{i:04d}" for i in range(n))
    cluster = random.integers(0, -(-n // CLUSTER), n)
    history = np.where(np.equal.outer(cluster, cluster), 2e-3, -1e-3) + 2e-2 * np.eye(n)
    history = history + 3e-3 * random.normal(size=(int(steps), n, n))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    Affinity.from_history(history, names, settings={"estimator": "lookahead"}).save(folder / "affinity.json")
    together, alone = [Group(names, names)], [Group([name], [name]) for name in names]
    members = [
        [name for name, own in zip(names, cluster, strict=True) if own % int(budget) == k] for k in range(int(budget))
    ]
    grouped = [Group(some, some) for some in members if some]
    wanted = (("mtl", None, together), ("stl", None, alone), ("tag", int(budget), grouped))
    records = [_record(random, names, *line, seed=seed) for line in wanted for seed in range(3)]
    counts = {"train": 700, "val": 100, "test": 200}
    info = ProblemInfo(
        "many tasks",
        names,
        kinds=dict.fromkeys(names, "regression"),
        errors=dict.fromkeys(names, "mae"),
        rows=counts,
        labels={part: dict.fromkeys(names, rows) for part, rows in counts.items()},
    )
    settings = {"seeds": [0, 1, 2], "budgets": [int(budget)], "recipe": {"epochs": 3}}
    Results(records, problem=info, settings=settings, out=folder).save(folder)


def _record(random: Any, names: Sequence[str], method: str, budget: int | None, groups: list[Any], seed: int) -> Record:
    from tagalong.study import Cost, Record, Score

    losses = 1 - 0.03 * (method == "tag") + 0.01 * random.normal(size=(2, len(names)))
    val, test = (
        {name: Score(loss, 10 * loss) for name, loss in zip(names, part, strict=True)} for part in losses.tolist()
    )
    spent = Cost(len(groups), 100 * len(groups), 1.0 * len(groups))
    return Record(method, budget, seed, tuple(groups), val, test, Cost(), spent, 1000 * len(groups))


def print_affinity(path: str) -> None:
    from tagalong import Affinity

    print(Affinity.load(path))


def many_networks_problem(subsets: int) -> Problem:
    """Returns a small problem whose networks have about 10,000 parameters."""
    import numpy as np

    from tagalong.learn import Problem, Recipe, Task

    random = np.random.default_rng(0)
    inputs = random.normal(size=(1000, 80))
    tasks = [Task(f"t{i}", kind="regression") for i in range(subsets)]
    labels = inputs[:, :subsets] + random.normal(size=(1000, subsets))
    return Problem.from_arrays(inputs, labels, tasks, name="many networks", recipe=Recipe(epochs=3))


def write_networks(out: str, subsets: str, seeds: str) -> None:
    """Writes a folder with a network for each subset of the tasks and each seed, except for one network."""
    from tagalong.study.keys import Keys
    from tagalong.study.run_folder import claim_folder
    from tagalong.study.store import Store

    problem = many_networks_problem(int(subsets))
    claim_folder(out, problem)
    keys, sizes = Keys(problem, "cpu"), range(1, len(problem.names) + 1)
    chosen = [tasks for size in sizes for tasks in combinations(problem.names, size)]
    with Store(Path(out) / "run.sqlite") as store:
        for at in range(0, len(chosen), 64):  # networks are trained and stored in batches of this size
            for seed in range(int(seeds)):
                some = [tasks for tasks in chosen[at : at + 64] if (tasks, seed) != (problem.names[:2], int(seeds) - 1)]
                results = [_fake_network(problem, tasks, seed) for tasks in some]
                store.add({keys.of(result.job): (keys.definition(result.job), result) for result in results})


def _fake_network(problem: Problem, tasks: tuple[str, ...], seed: int) -> NetworkResult:
    import numpy as np

    from tagalong.learn import Job, Trained, build_network
    from tagalong.score import Score
    from tagalong.study.network_result import pack_result

    job: Job = Job(tasks, seed)
    network = build_network(problem, tasks, seed=seed)
    random = np.random.default_rng([seed, len(tasks), *map(problem.names.index, tasks)])

    def scores(rows: int) -> dict[str, Score]:
        losses = random.gamma(2.0, 0.5, size=(len(tasks), rows)).astype(np.float32)
        return {task: Score(float(own.mean()), float(own.mean()), own) for task, own in zip(tasks, losses, strict=True)}

    parameters = sum(weights.numel() for weights in network.parameters())
    trained = Trained(
        job, scores(len(problem.val)), scores(len(problem.test)), np.ones((3, len(tasks))), 2, 9, 0.1, parameters,
        state=network.state_dict(),
    )  # fmt: skip
    return pack_result(trained)


class TrainingStarted(Exception):
    """Raised by `StopAtTraining`."""


class StopAtTraining:
    """Ends a run when the first network would be trained."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        raise TrainingStarted


def start_run(out: str, subsets: str, seeds: str) -> None:
    """Continues the run until training starts."""
    try:
        finish_run(out, subsets, seeds, StopAtTraining())
    except TrainingStarted:
        return
    raise SystemExit("nothing was left to train")


def finish_run(out: str, subsets: str, seeds: str, progress: Any = None) -> None:
    """Continues the run to the end."""
    from tagalong.study import Study

    study = Study(many_networks_problem(int(subsets)), out, device="cpu", progress=progress)
    study.run(["mtl", "stl", "optimal"], budgets=[2, 3], seeds=int(seeds))


STEPS: dict[str, Callable[..., None]] = {
    step.__name__: step
    for step in (write_table, read_table, write_tasks, print_affinity, write_networks, start_run, finish_run)
}


def _format(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float) and value < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else value
    )


if __name__ == "__main__":
    main()
