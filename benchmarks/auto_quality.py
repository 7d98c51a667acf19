"""How good is `auto`? Looked up in truth tables, without training anything (see the README here).

    python benchmarks/auto_quality.py                      # all tables that come with the package
    python benchmarks/auto_quality.py --repetitions 20 --efforts 20,60 --tables nhanes,faces

Every repetition draws three seeds to search with; what is found is judged by the test losses of all other seeds.
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

from tagalong.study.search import Settings, search
from tagalong.study.search._cover import cover, served_by
from tagalong.truth import Lookup, TruthTable, load_truth, truth_names
from tagalong.truth._estimates import Estimate, _of_pairs

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
    effort: int
    settings: Settings


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
    parser.add_argument("--efforts", default="20,60,200")
    parser.add_argument("--budgets", default="2,3")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--optimism", type=float, default=Settings().optimism)
    parser.add_argument("--tune", action="store_true", help="leave one table out: settings chosen on the others")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.perf_counter()
    efforts = [int(effort) for effort in options.efforts.split(",")]
    names = options.tables.split(",")
    cases = [
        Case(name, repetition, way, effort, settings)
        for name, repetition in product(names, range(options.repetitions))
        for way, effort, settings in _ways(efforts, options.tune, Settings(optimism=options.optimism))
    ]
    global FOLDER, BUDGETS
    FOLDER, BUDGETS = options.folder, tuple(int(k) for k in options.budgets.split(","))
    with get_context("fork").Pool(options.workers) as pool:
        found = pool.map(judged, cases, chunksize=8)
    for budget in BUDGETS:
        _print(found, names, budget, Settings(optimism=options.optimism))
    if options.tune:
        _print_left_out(found, names)
    print(f"{len(cases)} cases in {time.perf_counter() - start:.0f} s")
    if options.json:
        lines = [{"case": str(one.case), "changes": one.changes, "spent": one.spent} for one in found]
        options.json.write_text(json.dumps(lines, indent=1))


FOLDER: Path | None = None
BUDGETS: tuple[int, ...] = (2, 3)
GRID = [
    Settings(optimism=optimism, reserved=reserved, caution=caution)
    for optimism, reserved, caution in product((0.4, 0.7, 1.0), (0.15, 0.35), (0.0, 0.5))
]


def _ways(efforts: Iterable[int], tune: bool, usual: Settings) -> list[tuple[str, int, Settings]]:
    fixed = [("exhaustive", 0, usual), ("HOA", 0, usual), ("HOA, one seed", 0, usual), ("TAG", 0, usual)]
    autos = [
        (way, effort, usual)
        for effort in efforts
        for way in ("auto", "auto, no affinity", "auto, shuffled affinity", "auto, early looks")
    ]
    tried = [("auto", effort, settings) for effort in efforts for settings in GRID] if tune else []
    return fixed + autos + tried


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
        found = search(Lookup(table), BUDGETS, case.effort, seeds, settings=settings, **told)
        serves = {budget: chosen.serves for budget, chosen in found.chosen.items()}
        spent = found.spent
    else:
        serves, spent = FIXED[case.way](table, seeds)
    return Judged(case, {budget: table.change(some, others) for budget, some in serves.items()}, spent)


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
    measured = table.affinities[ESTIMATOR]
    place = seed % len(measured)
    errors = np.nan_to_num(table.errors[ESTIMATOR][place])
    fewer = max(1.0, table.costs[ESTIMATOR] / OVERHEAD)
    hints = measured[place] + np.sqrt(fewer - 1) * errors * draw.normal(size=errors.shape)
    if way == "auto, shuffled affinity":
        off = ~np.eye(len(hints), dtype=bool)
        hints[off] = draw.permutation(hints[off])
    return hints, np.sqrt(fewer) * errors, OVERHEAD


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
    pairs = _of_pairs(table, table.val[seeds].mean((0, 1)), 1.0)
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


def _print(found: list[Judged], names: list[str], budget: int, settings: Settings) -> None:
    usual = [one for one in found if one.case.settings == settings]
    ways = list(dict.fromkeys((one.case.way, one.case.effort) for one in usual))
    print(f"\n| k = {budget} | effort | {' | '.join(names)} | mean | of exhaustive |")
    print(f"|---|---|{'---|' * (len(names) + 2)}")
    best = np.mean(_means(usual, names, "exhaustive", 0, budget))
    for way, effort in ways:
        spent = np.mean([one.spent for one in usual if (one.case.way, one.case.effort) == (way, effort)])
        means = _means(usual, names, way, effort, budget)
        cells = " | ".join(f"{100 * mean:+.2f} %" for mean in (*means, np.mean(means)))
        print(f"| {way} | {effort or round(spent, 1)} | {cells} | {np.mean(means) / best:.0%} |")


def _means(found: list[Judged], names: list[str], way: str, effort: int, budget: int) -> list[float]:
    wanted = [one for one in found if (one.case.way, one.case.effort) == (way, effort)]
    return [float(np.mean([one.changes[budget] for one in wanted if one.case.table == name])) for name in names]


def _print_left_out(found: list[Judged], names: list[str]) -> None:
    """For each table the settings that did best on the others."""
    tuned = [one for one in found if one.case.way == "auto"]
    efforts = list(dict.fromkeys(one.case.effort for one in tuned))

    def value(settings: Settings, effort: int, some: list[str]) -> float:
        chosen = [one for one in tuned if one.case.settings == settings and one.case.effort == effort]
        return float(np.mean([np.mean(list(one.changes.values())) for one in chosen if one.case.table in some]))

    print("\n| left out | settings chosen on the others | " + " | ".join(f"effort {e}" for e in efforts) + " |")
    print(f"|---|---|{'---|' * len(efforts)}")
    for name in names:
        others = [other for other in names if other != name] or names
        best = min(GRID, key=lambda settings: sum(value(settings, effort, others) for effort in efforts))
        cells = " | ".join(f"{100 * value(best, effort, [name]):+.2f} %" for effort in efforts)
        print(f"| {name} | optimism {best.optimism}, reserved {best.reserved}, caution {best.caution} | {cells} |")


if __name__ == "__main__":
    main()
