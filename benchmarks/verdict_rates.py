"""How often is the verdict right, on problems where grouping cannot help and where it must (see the README)?

Each repetition draws new data, trains every subset of four tasks with three seeds, lets the methods decide, and
reads the verdict. There are three worlds:

- noise: the targets are independent of the inputs, so no grouping can be better than another.
- twins: all tasks are the same function with independent noise, so training together is right.
- conflict: two pairs of tasks need different directions from an encoder with a single linear unit.
"""

import argparse
import itertools
import json
import statistics
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
    """How many verdicts found a grouping worth it.

    Attributes:
        world: the kind of problem.
        repetitions: the number of data sets.
        worth_it: the number of verdicts that found a grouping worth it: the very networks that were picked.
        wrong: how many of these networks are no better than plain networks on many fresh rows.
        recipe: the number of verdicts in which the recipe, with the noise of seeds and rows, beats one network.
        low: the lower end of the 95% interval of the rate (Clopper–Pearson).
        high: its upper end.
        seeds_only: the same number if verdicts ignored the noise of test rows and the choice among groupings.
        change: the mean change in the candidate's test loss.
        fresh: the same on many fresh rows, which is the true change for these networks.
    """

    world: str
    repetitions: int
    worth_it: int
    wrong: int
    recipe: int
    low: float
    high: float
    seeds_only: int
    change: float
    fresh: float


def make_problem(world: str, seed: int, rows: tuple[int, int, int], fresh: int) -> tuple[Problem, Split]:
    """Draws data from a world, and some fresh rows."""
    rng = torch.Generator().manual_seed(seed)
    units, noise = WORLDS[world]
    directions = torch.linalg.qr(torch.randn(FEATURES, 4, generator=rng)).Q
    used = {"noise": None, "twins": [0, 0, 0, 0], "conflict": [0, 0, 1, 1]}[world]

    def draw(count: int) -> Split:
        inputs = torch.randn(count, FEATURES, generator=rng)
        targets = noise * torch.randn(count, 4, generator=rng)
        targets += 0 if used is None else inputs @ directions[:, used]
        return Split(inputs, {name: targets[:, column].contiguous() for column, name in enumerate(NAMES)})

    tasks = tuple(Task(name, kind="regression", error="loss") for name in NAMES)
    recipe = Recipe(optimizer="adam", lr=0.05, weight_decay=0.0, batch_size=100, epochs=15, patience=5)
    encoder = MLP(FEATURES, (units,)) if units > 1 else partial(torch.nn.Linear, FEATURES, units)
    problem = Problem(world, tasks, *(draw(count) for count in rows), encoder, recipe=recipe)
    return problem, draw(fresh)


def judge(problem: Problem, fresh: Split) -> tuple[Verdict, Verdict, float, float]:
    """Returns the verdict, the verdict from seeds only, and the true changes of the recipe and of the very networks."""
    external = ExternalStudy(NAMES)
    external.plan(methods=METHODS, budgets=BUDGETS, seeds=SEEDS)
    subsets = [subset for size in range(1, 5) for subset in itertools.combinations(NAMES, size)]
    jobs = [Job(subset, seed) for seed in range(SEEDS) for subset in subsets]
    truth: Truth = {}
    for trained in train_many(problem, jobs):
        val, test = _losses(trained)
        job, rows = trained.job, _rows(trained)
        external.tell(job.tasks, job.seed, val=val, test=test, rows=rows, steps=trained.steps)
        truth[frozenset(job.tasks), job.seed] = _fresh_losses(problem, trained, fresh)
    results = external.results()
    verdict = results.verdict()
    return verdict, _judge_by_seeds(results), _true_change(verdict, truth), _true_change_of_networks(verdict, truth)


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


def _judge_by_seeds(results: Results) -> Verdict:
    """Returns the verdict on the same candidate from Student's t over seeds only."""
    label = results.verdict().candidate
    records = [*results.records_of(("mtl", None)), *results.records_of(label)]
    return Results(records, problem=results.problem).verdict(at_least=0.0)


Truth = dict[tuple[frozenset[str], int], dict[str, float]]  # fresh losses by the tasks and the seed of a network


def _true_change(verdict: Verdict, truth: Truth) -> float:
    everything = frozenset(NAMES)
    changes = [
        truth[group.trains, seed][task] / truth[everything, seed][task] - 1
        for seed in range(SEEDS)
        for group in verdict.candidate_groups
        for task in group.serves
    ]
    return statistics.mean(changes)


def _true_change_of_networks(verdict: Verdict, truth: Truth) -> float:
    """Returns the change from the mean over all plain networks to the very networks that were picked."""
    plain = {task: statistics.mean(truth[frozenset(NAMES), seed][task] for seed in range(SEEDS)) for task in NAMES}
    picked = {
        task: truth[group.trains, verdict.networks_seed][task]
        for group in verdict.candidate_groups
        for task in group.serves
    }
    return statistics.mean(picked[task] / plain[task] - 1 for task in NAMES)


def measure_rate(world: str, repetitions: int, rows: tuple[int, int, int], fresh: int = 5000) -> Rate:
    """Counts the verdicts on several problems drawn from one world."""
    verdicts = [judge(*make_problem(world, seed, rows, fresh)) for seed in range(repetitions)]
    worth_it = sum(verdict.worth_it for verdict, *_ in verdicts)
    low, high = exact_interval(worth_it, repetitions)
    return Rate(
        world,
        repetitions,
        worth_it,
        wrong=sum(verdict.worth_it and true_change >= 0 for verdict, *_, true_change in verdicts),
        recipe=sum(verdict.recipe.better and verdict.expected < 0 for verdict, *_ in verdicts),
        low=low,
        high=high,
        seeds_only=sum(by_seeds.worth_it for _, by_seeds, *_ in verdicts),
        change=statistics.mean(verdict.estimate for verdict, *_ in verdicts),
        fresh=statistics.mean(true_change for _, _, true_change, _ in verdicts),
    )


def exact_interval(successes: int, trials: int) -> tuple[float, float]:
    """Returns the 95% interval of a rate (Clopper–Pearson)."""
    from scipy.special import betaincinv

    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, 0.025))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 0.975))
    return low, high


def main() -> None:
    """Prints a row for each world."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--rows", default="300,200,300", help="numbers of train, validation and test rows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = tuple(int(count) for count in options.rows.split(","))
    columns = ("world", "repetitions", "worth it", "95% interval", "wrongly", "recipe", "seeds only", "change on test")
    print(f"| {' | '.join([*columns, 'on fresh rows', 'seconds'])} |")
    print("|---" * 10 + "|")
    rates = []
    for world in options.worlds.split(","):
        start = time.perf_counter()
        one = measure_rate(world, options.repetitions, rows)
        rates.append(one)
        share = f"{one.worth_it / one.repetitions:.1%} | {one.low:.1%} to {one.high:.1%}"
        claims = (one.wrong, one.recipe, one.seeds_only)
        others = " | ".join(f"{claimed / one.repetitions:.1%}" for claimed in claims)
        took = time.perf_counter() - start
        changes = f"{one.change:+.2%} | {one.fresh:+.2%}"
        print(f"| {world} | {one.repetitions} | {share} | {others} | {changes} | {took:.0f} |")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in rates], indent=1))


if __name__ == "__main__":
    main()
