"""How much faster networks train together than one by one, and how long whole studies take.

python benchmarks/many_networks.py                                # every subset of a synthetic problem's tasks
python benchmarks/many_networks.py --what auto                    # a study of nhanes, in plain-loop trainings
python benchmarks/many_networks.py --what subsets --data DIR      # every subset of qm9's tasks with eight seeds
python benchmarks/many_networks.py --what tabm                    # a TabM network, as a multiple of an MLP
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import mean, median

import torch

from harness import Clock, Row, make_parser, progress, save_json, start, table
from plain_training import train_plain
from tagalong.learn import MLP, Job, Problem, Recipe, Trained, train, train_many
from tagalong.study import Study
from timing_problems import load, synthetic
from truth_problems import shrink

BUDGETS, SEEDS, SUBSET_SEEDS, TABM_REPETITIONS = (2, 3), 3, 8, 3
FORMATS = {"seconds": ".1f", "ms per network": ".1f", "all networks, s": ".1f", "× faster": ".1f"}
FORMATS |= {
    "ms per step": ".2f",
    "× an MLP": ".1f",
    "peak memory, MB": ".0f",
    "one plain training, s": ".3f",
    "plain trainings": ".1f",
    "networks": ",",
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--what", choices=list(MEASURES), default="together")
    parser.add_argument("--tasks", type=int, default=9, help="number of tasks; all their subsets are trained")
    parser.add_argument("--rows", type=int, default=3700, help="training rows; validation and test have fewer")
    parser.add_argument("--epochs", type=int, help="maximum number of epochs; 30 for the synthetic problem")
    parser.add_argument("--sample", type=int, default=16, help="networks that are also trained one by one")
    parser.add_argument("--data", type=Path, help="with --what auto or subsets: see step_cost.py")
    parser.add_argument("--effort", type=float, default=60, help="with --what auto")
    options = start(parser)
    rows = MEASURES[options.what](options)
    print(table(rows, FORMATS))
    save_json(options.json, rows)


def subsets(tasks: Sequence[str], seeds: int = 1) -> list[Job]:
    """Returns a network for every subset of the tasks, with each seed."""
    sets = [chosen for size in range(1, len(tasks) + 1) for chosen in combinations(tasks, size)]
    return [Job(chosen, seed) for seed in range(seeds) for chosen in sets]


def time_together(options: argparse.Namespace) -> list[Row]:
    """Trains one by one before and after training together, so that a slow phase of the machine affects both."""
    recipe = Recipe(epochs=options.epochs or 30, patience=5)
    problem = synthetic(options.rows, options.tasks, MLP(30, (64, 64), 0.1), recipe)
    jobs, device = subsets(problem.names), options.device
    sample = jobs[:: max(1, len(jobs) // options.sample)]
    # Train briefly, so that one-time loading and compilation are not timed.
    brief = with_epochs(problem, 1)
    train(brief, jobs[-1], device=device)
    list(train_many(brief, jobs[-2:], device=device))

    alone, together = Clock(device), Clock(device)
    progress(f"one by one, the first half of {len(sample)}")
    singles = [alone.time(partial(train, problem, job, device=device)) for job in sample[::2]]
    progress(f"together, {len(jobs)}")
    many = together.time(lambda: list(train_many(problem, jobs, device=device)))
    progress("one by one, the second half")
    singles += [alone.time(partial(train, problem, job, device=device)) for job in sample[1::2]]

    by_job = {trained.job: trained for trained in many}
    difference = max(largest_difference(single, by_job[single.job]) for single in singles)
    print(f"Largest relative difference in validation loss, together against alone: {difference:.1e}\n")
    rows: list[Row] = []
    for way, trained, clock in (("one by one", singles, alone), ("together", many, together)):
        each = clock.seconds / len(trained)
        row = {"way": way, "networks": len(trained), "epochs": sum(len(network.curve) for network in trained)}
        row |= {"seconds": clock.seconds, "ms per network": 1000 * each, "all networks, s": each * len(jobs)}
        rows.append(row | {"× faster": alone.seconds / len(singles) / each, "peak memory, MB": clock.peak})
    return rows


def largest_difference(alone: Trained, together: Trained) -> float:
    """Compares validation losses in the epochs that both have, since rounding may stop one of them earlier."""
    both = min(len(alone.curve), len(together.curve))
    return float((abs(alone.curve[:both] - together.curve[:both]) / alone.curve[:both]).max())


def with_epochs(problem: Problem, epochs: int) -> Problem:
    return replace(problem, recipe=replace(problem.recipe, epochs=epochs))


def time_subsets(options: argparse.Namespace) -> list[Row]:
    """Times `train_many` on every subset of the tasks of qm9 with eight seeds."""
    problem = shrink(load("qm9-32", options.data), options.tasks, options.epochs)
    jobs = subsets(problem.names, SUBSET_SEEDS)
    list(train_many(with_epochs(problem, 1), jobs[:2], device=options.device))
    row = count_plain_trainings(problem, options.device, lambda: list(train_many(problem, jobs, device=options.device)))
    what = f"all {len(jobs) // SUBSET_SEEDS:,} × {SUBSET_SEEDS} networks of {problem.name}"
    return [{"what": what, "networks": len(jobs), **row}]


def time_auto(options: argparse.Namespace) -> list[Row]:
    """Times a whole study with `auto`, from an empty folder to the report."""
    problem = shrink(load("nhanes", options.data), options.tasks, options.epochs)
    settings = {}

    def study() -> None:
        with tempfile.TemporaryDirectory() as out:
            results = Study(problem, out, device=str(options.device)).run(
                ["auto"], budgets=BUDGETS, seeds=SEEDS, effort=options.effort
            )
        settings.update(results.settings)

    row = count_plain_trainings(problem, options.device, study)
    what = f"auto on {problem.name}, effort {options.effort:g}, {SEEDS} seeds, {len(BUDGETS)} budgets"
    return [{"what": what, "networks": settings["spent"]["networks"], **row}]


def time_tabm(options: argparse.Namespace) -> list[Row]:
    """Times the default networks of a synthetic table in turn, for the same number of epochs."""
    flat = synthetic(options.rows, options.tasks, MLP(30), Recipe())
    inputs, targets = flat.train.batch(torch.arange(options.rows))
    problem = Problem.from_arrays(inputs, targets, flat.tasks)
    problems = {name: with_epochs(problem.with_network(name), options.epochs or 5) for name in (None, "tabm")}
    times: dict[str | None, list[float]] = {name: [] for name in problems}
    for _ in range(TABM_REPETITIONS):
        for name, seconds in times.items():
            clock = Clock(options.device)
            trained = clock.time(partial(train, problems[name], Job(problem.names), device=options.device))
            seconds.append(clock.seconds / trained.steps)
    factor = median(slow / fast for fast, slow in zip(*times.values(), strict=True))
    return [
        {"network": name or "mlp", "ms per step": 1000 * median(seconds), "× an MLP": own_factor}
        for (name, seconds), own_factor in zip(times.items(), (1.0, factor), strict=True)
    ]


def count_plain_trainings(problem: Problem, device: torch.device, work: Callable[[], object]) -> Row:
    """Times work by the wall clock between trainings of the plain loop, so that a slow phase affects both.

    On a CPU, the plain trainings use one thread, which is fastest for small networks.
    """
    threads = torch.get_num_threads()
    train_plain(problem, Job(problem.names), device=device)  # loads and compiles what is loaded once
    train(with_epochs(problem, 1), Job(problem.names), device=device)
    plain, clock = [], Clock(device, wall=True)
    for place in ("before", "after"):
        progress(f"plain trainings {place} the work")
        torch.set_num_threads(1)
        for seed in range(SEEDS):
            alone = Clock(device, wall=True)
            alone.time(partial(train_plain, problem, Job(problem.names, seed), device=device))
            plain.append(alone.seconds)
        torch.set_num_threads(threads)
        if place == "before":
            clock.time(work)
    ratio = clock.seconds / mean(plain)
    return {"seconds": clock.seconds, "one plain training, s": mean(plain), "plain trainings": ratio}


MEASURES = {"together": time_together, "subsets": time_subsets, "auto": time_auto, "tabm": time_tabm}

if __name__ == "__main__":
    main()
