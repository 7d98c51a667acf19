"""A slow reference that tries every set of networks."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tagalong.group import Grouping

Floats = NDArray[np.float64]
Network = tuple[frozenset[int], dict[int, float], float]


def networks_of(
    matrix: Floats, cost: Callable[[frozenset[int]], float], *, singles: bool = False, largest: int | None = None
) -> list[Network]:
    """Returns every group with the score of each member: the mean over the others."""
    n = len(matrix)
    found: list[Network] = []
    for size in range(1 if singles or n == 1 else 2, (largest or n) + 1):
        for group in map(frozenset, combinations(range(n), size)):
            score = {j: float(np.mean([matrix[i, j] for i in group if i != j or size == 1])) for j in group}
            found.append((group, score, cost(group)))
    return found


def partitions(tasks: list[int]) -> Iterator[list[frozenset[int]]]:
    """Yields every partition of the tasks."""
    if not tasks:
        yield []
        return
    first, rest = tasks[0], tasks[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            block = frozenset({first, *others})
            for tail in partitions([task for task in rest if task not in block]):
                yield [block, *tail]


def best_by_enumeration(
    networks: list[Network],
    n: int,
    budget: float,
    *,
    sign: int = 1,
    must: Iterable[frozenset[int]] = (),
    most_networks: float = np.inf,
) -> float:
    """Returns the best sum over all partitions into served sets and all networks for each; NaN if none is feasible.

    `budget` limits the total cost.
    """
    best = -np.inf
    for blocks in partitions(list(range(n))):
        if len(blocks) > most_networks:
            continue
        if any(0 < len(link & block) < len(link) for link in must for block in blocks):
            continue
        reached = [(0.0, 0.0)]
        for block in blocks:
            front = _best_by_cost(networks, block, sign)
            reached = [(v + w, c + d) for v, c in reached for w, d in front if c + d <= budget + 1e-9]
        best = max([best, *(value for value, _ in reached)])
    return sign * best if np.isfinite(best) else float("nan")


def _best_by_cost(networks: list[Network], block: frozenset[int], sign: int) -> list[tuple[float, float]]:
    """Returns the best value of networks for a served set, by cost."""
    best: dict[float, float] = {}
    for _, score, cost in networks:
        if block <= score.keys():
            value = sign * sum(score[j] for j in block)
            best[cost] = max(best.get(cost, -np.inf), value)
    return [(value, cost) for cost, value in best.items()]


def assert_valid(grouping: Grouping, n: int) -> None:
    """Asserts that every task is served once, by a network that trains it."""
    served = sorted(task for group in grouping.groups for task in group.serves)
    assert served == sorted(map(str, range(n)))
    assert all(group.serves and group.serves <= group.trains for group in grouping.groups)
    assert list(grouping.groups) == sorted(grouping.groups)


def score_of(matrix: Floats, grouping: Grouping) -> float:
    """Returns the sum of the tasks' scores by the definition; tasks are named "0", "1", …"""
    total = 0.0
    for group in grouping.groups:
        for task in group.serves:
            sources = [int(other) for other in group.trains if other != task] or [int(task)]
            total += float(np.mean(matrix[sources, int(task)]))
    return total
