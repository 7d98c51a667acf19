"""How often is the verdict right, on problems drawn anew with known answers (see the README)?

    python benchmarks/verdict_rates.py --processes 2 --json rates.json   # everything; resumes from the file
    python benchmarks/verdict_rates.py split folds --cases noise --repetitions 20
    python benchmarks/verdict_rates.py stable --tables diabetes

Four tasks are learnt by small networks, and the truth is known from 100,000 fresh rows:

- split: is the gain real? `mtl`, `stl`, `hoa` and `optimal` with three seeds, in three worlds. The truth is the gain of
  the very networks that are recommended over ten plain ones.
- many: the same with 31 candidates, which are random partitions, and 88 validation rows.
- folds: 700 rows in five folds. The truth is the mean gain of the recommended way over all repetitions and folds.
- learnt: is a task said to be learnt? With 1,000 test rows, and with 88 validation and 89 test rows.
- found: does `auto` find the planted groups, at efforts of 20 and 60?
- stable: is the advice the same for ten seeds of the split? Of tables instead of drawn data, without known answers.

In *noise*, the targets are independent of the inputs; in *twins*, all tasks are the same function; in *conflict*, two
pairs of tasks need different directions from an encoder with a single linear unit.
"""

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv

from harness import Row, make_parser, progress, save_json, table
from tagalong.group import Group
from tagalong.learn import MLP, Problem, Recipe, Split, Task, build_network, outputs_on
from tagalong.study import Choice, Decision, Method, Record, Results, Runner, Verdict
from tagalong.study.decisions import compare
from tagalong.study.study_request import check_request
from tagalong.study.words import label_text

NAMES = ("a", "b", "c", "d")
PAIRS = (frozenset("ab"), frozenset("cd"))  # that need different networks in `conflict`
FEATURES, FRESH_ROWS, PLAIN_SEEDS = 6, 100_000, range(100, 110)
METHODS = ("mtl", "stl", "hoa", "optimal")
WORLDS = {"noise": (8, 1.0), "twins": (8, 1.0), "conflict": (1, 0.4)}  # units of the encoder, noise of the targets
SHARE = 0.2  # of the variance that the inputs of learnt tasks explain
SIZES = {"split": (300, 200, 300), "many": (265, 88, 89), "folds": (700,), "found": (300, 200, 300)}
LEARNT_SIZES = {"1000": (2000, 500, 1000), "89": (265, 88, 89)}
REPETITIONS = {"split": 200, "many": 200, "folds": 200, "learnt": 100, "found": 100, "stable": 10}
EFFORTS = {"20": 20, "60": 60}
CASES = {
    "split": tuple(WORLDS),
    "many": ("noise", "conflict"),
    "folds": tuple(WORLDS),
    "learnt": tuple(LEARNT_SIZES),
    "found": tuple(EFFORTS),
    "stable": (),  # the tables
}


def main() -> None:
    parser = make_parser(__doc__, device=False)
    parser.add_argument("what", nargs="*", default=[name for name in CASES if name != "stable"], metavar="WHAT")
    parser.add_argument("--repetitions", type=int, help="200, or 100 of learnt and found, or 10 splits")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), help="some worlds, numbers of test rows or efforts"
    )
    parser.add_argument("--tables", type=lambda text: text.split(","), default=["diabetes"], help="of `stable`")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="of `stable`")
    parser.add_argument("--data", type=Path, help="folder with tables/, of `stable`")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    path = options.json
    done: dict[str, Row] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    for number, (name, row) in enumerate(run_all(options, done)):
        done[name] = row
        if number % 20 == 0:
            save_json(path, done)
    save_json(path, done)
    for what in options.what:
        rows = [row | {"case": name.split("/")[1]} for name, row in done.items() if name.split("/")[0] == what]
        print(f"\n{what}\n\n{table(SUMMARIES[what](rows))}")


