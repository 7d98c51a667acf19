"""How often is the verdict right, on problems drawn anew with known answers (see the README)?

    python benchmarks/verdict_rates.py                                       # does it find groups worth it?
    python benchmarks/verdict_rates.py --worlds noise,twins --rows 300,2000,4000 --repetitions 60
    python benchmarks/verdict_rates.py --what learnt --first 1000            # does it know whether tasks were learnt?

`--what groups` compares groups of four tasks with three seeds in three worlds. "covered" is how often the interval of
the gain contains the gain of the very networks that are recommended over ten plain ones, on fresh rows.

- noise: the targets are independent of the inputs, so no grouping can be better than another.
- twins: all tasks are the same function with independent noise, so training together is right.
- conflict: two pairs of tasks need different directions from an encoder with a single linear unit.

`--what learnt` trains one network for all tasks and one for each task, in four worlds:

- noise: the targets are independent of the inputs.
- rare: binary labels, 10% of them positive, are independent of the inputs.
- weak: the inputs explain 3% of the variance of each target.
- one: the inputs explain 3% of the variance of the first target, and nothing of the others.
"""

import time
from collections.abc import Sequence
from functools import partial
from statistics import mean, median
from tempfile import TemporaryDirectory

import torch
from scipy.special import betaincinv

from harness import Row, make_parser, numbers, progress, save_json, table
from tagalong.learn import MLP, Job, Problem, Recipe, Split, Task, Trained, build_network, train_many
from tagalong.study import Results, Study, Verdict

NAMES = ("a", "b", "c", "d")
FEATURES, SEEDS, BUDGETS, FRESH_ROWS = 6, 3, (2, 3), 5000
GROUP_METHODS = ("mtl", "stl", "hoa", "optimal")
GROUP_WORLDS = {"noise": (8, 1.0), "twins": (8, 1.0), "conflict": (1, 0.4)}  # units of the encoder, noise of targets
GROUP_ROWS = (300, 200, 300)
R2 = 0.03  # the explained fraction of the variance
EXPLAINED = {"noise": "", "rare": "", "weak": "abcd", "one": "a"}
LEARNT_ROWS = {
    "noise": [(560, 80, 160), (2_000, 5_000, 10_000)],
    "rare": [(560, 80, 160), (2_000, 5_000, 10_000)],
    "weak": [(2_000, 2_000, 2_000), (7_000, 1_000, 2_000), (1_400, 200, 400)],
    "one": [(2_000, 2_000, 2_000)],
}
SHARES = ("worth it", "wrongly", "covered", "width", "explained", "others")
FORMATS = dict.fromkeys(SHARES, ".1%") | {"gain on test": "+.2%", "on fresh rows": "+.2%", "seconds": ".0f"}


