"""How long `select_groups` takes, compared with trying every set of groups (see the README in this folder).

python benchmarks/select_speed.py                                        # about ten minutes
python benchmarks/select_speed.py --nine 1 2 --sizes 12                  # only a few small sizes
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from harness import Row, make_parser, progress, save_json, table
from tagalong.group import Grouping, select_groups

Floats = NDArray[np.float64]
SIZES = (12, 16, 24, 60, 300, 1000)
FORMATS = {"seconds": ".3g", "gap": ".2%"}


def main() -> None:
    parser = make_parser(__doc__, device=False)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="numbers of tasks")
    parser.add_argument("--matrices", nargs="+", choices=list(MATRICES), default=list(MATRICES))
    parser.add_argument(
        "--nine", type=int, nargs="*", default=range(1, 10), help="budgets to compare with the usual way, on nine tasks"
    )
    parser.add_argument("--time-limit", type=float, help="seconds per selection; by default, that of select_groups")
    parser.add_argument("--stop-after", type=float, default=20.0, help="seconds after which the usual way is stopped")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, numpy {np.__version__}\n")
    rows: list[Row] = []
    for k in options.nine:
        rows += compare_on_nine_tasks(k, options.stop_after)
        progress(f"9 tasks, {k} networks")
    for n in options.sizes:
        for matrix in options.matrices:
            rows.append(solve(n, matrix, options.time_limit))
            progress(" ".join(map(str, rows[-1].values())))
    print(table(rows, FORMATS))
    save_json(options.json, rows)


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
    row = {"n": n, "matrix": matrix, "k": k, "way": "select_groups", "seconds": time.process_time() - start}
    row |= {"status": grouping.status, "gap": grouping.gap, "solver": grouping.solver}
    if matrix.startswith("planted"):
        row["recovered"] = "yes" if is_recovered(grouping, plant_groups(n, 0.5)[1]) else "no"
    return row


def is_recovered(grouping: Grouping, place: NDArray[np.int64]) -> bool:
    """Returns whether the sets of served tasks are the planted groups."""
    served = {frozenset(map(int, group.serves)) for group in grouping.groups}
    return served == {frozenset(np.flatnonzero(place == group).tolist()) for group in np.unique(place)}


def compare_on_nine_tasks(k: int, stop_after: float) -> Iterator[Row]:
    """Times both ways on one random matrix, and checks that they agree."""
    scores = MATRICES["random"](9)
    select_groups(scores, k)  # the first call builds tables of subsets
    start = time.process_time()
    for _ in range(10):
        grouping = select_groups(scores, k)
    about = {"n": 9, "matrix": "random", "k": k}
    seconds = (time.process_time() - start) / 10
    yield about | {"way": "select_groups", "seconds": seconds, "status": grouping.status, "gap": grouping.gap}
    start = time.process_time()
    try:
        best = try_every_set(scores, k, start + stop_after)
    except TimeoutError:
        yield about | {"way": "usual way", "seconds": None, "status": f"stopped after {stop_after:g} s"}
        return
    if not np.isclose(best, grouping.value):
        sys.exit(f"the usual way found {best}, select_groups {grouping.value}")
    yield about | {"way": "usual way", "seconds": time.process_time() - start, "status": "optimal", "gap": 0.0}


def try_every_set(scores: Floats, k: int, deadline: float) -> float:
    """Tries every set of at most k groups recursively; each task is served by the best group that trains it."""
    n = len(scores)
    groups = [np.array(group) for size in range(2, n + 1) for group in combinations(range(n), size)]
    values = np.full((len(groups), n), -np.inf)
    for row, group in enumerate(groups):
        inside = scores[np.ix_(group, group)]
        values[row, group] = (inside.sum(axis=0) - np.diag(inside)) / (len(group) - 1)

    def best(first: int, left: int, reached: Floats) -> float:
        if time.process_time() > deadline:
            raise TimeoutError
        value = float(reached.sum())
        if left:
            for row in range(first, len(groups)):
                value = max(value, best(row + 1, left - 1, np.maximum(reached, values[row])))
        return value

    return best(0, k, np.full(n, -np.inf))


if __name__ == "__main__":
    main()
