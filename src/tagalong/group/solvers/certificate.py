"""An independently verifiable proof of a bound, which consists of a price for each task and a price for a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MAX_ENUMERATED_TASKS = 18  # with more tasks, not all groups are enumerated
ROUNDING_TOLERANCE = 1e-11  # relative to the largest price; far above rounding errors, far below a tie
GROUPS_PER_BATCH = 1 << 16  # enumerated groups per batch
PARTIAL_GROUPS_PER_BATCH = 1 << 13  # partial groups per batch
MAX_PARTIAL_GROUPS = 30_000_000  # partial groups to visit before giving up


@dataclass(frozen=True)
class Certificate:
    """Prices that prove a bound on the score of any set of networks.

    The surplus of a group G is the sum of max(0, score in G − price) over its tasks. If no group has a surplus above
    the price of a network, then the score of k networks is at most Σ task prices + k · network price. With the "min"
    objective, scores and prices change sign. The prices are the dual solution of the set-partitioning program.

    Attributes:
        tasks: the price of each task, in the same units as the weighted scores.
        network: the price of one network.
    """

    tasks: Mapping[str, float]
    network: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", MappingProxyType(dict(self.tasks)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Certificate, (dict(self.tasks), self.network)  # a mapping proxy cannot be pickled

    def bound(self, budget: int) -> float:
        """Returns an upper bound on the score of at most `budget` networks.

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
    """Returns whether the certificate is valid for every group, without using any of the solvers' code.

    For up to 18 tasks, all groups are checked. For more tasks, groups that are ruled out by simple bounds are skipped.

    The options have the same meaning as in `select_groups`. A certificate that is valid without a constraint is also
    valid with the constraint.

    Args:
        matrix: the scores [source, target].
        tasks: the task names, in the order of the rows and columns.
        certificate: the certificate to check, for example `Grouping.certificate`.
        objective: "max" if larger scores are better, otherwise "min".
        allow_single: whether single-task groups are allowed. Their scores are on the diagonal.
        max_size: the maximum size of a group.
        must_link: sets of tasks that must be served together.
        weights: the weight of each task. Defaults to 1.

    Raises:
        InvalidInput: If there are too many groups to check. This may happen when scores are noisy and there are 30 or
            more tasks.

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
    scores, prices = _scale_scores_and_prices(scores, weight, prices)
    prices, network = prices[:-1], float(prices[-1])
    scale = max(np.abs(prices).max(), abs(network), 1e-300)
    if network < -ROUNDING_TOLERANCE * scale:
        return False  # an additional network never lowers the best score
    largest = len(tasks) if max_size is None else max_size
    units = _linked_units(list(tasks), must_link)
    return all(
        (
            _group_surplus(groups, scores, prices, units, allow_single, largest) <= network + ROUNDING_TOLERANCE * scale
        ).all()
        for groups in _groups_to_check(scores, prices, network, allow_single, largest)
    )


def _scale_scores_and_prices(scores: Floats, weights: Floats, prices: Floats) -> tuple[Floats, Floats]:
    """Scales weighted scores and prices by a power of two, so sums neither overflow nor underflow."""
    (fraction, weight_power), price_powers = np.frexp(weights), np.frexp(prices)[1]
    score_powers = np.frexp(np.abs(scores).max(axis=0))[1]
    zero = np.concatenate([~scores.any(axis=0), prices == 0])
    powers = np.concatenate([score_powers + weight_power, price_powers])[~zero]
    power = powers.max(initial=-5000)
    weighted = np.ldexp(np.ldexp(scores, -score_powers) * fraction, score_powers + weight_power - power)
    return weighted, np.ldexp(prices, -power)


def _linked_units(tasks: list[str], must_link: Iterable[Iterable[str]]) -> Floats:
    """Returns the sets of tasks that are served together (rows). Most sets contain a single task."""
    units = [{task} for task in tasks]
    for link in map(set, must_link):
        joined = set().union(*(unit for unit in units if unit & link))
        units = [unit for unit in units if not unit & link] + [joined]
    return np.array([[float(task in unit) for task in tasks] for unit in units])


def _group_surplus(
    groups: Bools, scores: Floats, prices: Floats, units: Floats, allow_single: bool, max_size: int
) -> Floats:
    """Returns the surplus of each group, assuming that it serves only the units with a positive surplus."""
    pairwise = scores.copy()
    np.fill_diagonal(pairwise, 0.0)
    size = groups.sum(axis=1)
    mean = (groups.astype(np.float64) @ pairwise) / np.maximum(size - 1, 1)[:, None]
    if allow_single:
        mean = np.where((size == 1)[:, None], np.diag(scores), mean)
    paid = np.where(groups, mean - prices, 0.0) @ units.T
    served = groups.astype(np.float64) @ units.T == units.sum(axis=1)
    surplus: Floats = np.where(served, np.maximum(paid, 0.0), 0.0).sum(axis=1)
    exists = (size <= max_size) & ((size > 1) | allow_single)
    return np.where(exists, surplus, -np.inf)


def _groups_to_check(
    scores: Floats, prices: Floats, network_price: float, allow_single: bool, max_size: int
) -> Iterator[Bools]:
    """Yields all groups or, if there are many tasks, only those that are not ruled out by simple bounds."""
    n = len(scores)
    if n <= MAX_ENUMERATED_TASKS:
        yield from _all_groups(n)
        return
    if allow_single:
        yield np.eye(n, dtype=bool)
    yield from doubtful_groups(scores, prices, network_price, max_size)


def _all_groups(n: int) -> Iterator[Bools]:
    for start in range(1, 2**n, GROUPS_PER_BATCH):
        numbers = np.arange(start, min(start + GROUPS_PER_BATCH, 2**n))
        yield (numbers[:, None] >> np.arange(n)) & 1 == 1


def doubtful_groups(scores: Floats, prices: Floats, network_price: float, max_size: int) -> Iterator[Bools]:
    """Yields groups of at least two tasks (rows), including all groups whose surplus exceeds the network price.

    Raises:
        InvalidInput: If there are too many groups to check.
    """
    n, visited = len(scores), 0
    surplus = scores - prices
    np.fill_diagonal(surplus, 0.0)
    for first in range(n - 1):
        near = sorted(range(first + 1, n), key=lambda other: -surplus[first, other] - surplus[other, first])
        order = [first, *near]  # groups whose lowest task is `first`
        some = surplus[np.ix_(order, order)]
        for size in range(2, min(max_size, len(order)) + 1):
            for groups, nodes in _grow_groups(some, size, network_price * (size - 1)):
                visited += nodes
                if visited > MAX_PARTIAL_GROUPS:
                    raise InvalidInput("certificate", "would require checking too many groups")
                found = np.zeros((len(groups), n), dtype=bool)
                found[:, order] = groups
                if len(found):
                    yield found


def _grow_groups(surplus: Floats, size: int, min_surplus: float) -> Iterator[tuple[Bools, int]]:
    """Yields groups of the given size that contain the first task, and the number of partial groups visited."""
    n = len(surplus)
    start = np.zeros((1, n), dtype=bool)
    start[0, 0] = True
    stack = [(1, start)]
    while stack:
        depth, inside = stack.pop()
        if len(inside) > PARTIAL_GROUPS_PER_BATCH:
            stack += [(depth, half) for half in np.array_split(inside, 2)]
            continue
        missing = size - inside.sum(axis=1)
        yield inside[missing == 0], len(inside)
        inside = inside[(missing > 0) & (missing <= n - depth)]
        inside = inside[_max_partial_surplus(surplus, inside, size, depth) >= min_surplus] if len(inside) else inside
        if len(inside):
            joined = inside.copy()
            joined[:, depth] = True
            stack.append((depth + 1, np.concatenate([inside, joined])))


def _max_partial_surplus(surplus: Floats, partial_groups: Bools, size: int, depth: int) -> Floats:
    """Returns (size − 1) times an upper bound on the surplus that each partial group can reach."""
    rows, missing = np.arange(len(partial_groups)), size - partial_groups.sum(axis=1)
    now = partial_groups.astype(np.float64) @ surplus
    later = surplus[depth:].copy()
    undecided = np.arange(depth, len(surplus))
    later[undecided - depth, undecided] = -np.inf
    best = np.cumsum(-np.sort(-later, axis=0), axis=0)
    company = np.concatenate([np.zeros((1, len(surplus))), best])
    members = np.where(partial_groups, np.maximum(now + company[missing], 0.0), 0.0).sum(axis=1)
    joining = np.maximum(now + company[missing - 1], 0.0)[:, depth:]
    top = np.cumsum(-np.sort(-joining, axis=1), axis=1)
    most: Floats = members + top[rows, missing - 1]
    return most
