"""How often is `auto` right about small problems with known answers, and how sure may it be (see the README)?

    python benchmarks/spend_rates.py
    python benchmarks/spend_rates.py conflict --effort 60 --first 300 --repetitions 100 --json rates.json

Every repetition draws new data. The truth is the change of the test loss from the mean of fresh plain networks to the
very networks that `auto` recommends, averaged over tasks. It is within the doubt if it differs from what `auto`
expected by at most one standard error, which includes that of the truth itself, over test rows and plain networks.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import numpy as np
import torch
from torch import nn

from harness import Row, make_parser, numbers, progress, save_json, table
from pool import Pool
from tagalong.group import Group
from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.study import make_method
from tagalong.study.relative_losses import row_stderr
from tagalong.study.summary import stderr

TASKS = ("a", "b", "c", "d")
PAIRS = (frozenset("ab"), frozenset("cd"))  # that need different networks in `conflict`
ROWS = (240, 240, 3000)  # of train, validation and test
FEATURES, NOISE = 8, 0.6
FRESH_COPIES, FIRST_FRESH = 16, 500
SEEDS_PER_REPETITION = 1000
Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def conflicting(inputs: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Two pairs of tasks need different directions, and the encoder has one."""
    return inputs[:, [0, 0, 1, 1]]


def independent(inputs: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Every task is a different linear function, and the encoder is wide enough for all of them."""
    return inputs[:, :4] @ np.linalg.qr(draw.normal(size=(4, 4)))[0]


def related(inputs: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Every task is another mixture of the same eight nonlinear functions, so that averages and students are better."""
    hidden = np.tanh(inputs @ draw.normal(size=(FEATURES, 8)))
    signal = hidden @ draw.normal(size=(8, 4))
    return np.asarray(signal / signal.std(0))


def one_unit(width: float = 1.0) -> nn.Module:
    """Creates an encoder that cannot be widened."""
    return nn.Linear(FEATURES, 1)


PROBLEMS: dict[str, tuple[Draw, Callable[[float], nn.Module]]] = {
    "conflict": (conflicting, one_unit),
    "independent": (independent, MLP(FEATURES, (32,))),
    "related": (related, MLP(FEATURES, (24,))),
}


def draw_problem(name: str, repetition: int) -> Problem:
    """Draws the data of a repetition."""
    draw = np.random.default_rng([repetition, 11])
    draw_signal, encoder = PROBLEMS[name]
    inputs = draw.normal(size=(sum(ROWS), FEATURES))
    targets = draw_signal(inputs, draw) + NOISE * draw.normal(size=(len(inputs), len(TASKS)))
    parts = zip(*(torch.tensor(array).float().split(ROWS) for array in (inputs, targets)), strict=True)
    splits = [Split(x, dict(zip(TASKS, y.T.contiguous(), strict=True))) for x, y in parts]
    recipe = Recipe(optimizer="adam", lr=0.02, batch_size=60, epochs=60, patience=6)
    tasks = tuple(Task(name, kind="regression") for name in TASKS)
    return Problem("drawn", tasks, *splits, encoder=encoder, recipe=recipe)


def judge(name: str, repetition: int, options: argparse.Namespace) -> list[Row]:
    """Lets `auto` decide about one problem, and judges its plan for each budget."""
    pool, seed = Pool(draw_problem(name, repetition), "cpu"), SEEDS_PER_REPETITION * (repetition + 1)
    settings = {"effort": options.effort, "passes": options.passes, "affinity": not options.without_hints}
    decision = make_method("auto", {"auto": settings}).decide(pool, options.budgets, [seed])
    copies = [Group(TASKS, TASKS, copy=FIRST_FRESH + number) for number in range(FRESH_COPIES)]
    pool.train([pool.group_job(copy, seed) for copy in copies])
    fresh = [pool.test_rows([copy], seed) for copy in copies]
    plain = {task: np.mean([rows[task] for rows in fresh], axis=0) for task in TASKS}
    cases = []
    for budget in options.budgets:
        groups, chosen = decision.choices[budget, seed].groups, decision.about["chosen"][str(budget)]
        rows = pool.test_rows(groups, seed)
        truth = change(rows, plain)
        levels = [1 + change(copy_rows, plain) for copy_rows in fresh]
        error = math.hypot(row_stderr([rows], [plain]), (1 + truth) * stderr(levels))
        about = {"problem": name, "repetition": repetition, "budget": budget, "right": is_right(name, budget, groups)}
        expected = {key: chosen[key] for key in ("pool", "expected", "doubt")}
        cases.append(about | expected | {"truth": truth, "error": error})
    return cases


def change(rows: Mapping[str, np.ndarray], plain: Mapping[str, np.ndarray]) -> float:
    return mean(float(rows[task].mean() / plain[task].mean() - 1) for task in TASKS)


def is_right(name: str, budget: int, groups: Sequence[Group]) -> bool:
    """Whether the recommendation is the planted one or, without planted groups, only networks for all tasks."""
    if name != "conflict" or budget == 1:
        return all(group.trains == frozenset(TASKS) for group in groups)
    return all(any(group.serves <= pair for pair in PAIRS) for group in groups)


def show(cases: Sequence[Row]) -> str:
    """Formats how often `auto` was right, and how often the truth was within its doubt."""
    lines = []
    for name in dict.fromkeys(case["problem"] for case in cases):
        own = [case for case in cases if case["problem"] == name]
        for budget in [*sorted({case["budget"] for case in own}), "all"]:
            some = [case for case in own if budget in (case["budget"], "all")]
            pools = Counter(case["pool"] for case in some)
            misses = [case["truth"] - case["expected"] for case in some]
            z = [miss / math.hypot(case["doubt"], case["error"]) for miss, case in zip(misses, some, strict=True)]
            line: Row = {"problem": name, "k": budget, "right": f"{sum(case['right'] for case in some)} of {len(some)}"}
            line["pool"] = ", ".join(f"{count} {pool}" for pool, count in pools.items())
            line["truth"] = 100 * mean(case["truth"] for case in some)
            line["within ± doubt"] = mean(abs(value) <= 1 for value in z)
            line["mean doubt"] = 100 * mean(case["doubt"] for case in some)
            lines.append(line | {"truth − expected": 100 * mean(misses), "RMS of z": mean(v**2 for v in z) ** 0.5})
    formats = {"truth": "+.1f", "within ± doubt": ".0%", "mean doubt": ".1f", "truth − expected": "+.1f"}
    return table(lines, formats | {"RMS of z": ".2f"})


def main() -> None:
    parser = make_parser(__doc__, device=False)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM", help=", ".join(PROBLEMS))
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition")
    parser.add_argument("--effort", type=float, default=20)
    parser.add_argument("--budgets", type=numbers, default=(1, 2, 3))
    parser.add_argument("--passes", type=int)
    parser.add_argument("--without-hints", action="store_true", help="measure no affinities")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.json
    cases: list[Row] = json.loads(path.read_text()) if path and path.exists() else []
    judged = {(case["problem"], case["repetition"]) for case in cases}
    for name in options.problems:
        for repetition in range(options.first, options.first + options.repetitions):
            if (name, repetition) not in judged:
                cases += judge(name, repetition, options)
                progress(f"{name}, repetition {repetition}")
                save_json(path, cases)
    print(show(cases))


if __name__ == "__main__":
    main()
