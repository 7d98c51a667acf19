"""How good are the groupings that `auto` finds? Nothing is trained: results come from truth tables (see the README).

    python benchmarks/auto_quality.py                      # all tables shipped with the package
    python benchmarks/auto_quality.py --repetitions 20 --efforts 20,60 --tables nhanes,faces
    python benchmarks/auto_quality.py --repetitions 30 --efforts 20,60 --rounds 12,10,6,4,3

An effort is a number of trainings, or a fraction of the number that HOA needs with the same seeds, e.g. HOA/4.
Each repetition draws three seeds for the search; the grouping found is judged by the test losses of all other seeds.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tagalong.study.search import SearchSettings, search
from tagalong.study.search.recommendation import select_cover, serving_rows
from tagalong_paper.truth import (
    Estimate,
    TruthBackend,
    TruthTable,
    estimate_from_networks,
    load_truth,
    marginal_effects,
    truth_names,
)

SEARCH_SEEDS = 3
OVERHEAD = 0.1  # cost of measuring affinities, as a fraction of one training
ESTIMATOR, TAG = "cosine train trimmed", "lookahead sgd train mean"
Serves = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Case:
    """One method on one table, searching with some of the seeds."""

    table: str
    repetition: int
    method: str
    effort: str
    settings: SearchSettings


@dataclass(frozen=True)
class CaseResult:
    """The change in test loss for each budget, the number of trainings used, and how many of them in each round."""

    case: Case
    changes: dict[int, float]
    spent: float
    widths: tuple[int, ...] = ()


def main() -> None:
    """Runs all cases and prints one table per budget."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", default=",".join(truth_names()))
    parser.add_argument("--folder", type=Path, help="folder with tables that are not shipped with the package")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--efforts", default="HOA/12,20,HOA/4,60,200")
    parser.add_argument("--budgets", default="2,3")
    parser.add_argument(
        "--rounds", default="12", help="numbers of rounds to compare; the first one is the reference for differences"
    )
    parser.add_argument(
        "--hints", default=ESTIMATOR, help="estimator for the first proposals, by its name in `tagalong leaderboard`"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--tune",
        action="store_true",
        help="choose settings by leave-one-table-out cross-validation",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.perf_counter()
    efforts = options.efforts.split(",")
    names, rounds = options.tables.split(","), [int(number) for number in options.rounds.split(",")]
    cases = [
        Case(name, repetition, method, effort, settings)
        for name, repetition in product(names, range(options.repetitions))
        for method, effort, settings in _list_methods(efforts, options.tune, rounds)
    ]
    global FOLDER, BUDGETS, HINTS
    FOLDER, BUDGETS, HINTS = options.folder, tuple(int(k) for k in options.budgets.split(",")), options.hints
    with get_context("fork").Pool(options.workers) as pool:
        results = pool.map(run_case, cases, chunksize=8)
    if options.tune:
        _print_leave_one_out(results, names)
    elif len(rounds) > 1:
        for budget in BUDGETS:
            _print_rounds(results, names, budget, rounds)
    else:
        for budget in BUDGETS:
            _print_table(results, names, budget)
    print(f"{len(cases)} cases in {time.perf_counter() - start:.0f} s")
    if options.json:
        rows = [
            {"case": str(one.case), "changes": one.changes, "spent": one.spent, "widths": one.widths} for one in results
        ]
        options.json.write_text(json.dumps(rows, indent=1))


FOLDER: Path | None = None
BUDGETS: tuple[int, ...] = (2, 3)
HINTS = ESTIMATOR
GRID = [  # without `caution` and `sure`, which protect against losses where there is nothing to gain
    SearchSettings(optimism=optimism, rounds=12, reserved=reserved)
    for optimism, reserved in product((0.7, 1.0, 1.4), (0.15, 0.25))
]
AUTO_VARIANTS = ("auto", "auto, no affinity", "auto, shuffled affinity", "auto, early looks")


def _list_methods(efforts: Iterable[str], tune: bool, rounds: list[int]) -> list[tuple[str, str, SearchSettings]]:
    each = [SearchSettings(rounds=number) for number in rounds]
    if tune:
        return [("exhaustive", "", SearchSettings()), *(("auto", effort, one) for effort in efforts for one in GRID)]
    if len(each) > 1:
        return [("exhaustive", "", SearchSettings()), *(("auto", effort, one) for effort in efforts for one in each)]
    baselines = [(method, "", SearchSettings()) for method in BASELINES]
    return baselines + [(method, effort, each[0]) for effort in efforts for method in AUTO_VARIANTS]


def run_case(case: Case) -> CaseResult:
    """Runs one case, and looks up the true test losses of the networks it chose."""
    table = _load_table(case.table)
    rng = np.random.default_rng([case.repetition, 8])
    order = rng.permutation(table.seeds).tolist()
    seeds, others = order[:SEARCH_SEEDS], order[SEARCH_SEEDS:]
    widths: tuple[int, ...] = ()
    if case.method.startswith("auto"):
        hints, errors, spent = _measure_hints(table, seeds[0], case.method, rng)
        settings = replace(case.settings, screen=table.fractions[1]) if "early" in case.method else case.settings
        effort = _count_trainings(table, case.effort)
        measured = {"hints": hints, "errors": errors, "spent": spent}
        result = search(TruthBackend(table), BUDGETS, effort, seeds, settings=settings, **measured)
        serves = {budget: chosen.serves for budget, chosen in result.chosen.items()}
        spent, widths = result.spent, tuple(len(step.results) for step in result.steps[1:])
    else:
        serves, spent = BASELINES[case.method](table, seeds)
    changes = {budget: table.change(chosen, others) for budget, chosen in serves.items()}
    return CaseResult(case, changes, spent, widths)


def _count_trainings(table: TruthTable, effort: str) -> float:
    if not effort.startswith("HOA/"):
        return float(effort)
    n = len(table.tasks)
    return SEARCH_SEEDS * n * (n + 1) / 2 / float(effort.removeprefix("HOA/"))


_tables: dict[str, TruthTable] = {}


def _load_table(name: str) -> TruthTable:
    if name not in _tables:
        path = None if FOLDER is None else FOLDER / f"{name}.npz"
        _tables[name] = TruthTable.load(path) if path is not None and path.exists() else load_truth(name)
    return _tables[name]


Hints = tuple[np.ndarray | None, np.ndarray | None, float]


def _measure_hints(table: TruthTable, seed: int, method: str, rng: np.random.Generator) -> Hints:
    """Returns affinities for one seed, as noisy as if measured for a tenth of a training, with errors and cost."""
    if method == "auto, no affinity":
        return None, None, 0.0
    if HINTS in table.predictions:  # these predict whole networks, at their full cost
        predicted = table.predictions[HINTS]
        hints = np.nan_to_num(marginal_effects(predicted[seed % len(predicted)]))
        errors, fewer, spent = np.zeros_like(hints), 1.0, table.costs[HINTS]
    else:
        measured, place = table.affinities[HINTS], seed % len(table.affinities[HINTS])
        errors = np.nan_to_num(table.errors[HINTS][place])
        fewer, spent = max(1.0, table.costs[HINTS] / OVERHEAD), OVERHEAD
        hints = measured[place] + np.sqrt(fewer - 1) * errors * rng.normal(size=errors.shape)
    if method == "auto, shuffled affinity":
        off_diagonal = ~np.eye(len(hints), dtype=bool)
        hints[off_diagonal] = rng.permutation(hints[off_diagonal])
    return hints, np.sqrt(fewer) * errors, spent


def exhaustive(table: TruthTable, seeds: list[int]) -> tuple[dict[int, Serves], float]:
    """Trains every subset with every seed, and chooses by validation losses."""
    logs = table.val[seeds].mean(1)
    values = np.exp(logs - logs[:, -1:]).mean(0)[::-1]
    inside = table.subsets[::-1]
    values = np.where(inside, values, np.inf)
    found = {}
    for budget in BUDGETS:
        rows = serving_rows(values, select_cover(values, budget))
        found[budget] = {
            task: frozenset(np.array(table.tasks)[inside[row]].tolist())
            for task, row in zip(table.tasks, rows, strict=True)
        }
    return found, float(len(inside) * len(seeds))


def hoa(table: TruthTable, seeds: list[int]) -> tuple[dict[int, Serves], float]:
    """Trains all pairs and single tasks with every seed."""
    n = len(table.tasks)
    pairs = estimate_from_networks(table, table.val[seeds].mean((0, 1)), n * (n + 1) / 2, only_pairs=True)
    return _select(table, pairs), pairs.cost * len(seeds)


def tag(table: TruthTable, seeds: list[int]) -> tuple[dict[int, Serves], float]:
    """Uses the paper's affinities for one seed, measured about every other step."""
    measured = table.affinities[TAG]
    return _select(table, Estimate(measured[seeds[0] % len(measured)], 0.0)), 1 + table.costs[TAG]


def _select(table: TruthTable, estimate: Estimate) -> dict[int, Serves]:
    groups = {budget: estimate.groups(table.tasks, budget).groups for budget in BUDGETS}
    return {k: {task: group.trains for group in chosen for task in group.serves} for k, chosen in groups.items()}


BASELINES: dict[str, Callable[[TruthTable, list[int]], tuple[dict[int, Serves], float]]] = {
    "exhaustive": exhaustive,
    "HOA": hoa,
    "HOA, one seed": lambda table, seeds: hoa(table, seeds[:1]),
    "TAG": tag,
}


def _print_table(results: list[CaseResult], names: list[str], budget: int) -> None:
    methods = list(dict.fromkeys((one.case.method, one.case.effort) for one in results))
    print(f"\n| k = {budget} | effort | trainings | {' | '.join(names)} | mean ± | of exhaustive |")
    print(f"|---|---|---|{'---|' * (len(names) + 2)}")
    best = np.mean(_changes(results, names, "exhaustive", "", budget))
    for method, effort in methods:
        spent = np.mean([one.spent for one in results if (one.case.method, one.case.effort) == (method, effort)])
        changes = _changes(results, names, method, effort, budget)
        cells = " | ".join(f"{100 * mean:+.2f}%" for mean in changes.mean(1))
        share = f"{changes.mean() / best:.0%}"
        row = f"{method} | {effort} | {spent:.0f} | {cells} | {_with_error(changes)} | {share}"
        print(f"| {row} |")


def _changes(results: list[CaseResult], names: list[str], method: str, effort: str, budget: int) -> np.ndarray:
    """Returns the changes in test loss, [tables, repetitions]."""
    wanted = [one for one in results if (one.case.method, one.case.effort) == (method, effort)]
    return np.array([[one.changes[budget] for one in wanted if one.case.table == name] for name in names])


def _print_rounds(results: list[CaseResult], names: list[str], budget: int, rounds: list[int]) -> None:
    """Prints the results of each number of rounds, and their differences from the first number with the same seeds."""
    best = _changes(results, names, "exhaustive", "", budget).mean()
    head = (
        f"| k = {budget} | rounds | networks in a round | {' | '.join(names)} | mean ± | of exhaustive | difference |"
    )
    print(f"\n{head}\n|---|---|---|{'---|' * (len(names) + 3)}")
    for effort in dict.fromkeys(one.case.effort for one in results if one.case.method == "auto"):
        some = [[one for one in results if one.case.settings.rounds == number] for number in rounds]
        reference = _changes(some[0], names, "auto", effort, budget)
        for found in some:
            same = [one.widths for one in found if one.case.effort == effort]
            counts = (
                f"{np.mean([len(widths) for widths in same]):.1f} | {np.mean([max(widths) for widths in same]):.0f}"
            )
            changes = _changes(found, names, "auto", effort, budget)
            cells = " | ".join(f"{100 * mean:+.2f}%" for mean in changes.mean(1))
            share = f"{changes.mean() / best:.0%}"
            row = f"effort {effort} | {counts} | {cells} | {_with_error(changes)} | {share}"
            print(f"| {row} | {'' if found is some[0] else _with_error(changes - reference)} |")


def _with_error(changes: np.ndarray) -> str:
    """Formats the mean of changes of shape [tables, repetitions] with its standard error over repetitions."""
    error = changes.mean(0).std(ddof=1) / np.sqrt(changes.shape[1]) if changes.shape[1] > 1 else np.nan
    return f"{100 * changes.mean():+.2f} ± {100 * error:.2f}%"


def _print_leave_one_out(results: list[CaseResult], names: list[str]) -> None:
    """Prints, for each table, the settings that did best on the other tables, and their result on this one."""
    tuned = [one for one in results if one.case.method == "auto"]
    efforts = list(dict.fromkeys(one.case.effort for one in tuned))

    def values(settings: SearchSettings, effort: str, budget: int) -> np.ndarray:
        return _changes([one for one in tuned if one.case.settings == settings], names, "auto", effort, budget).mean(1)

    columns = list(product(efforts, BUDGETS))
    means = np.array(
        [[values(settings, *column) for column in columns] for settings in GRID]
    )  # [grid, columns, tables]
    print("\n| left out | chosen on the others | " + " | ".join(f"effort {e}, k = {k}" for e, k in columns) + " |")
    print(f"|---|---|{'---|' * len(columns)}")
    left_out = []
    for place, name in enumerate(names):
        chosen = int(np.argmin(np.delete(means, place, axis=2).mean((1, 2)))) if len(names) > 1 else 0
        left_out.append(means[chosen, :, place])
        cells = " | ".join(f"{100 * value:+.2f}%" for value in left_out[-1])
        print(f"| {name} | optimism {GRID[chosen].optimism}, reserved {GRID[chosen].reserved} | {cells} |")
    best = [_changes(results, names, "exhaustive", "", budget).mean() for _, budget in columns]
    shares = " | ".join(f"{value / most:.0%}" for value, most in zip(np.mean(left_out, axis=0), best, strict=True))
    print(f"| of exhaustive | | {shares} |")


if __name__ == "__main__":
    main()
