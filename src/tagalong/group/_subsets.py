"""All pairs of a set and a subset of it, and the best split of every set in two."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ._problem import Floats, Ints

LOW = 8  # tasks whose subsets are handled as one array, 3^8 pairs of a set and its subset


@lru_cache(maxsize=8)
def subsets(n: int) -> tuple[Ints, Ints, Ints]:
    """All pairs of a set of n tasks and a subset of it, as bits, by set; and where each set begins."""
    whole = part = np.zeros(1, dtype=np.int64)
    for bit in (1 << i for i in range(n)):
        whole = np.concatenate([whole, whole | bit, whole | bit])
        part = np.concatenate([part, part, part | bit])
    order = np.argsort(whole, kind="stable")
    return whole[order], part[order], np.searchsorted(whole[order], np.arange(2**n))


def best_split(first: Floats, second: Floats) -> Floats:
    """For every set the best of first[S] + second[set without S] over its subsets S."""
    n = len(first).bit_length() - 1
    low = min(n, LOW)
    whole, part, starts = subsets(low)
    ones, others = first.reshape(-1, 2**low), second.reshape(-1, 2**low)
    best = np.full_like(ones, -np.inf)
    high, some, _ = subsets(n - low)
    for row, taken in zip(high.tolist(), some.tolist(), strict=True):
        sums = ones[taken][part] + others[row ^ taken][whole ^ part]
        np.maximum(best[row], np.maximum.reduceat(sums, starts), out=best[row])
    return best.reshape(-1)
