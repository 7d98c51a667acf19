"""The best network for every set of served tasks, when networks are listed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ._problem import Floats, Ints, Networks, Problem, is_whole, membership
from ._subsets import subsets

CHUNK = 1 << 17  # pairs of a network and a served set looked at together


def all_networks(problem: Problem, cost: Callable[[tuple[int, ...]], float] | None = None) -> Networks:
    """Every group that the scores allow, with what `cost` says of its tasks; NaN means it does not exist."""
    n = problem.n
    trains = membership(np.arange(1, 2**n), n)
    size = trains.sum(axis=1)
    values = (trains.astype(np.float64) @ problem.pairwise) / np.maximum(size - 1, 1)[:, None]
    values = np.where((size == 1)[:, None], problem.alone, values)
    values = np.where(trains, values, -np.inf)
    costs = np.ones(len(trains))
    exists = (size <= problem.largest) & ((size > 1) | (values.max(axis=1) > -np.inf))
    if cost is not None:
        for row in np.flatnonzero(exists):
            costs[row] = cost(tuple(np.flatnonzero(trains[row]).tolist()))
    return Networks(trains, values, costs).only(exists & ~np.isnan(costs))


def listed_values(problem: Problem, prices: Floats) -> tuple[Floats, Floats]:
    """The distinct costs, and for each cost and set of tasks the best network's value, less its price."""
    networks, n = problem.networks, problem.n
    assert networks is not None
    costs, kind = np.unique(networks.cost, return_inverse=True)
    table = np.full((len(costs), 2**n), -np.inf)
    for row, served in _pairs(networks.trains @ (1 << np.arange(n)), n):
        value = np.where(membership(served, n), networks.values[row], 0.0).sum(axis=1) - prices[row]
        np.maximum.at(table, (kind[row], served), value)
    table[:, ~is_whole(np.arange(2**n), problem.links)] = -np.inf
    table[:, 0] = 0.0  # nobody to serve
    return costs, table


def best_listed(problem: Problem, cost: float, served: list[int], prices: Floats, slack: float) -> int:
    """The row of the best network of this cost for these served tasks."""
    networks = problem.networks
    assert networks is not None
    value = np.where(networks.cost == cost, networks.values[:, served].sum(axis=1) - prices, -np.inf)
    rows = np.flatnonzero(value >= value.max() - slack)
    return int(min(rows, key=lambda row: tuple(np.flatnonzero(networks.trains[row]))))


def _pairs(masks: Ints, n: int) -> Iterator[tuple[Ints, Ints]]:
    """Networks, by row, with every set of tasks they could serve."""
    whole, part, _ = subsets(n)
    left = np.arange(len(masks))
    while len(left):
        _, first = np.unique(masks[left], return_index=True)  # one network per group at a time
        row_of = np.full(2**n, -1)
        row_of[masks[left[first]]] = left[first]
        present = np.flatnonzero(row_of[whole] >= 0)
        for start in range(0, len(present), CHUNK):
            some = present[start : start + CHUNK]
            yield row_of[whole[some]], part[some]
        left = np.delete(left, first)