def run_all(options: Namespace, done: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
    """Yields the name and the result of each repetition that is not done yet, as it finishes."""
    jobs: dict[str, Callable[[], Row]] = {}
    for what in options.what:
        for repetition in range(options.repetitions or REPETITIONS[what]):  # so that all cases progress alike
            for case in options.tables if what == "stable" else CASES[what]:
                if options.cases and case not in options.cases and what != "stable":
                    continue
                name = f"{what}/{case}/{repetition}"
                if name not in done:
                    of_tables = {"methods": options.methods, "data": options.data} if what == "stable" else {}
                    jobs[name] = partial(JUDGES[what], case, repetition, **of_tables)
    begun = time.perf_counter()
    if options.processes == 1:
        torch.set_num_threads(1)
        for name, job in jobs.items():
            yield name, job()
            progress(f"{name} after {time.perf_counter() - begun:.0f} s")
        return
    with ProcessPoolExecutor(options.processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(job): name for name, job in jobs.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
            progress(f"{futures[future]} after {time.perf_counter() - begun:.0f} s")


# Data ----------------------------------------------------------------------------------------------------------------


def draw_rows(world: str, count: int, directions: torch.Tensor, rng: torch.Generator) -> Split:
    """Draws rows from a world."""
    inputs = torch.randn(count, FEATURES, generator=rng)
    targets = torch.randn(count, 4, generator=rng)
    if world in WORLDS:
        targets *= WORLDS[world][1]
        used = {"noise": None, "twins": [0, 0, 0, 0], "conflict": [0, 0, 1, 1]}[world]
        if used is not None:
            targets += inputs @ directions[:, used]
    else:  # tasks a and b can be learnt
        targets *= torch.tensor([(1 - SHARE) ** 0.5] * 2 + [1.0] * 2)
        targets[:, :2] += SHARE**0.5 * inputs @ directions[:, :2]
    return Split(inputs, dict(zip(NAMES, targets.T.contiguous(), strict=True)))


def draw_problem(world: str, seed: int, sizes: Sequence[int]) -> tuple[Problem, Split]:
    """Draws a problem and fresh rows. A single size gives arrays, which can be split into folds."""
    rng = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(FEATURES, 4, generator=rng)).Q
    parts = [draw_rows(world, count, directions, rng) for count in sizes]
    fresh = draw_rows(world, FRESH_ROWS, directions, rng)
    units = WORLDS.get(world, (16, 0))[0]
    encoder = MLP(FEATURES, (units,)) if units > 1 else partial(torch.nn.Linear, FEATURES, units)
    tasks = tuple(Task(name, kind="regression", error="loss") for name in NAMES)
    recipe = Recipe(optimizer="adam", lr=0.05, weight_decay=0.0, batch_size=100, epochs=15, patience=5)
    if world not in WORLDS:
        recipe = Recipe(lr=0.01, batch_size=max(64, sizes[0] // 10), epochs=30, patience=5)
    if len(parts) > 1:
        return Problem(world, tasks, *parts, encoder, recipe=recipe), fresh
    inputs, targets = parts[0].inputs, {name: column.numpy() for name, column in parts[0].targets.items()}
    return Problem.from_arrays(inputs, targets, tasks, encoder=encoder, recipe=recipe), fresh


def one_unit() -> torch.nn.Module:
    """Creates an encoder of rows that are not vectors."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(FEATURES, 1))


class Partition(Method):
    """One of all ways to split the tasks, with other seeds: a candidate that is no better than others."""

    budgeted = False

    def __init__(self, number: int) -> None:
        self.name = f"partition{number}"
        rng = np.random.default_rng(number)
        sets: dict[int, list[str]] = {}
        for task, group in zip(NAMES, rng.integers(0, 4, 4).tolist(), strict=True):
            sets.setdefault(group, []).append(task)
        self.groups = tuple(Group(tasks, tasks, copy=number) for tasks in sets.values())

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice(self.groups)}, seeds)


# Truth ---------------------------------------------------------------------------------------------------------------


class Truth:
    """The skill of networks on fresh rows."""

    def __init__(self, runner: Runner, fresh: Split, units: Mapping[str, float]) -> None:
        self.runner, self.units = runner, units
        self.inputs, self.targets = fresh.inputs, dict(fresh.targets)
        if runner.problem.table is not None:  # which standardizes
            self.inputs = torch.as_tensor(runner.problem.table.inputs(fresh.inputs))
        for name, (center, deviation, *_) in runner.problem.scales.items():
            self.targets[name] = (fresh.targets[name] - center) / deviation
        train = runner.problem.train.targets
        self.constants = {name: float((own - train[name].mean()).square().mean()) for name, own in self.targets.items()}
        self.known: dict[str, dict[str, float]] = {}

    def losses(self, key: str) -> dict[str, float]:
        """Returns the mean loss of each task that a network was trained on."""
        if key not in self.known:
            job = self.runner.store.results([key])[key].job
            network = build_network(self.runner.problem, job.tasks, job.seed)
            network.load_state_dict(self.runner.weights(key))
            outputs = outputs_on(network.eval(), self.inputs)
            losses = {task: float((out[:, 0] - self.targets[task]).square().mean()) for task, out in outputs.items()}
            self.known[key] = losses
        return self.known[key]

    def skills(self, groups: Sequence[Group], keys: Sequence[str]) -> dict[str, float]:
        """Returns the skill of each task, which one of the networks serves."""
        skills = {}
        for group, key in zip(groups, keys, strict=True):
            for task in group.serves:
                skills[task] = (self.constants[task] - self.losses(key)[task]) / self.units[task]
        return skills

    def mean(self, record: Record) -> float:
        """Returns the mean skill over tasks."""
        return mean(self.skills(record.groups, record.networks).values())


def study(
    problem: Problem, methods: Sequence[str | Method], seeds: int | None = 3, **more: Any
) -> tuple[Runner, Results]:
    """Compares methods in memory."""
    request = check_request(problem.names, methods, [2, 3], seeds, **more, problem=problem)
    runner = Runner(problem, device="cpu")
    return runner, compare(runner, request)


def gain_row(verdict: Verdict, **more: Any) -> Row:
    gain = verdict.gain
    return {"label": str(verdict.recommended), "gain": gain.estimate, "low": gain.low, "high": gain.high, **more}


# Judges of one repetition --------------------------------------------------------------------------------------------


def judge_split(case: str, repetition: int, what: str = "split") -> Row:
    """Returns the gain that a verdict reports, and the gain of the very networks over ten plain ones."""
    problem, fresh = draw_problem(case, repetition, SIZES[what])
    methods = METHODS if what == "split" else ("mtl", *(Partition(number) for number in range(1, 31)))
    runner, results = study(problem, methods)
    verdict, truth = results.verdict(), Truth(runner, fresh, results.scale.units)
    if verdict.recommended == verdict.reference:
        return gain_row(verdict, truth=0.0)
    record = next(one for one in results.records_of(verdict.recommended) if one.seed == verdict.chosen.seed)
    plain = runner.networks([runner.job(NAMES, seed) for seed in PLAIN_SEEDS]).values()
    obvious = [mean(truth.skills([Group(NAMES, NAMES)], [network.key]).values()) for network in plain]
    return gain_row(verdict, truth=truth.mean(record) - mean(obvious))


def judge_folds(case: str, repetition: int) -> Row:
    """Returns the gain that a verdict reports, and the gains of all ways in this repetition."""
    problem, fresh = draw_problem(case, repetition, SIZES["folds"])
    runner, results = study(problem, METHODS, seeds=None)
    truths: dict[str, list[float]] = {}
    for number, fold in enumerate(runner.folds(len(results.scale.folds))):
        truth, skills = Truth(fold, fresh, results.scale.folds[number].units), {}
        for record in results.records:
            if record.seed == number:
                skills[str(record.label)] = truth.mean(record)
        for label, skill in skills.items():
            truths.setdefault(label, []).append(skill - skills[str(("mtl", None))])
    verdict = results.verdict()
    return gain_row(verdict, picked_in=verdict.picked_in, truths={label: mean(own) for label, own in truths.items()})


def judge_learnt(case: str, repetition: int) -> Row:
    """Returns whether each task is said to be learnt, and its true skill."""
    problem, fresh = draw_problem("learnt", repetition, LEARNT_SIZES[case])
    runner, results = study(problem, ["mtl", "stl"])
    verdict, truth = results.verdict(), Truth(runner, fresh, results.scale.units)
    record = next(one for one in results.records_of(verdict.recommended) if one.seed == verdict.chosen.seed)
    skills = truth.skills(record.groups, record.networks)
    return {"learnt": {one.task: one.learnt for one in verdict.per_task}, "skills": skills}


def judge_found(case: str, repetition: int) -> Row:
    """Returns whether `auto` recommends networks that answer no tasks of both pairs."""
    drawn, _ = draw_problem("conflict", repetition, SIZES["found"])
    # Not a vector of numbers, since ridge would need no groups.
    rows = {part: replace(split, inputs=split.inputs[:, None]) for part, split in drawn.splits.items()}
    problem = replace(drawn, encoder=one_unit, **rows)
    _, results = study(problem, ["mtl", "auto"], seeds=1, effort=EFFORTS[case])
    groups = results.records_of(("auto", 2))[0].groups
    return {"found": all(any(group.serves <= pair for pair in PAIRS) for group in groups)}


def judge_stable(case: str, repetition: int, methods: Sequence[str] | None, data: Path | None) -> Row:
    """Returns what is recommended for a seed of the split, and the test skill of every way."""
    from base_tables import TABLES  # needs pandas and scikit-learn

    problem = TABLES[case](data, repetition)
    request = check_request(problem.names, methods, [2, 3], problem=problem)
    verdict = compare(Runner(problem, device="cpu"), request).verdict()
    ways = {label_text(way.label): way.skill for way in verdict.ways if way.honest}
    return {"table": case, "label": label_text(verdict.recommended), "folds": verdict.folds, "skills": ways}


JUDGES: dict[str, Callable[..., Row]] = {
    "split": judge_split,
    "many": partial(judge_split, what="many"),
    "folds": judge_folds,
    "learnt": judge_learnt,
    "found": judge_found,
    "stable": judge_stable,
}


# Tables --------------------------------------------------------------------------------------------------------------


def exact_interval(successes: int, trials: int) -> str:
    """Formats the 95% interval of a rate (Clopper–Pearson)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, 0.025))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 0.975))
    return f"{low:.1%} to {high:.1%}"


