"""A proof of a bound that anyone can check: one price per task and one per network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
ONE_BY_ONE = 18  # tasks up to which every group is looked at
ROUNDING = 1e-11  # of the largest price; far above what sums of doubles lose, far below a tie
GROUPS_AT_ONCE = 1 << 16  # of those that are looked at one by one
PARTIAL_AT_ONCE = 1 << 13  # groups that are still growing
MOST_NODES = 30_000_000  # growing groups looked at before giving up


@dataclass(frozen=True)
class Certificate:
    """Prices that no network can beat, so that no set of networks beats their sum.

    If for every group G the sum over its tasks of max(0, score in G − price of the task) is at most the price
    of a network, then k networks serve all tasks for at most Σ task prices + k · network price. With the
    objective "min" scores and prices change sign. The prices are the dual of the set-partition programme.

    Attributes:
        tasks: the price of each task, in the units of the (weighted) score.
        network: the price of one network.
    """

    tasks: Mapping[str, float]
    network: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", MappingProxyType(dict(self.tasks)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Certificate, (dict(self.tasks), self.network)  # read-only mappings cannot be pickled

    def bound(self, budget: int) -> float:
        """What no set of at most `budget` networks can beat.

        Example:
            >>> Certificate({"age": 1.0, "ill": 2.0}, network=0.5).bound(2)
            4.0
        """
        return sum(self.tasks.values()) + budget * self.network


def check_certificate(
    matrix: Any,
    tasks: tuple[str, ...] | list[str],
    certificate: Certificate,
    *,
    objective: Literal["max", "min"] = "max",
    allow_single: bool = False,
    max_size: int | None = None,
    must_link: Iterable[Iterable[str]] = (),
    weights: Mapping[str, float] | None = None,
) -> bool:
    """Whether the prices hold for every group. Shares nothing with the solvers.

    Up to 18 tasks every group is looked at; of more tasks every group that simple bounds leave in doubt.

    Options are those of `select_groups`. One that is left out only adds groups: what holds without it holds.

    Args:
        matrix: scores [source, target].
        tasks: names, in the order of rows and columns.
        certificate: from `Grouping.certificate`.
        objective: whether scores are to be large or small.
        allow_single: whether groups of one exist, with the diagonal as their score.
        max_size: the largest group.
        must_link: sets of tasks served together.
        weights: how much each task counts, 1 by default.

    Raises:
        ValueError: too many groups are in doubt, which prices of noisy scores of 30 and more tasks may do.

    Example:
        >>> import numpy as np
        >>> certificate = Certificate({"a": 1.0, "b": 2.0}, network=0.0)
        >>> check_certificate(np.array([[0, 2.0], [1.0, 0]]), ["a", "b"], certificate)
        True
        >>> check_certificate(np.array([[0, 2.1], [1.0, 0]]), ["a", "b"], certificate)
        False
    """
    sign = 1.0 if objective == "max" else -1.0
    weight = np.array([1.0 if weights is None else weights.get(task, 1.0) for task in tasks])
    scores = sign * np.array(matrix, dtype=np.float64)
    if not allow_single:
        np.fill_diagonal(scores, 0.0)
    prices = sign * np.array([*(certificate.tasks[task] for task in tasks), certificate.network])
    scores, prices = _scaled(scores, weight, prices)
    prices, network = prices[:-1], float(prices[-1])
    scale = max(np.abs(prices).max(), abs(network), 1e-300)
    if network < -ROUNDING * scale:
        return False  # "at most k networks" cannot be worth less than nothing
    largest = len(tasks) if max_size is None else max_size
    units = _units(list(tasks), must_link)
    return all(
        (_surplus(groups, scores, prices, units, allow_single, largest) <= network + ROUNDING * scale).all()
        for groups in _groups(scores, prices, network, allow_single, largest)
    )


def _scaled(scores: Floats, weight: Floats, prices: Floats) -> tuple[Floats, Floats]:
    """Weighted scores and prices over one power of two, so that their sums neither overflow nor vanish."""
    (fraction, of_weight), of_prices = np.frexp(weight), np.frexp(prices)[1]
    of_scores = np.frexp(np.abs(scores).max(axis=0))[1]
    zero = np.concatenate([~scores.any(axis=0), prices == 0])
    powers = np.concatenate([of_scores + of_weight, of_prices])[~zero]
    power = powers.max(initial=-5000)
    weighted = np.ldexp(np.ldexp(scores, -of_scores) * fraction, of_scores + of_weight - power)
    return weighted, np.ldexp(prices, -power)


def _units(tasks: list[str], must_link: Iterable[Iterable[str]]) -> Floats:
    """Sets of tasks that are served together (rows), most of them of one task."""
    units = [{task} for task in tasks]
    for link in map(set, must_link):
        joined = set().union(*(unit for unit in units if unit & link))
        units = [unit for unit in units if not unit & link] + [joined]
    return np.array([[float(task in unit) for task in tasks] for unit in units])


def _surplus(groups: Bools, scores: Floats, prices: Floats, units: Floats, allow_single: bool, largest: int) -> Floats:
    """What each group earns beyond the prices of its tasks, serving those that pay."""
    off = scores.copy()
    np.fill_diagonal(off, 0.0)
    size = groups.sum(axis=1)
    mean = (groups.astype(np.float64) @ off) / np.maximum(size - 1, 1)[:, None]
    if allow_single:
        mean = np.where((size == 1)[:, None], np.diag(scores), mean)
    paid = np.where(groups, mean - prices, 0.0) @ units.T
    served = groups.astype(np.float64) @ units.T == units.sum(axis=1)
    surplus: Floats = np.where(served, np.maximum(paid, 0.0), 0.0).sum(axis=1)
    exists = (size <= largest) & ((size > 1) | allow_single)
    return np.where(exists, surplus, -np.inf)


def _groups(scores: Floats, prices: Floats, network: float, allow_single: bool, largest: int) -> Iterator[Bools]:
    """All groups; of many tasks those that simple bounds leave in doubt."""
    n = len(scores)
    if n <= ONE_BY_ONE:
        yield from _all_groups(n)
        return
    if allow_single:
        yield np.eye(n, dtype=bool)
    yield from doubtful_groups(scores, prices, network, largest)


def _all_groups(n: int) -> Iterator[Bools]:
    for start in range(1, 2**n, GROUPS_AT_ONCE):
        numbers = np.arange(start, min(start + GROUPS_AT_ONCE, 2**n))
        yield (numbers[:, None] >> np.arange(n)) & 1 == 1


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
        if len(inside) > PARTIAL_AT_ONCE:
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
