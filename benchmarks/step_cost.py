"""The time of `train` as a multiple of the plain loop's, in the same run (see the README in this folder).

    python benchmarks/step_cost.py --device cpu --threads 1 --data DIR
    python benchmarks/step_cost.py --device cuda --data DIR
    python benchmarks/step_cost.py --data DIR --export NEW   # writes small npz files that --data also reads

`--data` is a folder with qm9/, tox21/ and nhanes.tsv, or with the files of `--export`. Problems whose data are missing
are skipped. `synthetic` and `mixed` need no data: they have the size of `nhanes`, the latter with tasks of all kinds.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from harness import Clock, Row, make_parser, progress, save_json, start, table
from plain_training import train_plain
from tagalong.learn import MLP, Job, Problem, Recipe, train
from timing_problems import load, save_problem, synthetic

FILES = ("nhanes", "qm9-32", "tox21")
PROBLEMS = (*FILES, "faces", "synthetic", "mixed")
FEATURES, HIDDEN, TASKS = 77, (32,), 9  # as in nhanes
RECIPE = Recipe(lr=1e-2, batch_size=512, epochs=40, patience=5, weight_decay=0.1)
FORMATS = {"rows": ",", "steps": ",", "plain, ms/step": ".3f", "train, ms/step": ".3f", "ratio": ".2f"}
FORMATS |= {"difference": ".0e", "peak memory, MB": ".0f"}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"any of {', '.join(PROBLEMS)}; default: all")
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/ and nhanes.tsv, or with exported npz files")
    parser.add_argument("--export", type=Path, help="only write the problems that need data to this folder")
    parser.add_argument("--rows", type=int, default=3685, help="training rows of the synthetic problems")
    parser.add_argument("--repetitions", type=int, default=5, help="timed trainings of each kind, in turn")
    parser.add_argument("--epochs", type=int, help="number of epochs, without early stopping; default: the recipe's")
    options = start(parser)
    if options.export:
        export(options)
        return
    rows: list[Row] = []
    for name, problem in find_problems(options):
        progress(name)
        rows.append(compare(name, problem, options))
    print(table(rows, FORMATS))
    save_json(options.json, rows)


def export(options: argparse.Namespace) -> None:
    """Writes the problems that need data, in a form that needs no other package and is quick to copy."""
    options.export.mkdir(parents=True, exist_ok=True)
    for name, problem in find_problems(options):
        if name in FILES:
            save_problem(problem, options.export / f"{name}.npz")


def find_problems(options: argparse.Namespace) -> Iterator[tuple[str, Problem]]:
    """Yields the problems whose data are available, and prints a line for each of the others."""
    for name in options.problems or PROBLEMS:
        if name in ("synthetic", "mixed"):
            yield name, synthetic(options.rows, TASKS, MLP(FEATURES, HIDDEN), RECIPE, mixed=name == "mixed")
            continue
        try:
            yield name, load(name, options.data)
        except (FileNotFoundError, ImportError, ValueError) as error:
            print(f"{name}: skipped, {error}", flush=True)


def compare(name: str, problem: Problem, options: argparse.Namespace) -> Row:
    """Times a plain training and `train` in turn, so that a slow phase affects both."""
    device, job = options.device, Job(problem.names)
    epochs = options.epochs or problem.recipe.epochs
    short, full = (replace(problem, recipe=replace(problem.recipe, epochs=e, patience=None)) for e in (1, epochs))
    train_plain(short, job, device=device)  # loads and compiles what is loaded once
    train(short, job, device=device)
    memory = Clock(device)
    memory.measure_peak(partial(train, short, job, device=device))
    plain, library = [], []
    for _ in range(options.repetitions):
        clocks = Clock(device), Clock(device)
        alone = clocks[0].time(partial(train_plain, full, job, device=device))
        trained = clocks[1].time(partial(train, full, job, device=device))
        plain.append(clocks[0].seconds)
        library.append(clocks[1].seconds)
    row: Row = {"problem": name, "rows": len(problem.train), "tasks": len(problem.names)}
    row |= {"batch": problem.recipe.batch_size, "steps": alone.steps}
    row |= {
        "plain, ms/step": 1000 * median(plain) / alone.steps,
        "train, ms/step": 1000 * median(library) / alone.steps,
    }
    row["ratio"] = median(own / reference for own, reference in zip(library, plain, strict=True))
    row["difference"] = float(abs(trained.curve[0] / alone.curve[0] - 1).max())  # of validation losses, first epoch
    return row | {"peak memory, MB": memory.peak}


if __name__ == "__main__":
    main()
