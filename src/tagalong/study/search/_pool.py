"""The sets of tasks that the search thinks about: all of them where they are few, else those near good ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Mask = tuple[bool, ...]
MOST = 4096  # sets to think about at once


def first_pool(tasks: int) -> Bools:
    """[sets, tasks]: all tasks first; then every subset if they are few, else pairs, singles and all but one or two."""
    if 2**tasks - 1 <= MOST:
        bits = np.arange(2**tasks - 1, 0, -1)[:, None] >> np.arange(tasks) & 1
        return bits.astype(bool)
    one = np.eye(tasks, dtype=bool)
    upper, lower = np.triu_indices(tasks, 1)
    two = one[upper] | one[lower]
    sets = np.concatenate([np.ones((1, tasks), dtype=bool), ~one, one, ~two, two])
    return sets[:MOST]


def near(sets: Iterable[Mask], pool: Bools) -> Bools:
    """The pool with the sets that differ from some good ones in one task, or in two for the first of these."""
    known = dict.fromkeys(map(tuple, pool.tolist()))
    if len(known) == 2 ** pool.shape[1] - 1:
        return pool
    added: dict[Mask, None] = {}
    for mask in sets:
        for task in range(len(mask)):
            changed = (*mask[:task], not mask[task], *mask[task + 1 :])
            if any(changed) and changed not in known:
                added[changed] = None
    kept = [*known, *added]
    if len(kept) > MOST:  # the first ones reach everywhere, the last ones are near what is good now
        half = MOST // 2
        kept = [*kept[:half], *kept[-half:]]
    return np.array(kept, dtype=bool)