def main() -> None:
    parser = make_parser(__doc__, device=False)
    parser.add_argument("--what", choices=("groups", "learnt"), default="groups")
    parser.add_argument("--repetitions", type=int, help="200 for groups, 100 for learnt")
    parser.add_argument("--first", type=int, default=0, help="seed of the first data set; the others follow")
    parser.add_argument("--worlds", help="some of the worlds, such as noise,twins")
    parser.add_argument("--rows", type=numbers, help="numbers of train, validation and test rows")
    parser.add_argument("--epochs", type=int, default=30, help="with --what learnt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    groups = options.what == "groups"
    worlds = options.worlds.split(",") if options.worlds else [*(GROUP_WORLDS if groups else LEARNT_ROWS)]
    count = options.repetitions or (200 if groups else 100)
    rows: list[Row] = []
    for world in worlds:
        sizes = [options.rows] if options.rows else ([GROUP_ROWS] if groups else LEARNT_ROWS[world])
        for size in sizes:
            begun = time.perf_counter()
            about = {"world": world, "rows": ", ".join(f"{part:,}" for part in size), "repetitions": count}
            seeds = range(options.first, options.first + count)
            rates = rate_groups(world, size, seeds) if groups else rate_learnt(world, size, seeds, options.epochs)
            rows.append(about | rates | {"seconds": time.perf_counter() - begun})
            progress(" ".join(map(str, rows[-1].values())))
            save_json(options.json, rows)
    print(table(rows, FORMATS))


def exact_interval(successes: int, trials: int) -> str:
    """Formats the 95% interval of a rate (Clopper–Pearson)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, 0.025))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 0.975))
    return f"{low:.1%} to {high:.1%}"


def rate_groups(world: str, rows: Sequence[int], seeds: Sequence[int]) -> Row:
    """Counts the verdicts that find a grouping worth it, and the intervals that contain the gain on fresh rows."""
    verdicts, gains = [], []
    for seed in seeds:
        problem, fresh = draw_grouping_problem(world, seed, rows)
        with TemporaryDirectory() as out:
            results = Study(problem, out, device="cpu").run(GROUP_METHODS, BUDGETS, SEEDS)
            gains.append(gain_on(problem, results, fresh))
        verdicts.append(results.verdict())
    worth_it = [verdict.worth_it for verdict in verdicts]
    judged = [(verdict, gain) for verdict, gain in zip(verdicts, gains, strict=True) if verdict.gain.low != 0]
    covered = [verdict.gain.low <= gain <= verdict.gain.high for verdict, gain in judged]
    return {
        "worth it": mean(worth_it),
        "95% interval": exact_interval(sum(worth_it), len(verdicts)),
        "wrongly": mean(claimed and gain <= 0 for claimed, gain in zip(worth_it, gains, strict=True)),
        "covered": mean(covered) if covered else None,
        "width": median(verdict.gain.high - verdict.gain.low for verdict, _ in judged) if judged else None,
        "gain on test": mean(verdict.gain.estimate for verdict in verdicts),
        "on fresh rows": mean(gains),
    }


def gain_on(problem: Problem, results: Results, fresh: Split) -> float:
    """Returns the gain of the recommended networks over the mean of ten plain ones, on fresh rows."""
    if results.verdict().recommended == ("mtl", None):
        return 0.0
    predictions = results.best().predict(fresh.inputs)
    plain = [losses_on(problem, trained, fresh) for trained in train_many(problem, [Job(NAMES, n) for n in range(10)])]
    gains = []
    for task in NAMES:
        loss = float((torch.as_tensor(predictions[task]) - fresh.targets[task]).square().mean())
        gains.append((mean(losses[task] for losses in plain) - loss) / results.scale.units[task])
    return mean(gains)


def draw_grouping_problem(world: str, seed: int, rows: Sequence[int]) -> tuple[Problem, Split]:
    """Draws data from a world, and some fresh rows."""
    rng = torch.Generator().manual_seed(seed)
    units, noise = GROUP_WORLDS[world]
    directions = torch.linalg.qr(torch.randn(FEATURES, 4, generator=rng)).Q
    used = {"noise": None, "twins": [0, 0, 0, 0], "conflict": [0, 0, 1, 1]}[world]

    def draw(count: int) -> Split:
        inputs = torch.randn(count, FEATURES, generator=rng)
        targets = noise * torch.randn(count, 4, generator=rng)
        if used is not None:
            targets += inputs @ directions[:, used]
        return Split(inputs, dict(zip(NAMES, targets.T.contiguous(), strict=True)))

    tasks = tuple(Task(name, kind="regression", error="loss") for name in NAMES)
    recipe = Recipe(optimizer="adam", lr=0.05, weight_decay=0.0, batch_size=100, epochs=15, patience=5)
    encoder = MLP(FEATURES, (units,)) if units > 1 else partial(torch.nn.Linear, FEATURES, units)
    problem = Problem(world, tasks, *(draw(count) for count in rows), encoder, recipe=recipe)
    return problem, draw(FRESH_ROWS)


def losses_on(problem: Problem, trained: Trained, fresh: Split) -> dict[str, float]:
    network = build_network(problem, trained.job.tasks, trained.job.seed)
    network.load_state_dict(trained.state)
    with torch.no_grad():
        outputs = network.eval()(fresh.inputs)
    return {task: float((out[:, 0] - fresh.targets[task]).square().mean()) for task, out in outputs.items()}


def rate_learnt(world: str, rows: Sequence[int], seeds: Sequence[int], epochs: int) -> Row:
    """Counts the tasks that count as learnt."""
    verdicts = []
    for seed in seeds:
        with TemporaryDirectory() as out:
            study = Study(draw_weak_problem(world, seed, rows, epochs), out, device="cpu")
            verdicts.append(study.run(methods=["mtl", "stl"], seeds=SEEDS).verdict())
    explained = EXPLAINED[world]
    others = "".join(name for name in NAMES if name not in explained)
    learnt = [answer.learnt for verdict in verdicts for answer in verdict.per_task if answer.task in others]
    return {
        "explained": share_learnt(verdicts, explained),
        "others": share_learnt(verdicts, others),
        "95% interval": exact_interval(sum(learnt), len(learnt)) if learnt else None,
    }


def share_learnt(verdicts: Sequence[Verdict], tasks: str) -> float | None:
    """Returns how often these tasks are said to be learnt."""
    return mean(a.learnt for verdict in verdicts for a in verdict.per_task if a.task in tasks) if tasks else None


def draw_weak_problem(world: str, seed: int, rows: Sequence[int], epochs: int) -> Problem:
    """Draws data of which the inputs explain little or nothing."""
    rng = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(FEATURES, len(NAMES), generator=rng)).Q
    strengths = torch.tensor([R2**0.5 if name in EXPLAINED[world] else 0.0 for name in NAMES])

    def draw(count: int) -> Split:
        inputs = torch.randn(count, FEATURES, generator=rng)
        noise = torch.randn(count, len(NAMES), generator=rng)
        targets = strengths * (inputs @ directions) + (1 - strengths**2).sqrt() * noise
        if world == "rare":
            targets = (torch.rand(count, len(NAMES), generator=rng) < 0.1).float()
        return Split(inputs, dict(zip(NAMES, targets.T.contiguous(), strict=True)))

    tasks = tuple(Task(name, kind="binary" if world == "rare" else "regression", error="loss") for name in NAMES)
    recipe = Recipe(lr=0.01, batch_size=max(64, rows[0] // 10), epochs=epochs, patience=5)
    return Problem(world, tasks, *(draw(count) for count in rows), MLP(FEATURES, (16,)), recipe=recipe)


if __name__ == "__main__":
    main()
