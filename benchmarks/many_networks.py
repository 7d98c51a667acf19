"""How much faster networks train together than one by one, measured in the same run (see the README in this folder).

    python benchmarks/many_networks.py

It trains every subset of a synthetic problem's tasks.
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import torch

from markdown import progress, table
from profiling import Clock
from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, Trained, train, train_many, why_not_batched

FEATURES, HIDDEN, DROPOUT, MISSING = 30, (64, 64), 0.1, 0.08
COLUMNS = ("way", "networks", "epochs", "seconds", "ms per network", "all networks, s", "× faster", "peak memory, MB")


@dataclass
class Row:
    """One row of the table.

    Attributes:
        networks: The number of trained networks.
        epochs: The sum of their epochs.
        all_seconds: The time for all networks, extrapolated if only a sample was trained.
        faster: The speed-up over training one by one.
        peak: Peak memory in megabytes, above what was allocated before.
    """

    way: str
    networks: int
    epochs: int
    seconds: float
    all_seconds: float
    faster: float
    peak: float


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    problem = make_problem(options)
    subsets = [tasks for size in range(1, options.tasks + 1) for tasks in combinations(problem.names, size)]
    jobs = [Job(tasks, seed) for seed in range(options.seeds) for tasks in subsets]
    print(heading(problem, options), "\n", flush=True)
    reason = why_not_batched(problem, jobs, device=options.device)
    if reason:
        sys.exit(f"these networks cannot be batched: {reason}")
    rows, difference = compare(problem, jobs, options)
    print(table(COLUMNS, map(cells, rows)))
    print(f"\nLargest relative difference in validation loss in the sample, together against alone: {difference:.1e}")
    if options.json:
        found = {"setting": heading(problem, options), "difference": difference, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tasks", type=int, default=9, help="number of tasks; all their subsets are trained")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds; if several, also trains seed by seed")
    parser.add_argument(
        "--rows", type=int, default=3700, help="number of training rows; validation and test have fewer"
    )
    parser.add_argument("--epochs", type=int, default=30, help="maximum number of epochs")
    parser.add_argument("--sample", type=int, default=16, help="networks that are also trained one by one")
    parser.add_argument("--quick", action="store_true", help="5 tasks, 5 epochs, a sample of 4")
    parser.add_argument(
        "--memory", type=int, help="megabytes for networks trained together; chosen automatically by default"
    )
    parser.add_argument("--threads", type=int, help="number of CPU threads; torch's default if omitted")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.epochs, options.sample = min(options.tasks, 5), min(options.epochs, 5), 4
    return options


def make_problem(options: argparse.Namespace) -> Problem:
    """Makes a synthetic problem the size of `nhanes`, whose targets share some directions of the inputs."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(FEATURES, options.tasks, generator=generator) / FEATURES**0.5
    names = [f"t{place}" for place in range(options.tasks)]

    def split(rows: int) -> Split:
        inputs = torch.randn(rows, FEATURES, generator=generator)
        signal = inputs @ directions
        targets = signal + signal.roll(1, 1).sin() + torch.randn(signal.shape, generator=generator)
        targets[torch.rand(targets.shape, generator=generator) < MISSING] = torch.nan
        return Split(inputs, dict(zip(names, targets.T.contiguous(), strict=True)))

    parts = split(options.rows), split(options.rows // 7), split(options.rows // 4)
    encoder = MLP(FEATURES, HIDDEN, DROPOUT)
    recipe = Recipe(epochs=options.epochs, patience=5)
    return Problem("synthetic", tuple(Task(name, kind="regression") for name in names), *parts, encoder, recipe=recipe)


def compare(problem: Problem, jobs: list[Job], options: argparse.Namespace) -> tuple[list[Row], float]:
    """Trains one by one before and after training together, so that a slow phase of the machine affects both."""
    device = torch.device(options.device)
    sample = jobs[:: max(1, len(jobs) // options.sample)]
    warm_up(problem, jobs, device)
    alone = Clock(device)
    progress(f"one by one, the first half of {len(sample)}")
    singles = [alone.time(lambda job=job: train(problem, job, device=device)) for job in sample[::2]]
    progress(f"together, {len(jobs)}")
    together = Clock(device)
    memory = options.memory * 2**20 if options.memory else None
    many = together.time(lambda: list(train_many(problem, jobs, device=device, memory=memory)))
    seed_by_seed = Clock(device)
    if options.seeds > 1:
        progress(f"seed by seed, {len(jobs)}")
        groups = [[job for job in jobs if job.seed == seed] for seed in range(options.seeds)]
        seed_by_seed.time(lambda: [list(train_many(problem, group, device=device, memory=memory)) for group in groups])
    progress("one by one, the second half")
    singles += [alone.time(lambda job=job: train(problem, job, device=device)) for job in sample[1::2]]
    per_network = alone.seconds / len(singles)
    rows = [
        Row("one by one", len(singles), count_epochs(singles), alone.seconds, per_network * len(jobs), 1.0, alone.peak),
        Row("together", len(many), count_epochs(many), together.seconds, together.seconds, 0.0, together.peak),
    ]
    if options.seeds > 1:
        seconds = seed_by_seed.seconds
        rows.append(Row("seed by seed", len(many), count_epochs(many), seconds, seconds, 0.0, seed_by_seed.peak))
    for row in rows[1:]:
        row.faster = rows[0].all_seconds / row.all_seconds
    by_job = {trained.job: trained for trained in many}
    return rows, max(largest_difference(single, by_job[single.job]) for single in singles)


def warm_up(problem: Problem, jobs: list[Job], device: torch.device) -> None:
    """Trains briefly, so that one-time loading and compilation are not timed."""
    one_epoch = Recipe(epochs=1, patience=1)
    short = Problem(problem.name, problem.tasks, *problem.splits.values(), problem.encoder, recipe=one_epoch)
    train(short, jobs[-1], device=device)
    list(train_many(short, jobs[-2:], device=device))


def largest_difference(alone: Trained, together: Trained) -> float:
    """Compares validation losses in the epochs that both have, since rounding may stop one of them earlier."""
    both = min(len(alone.curve), len(together.curve))
    return float((abs(alone.curve[:both] - together.curve[:both]) / alone.curve[:both]).max())


def count_epochs(trained: list[Trained]) -> int:
    return sum(len(network.curve) for network in trained)


def machine(options: argparse.Namespace) -> str:
    cuda = torch.device(options.device).type == "cuda"
    where = torch.cuda.get_device_name() if cuda else f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} in use"
    return f"{where}; Python {platform.python_version()}, torch {torch.__version__}"


def heading(problem: Problem, options: argparse.Namespace) -> str:
    parts = "/".join(str(len(split)) for split in problem.splits.values())
    recipe = problem.recipe
    return (
        f"{machine(options)}; {parts} rows of {FEATURES} features, "
        f"{options.tasks} regression tasks with {MISSING:.0%} of labels missing; {problem.encoder!r}, float32; "
        f"AdamW, batch {recipe.batch_size}, at most {recipe.epochs} epochs, patience {recipe.patience}"
    )


def cells(row: Row) -> tuple[str, ...]:
    each = f"{1000 * row.seconds / row.networks:.1f}"
    numbers = f"{row.seconds:.1f}", each, f"{row.all_seconds:.1f}", f"{row.faster:.1f}", f"{row.peak:.0f}"
    return row.way, str(row.networks), str(row.epochs), *numbers


if __name__ == "__main__":
    main()
