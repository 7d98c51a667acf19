"""Groups that might earn more than a network's price, for checking a certificate of many tasks.

Written apart from the solvers and sharing nothing with them: groups are built task by task, and dropped as soon as
every task, even in the best company left for it, could not earn enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST_NODES = 30_000_000
CHUNK = 1 << 13


def doubtful_groups(scores: Floats, prices: Floats, network: float, largest: int) -> Iterator[Bools]:
    """Groups of two and more (rows of membership), among them all whose surplus exceeds the price of a network.

    Raises:
        ValueError: too many would have to be looked at.
    """
    n, looked_at = len(scores), 0
    surplus = scores - prices
    np.fill_diagonal(surplus, 0.0)
    for first in range(n - 1):
        near = sorted(range(first + 1, n), key=lambda other: -surplus[first, other] - surplus[other, first])
        order = [first, *near]  # groups whose lowest task is `first`
        some = surplus[np.ix_(order, order)]
        for size in range(2, min(largest, len(order)) + 1):
            for groups, nodes in _grown(some, size, network * (size - 1)):
                looked_at += nodes
                if looked_at > MOST_NODES:
                    raise ValueError("`certificate` leaves too many groups in doubt to check them one by one")
                found = np.zeros((len(groups), n), dtype=bool)
                found[:, order] = groups
                if len(found):
                    yield found


def _grown(surplus: Floats, size: int, least: float) -> Iterator[tuple[Bools, int]]:
    """Groups of this size that hold the first task, and how many partial ones were looked at for them."""
    n = len(surplus)
    start = np.zeros((1, n), dtype=bool)
    start[0, 0] = True
    stack = [(1, start)]
    while stack:
        depth, inside = stack.pop()
        if len(inside) > CHUNK:
            stack += [(depth, half) for half in np.array_split(inside, 2)]
            continue
        missing = size - inside.sum(axis=1)
        yield inside[missing == 0], len(inside)
        inside = inside[(missing > 0) & (missing <= n - depth)]
        inside = inside[_most(surplus, inside, size, depth) >= least] if len(inside) else inside
        if len(inside):
            joined = inside.copy()
            joined[:, depth] = True
            stack.append((depth + 1, np.concatenate([inside, joined])))


def _most(surplus: Floats, inside: Bools, size: int, depth: int) -> Floats:
    """The most a group can earn, times size − 1: tasks inside, and the best of the undecided, in their best company."""
    rows, missing = np.arange(len(inside)), size - inside.sum(axis=1)
    now = inside.astype(np.float64) @ surplus
    later = surplus[depth:].copy()
    undecided = np.arange(depth, len(surplus))
    later[undecided - depth, undecided] = -np.inf
    best = np.cumsum(-np.sort(-later, axis=0), axis=0)
    company = np.concatenate([np.zeros((1, len(surplus))), best])
    members = np.where(inside, np.maximum(now + company[missing], 0.0), 0.0).sum(axis=1)
    joining = np.maximum(now + company[missing - 1], 0.0)[:, depth:]
    top = np.cumsum(-np.sort(-joining, axis=1), axis=1)
    most: Floats = members + top[rows, missing - 1]
    return most
