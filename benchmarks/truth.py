"""Makes truth tables: trains every subset of a problem's tasks with several seeds (see the README in this folder).

    python benchmarks/truth.py nhanes --seeds 8
    python benchmarks/truth.py qm9-32 --data DIR --device cuda --workers 14

Tables are written to `src/tagalong_paper/truth/tables/` unless `--out` names another folder. Problems whose data are
missing are skipped.
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import make_parser, start
from tagalong.learn import Job, Problem, Trained, average_scores_on, build_network, train_many
from tagalong_paper.truth import TruthTable, subset_members
from truth_affinity import COSINES, METERS, Measurements, measure, measure_joint
from truth_linear import NAME as LINEAR, measure_linear
from truth_problems import LOADS, PROBLEMS, shrink

FRACTIONS = (1 / 8, 1 / 4, 1 / 2)
COPIES = (2, 3, 4)  # numbers of averaged networks for all tasks
SHIPPED = Path(__file__).parent.parent / "src" / "tagalong_paper" / "truth" / "tables"
MEASUREMENTS = 100  # per training, roughly


def main() -> None:
    parser = make_parser(__doc__)
    names = ", ".join(PROBLEMS)
    parser.add_argument("tables", nargs="*", default=list(PROBLEMS), metavar="TABLE", help=f"any of {names}")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/ and nhanes.tsv")
    parser.add_argument("--workers", type=int, default=1, help="number of CPU processes that measure affinities")
    parser.add_argument("--measured-seeds", type=int, help="number of seeds with affinities; all by default")
    parser.add_argument("--tasks", type=int, help="use only the first N tasks")
    parser.add_argument("--epochs", type=int, help="maximum number of epochs")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    options = start(parser)
    for name in options.tables:
        try:
            problem = PROBLEMS[name](options.data)
        except (FileNotFoundError, ImportError, ValueError) as error:
            print(f"{name}: skipped, {error}", flush=True)
            continue
        make_table(name, shrink(problem, options.tasks, options.epochs), options)


def make_table(name: str, problem: Problem, options: argparse.Namespace) -> None:
    """Makes one table and saves it."""
    begun = time.perf_counter()
    print(f"{name}: {len(problem.names)} tasks, {len(problem.train)} rows", flush=True)
    measured = options.measured_seeds or options.seeds
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        # Affinities are measured on the CPU while networks train.
        kinds = [(seed, kind) for seed in range(measured) for kind in (*METERS, "joint")]
        pending = [pool.submit(_measure, problem, seed, kind) for seed, kind in kinds]
        linear = [pool.submit(_predict, problem, seed) for seed in range(measured)]
        losses = train_all(problem, options.seeds, options.device)
        print(f"{name}: all networks after {time.perf_counter() - begun:.0f} s", flush=True)
        affinities, errors, costs = _stack_by_estimator([future.result() for future in pending], measured)
        logs, linear_costs = zip(*(future.result() for future in linear), strict=True)
    costs[LINEAR] = float(np.mean(linear_costs))
    given = {"--data": "DIR" if options.data else None, "--tasks": options.tasks, "--epochs": options.epochs}
    command = f"python benchmarks/truth.py {name} --seeds {options.seeds}"
    about = {
        "command": command + "".join(f" {option} {value}" for option, value in given.items() if value is not None),
        "problem": problem.name,
        "load": LOADS.get(name),
        "recipe": asdict(problem.recipe),
        "fingerprint": problem.fingerprint,
        "rows": [len(split) for split in problem.splits.values()],
        "device": options.device.type,
        "torch": torch.__version__.partition("+")[0],
        "seconds": round(time.perf_counter() - begun),
    }
    predictions = {LINEAR: _relative(np.exp(np.stack(logs)))}
    estimates = {"affinities": affinities, "errors": errors, "predictions": predictions, "costs": costs}
    table = TruthTable(problem.names, **losses, fractions=FRACTIONS, **estimates, about=about)
    path = options.out / f"{name}.npz"
    table.save(path)
    print(f"{name}: {path.name}, {path.stat().st_size / 1e6:.2f} MB, {about['seconds']} s", flush=True)


def _measure(problem: Problem, seed: int, kind: str) -> tuple[int, str, Measurements]:
    torch.set_num_threads(1)
    steps = problem.recipe.epochs * -(-len(problem.train) // problem.recipe.batch_size)
    every = max(1, steps // (2 * MEASUREMENTS))  # most trainings stop early, before the last epoch
    if kind == "joint":
        return seed, kind, measure_joint(problem, seed, 4 * every)
    return seed, kind, measure(problem, seed, METERS[kind], every)


def _predict(problem: Problem, seed: int) -> tuple[np.ndarray, float]:
    torch.set_num_threads(1)
    return measure_linear(problem, seed)


def train_all(problem: Problem, seeds: int, device: torch.device) -> dict[str, Any]:
    """Trains every subset with every seed; returns logarithms of losses relative to all tasks together."""
    inside = subset_members(len(problem.names))
    subsets = [tuple(itertools.compress(problem.names, members)) for members in inside]
    place = {subset: at for at, subset in enumerate(subsets)}
    shape = seeds, len(subsets), len(problem.names)
    val, test = np.full((seeds, 2, *shape[1:]), np.nan), np.full(shape, np.nan)
    curves, epochs = {}, np.zeros(shape[:2], dtype=np.int64)
    together = {}
    for trained in train_many(
        problem, [Job(subset, seed) for seed in range(seeds) for subset in subsets], device=device
    ):
        seed, at = trained.job.seed, place[trained.job.tasks]
        if trained.job.tasks == problem.names:
            together[seed] = trained
        val[seed, :, at, inside[at]] = _losses_by_half(problem, trained)
        test[seed, at, inside[at]] = [score.loss for score in trained.test.values()]
        epochs[seed, at], curves[seed, at] = len(trained.curve), trained.curve

    # The losses after a fraction of the epochs of the network for all tasks.
    ends = [max(1, round(fraction * epochs[:, -1].mean())) for fraction in FRACTIONS]
    early = np.full((seeds, len(ends), *shape[1:]), np.nan)
    for (seed, at), curve in curves.items():
        for order, end in enumerate(ends):
            early[seed, order, at, inside[at]] = curve[np.argmin(curve[:end].sum(1))]
    logs = {name: _relative(array) for name, array in (("val", val), ("test", test), ("early", early))}
    copies = average_copies(problem, [together[seed] for seed in range(seeds)])
    return {**logs, "epochs": epochs, "copies": copies}


def _losses_by_half(problem: Problem, trained: Trained) -> np.ndarray:
    """Returns the loss on each half of the validation rows, [tasks, 2]; rows of one group stay in one half."""
    groups = problem.val.groups
    labels = torch.arange(len(problem.val)) if groups is None else torch.unique(groups, return_inverse=True)[1]
    half = labels.numpy() % 2
    rows = [score.rows for score in trained.val.values()]
    return np.array([[np.nanmean(losses[half == part]) for part in (0, 1)] for losses in rows])


def average_copies(problem: Problem, trained: Sequence[Trained]) -> dict[int, np.ndarray]:
    """Returns the log losses of averaged networks relative to the mean of one, by their number (see `TruthTable`)."""
    networks = []
    for one in trained:
        network = build_network(problem, one.job.tasks, one.job.seed)
        network.load_state_dict(one.state)
        networks.append(network)
    parts = {"val": problem.val, "test": problem.test}
    single = {
        part: np.mean([[score.loss for score in getattr(one, part).values()] for one in trained], 0) for part in parts
    }
    found = {}
    for number in (number for number in COPIES if number <= len(networks)):
        sets = list(itertools.combinations(networks, number))
        losses = [
            [[score.loss for score in average_scores_on(problem, some, rows).values()] for some in sets] / single[part]
            for part, rows in parts.items()
        ]
        found[number] = np.log(losses)
    return found


def _relative(losses: np.ndarray) -> np.ndarray:
    return np.log(losses / losses[..., -1:, :].mean(0))


def _stack_by_estimator(found: list[tuple[int, str, Measurements]], seeds: int) -> tuple[dict, dict, dict]:
    means, errors, costs = {}, {}, {}
    for seed, kind, measured in found:
        for name, mean in measured.mean.items():
            if (label := _label(name, kind)) is None:
                continue
            means.setdefault(label, [None] * seeds)[seed] = mean
            errors.setdefault(label, [None] * seeds)[seed] = measured.stderr[name]
            costs.setdefault(label, []).append(
                _count_passes(name, kind, len(mean)) * measured.measured / 3 / measured.steps
            )
    stacked = [{label: np.stack(arrays) for label, arrays in by_label.items()} for by_label in (means, errors)]
    return *stacked, {label: float(np.mean(each)) for label, each in costs.items()}


def _label(name: str, kind: str) -> str | None:
    """Returns a label such as "lookahead sgd held-out trimmed"; cosines do not depend on the kind of step."""
    if kind == "joint":
        return name
    estimator, average = name.split()
    if estimator in COSINES:
        return f"{estimator} {kind.split()[1]} {average}" if kind.startswith("sgd") else None
    return f"{estimator} {kind} {average}"


def _count_passes(name: str, kind: str, n: int) -> float:
    """Returns the number of forward passes that a measured step adds; a backward pass counts as two."""
    if kind == "joint":
        return n + n * (n - 1) / 2 + 2 * n  # a forward pass per task and per pair, and the gradient of each task
    held_out = 1 if "held-out" in kind else 0
    return (3 * n if name.startswith("lookahead") else 2 * n * (1 + held_out)) + held_out - 2


if __name__ == "__main__":
    main()
