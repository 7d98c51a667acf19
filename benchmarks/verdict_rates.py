"""How often the verdict is right: problems where grouping brings nothing, and where it must (see the README here).

Every repetition draws new data, trains every subset of four tasks with three seeds, lets the methods decide, and asks
for the verdict. Three worlds:

- noise: the targets have nothing to do with the inputs, so no grouping can be better than another.
- twins: all tasks are the same function with noise of their own, so that training together is right.
- conflict: two pairs of tasks want different directions from an encoder of one linear unit.
"""

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, Trained, train_many
from tagalong.study import ExternalStudy, Results, Verdict

NAMES = ("a", "b", "c", "d")
FEATURES = 6
WORLDS = {"noise": (8, 1.0), "twins": (8, 1.0), "conflict": (1, 0.4)}  # units of the encoder, noise of the targets
METHODS, BUDGETS, SEEDS = ("mtl", "stl", "hoa", "optimal"), (2, 3), 3


@dataclass
class Rate:
    """How often something was said to be worth it.

    Attributes:
        world: which kind of problem.
        repetitions: of new data.
        worth_it: how many verdicts said so.
        low: of the 95 % interval of the rate (Clopper and Pearson).
        high: its other end.
        seeds_only: how many would have said so without the noise of test rows and the choice among groupings.
        change: the mean change of the candidate on test.
        fresh: the same on many fresh rows, which is the truth for these networks.
    """

    world: str
    repetitions: int
    worth_it: int
    low: float
    high: float
    seeds_only: int
    change: float
    fresh: float


def make_problem(world: str, seed: int, rows: tuple[int, int, int], fresh: int) -> tuple[Problem, Split]:
    """New data of a world, and as many fresh rows as wanted."""
    draw = torch.Generator().manual_seed(seed)
    units, noise = WORLDS[world]
    directions = torch.linalg.qr(torch.randn(FEATURES, 4, generator=draw)).Q
    used = {"noise": None, "twins": [0, 0, 0, 0], "conflict": [0, 0, 1, 1]}[world]

    def some(count: int) -> Split:
        inputs = torch.randn(count, FEATURES, generator=draw)
        targets = noise * torch.randn(count, 4, generator=draw)
        targets += 0 if used is None else inputs @ directions[:, used]
        return Split(inputs, {name: targets[:, column].contiguous() for column, name in enumerate(NAMES)})

    tasks = tuple(Task(name, kind="regression", error="loss") for name in NAMES)
    recipe = Recipe(optimizer="adam", lr=0.05, weight_decay=0.0, batch_size=100, epochs=15, patience=5)
    encoder = MLP(FEATURES, (units,)) if units > 1 else partial(torch.nn.Linear, FEATURES, units)
    problem = Problem(world, tasks, *(some(count) for count in rows), encoder, recipe=recipe)
    return problem, some(fresh)


def judged(problem: Problem, fresh: Split) -> tuple[Verdict, Verdict, float]:
    """The verdict, that of seeds alone, and the true change of the candidate."""
    external = ExternalStudy(NAMES)
    external.plan(methods=METHODS, budgets=BUDGETS, seeds=SEEDS)
    subsets = [some for size in range(1, 5) for some in itertools.combinations(NAMES, size)]
    jobs = [Job(subset, seed) for seed in range(SEEDS) for subset in subsets]
    truth: dict[tuple[frozenset[str], int], dict[str, float]] = {}
    for trained in train_many(problem, jobs):
        val, test = _losses(trained)
        job, rows = trained.job, _rows(trained)
        external.tell(job.tasks, job.seed, val=val, test=test, rows=rows, steps=trained.steps)
        truth[frozenset(job.tasks), job.seed] = _fresh_losses(problem, trained, fresh)
    results = external.results()
    return results.verdict(), _seeds_only(results), _true_change(results, truth)


def _losses(trained: Trained) -> list[dict[str, float]]:
    return [{task: score.loss for task, score in scores.items()} for scores in (trained.val, trained.test)]


def _rows(trained: Trained) -> dict[str, object]:
    return {task: score.rows for task, score in trained.test.items()}


def _fresh_losses(problem: Problem, trained: Trained, fresh: Split) -> dict[str, float]:
    from tagalong.learn import build_network

    network = build_network(problem, trained.job.tasks, trained.job.seed)
    network.load_state_dict(trained.state)
    with torch.no_grad():
        outputs = network.eval()(fresh.inputs)
    return {task: float((out[:, 0] - fresh.targets[task]).square().mean()) for task, out in outputs.items()}


def _seeds_only(results: Results) -> Verdict:
    """What Student's t over the seeds alone would say of the same candidate."""
    label = results.verdict().candidate
    records = [*results.records_of(("mtl", None)), *results.records_of(label)]
    return Results(records, problem=results.problem).verdict()


def _true_change(results: Results, truth: dict[tuple[frozenset[str], int], dict[str, float]]) -> float:
    groups, everything = results.verdict().candidate_groups, frozenset(NAMES)
    changes = [
        truth[group.trains, seed][task] / truth[everything, seed][task] - 1
        for seed in range(SEEDS)
        for group in groups
        for task in group.serves
    ]
    return sum(changes) / len(changes)


def rate(world: str, repetitions: int, rows: tuple[int, int, int], fresh: int = 5000) -> Rate:
    """Verdicts on so many problems of a world."""
    found = [judged(*make_problem(world, seed, rows, fresh)) for seed in range(repetitions)]
    worth_it = sum(verdict.worth_it for verdict, _, _ in found)
    low, high = exact_interval(worth_it, repetitions)
    change = sum(verdict.estimate for verdict, _, _ in found) / repetitions
    seeds_only = sum(verdict.worth_it for _, verdict, _ in found)
    return Rate(world, repetitions, worth_it, low, high, seeds_only, change, sum(x for _, _, x in found) / repetitions)


def exact_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a rate (Clopper and Pearson)."""
    from scipy.special import betaincinv

    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, 0.025))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 0.975))
    return low, high


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--rows", default="300,200,300", help="of train, validation and test")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = tuple(int(count) for count in options.rows.split(","))
    print("| world | repetitions | worth it | 95 % interval | seeds only | change on test | on fresh rows | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    rates = []
    for world in options.worlds.split(","):
        start = time.perf_counter()
        one = rate(world, options.repetitions, rows)
        rates.append(one)
        share = f"{one.worth_it / one.repetitions:.1%} | {one.low:.1%} to {one.high:.1%}"
        seeds_only = f"{one.seeds_only / one.repetitions:.1%}"
        took = time.perf_counter() - start
        changes = f"{one.change:+.2%} | {one.fresh:+.2%}"
        print(f"| {world} | {one.repetitions} | {share} | {seeds_only} | {changes} | {took:.0f} |")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in rates], indent=1))


if __name__ == "__main__":
    main()
