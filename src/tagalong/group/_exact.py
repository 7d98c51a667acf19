"""The best groups for a budget, exactly: a dynamic programme over sets of served tasks.

A solution is a partition of the tasks into served sets, each trained together with some helpers. Helpers
matter only to the set they help, so the best superset of every set is found first, by sorting.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Groups = tuple[tuple[frozenset[int], frozenset[int]], ...]

MOST_TASKS = 16
TIE = 1e-9  # of the largest score
LOW = 8  # tasks whose subsets are handled as one array, 3^8 pairs of a set and its subset


def exact_groups(matrix: ArrayLike, budget: int) -> Groups:
    """At most `budget` groups that maximise the sum of the served tasks' scores.

    The score of a task is the mean affinity onto it of the other members of the group that serves it. Groups
    of one do not exist; a budget of 1 is one group of all tasks. Among solutions that tie within 1e-9 of
    the largest score: the fewest groups, then the smallest, then the first in index order.

    Args:
        matrix: affinities [source, target]; the diagonal is not used.
        budget: how many groups, from 1 to the number of tasks.

    Returns:
        Pairs of task indices, those trained and those served, by the first task served.

    Example:
        >>> groups = exact_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
        >>> [(sorted(trains), sorted(serves)) for trains, serves in groups]
        [([0, 1], [0, 1]), ([0, 2], [2])]
    """
    scores = _checked(matrix, budget)  # the largest is one
    n = len(scores)
    if n == 1:
        return ((frozenset({0}), frozenset({0})),)
    price = TIE / (2 * n * n)  # of one trained task: small groups win ties, and all prices are half a tie at most
    slack = price / (4 * n)  # far above rounding, far below a price
    alone, trained = _best_supersets(scores, price, slack)
    best = [alone]
    for _ in range(budget - 1):
        best.append(_split(alone, best[-1]))
    fewest = next(k for k, value in enumerate(best) if value[-1] >= best[-1][-1] - TIE / 2)
    return _traced(best[: fewest + 1], trained, slack)


def _checked(matrix: ArrayLike, budget: int) -> Floats:
    scores = np.array(matrix, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not scores.size:
        raise ValueError(f"`matrix` must be square, one row and column per task, found the shape {scores.shape}")
    n = len(scores)
    np.fill_diagonal(scores, 0.0)
    problems = []
    if n > MOST_TASKS:
        problems.append(f"`matrix` must have at most {MOST_TASKS} tasks for an exact answer, found {n}; leave some out")
    if not isinstance(budget, (int, np.integer)):
        problems.append(f"`budget` must be a whole number, found {budget!r}")
    elif not 1 <= budget <= n:
        problems.append(f"`budget` must be from 1 to the number of tasks, {n}, found {budget!r}")
    if not np.isfinite(scores).all():
        i, j = np.argwhere(~np.isfinite(scores))[0]
        problems.append(
            f"`matrix` must be finite off its diagonal, found {scores[i, j]} at [{i}, {j}]; measure that pair"
        )
    if problems:
        raise ValueError("\n".join(problems))
    return scores / (np.abs(scores).max() or 1.0)


def _best_supersets(scores: Floats, price: float, slack: float) -> tuple[Floats, Ints]:
    """For every set of served tasks the value of its best group, less its price, and that group, as bits.

    What task i adds to the set S is c(i), the sum over S of its affinities, and a group G ⊇ S scores
    (Σ c(i) over G) / (|G| − 1). So helpers join in the order of falling c; every number of them is tried.
    """
    n = len(scores)
    members = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    given = members @ scores.T  # c for every set (rows) and task (columns); the diagonal holds zeros
    inside = (given * members).sum(axis=1)
    offered = np.where(members, -np.inf, given)
    # Sums in another order differ in their last bits; rounded, equal helpers come in index order.
    order = np.argsort(-np.round(offered / slack), axis=1, kind="stable")
    helpers = np.take_along_axis(np.where(members, 0.0, given), order, axis=1)
    gained = np.concatenate([inside[:, None], inside[:, None] + np.cumsum(helpers, axis=1)], axis=1)
    size = members.sum(axis=1)[:, None] + np.arange(n + 1)
    allowed = (size >= 2) & (size <= n) & (members.sum(axis=1)[:, None] > 0)
    value = np.where(allowed, gained / np.maximum(size - 1, 1) - price * size, -np.inf)
    number = value.argmax(axis=1)
    joined = np.concatenate([np.zeros((2**n, 1), dtype=np.int64), np.cumsum(1 << order, axis=1)], axis=1)
    sets = np.arange(2**n)
    best = value[sets, number]
    best[0] = 0.0  # nobody to serve
    return best, sets + joined[sets, number]


def _split(alone: Floats, rest: Floats) -> Floats:
    """For every set the best of alone[S] + rest[set without S] over its subsets S, the empty one included."""
    n = len(alone).bit_length() - 1
    low = min(n, LOW)
    whole, part, starts = _subsets(low)
    ones, others = alone.reshape(-1, 2**low), rest.reshape(-1, 2**low)
    best = np.full_like(ones, -np.inf)
    high, some, _ = _subsets(n - low)
    for row, taken in zip(high.tolist(), some.tolist(), strict=True):
        sums = ones[taken][part] + others[row ^ taken][whole ^ part]
        np.maximum(best[row], np.maximum.reduceat(sums, starts), out=best[row])
    return best.reshape(-1)


@lru_cache(maxsize=4)
def _subsets(n: int) -> tuple[Ints, Ints, Ints]:
    """All pairs of a set of n tasks and a subset of it, as bits, by set; and where each set begins."""
    whole = part = np.zeros(1, dtype=np.int64)
    for bit in (1 << i for i in range(n)):
        whole = np.concatenate([whole, whole | bit, whole | bit])
        part = np.concatenate([part, part, part | bit])
    order = np.argsort(whole, kind="stable")
    return whole[order], part[order], np.searchsorted(whole[order], np.arange(2**n))


def _traced(best: list[Floats], trained: Ints, slack: float) -> Groups:
    """The groups behind the last value; among equals, those of the first tasks come first."""
    sets = np.arange(len(trained))
    left, groups = len(trained) - 1, []
    for depth in range(len(best) - 1, -1, -1):
        if not left:
            break
        served = sets[((sets & ~left) == 0) & ((sets & left & -left) > 0)]
        value = best[0][served] + (best[depth - 1][left ^ served] if depth else np.where(served == left, 0, -np.inf))
        chosen = min(served[value >= value.max() - slack].tolist(), key=_indices)
        groups.append((frozenset(_indices(int(trained[chosen]))), frozenset(_indices(chosen))))
        left ^= chosen
    return tuple(groups)


def _indices(bits: int) -> tuple[int, ...]:
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
