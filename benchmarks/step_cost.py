"""The time of `train` as a multiple of the plain loop's, in the same run (see the README in this folder).

    python benchmarks/step_cost.py --device cpu --threads 1 --data DIR
    python benchmarks/step_cost.py --device cuda --data DIR
    python benchmarks/step_cost.py --grow rows               # or tasks, or networks: how time and memory grow
    python benchmarks/step_cost.py --data DIR --export NEW   # writes small npz files that --data also reads

`--data` is a folder with qm9/, tox21/ and nhanes.tsv, or with the files of `--export`. Problems whose data are missing
are skipped. `synthetic` and `mixed` need no data: they have the size of `nhanes`, the latter with tasks of all kinds.
"""

import argparse
import json
import math
import os
import platform
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from markdown import progress, table
from plain_training import train_plain
from problem_files import load, save_problem
from profiling import Clock
from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, train, train_many

PROBLEMS = ("nhanes", "qm9-32", "tox21", "faces", "synthetic", "mixed")
ROWS, TASKS, FEATURES, HIDDEN, MISSING = 3685, 9, 77, (32,), 0.08  # as in nhanes
RECIPE = Recipe(lr=1e-2, batch_size=512, epochs=40, patience=5, weight_decay=0.1)
SIZES = {
    "rows": (1000, 10_000, 100_000, 1_000_000),
    "tasks": (3, 10, 30, 100),
    "networks": (1, 4, 16, 64, 256, 1024, 4096),
}
GROWING_EPOCHS = 5
LINEAR = 0.8, 1.2  # exponents that count as linear growth
T = TypeVar("T")
COLUMNS = ("problem", "rows", "tasks", "batch", "steps", "plain, ms/step", "train, ms/step", "ratio", "difference")


@dataclass
class Row:
    """One row of the table.

    Attributes:
        name: The problem or, if something grows, its size.
        plain: The seconds of a plain training.
        seconds: The seconds of `train` or `train_many`.
        ratio: The median ratio of both in one repetition.
        ratios: The ratios of all repetitions.
        difference: The largest relative difference in validation loss after the first epoch.
        peak: Peak memory of an epoch of `train` or `train_many` in megabytes, above what was allocated before.
    """

    name: str
    rows: int
    tasks: int
    batch: int
    steps: int
    plain: float
    seconds: float
    ratio: float
    ratios: list[float] = field(default_factory=list)
    difference: float = 0.0
    peak: float = 0.0


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.export:
        export(options)
        return
    print(heading(options), "\n", flush=True)
    rows = list(grow(options) if options.grow else compare_all(options))
    print(growth_table(rows, options.grow) if options.grow else table(COLUMNS, map(cells, rows)))
    if options.json:
        found = {"setting": heading(options), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"any of {', '.join(PROBLEMS)}; default: all")
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/ and nhanes.tsv, or with exported npz files")
    parser.add_argument("--export", type=Path, help="only write the data of the problems to this folder, as npz files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="number of CPU threads; torch's default if omitted")
    parser.add_argument("--repetitions", type=int, default=5, help="timed trainings of each kind, in turn")
    parser.add_argument("--epochs", type=int, help="number of epochs, without early stopping; default: the recipe's")
    parser.add_argument("--grow", choices=list(SIZES), help="show how time and memory grow instead")
    parser.add_argument("--sizes", type=int, nargs="+", help="the sizes to grow to")
    parser.add_argument("--limit-seconds", type=float, default=300, help="skip sizes that would train for longer")
    parser.add_argument("--quick", action="store_true", help="two small problems, two epochs, one repetition")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    unknown = [name for name in options.problems if name not in PROBLEMS]
    if unknown:
        parser.error(f"PROBLEM must be any of {', '.join(PROBLEMS)}, found: {', '.join(unknown)}")
    options.problems = options.problems or (["synthetic", "mixed"] if options.quick else PROBLEMS)
    options.rows = 300 if options.quick else ROWS
    options.sizes = options.sizes or SIZES[options.grow or "rows"][: 2 if options.quick else None]
    if options.quick:
        options.epochs, options.repetitions = 2, 1
    options.device = torch.device(options.device)
    return options


def heading(options: argparse.Namespace) -> str:
    cuda = options.device.type == "cuda"
    where = torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} in use"
    clock = "CPU time" if not cuda and torch.get_num_threads() == 1 else "wall-clock time"
    return f"{where}; Python {platform.python_version()}, torch {torch.__version__}; float32, AdamW; {clock}"


