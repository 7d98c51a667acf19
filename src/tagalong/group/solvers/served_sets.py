"""Finds the best network for each set of served tasks, with pairwise scores or listed networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from ..selection_problem import (
    TIE_TOLERANCE,
    Bools,
    Floats,
    InfeasibleError,
    Ints,
    Limits,
    NetworkChoice,
    Networks,
    SelectionProblem,
    keeps_links_whole,
    membership,
    to_bit_mask,
)

MAX_ARRAY_TASKS = 8  # the 3^8 pairs of a set and one of its subsets are processed in one array
SETS_PER_BATCH = 1 << 15  # takes a few megabytes for any n
PAIRS_PER_BATCH = 1 << 17  # pairs of a network and a served set
NO_LIMITS = Limits()


def served_values(problem: SelectionProblem, price: float = 0.0, limits: Limits = NO_LIMITS) -> Floats:
    """Returns the value of the best network for every served set (by bit mask), minus `price` per trained task.

    Raises:
        TimeoutError: If the time limit is reached.
    """
    n, pairwise, alone = problem.n, problem.pairwise_scores, problem.single_task_scores
    best = np.empty(2**n)
    for start in range(0, 2**n, SETS_PER_BATCH):
        if limits.should_stop:
            raise TimeoutError
        sets = np.arange(start, min(start + SETS_PER_BATCH, 2**n))
        members = membership(sets, n)
        value = superset_values(members, members @ pairwise.T, problem.largest, price).max(axis=1)
        best[sets] = np.where(keeps_links_whole(sets, problem.links), value, -np.inf)
    singles = 1 << np.arange(n)
    whole = keeps_links_whole(singles, problem.links)
    best[singles[whole]] = np.maximum(best[singles[whole]], alone[whole] - price)
    best[0] = 0.0  # no tasks to serve
    return best


def superset_values(members: Bools, contributions: Floats, max_size: int, price: float = 0.0) -> Floats:
    """Returns the value of each served set (row) with 0, 1, 2, … helpers (columns).

    The value of a single-task group is −inf.
    """
    inside = np.where(members, contributions, 0.0).sum(axis=1)
    offered = np.sort(np.where(members, np.inf, -contributions), axis=1)
    helpers = np.concatenate([np.zeros((len(members), 1)), -offered], axis=1)
    size = members.sum(axis=1)[:, None] + np.arange(members.shape[1] + 1)
    allowed = (size >= 2) & (size <= min(max_size, members.shape[1]))
    gained = inside[:, None] + np.cumsum(helpers, axis=1)
    return np.where(allowed, gained / np.maximum(size - 1, 1) - price * size, -np.inf)


def best_values(
    problem: SelectionProblem, members: Bools, price: float = 0.0, contributions: Floats | None = None
) -> Floats:
    """Returns the value of the best network for each served set (row) minus its price, or −inf if there is none.

    Args:
        problem: a problem with pairwise scores.
        members: the served sets (sets × tasks).
        price: the price per trained task.
        contributions: the total score that each task (column) contributes to each served set (row), if already known.
    """
    contributions = members @ problem.pairwise_scores.T if contributions is None else contributions
    value = superset_values(members, contributions, problem.largest, price).max(axis=1)
    single = members.sum(axis=1) == 1
    value[single] = np.maximum(value[single], problem.single_task_scores[members[single].argmax(axis=1)] - price)
    return np.where(members.any(axis=1), value, -np.inf)


def network_for(problem: SelectionProblem, served: Ints) -> NetworkChoice:
    """Returns the best network for the given served tasks. Ties are broken by size and then by name."""
    price = TIE_TOLERANCE / (2 * problem.n**2)
    trains, value = best_network(problem, served, price, price / (4 * problem.n))
    if value == -np.inf:
        raise InfeasibleError  # too many tasks for one network, or a task that may not be trained alone
    return NetworkChoice(to_bit_mask(trains), to_bit_mask(served))


def best_network(problem: SelectionProblem, served: Ints, price: float, slack: float) -> tuple[Ints, float]:
    """Returns the trained tasks of the best network for the given served tasks, and its value minus its price.

    If helpers are equally good, i.e. differ by less than `slack`, those with lower indices are added first.
    """
    n = problem.n
    members = np.zeros(n, dtype=bool)
    members[served] = True
    given = problem.pairwise_scores[:, served].sum(axis=1)
    value = superset_values(members[None], given[None], problem.largest, price)[0]
    number = int(value.argmax())
    if len(served) == 1 and problem.single_task_scores[served[0]] - price >= value[number]:
        return served, float(problem.single_task_scores[served[0]] - price)
    order = np.lexsort((np.arange(n), -np.round(np.where(members, -np.inf, given) / slack)))
    return np.sort(np.concatenate([served, order[:number]])), float(value[number])


def all_networks(problem: SelectionProblem, cost: Callable[[tuple[int, ...]], float] | None = None) -> Networks:
    """Returns a network for every allowed group, with its cost. Groups with a cost of NaN are excluded."""
    n = problem.n
    trains = membership(np.arange(1, 2**n), n)
    size = trains.sum(axis=1)
    values = (trains.astype(np.float64) @ problem.pairwise_scores) / np.maximum(size - 1, 1)[:, None]
    values = np.where((size == 1)[:, None], problem.single_task_scores, values)
    values = np.where(trains, values, -np.inf)
    costs = np.ones(len(trains))
    exists = (size <= problem.largest) & ((size > 1) | (values.max(axis=1) > -np.inf))
    if cost is not None:
        for row in np.flatnonzero(exists):
            costs[row] = cost(tuple(np.flatnonzero(trains[row]).tolist()))
    return Networks(trains, values, costs).only(exists & ~np.isnan(costs))


def listed_values(problem: SelectionProblem, prices: Floats) -> tuple[Floats, Floats]:
    """Returns the distinct costs, and the value (minus price) of the best network for each cost and served set."""
    networks, n = problem.networks, problem.n
    assert networks is not None
    costs, kind = np.unique(networks.cost, return_inverse=True)
    table = np.full((len(costs), 2**n), -np.inf)
    for row, served in _network_subset_pairs(networks.trains @ (1 << np.arange(n)), n):
        value = -prices[row]
        for task in range(n):
            value += np.where(served >> task & 1, networks.values[row, task], 0.0)
        np.maximum.at(table, (kind[row], served), value)
    table[:, ~keeps_links_whole(np.arange(2**n), problem.links)] = -np.inf
    table[:, 0] = 0.0  # no tasks to serve
    return costs, table


def best_listed(problem: SelectionProblem, cost: float, served: list[int], prices: Floats, slack: float) -> int:
    """Returns the row of the best network with the given cost for the given served tasks."""
    networks = problem.networks
    assert networks is not None
    value = np.where(networks.cost == cost, networks.values[:, served].sum(axis=1) - prices, -np.inf)
    rows = np.flatnonzero(value >= value.max() - slack)
    return int(min(rows, key=lambda row: tuple(np.flatnonzero(networks.trains[row]))))


def _network_subset_pairs(bit_masks: Ints, n: int) -> Iterator[tuple[Ints, Ints]]:
    """Yields rows of networks and the sets of tasks that these networks could serve."""
    whole, part, _ = subsets(n)
    left = np.arange(len(bit_masks))
    while len(left):
        _, first = np.unique(bit_masks[left], return_index=True)  # one network per group at a time
        row_of = np.full(2**n, -1)
        row_of[bit_masks[left[first]]] = left[first]
        present = np.flatnonzero(row_of[whole] >= 0)
        for start in range(0, len(present), PAIRS_PER_BATCH):
            some = present[start : start + PAIRS_PER_BATCH]
            yield row_of[whole[some]], part[some]
        left = np.delete(left, first)


@lru_cache(maxsize=8)
def subsets(n: int) -> tuple[Ints, Ints, Ints]:
    """Returns every pair of a set and one of its subsets (bit masks), and the index at which each set begins."""
    whole = part = np.zeros(1, dtype=np.int64)
    for bit in (1 << i for i in range(n)):
        whole = np.concatenate([whole, whole | bit, whole | bit])
        part = np.concatenate([part, part, part | bit])
    order = np.argsort(whole.astype(np.uint16), kind="stable")  # NumPy uses radix sort for 16-bit integers
    return whole[order], part[order], np.searchsorted(whole[order], np.arange(2**n))


def best_split(first_values: Floats, second_values: Floats) -> Floats:
    """Returns the maximum of first[S] + second[T − S] over all subsets S of each set T."""
    n = len(first_values).bit_length() - 1
    low = min(n, MAX_ARRAY_TASKS)
    whole, part, starts = subsets(low)
    ones, others = first_values.reshape(-1, 2**low), second_values.reshape(-1, 2**low)
    best = np.full_like(ones, -np.inf)
    high, some, _ = subsets(n - low)
    for row, taken in zip(high.tolist(), some.tolist(), strict=True):
        sums = ones[taken][part] + others[row ^ taken][whole ^ part]
        np.maximum(best[row], np.maximum.reduceat(sums, starts), out=best[row])
    return best.reshape(-1)
