"""How often does the verdict know whether anything was learnt (see the README)?

Each repetition draws new data, runs a study of four tasks with one network for all tasks and one for each task, and
reads the verdict. There are four worlds:

- noise: the targets are independent of the inputs.
- rare: binary labels, 10% of them positive, are independent of the inputs.
- weak: the inputs explain 3% of the variance of each target.
- one: the inputs explain 3% of the variance of the first target, and nothing of the others.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.study import Study, Verdict
from verdict_rates import exact_interval

NAMES = ("a", "b", "c", "d")
FEATURES, SEEDS = 6, 3
R2 = 0.03  # the explained fraction of the variance
EXPLAINED = {"noise": (), "rare": (), "weak": (0, 1, 2, 3), "one": (0,)}  # the columns of the targets
# The numbers of train, validation and test rows.
ROWS = {
    "noise": [(560, 80, 160), (2_000, 5_000, 10_000)],
    "rare": [(560, 80, 160), (2_000, 5_000, 10_000)],
    "weak": [(2_000, 2_000, 2_000), (7_000, 1_000, 2_000), (1_400, 200, 400)],
    "one": [(2_000, 2_000, 2_000)],
}

HEADINGS = (
    *("world", "rows (train, validation, test)", "nothing learnt", "95% interval"),
    *("explained tasks learnt", "other tasks learnt", "provisional", "seconds"),
)


@dataclass
class Rate:
    """How often tasks were learnt.

    Attributes:
        world: the kind of problem.
        rows: the numbers of train, validation and test rows.
        repetitions: the number of data sets.
        nothing: the number of verdicts that nothing was learnt.
        low: the lower end of the 95% interval of the rate of these verdicts (Clopper–Pearson).
        high: its upper end.
        explained: the mean number of tasks that were learnt among those that can be, or None if there are none.
        unexplained: the mean number of tasks that were learnt among those that cannot be, or None if there are none.
        provisional: the number of provisional verdicts.
        seconds: the duration.
    """

    world: str
    rows: tuple[int, ...]
    repetitions: int
    nothing: int
    low: float
    high: float
    explained: float | None
    unexplained: float | None
    provisional: int
    seconds: float


def make_problem(world: str, seed: int, rows: Sequence[int], epochs: int) -> Problem:
    """Draws data from a world."""
    rng = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(FEATURES, len(NAMES), generator=rng)).Q
    strengths = torch.zeros(len(NAMES))
    strengths[list(EXPLAINED[world])] = R2**0.5

    def draw(count: int) -> Split:
        inputs = torch.randn(count, FEATURES, generator=rng)
        noise = torch.randn(count, len(NAMES), generator=rng)
        targets = strengths * (inputs @ directions) + (1 - strengths**2).sqrt() * noise
        if world == "rare":
            targets = (torch.rand(count, len(NAMES), generator=rng) < 0.1).float()
        return Split(inputs, {name: targets[:, column].contiguous() for column, name in enumerate(NAMES)})

    tasks = tuple(Task(name, kind="binary" if world == "rare" else "regression", error="loss") for name in NAMES)
    recipe = Recipe(lr=0.01, batch_size=max(64, rows[0] // 10), epochs=epochs, patience=5)
    return Problem(world, tasks, *(draw(count) for count in rows), MLP(FEATURES, (16,)), recipe=recipe)


def judge(problem: Problem) -> Verdict:
    """Returns the verdict of a study of this problem."""
    with TemporaryDirectory() as out:
        return Study(problem, out, device="cpu").run(methods=["mtl", "stl"], seeds=SEEDS).verdict()


def measure_rate(world: str, rows: tuple[int, ...], repetitions: int, epochs: int = 30, first_seed: int = 0) -> Rate:
    """Counts the verdicts on several problems drawn from one world."""
    start = time.perf_counter()
    seeds = range(first_seed, first_seed + repetitions)
    verdicts = [judge(make_problem(world, seed, rows, epochs)) for seed in seeds]
    nothing = sum(verdict.nothing_learnt for verdict in verdicts)
    can = [NAMES[column] for column in EXPLAINED[world]]
    return Rate(
        world,
        tuple(rows),
        repetitions,
        nothing,
        *exact_interval(nothing, repetitions),
        _mean_learnt(verdicts, can),
        _mean_learnt(verdicts, [name for name in NAMES if name not in can]),
        sum(bool(verdict.provisional) for verdict in verdicts),
        time.perf_counter() - start,
    )


def _mean_learnt(verdicts: Sequence[Verdict], tasks: Sequence[str]) -> float | None:
    if not tasks:
        return None
    return sum(name not in verdict.unlearnt for verdict in verdicts for name in tasks) / len(verdicts) / len(tasks)


def _format_share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def main() -> None:
    """Prints a row for each world and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first data set; the others follow")
    parser.add_argument("--worlds", default=",".join(ROWS))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="use only the first numbers of rows of each world")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    rates = []
    for world in options.worlds.split(","):
        for rows in ROWS[world][:1] if options.quick else ROWS[world]:
            one = measure_rate(world, rows, options.repetitions, options.epochs, options.first_seed)
            rates.append(one)
            shown = ", ".join(f"{count:,}" for count in rows)
            nothing = f"{one.nothing} of {one.repetitions} | {one.low:.1%} to {one.high:.1%}"
            learnt = f"{_format_share(one.explained)} | {_format_share(one.unexplained)}"
            print(f"| {world} | {shown} | {nothing} | {learnt} | {one.provisional} | {one.seconds:.0f} |", flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in rates], indent=1))


if __name__ == "__main__":
    main()
