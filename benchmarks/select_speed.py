"""How long `select_groups` takes, compared with trying every set of groups (see the README in this folder)."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from markdown import progress, table
from tagalong.group import Grouping, select_groups

Floats = NDArray[np.float64]
SIZES = (12, 15, 20, 24, 30, 40, 60, 100, 300, 1000)
COLUMNS = ("n", "matrix", "k", "way", "seconds", "status", "gap", "solver", "recovered")


@dataclass
class Row:
    """One row of the table.

    Attributes:
        seconds: CPU time of this process; None if it was stopped.
        recovered: whether the sets of served tasks are the planted groups.
    """

    n: int
    matrix: str
    k: int
    way: str
    seconds: float | None
    status: str
    gap: float | None = None
    solver: str = ""
    recovered: bool | None = None


def main() -> None:
    options = arguments()
    print(f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, numpy {np.__version__}\n")
    rows = []
    for row in make_rows(options):
        rows.append(row)
        progress(" ".join(cells(row)))
    print(table(COLUMNS, map(cells, rows)))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def make_rows(options: argparse.Namespace) -> Iterator[Row]:
    for k in options.nine:
        yield from compare_on_nine_tasks(k, options.stop_after)
    for n in options.sizes:
        for matrix in options.matrices:
            yield solve(n, matrix, options.time_limit)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="numbers of tasks")
    parser.add_argument("--matrices", nargs="+", choices=list(MATRICES), default=list(MATRICES))
    parser.add_argument(
        "--nine",
        type=int,
        nargs="*",
        default=list(range(1, 10)),
        help="budgets to compare with the usual way, on nine tasks",
    )
    parser.add_argument("--time-limit", type=float, help="seconds per selection; no limit by default")
    parser.add_argument("--stop-after", type=float, default=20.0, help="seconds after which the usual way is stopped")
    parser.add_argument("--quick", action="store_true", help="only a few small sizes")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.nine, options.stop_after = [12], [1, 2], min(options.stop_after, 1.0)
    return options


def plant_groups(n: int, noise: float) -> tuple[Floats, NDArray[np.int64]]:
    """Returns a noisy matrix in which tasks of the same group help each other by one, and the group of each task."""
    random = np.random.default_rng(n)
    place = random.permutation(np.arange(n) % network_count(n))
    return (place[:, None] == place) + noise * random.standard_normal((n, n)), place


def low_rank(n: int) -> Floats:
    random = np.random.default_rng(n)
    return random.standard_normal((n, 3)) @ random.standard_normal((3, n)) + 0.1 * random.standard_normal((n, n))


def network_count(n: int) -> int:
    """Returns the number of networks: one per six tasks, but at most ten."""
    return min(max(2, round(n / 6)), 10)


MATRICES: dict[str, Callable[[int], Floats]] = {
    "random": lambda n: np.random.default_rng(n).standard_normal((n, n)),
    "planted": lambda n: plant_groups(n, 0.5)[0],
    "planted-noisy": lambda n: plant_groups(n, 1.0)[0],
    "low-rank": low_rank,
}


def solve(n: int, matrix: str, limit: float | None) -> Row:
    scores, k = MATRICES[matrix](n), network_count(n)
    start = time.process_time()
    grouping = select_groups(scores, k, time_limit=limit)
    spent = time.process_time() - start
    found = is_recovered(grouping, plant_groups(n, 0.5)[1]) if matrix.startswith("planted") else None
    return Row(n, matrix, k, "select_groups", spent, grouping.status, grouping.gap, grouping.solver, found)


def is_recovered(grouping: Grouping, place: NDArray[np.int64]) -> bool:
    served = {frozenset(map(int, group.serves)) for group in grouping.groups}
    return served == {frozenset(np.flatnonzero(place == group).tolist()) for group in np.unique(place)}


def compare_on_nine_tasks(k: int, stop_after: float) -> Iterator[Row]:
    """Times both ways on one random matrix, and checks that they agree."""
    scores = MATRICES["random"](9)
    select_groups(scores, k)  # the first call builds tables of subsets
    start = time.process_time()
    for _ in range(10):
        grouping = select_groups(scores, k)
    yield Row(9, "random", k, "select_groups", (time.process_time() - start) / 10, grouping.status, 0.0, "exact")
    start = time.process_time()
    best = usual_way(scores, k, start + stop_after)
    if best is None:
        yield Row(9, "random", k, "usual way", None, f"stopped after {stop_after:g} s")
        return
    if not np.isclose(best, grouping.value):
        sys.exit(f"the usual way found {best}, select_groups {grouping.value}")
    yield Row(9, "random", k, "usual way", time.process_time() - start, "optimal", 0.0)


def usual_way(scores: Floats, k: int, deadline: float) -> float | None:
    """Tries every set of at most k groups recursively; each task is served by the best group that trains it."""
    n = len(scores)
    groups = [np.array(g) for size in range(2, n + 1) for g in combinations(range(n), size)]
    values = np.full((len(groups), n), -np.inf)
    for row, group in enumerate(groups):
        inside = scores[np.ix_(group, group)]
        values[row, group] = (inside.sum(axis=0) - np.diag(inside)) / (len(group) - 1)

    def best(start: int, left: int, reached: Floats) -> float:
        if time.process_time() > deadline:
            raise TimeoutError
        found = float(reached.sum())
        if left:
            for row in range(start, len(groups)):
                found = max(found, best(row + 1, left - 1, np.maximum(reached, values[row])))
        return found

    try:
        return best(0, k, np.full(n, -np.inf))
    except TimeoutError:
        return None


def cells(row: Row) -> tuple[str, ...]:
    seconds = "–" if row.seconds is None else f"{row.seconds:.4f}" if row.seconds < 0.1 else f"{row.seconds:.1f}"
    gap = "" if row.gap is None else f"{row.gap:.2%}"
    found = "" if row.recovered is None else "yes" if row.recovered else "no"
    return str(row.n), row.matrix, str(row.k), row.way, seconds, row.status, gap, row.solver, found


if __name__ == "__main__":
    main()