def by_case(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Groups rows by the world, table or size."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    return cases


def count_text(found: Sequence[bool]) -> str:
    """Formats how often something was so, with the 95% interval of its rate."""
    return f"{sum(found)} of {len(found)} ({exact_interval(sum(found), len(found))})" if found else ""


def gain_lines(rows: Sequence[Row]) -> list[Row]:
    """Returns how often a gain was shown, how often its interval contains the truth, and how wide it is."""
    lines = []
    for case, own in by_case(rows).items():
        truths: dict[str, list[float]] = {}  # of folds, for each way
        for row in own:
            for label, truth in row.get("truths", {}).items():
                truths.setdefault(label, []).append(truth)
        others = [row for row in own if row["low"] != 0 or row["high"] != 0]  # than the reference
        truth_of = [row["truth"] if "truth" in row else mean(truths[row["label"]]) for row in others]
        worth_it = [row["low"] > 0 for row in others]
        claimed = [true for true, is_claimed in zip(truth_of, worth_it, strict=True) if is_claimed]
        covered = [row["low"] <= true <= row["high"] for row, true in zip(others, truth_of, strict=True)]
        line: Row = {"world": case, "worth it": count_text([*worth_it, *[False] * (len(own) - len(others))])}
        line["wrongly"] = sum(true <= 0 for true in claimed)
        line["covered"] = count_text(covered)
        if others:
            line["median width"] = f"{100 * median(row['high'] - row['low'] for row in others):.1f}"
            line["gain"] = f"{100 * mean(row['gain'] for row in others):+.1f}"
            line["true gain"] = f"{100 * mean(truth_of):+.1f}"
        lines.append(line)
    return lines


def learnt_lines(rows: Sequence[Row]) -> list[Row]:
    """Returns how often tasks were said to be learnt, by their true skill."""
    lines = []
    for case, own in by_case(rows).items():
        said: dict[str, list[bool]] = {"true skill ≥ 0.1": [], "0 to 0.1": [], "at most 0": []}
        for row in own:
            for task, skill in row["skills"].items():
                kind = "at most 0" if skill <= 0 else "0 to 0.1"
                said["true skill ≥ 0.1" if skill >= 0.1 else kind].append(row["learnt"][task])
        lines.append({"test rows": case} | {kind: count_text(found) for kind, found in said.items()})
    return lines


def found_lines(rows: Sequence[Row]) -> list[Row]:
    """Returns how often the planted groups were found."""
    return [{"effort": case, "found": count_text([row["found"] for row in own])} for case, own in by_case(rows).items()]


def stable_lines(rows: Sequence[Row]) -> list[Row]:
    """Returns what was recommended, and by how many points it falls short of the way that is best over all splits."""
    lines = []
    for case, own in by_case(rows).items():
        labels = [label for label in own[0]["skills"] if all(label in row["skills"] for row in own)]
        best = max(labels, key=lambda label: mean(row["skills"][label] for row in own))
        regrets = [100 * (row["skills"][best] - row["skills"][row["label"]]) for row in own]
        counts = Counter(row["label"] for row in own).most_common()
        line: Row = {"table": case, "splits": len(own), "best over all": best, "mean regret": f"{mean(regrets):+.2f}"}
        line["largest"] = f"{max(regrets):+.2f}"
        line["recommended"] = ", ".join(f"{label} {count}" for label, count in counts)
        lines.append(line)
    return lines


SUMMARIES: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "split": gain_lines,
    "many": gain_lines,
    "folds": gain_lines,
    "learnt": learnt_lines,
    "found": found_lines,
    "stable": stable_lines,
}


if __name__ == "__main__":
    main()
