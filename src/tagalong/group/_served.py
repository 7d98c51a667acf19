"""The best network for every set of served tasks, when a group's scores are means over pairs.

What task i adds to the served set S is c(i), the sum over S of its affinities, and a group G ⊇ S scores
(Σ c(i) over G) / (|G| − 1). So helpers join in the order of falling c, and every number of them is tried.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ._problem import (
    TIE,
    Bools,
    Choice,
    Floats,
    Infeasible,
    Ints,
    Limits,
    Problem,
    bits_of,
    is_whole,
    membership,
)

CHUNK = 1 << 15  # sets looked at together: a few megabytes for any n
UNLIMITED = Limits()


def served_values(problem: Problem, price: float = 0.0, limits: Limits = UNLIMITED) -> Floats:
    """For every set of tasks, as bits, the value of the best network that serves it, less `price` per trained task.

    Raises:
        TimeoutError: time is up.
    """
    n, off, alone = problem.n, problem.pairwise, problem.alone
    best = np.empty(2**n)
    for sets in _chunks(2**n):
        if limits.over:
            raise TimeoutError
        members = membership(sets, n)
        value = superset_values(members, members @ off.T, problem.largest, price).max(axis=1)
        best[sets] = np.where(is_whole(sets, problem.links), value, -np.inf)
    singles = 1 << np.arange(n)
    whole = is_whole(singles, problem.links)
    best[singles[whole]] = np.maximum(best[singles[whole]], alone[whole] - price)
    best[0] = 0.0  # nobody to serve
    return best


def superset_values(members: Bools, given: Floats, largest: int, price: float = 0.0) -> Floats:
    """For each served set (rows) the value with 0, 1, 2 … helpers (columns); groups of one do not count."""
    inside = np.where(members, given, 0.0).sum(axis=1)
    offered = np.sort(np.where(members, np.inf, -given), axis=1)
    helpers = np.concatenate([np.zeros((len(members), 1)), -offered], axis=1)
    size = members.sum(axis=1)[:, None] + np.arange(members.shape[1] + 1)
    allowed = (size >= 2) & (size <= min(largest, members.shape[1]))
    gained = inside[:, None] + np.cumsum(helpers, axis=1)
    return np.where(allowed, gained / np.maximum(size - 1, 1) - price * size, -np.inf)


def values_of(problem: Problem, members: Bools) -> Floats:
    """What the best network for each served set (row) is worth; −inf where none serves it whole."""
    value = superset_values(members, members @ problem.pairwise.T, problem.largest).max(axis=1)
    single = members.sum(axis=1) == 1
    value[single] = np.maximum(value[single], problem.alone[members[single].argmax(axis=1)])
    return np.where(members.any(axis=1), value, -np.inf)


def network_for(problem: Problem, served: Ints) -> Choice:
    """The best network for these served tasks; among equals the smallest, then the first by name."""
    price = TIE / (2 * problem.n**2)
    trains, value = best_network(problem, served, price, price / (4 * problem.n))
    if value == -np.inf:
        raise Infeasible  # too many tasks for one network, or one task that may not be alone
    return Choice(bits_of(trains), bits_of(served))


def best_network(problem: Problem, served: Ints, price: float, slack: float) -> tuple[Ints, float]:
    """What the best network for these served tasks trains, and its value less its price.

    Helpers that differ by less than `slack` come in the order of their numbers: sums in another order differ in
    their last bits.
    """
    n = problem.n
    members = np.zeros(n, dtype=bool)
    members[served] = True
    given = problem.pairwise[:, served].sum(axis=1)
    value = superset_values(members[None], given[None], problem.largest, price)[0]
    number = int(value.argmax())
    if len(served) == 1 and problem.alone[served[0]] - price >= value[number]:
        return served, float(problem.alone[served[0]] - price)
    order = np.lexsort((np.arange(n), -np.round(np.where(members, -np.inf, given) / slack)))
    return np.sort(np.concatenate([served, order[:number]])), float(value[number])


def _chunks(count: int) -> Iterator[Ints]:
    for start in range(0, count, CHUNK):
        yield np.arange(start, min(start + CHUNK, count))
