"""How good is `auto`? Looked up in truth tables, without training anything (see the README here).

    python benchmarks/auto_quality.py                      # all tables that come with the package
    python benchmarks/auto_quality.py --repetitions 20 --efforts 20,60 --tables nhanes,faces

An effort is a number of trainings, or a part of those that HOA takes with as many seeds, such as HOA/4. Every
repetition draws three seeds to search with; what is found is judged by the test losses of all other seeds.
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
from tagalong.study.search.recommendation import cover, served_by
from tagalong_paper.truth import (
    Estimate,
    TruthBackend,
    TruthTable,
    estimate_from_pairs,
    load_truth,
    marginal_effects_of,
    truth_names,
)

SEARCH_SEEDS = 3
OVERHEAD = 0.1  # of the first training, for affinities
ESTIMATOR, TAG = "cosine train trimmed", "lookahead sgd train mean"
Serves = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Case:
    """One way on one table with some seeds."""

    table: str
    repetition: int
    way: str
    effort: str
    settings: SearchSettings


@dataclass(frozen=True)
class Judged:
    """Changes on test by budget, and what it took."""

    case: Case
    changes: dict[int, float]
    spent: float


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", default=",".join(truth_names()))
    parser.add_argument("--folder", type=Path, help="of tables that did not come with the package")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--efforts", default="HOA/12,20,HOA/4,60,200")
    parser.add_argument("--budgets", default="2,3")
    parser.add_argument("--hints", default=ESTIMATOR, help="the estimator that proposes; of `tagalong leaderboard`")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tune", action="store_true", help="leave one table out: settings chosen on the others")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.perf_counter()
    efforts = options.efforts.split(",")
    names = options.tables.split(",")
    cases = [
        Case(name, repetition, way, effort, settings)
        for name, repetition in product(names, range(options.repetitions))
        for way, effort, settings in _ways(efforts, options.tune)
    ]
    global FOLDER, BUDGETS, HINTS
    FOLDER, BUDGETS, HINTS = options.folder, tuple(int(k) for k in options.budgets.split(",")), options.hints
    with get_context("fork").Pool(options.workers) as pool:
        found = pool.map(judged, cases, chunksize=8)
    if options.tune:
        _print_left_out(found, names)
    else:
        for budget in BUDGETS:
            _print(found, names, budget)
    print(f"{len(cases)} cases in {time.perf_counter() - start:.0f} s")
    if options.json:
        lines = [{"case": str(one.case), "changes": one.changes, "spent": one.spent} for one in found]
        options.json.write_text(json.dumps(lines, indent=1))


FOLDER: Path | None = None
BUDGETS: tuple[int, ...] = (2, 3)
HINTS = ESTIMATOR
GRID = [  # not `caution` and `sure`: those are what keeps `auto` honest where nothing is to be gained
    SearchSettings(optimism=optimism, reserved=reserved)
    for optimism, reserved in product((0.7, 1.0, 1.4), (0.15, 0.25))
]
COMPARED = ("auto", "auto, no affinity", "auto, shuffled affinity", "auto, early looks")


def _ways(efforts: Iterable[str], tune: bool) -> list[tuple[str, str, SearchSettings]]:
    if tune:
        return [("exhaustive", "", SearchSettings()), *(("auto", effort, one) for effort in efforts for one in GRID)]
    return [(way, "", SearchSettings()) for way in FIXED] + [
        (way, e, SearchSettings()) for e in efforts for way in COMPARED
    ]


def judged(case: Case) -> Judged:
    """Runs one case and looks its truth up."""
    table = _table(case.table)
    draw = np.random.default_rng([case.repetition, 8])
    order = draw.permutation(table.seeds).tolist()
    seeds, others = order[:SEARCH_SEEDS], order[SEARCH_SEEDS:]
    if case.way.startswith("auto"):
        hints, errors, spent = _hints(table, seeds[0], case.way, draw)
        settings = replace(case.settings, screen=table.fractions[1]) if "early" in case.way else case.settings
        told = {"hints": hints, "errors": errors, "spent": spent}
        found = search(TruthBackend(table), BUDGETS, _trainings(table, case.effort), seeds, settings=settings, **told)
        serves = {budget: chosen.serves for budget, chosen in found.chosen.items()}
        spent = found.spent
    else:
        serves, spent = FIXED[case.way](table, seeds)
    return Judged(case, {budget: table.change(some, others) for budget, some in serves.items()}, spent)


def _trainings(table: TruthTable, effort: str) -> float:
    if not effort.startswith("HOA/"):
        return float(effort)
    n = len(table.tasks)
    return SEARCH_SEEDS * n * (n + 1) / 2 / float(effort.removeprefix("HOA/"))


_tables: dict[str, TruthTable] = {}


def _table(name: str) -> TruthTable:
    if name not in _tables:
        path = None if FOLDER is None else FOLDER / f"{name}.npz"
        _tables[name] = TruthTable.load(path) if path is not None and path.exists() else load_truth(name)
    return _tables[name]


Hints = tuple[np.ndarray | None, np.ndarray | None, float]


def _hints(table: TruthTable, seed: int, way: str, draw: np.random.Generator) -> Hints:
    """Affinities of one seed as fewer measurements, worth a tenth of a training, would have given; and errors."""
    if way == "auto, no affinity":
        return None, None, 0.0
    if HINTS in table.predictions:  # of whole networks, at their full price
        predicted = table.predictions[HINTS]
        hints = np.nan_to_num(marginal_effects_of(predicted[seed % len(predicted)]))
        errors, fewer, spent = np.zeros_like(hints), 1.0, table.costs[HINTS]
    else:
        measured, place = table.affinities[HINTS], seed % len(table.affinities[HINTS])
        errors = np.nan_to_num(table.errors[HINTS][place])
        fewer, spent = max(1.0, table.costs[HINTS] / OVERHEAD), OVERHEAD
        hints = measured[place] + np.sqrt(fewer - 1) * errors * draw.normal(size=errors.shape)
    if way == "auto, shuffled affinity":
        off = ~np.eye(len(hints), dtype=bool)
        hints[off] = draw.permutation(hints[off])
    return hints, np.sqrt(fewer) * errors, spent


def exhaustive(table: TruthTable, seeds: list[int]) -> tuple[dict[int, Serves], float]:
    """Every subset with every seed; chosen on validation."""
    logs = table.val[seeds].mean(1)
    values = np.exp(logs - logs[:, -1:]).mean(0)[::-1]
    inside = table.subsets[::-1]
    values = np.where(inside, values, np.inf)
    found = {}
    for budget in BUDGETS:
        rows = served_by(values, cover(values, budget))
        found[budget] = {
            task: frozenset(np.array(table.tasks)[inside[row]].tolist())
            for task, row in zip(table.tasks, rows, strict=True)
        }
    return found, float(len(inside) * len(seeds))


def hoa(table: TruthTable, seeds: list[int]) -> tuple[dict[int, Serves], float]:
    """All pairs and singles with every seed."""
    pairs = estimate_from_pairs(table, table.val[seeds].mean((0, 1)), 1.0)
    return _chosen(table, pairs), pairs.cost * len(seeds)


def tag(table: TruthTable, seeds: list[int]) -> tuple[dict[int, Serves], float]:
    """The paper's affinities, of one seed, measured at every other step or so."""
    measured = table.affinities[TAG]
    return _chosen(table, Estimate(measured[seeds[0] % len(measured)], 0.0)), 1 + table.costs[TAG]


