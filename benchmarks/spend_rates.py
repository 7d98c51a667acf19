"""How often is `auto` right about small problems with known answers, and how sure may it be (see the README)?

    python benchmarks/spend_rates.py
    python benchmarks/spend_rates.py conflict --repetitions 40 --effort 60 --passes 1
    python benchmarks/spend_rates.py conflict --first 100 --repetitions 100 --out rates.json
    python benchmarks/spend_rates.py --show rates.json more.json

Every repetition draws new data. The truth is the change of the test loss from the mean of fresh plain networks to the
very networks that `auto` recommends, averaged over tasks. It is within the doubt if it differs from what `auto`
expected by at most one standard error, which includes that of the truth itself, over test rows and plain networks.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from markdown import progress, table
from spend import TeachingPool
from tagalong.group import Group
from tagalong.learn import MLP, Problem, Recipe, Split, Task
from tagalong.study import make_method
from tagalong.study.summary import stderr
from tagalong.study.uncertainty import row_stderr

TASKS = ("a", "b", "c", "d")
ROWS = {"train": 240, "val": 240, "test": 3000}
FEATURES, NOISE = 8, 0.6
FRESH_COPIES = 16
FIRST_FRESH = 500  # number of a copy
SEEDS_PER_REPETITION = 1000


@dataclass(frozen=True)
class Kind:
    """A kind of problem.

    Attributes:
        draw: returns the signal of each task [rows, tasks], given inputs and a generator of random numbers.
        encoder: creates the shared part of a network.
        groups: the tasks that two networks should answer, or None if copies are as good.
    """

    draw: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    encoder: Callable[[float], nn.Module]
    groups: frozenset[frozenset[str]] | None = None


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


KINDS = {
    "conflict": Kind(conflicting, one_unit, frozenset({frozenset("ab"), frozenset("cd")})),
    "independent": Kind(independent, MLP(FEATURES, (32,))),
    "related": Kind(related, MLP(FEATURES, (24,))),
}


def draw_problem(kind: Kind, repetition: int) -> Problem:
    """Draws the data of a repetition."""
    draw = np.random.default_rng([repetition, 11])
    inputs = draw.normal(size=(sum(ROWS.values()), FEATURES))
    targets = kind.draw(inputs, draw) + NOISE * draw.normal(size=(len(inputs), len(TASKS)))
    splits, start = [], 0
    for rows in ROWS.values():
        some = slice(start, start + rows)
        labels = {task: torch.tensor(targets[some, column]).float() for column, task in enumerate(TASKS)}
        splits.append(Split(torch.tensor(inputs[some]).float(), labels))
        start += rows
    recipe = Recipe(optimizer="adam", lr=0.02, batch_size=60, epochs=60, patience=6)
    tasks = tuple(Task(name, kind="regression") for name in TASKS)
    return Problem("drawn", tasks, *splits, encoder=kind.encoder, recipe=recipe)


@dataclass(frozen=True)
class Case:
    """What `auto` recommended for one problem and budget.

    Attributes:
        budget: the number of networks.
        pool: the kind of networks that it chose from.
        expected: the change that it expected.
        doubt: the standard error of `expected`.
        truth: the change of the test loss.
        error: the standard error of `truth`.
        right: whether the recommendation is the planted one or, without planted groups, only networks for all tasks.
    """

    budget: int
    pool: str
    expected: float
    doubt: float
    truth: float
    error: float
    right: bool

    @property
    def z(self) -> float:
        """The difference between the truth and what was expected, in standard errors."""
        return (self.truth - self.expected) / math.hypot(self.doubt, self.error)


def run_repetition(kind: Kind, repetition: int, options: argparse.Namespace) -> list[Case]:
    """Lets `auto` decide about one problem, and judges its plans."""
    pool, seed = TeachingPool(draw_problem(kind, repetition), "cpu"), SEEDS_PER_REPETITION * (repetition + 1)
    given = {"effort": options.effort, "passes": options.passes, "affinity": not options.without_hints}
    auto = make_method("auto", {"auto": given})
    decision = auto.decide(pool, options.budgets, [seed])
    copies = [Group(TASKS, TASKS, copy=FIRST_FRESH + number) for number in range(FRESH_COPIES)]
    pool.train([pool.group_job(copy, seed) for copy in copies])
    fresh = [pool.test_rows([copy], seed) for copy in copies]
    plain = {task: np.mean([one[task] for one in fresh], axis=0) for task in TASKS}
    cases = []
    for budget in options.budgets:
        groups, chosen = decision.choices[budget, seed].groups, decision.about["chosen"][str(budget)]
        rows = pool.test_rows(groups, seed)
        truth, levels = _change(rows, plain), [1 + _change(one, plain) for one in fresh]
        error = math.hypot(row_stderr([rows], [plain]), (1 + truth) * stderr(levels))
        expected = chosen["pool"], chosen["expected"], chosen["doubt"]
        cases.append(Case(budget, *expected, truth, error, _is_right(kind, budget, groups)))
    return cases


def _change(rows: Mapping[str, np.ndarray], plain: Mapping[str, np.ndarray]) -> float:
    return statistics.mean(float(rows[task].mean() / plain[task].mean() - 1) for task in TASKS)


def _is_right(kind: Kind, budget: int, groups: Sequence[Group]) -> bool:
    if kind.groups is None or budget == 1:
        return all(group.trains == frozenset(TASKS) for group in groups)
    return all(any(group.serves <= planted for planted in kind.groups) for group in groups)


def show(cases: Mapping[str, Sequence[Case]]) -> str:
    """Formats how often `auto` was right, and how often the truth was within its doubt."""
    lines = []
    everything = {"all": [case for some in cases.values() for case in some]} if len(cases) > 1 else {}
    for name, own in {**cases, **everything}.items():
        for budget in [*sorted({case.budget for case in own}), None]:
            some = [case for case in own if budget in (case.budget, None)]
            pools = [case.pool for case in some]
            lines.append(
                [
                    name,
                    "all" if budget is None else str(budget),
                    f"{sum(case.right for case in some)} of {len(some)}",
                    ", ".join(f"{pools.count(pool)} {pool}" for pool in dict.fromkeys(pools)),
                    f"{100 * statistics.mean(case.truth for case in some):+.1f}".replace("-", "−"),
                    f"{statistics.mean(abs(case.z) <= 1 for case in some):.0%}",
                    f"{100 * statistics.mean(case.doubt for case in some):.1f}",
                    f"{100 * statistics.mean(case.truth - case.expected for case in some):+.1f}".replace("-", "−"),
                    f"{math.sqrt(statistics.mean(case.z**2 for case in some)):.2f}",
                ]
            )
    head = ["problem", "k", "right", "pool", "truth", "within ± doubt", "mean doubt", "truth − expected", "RMS of z"]
    return table(head, lines)


def main() -> None:
    """Runs all repetitions and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(KINDS), metavar="PROBLEM", help=", ".join(KINDS))
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition")
    parser.add_argument("--effort", type=float, default=20)
    parser.add_argument("--budgets", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--passes", type=int)
    parser.add_argument("--without-hints", action="store_true", help="measure no affinities")
    parser.add_argument("--out", type=Path, help="where to save the results, after each repetition")
    parser.add_argument("--show", type=Path, nargs="+", help="print the table of earlier runs; --out merges them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases: dict[str, list[Case]] = read(options.show or ())
    for name in () if options.show else options.problems:
        start, cases[name] = time.perf_counter(), []
        for repetition in range(options.first, options.first + options.repetitions):
            cases[name] += run_repetition(KINDS[name], repetition, options)
            if options.out:
                save(cases, options.out)
        progress(f"{name}: {time.perf_counter() - start:.0f} s")
    if options.out:
        save(cases, options.out)
    print(show(cases))


def save(cases: Mapping[str, Sequence[Case]], path: Path) -> None:
    """Saves results."""
    path.write_text(json.dumps({name: [asdict(case) for case in own] for name, own in cases.items()}, indent=1))


def read(paths: Iterable[Path]) -> dict[str, list[Case]]:
    """Reads and merges results."""
    found: dict[str, list[Case]] = {}
    for path in paths:
        for name, own in json.loads(path.read_text()).items():
            found.setdefault(name, []).extend(Case(**one) for one in own)
    return found


if __name__ == "__main__":
    main()