def find_problems(options: argparse.Namespace) -> Iterator[tuple[str, Problem]]:
    """Yields the problems whose data are available, and prints a line for each of the others."""
    for name in options.problems:
        try:
            problem = (
                make_problem(options.rows, TASKS, mixed=name == "mixed")
                if name in ("synthetic", "mixed")
                else load(name, options.data)
            )
        except (FileNotFoundError, ImportError, ValueError) as error:
            print(f"{name}: skipped, {error}", flush=True)
            continue
        yield name, problem


def export(options: argparse.Namespace) -> None:
    """Writes the problems that need data, in a form that needs no other package and is quick to copy."""
    options.export.mkdir(parents=True, exist_ok=True)
    for name, problem in find_problems(options):
        file = options.export / f"{name}.npz"
        if isinstance(problem.encoder, MLP) and name not in ("synthetic", "mixed"):
            save_problem(problem, file)
            print(f"{file}: {file.stat().st_size / 1e6:.2f} MB", flush=True)
        else:
            print(f"{name}: not exported, since it is made without data", flush=True)


def make_problem(rows: int, tasks: int, mixed: bool = False) -> Problem:
    """Makes a synthetic problem whose targets share some directions of the inputs, with missing labels."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(FEATURES, tasks, generator=generator) / FEATURES**0.5
    kinds = ("regression", "binary", "multiclass") if mixed else ("regression",)
    found = [Task(f"t{k}", kind=kinds[k * len(kinds) // tasks], classes=3) for k in range(tasks)]

    def split(rows: int) -> Split:
        inputs = torch.randn(rows, FEATURES, generator=generator)
        signal = inputs @ directions
        signal += signal.roll(1, 1).sin() + torch.randn(signal.shape, generator=generator)
        targets = {task.name: _labels(task, column) for task, column in zip(found, signal.T, strict=True)}
        for target in targets.values():
            target[torch.rand(rows, generator=generator) < MISSING] = torch.nan
        return Split(inputs, targets)

    parts = split(rows), split(max(2, rows // 7)), split(max(2, rows // 7))
    name = "mixed" if mixed else "synthetic"
    return Problem(name, tuple(found), *parts, encoder=MLP(FEATURES, HIDDEN), recipe=RECIPE)


def _labels(task: Task, values: torch.Tensor) -> torch.Tensor:
    if task.kind == "regression":
        return values.clone()
    return ((values > -0.5).float() + (values > 0.5).float()) if task.kind == "multiclass" else (values > 0).float()


def compare_all(options: argparse.Namespace) -> Iterator[Row]:
    for name, problem in find_problems(options):
        progress(name)
        epochs = options.epochs or problem.recipe.epochs
        yield compare(name, for_epochs(problem, epochs), [Job(problem.names)], options)


def for_epochs(problem: Problem, epochs: int) -> Problem:
    """Returns a problem that trains for a fixed number of epochs."""
    return replace(problem, recipe=replace(problem.recipe, epochs=epochs, patience=None))


def compare(name: str, problem: Problem, jobs: list[Job], options: argparse.Namespace) -> Row:
    """Times a plain training and the training of some networks in turn, so that a slow phase affects both."""
    device, full = options.device, Job(problem.names)

    def library(problem: Problem) -> list:
        if len(jobs) == 1:
            return [train(problem, jobs[0], device=device)]
        return list(train_many(problem, jobs, device=device))

    short = for_epochs(problem, 1)
    train_plain(short, full, device=device), library(short)  # loads and compiles what is loaded once
    memory = Clock(device)
    memory.measure_peak(lambda: library(short))
    plain, ours, ratios = [], [], []
    for _ in range(options.repetitions):
        seconds, alone = timed(lambda: train_plain(problem, full, device=device), device)
        plain.append(seconds)
        seconds, trained = timed(lambda: library(problem), device)
        ours.append(seconds)
        ratios.append(ours[-1] / plain[-1])
        if sum(plain) + sum(ours) > options.limit_seconds:
            break
    same = [network for network in trained if network.job == full]
    difference = abs(same[0].curve[0] / alone.curve[0] - 1).max() if same else 0.0
    sizes = len(problem.train), len(problem.names), problem.recipe.batch_size, alone.steps
    return Row(name, *sizes, median(plain), median(ours), median(ratios), ratios, float(difference), memory.peak)


def timed(work: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """Returns the seconds and the result of some work."""
    clock = Clock(device)
    done = clock.time(work)
    return clock.seconds, done


def cells(row: Row) -> tuple[str, ...]:
    each = [f"{1000 * seconds / row.steps:.3f}" for seconds in (row.plain, row.seconds)]
    sizes = f"{row.rows:,}", str(row.tasks), str(row.batch), f"{row.steps:,}"
    return row.name, *sizes, *each, f"{row.ratio:.2f}", f"{row.difference:.0e}"


def grow(options: argparse.Namespace) -> Iterator[Row]:
    """Measures growing sizes until one would take too long."""
    last: Row | None = None
    for size in options.sizes:
        expected = last.seconds * size / int(last.name) if last else 0.0
        if expected > options.limit_seconds:
            print(f"{size:,} {options.grow}: skipped, since one training would take about {expected:,.0f} s\n")
            break
        progress(f"{size:,} {options.grow}")
        rows = size if options.grow == "rows" else options.rows
        problem = for_epochs(
            make_problem(rows, size if options.grow == "tasks" else TASKS), options.epochs or GROWING_EPOCHS
        )
        jobs = list(draw_jobs(problem, size)) if options.grow == "networks" else [Job(problem.names)]
        last = compare(str(size), problem, jobs, options)
        yield last


def draw_jobs(problem: Problem, number: int) -> Iterator[Job]:
    """Yields the network for all tasks, then all other subsets in random order, then the same for the next seed."""
    names = problem.names
    subsets = [tasks for size in range(1, len(names)) for tasks in combinations(names, size)]
    random.Random(0).shuffle(subsets)
    subsets.insert(0, names)
    return (Job(subsets[place % len(subsets)], seed=place // len(subsets)) for place in range(number))


def growth_table(rows: list[Row], what: str) -> str:
    """Formats the rows with exponents: 0 if the next size takes no longer, 1 if time is proportional to the size."""
    exponents = [
        math.log(after.seconds / before.seconds) / math.log(int(after.name) / int(before.name))
        for before, after in pairwise(rows)
    ]
    columns = (
        what,
        "steps",
        "seconds",
        "ms per step",
        "plain, ms/step",
        "plain trainings",
        "peak memory, MB",
        "exponent",
    )
    lines = [
        (
            f"{int(row.name):,}",
            f"{row.steps:,}",
            f"{row.seconds:.2f}",
            f"{1000 * row.seconds / row.steps:.2f}",
            f"{1000 * row.plain / row.steps:.2f}",
            f"{row.ratio:.2f}",
            f"{row.peak:.0f}",
            "" if exponent is None else f"{exponent:.2f}",
        )
        for row, exponent in zip(rows, [None, *exponents], strict=True)
    ]
    return f"{table(columns, lines)}\n\n{describe_growth(rows, exponents, what)}"


def describe_growth(rows: list[Row], exponents: list[float], what: str) -> str:
    """Says between which sizes the time is proportional to the size."""
    linear = [LINEAR[0] <= exponent <= LINEAR[1] for exponent in exponents]
    parts = [
        f"{int(before.name):,} to {int(after.name):,}: "
        + ("linear" if fits else "less than linear" if exponent < 1 else "more than linear")
        for (before, after), exponent, fits in zip(pairwise(rows), exponents, linear, strict=True)
    ]
    return f"Seconds against {what}: {'; '.join(parts)}."


if __name__ == "__main__":
    main()