def _chosen(table: TruthTable, estimate: Estimate) -> dict[int, Serves]:
    groups = {budget: estimate.groups(table.tasks, budget).groups for budget in BUDGETS}
    return {k: {task: group.trains for group in some for task in group.serves} for k, some in groups.items()}


FIXED: dict[str, Callable[[TruthTable, list[int]], tuple[dict[int, Serves], float]]] = {
    "exhaustive": exhaustive,
    "HOA": hoa,
    "HOA, one seed": lambda table, seeds: hoa(table, seeds[:1]),
    "TAG": tag,
}


def _print(found: list[Judged], names: list[str], budget: int) -> None:
    usual = [one for one in found if one.case.settings == SearchSettings()]
    ways = list(dict.fromkeys((one.case.way, one.case.effort) for one in usual))
    print(f"\n| k = {budget} | effort | trainings | {' | '.join(names)} | mean ± | of exhaustive |")
    print(f"|---|---|---|{'---|' * (len(names) + 2)}")
    best = np.mean(_changes(usual, names, "exhaustive", "", budget))
    for way, effort in ways:
        spent = np.mean([one.spent for one in usual if (one.case.way, one.case.effort) == (way, effort)])
        changes = _changes(usual, names, way, effort, budget)
        error = 100 * changes.mean(0).std(ddof=1) / np.sqrt(changes.shape[1]) if changes.shape[1] > 1 else np.nan
        cells = " | ".join(f"{100 * mean:+.2f} %" for mean in changes.mean(1))
        mean = changes.mean()
        print(f"| {way} | {effort} | {spent:.0f} | {cells} | {100 * mean:+.2f} ± {error:.2f} % | {mean / best:.0%} |")


def _changes(found: list[Judged], names: list[str], way: str, effort: str, budget: int) -> np.ndarray:
    """[tables, repetitions]"""
    wanted = [one for one in found if (one.case.way, one.case.effort) == (way, effort)]
    return np.array([[one.changes[budget] for one in wanted if one.case.table == name] for name in names])


def _print_left_out(found: list[Judged], names: list[str]) -> None:
    """For each table the settings that did best on the others, and what these bring where they were not chosen."""
    tuned = [one for one in found if one.case.way == "auto"]
    efforts = list(dict.fromkeys(one.case.effort for one in tuned))

    def values(settings: SearchSettings, effort: str, budget: int) -> np.ndarray:
        return _changes([one for one in tuned if one.case.settings == settings], names, "auto", effort, budget).mean(1)

    columns = list(product(efforts, BUDGETS))
    means = np.array(
        [[values(settings, *column) for column in columns] for settings in GRID]
    )  # [grid, columns, tables]
    print("\n| left out | chosen on the others | " + " | ".join(f"effort {e}, k = {k}" for e, k in columns) + " |")
    print(f"|---|---|{'---|' * len(columns)}")
    judged_on = []
    for place, name in enumerate(names):
        chosen = int(np.argmin(np.delete(means, place, axis=2).mean((1, 2)))) if len(names) > 1 else 0
        judged_on.append(means[chosen, :, place])
        cells = " | ".join(f"{100 * value:+.2f} %" for value in judged_on[-1])
        print(f"| {name} | optimism {GRID[chosen].optimism}, reserved {GRID[chosen].reserved} | {cells} |")
    best = [_changes(found, names, "exhaustive", "", budget).mean() for _, budget in columns]
    shares = " | ".join(f"{value / most:.0%}" for value, most in zip(np.mean(judged_on, axis=0), best, strict=True))
    print(f"| of exhaustive | | {shares} |")


if __name__ == "__main__":
    main()
