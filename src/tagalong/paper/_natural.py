"""Groups that stand out in a matrix of affinities."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

SHARE = 0.3  # fitted: with it the published matrices give the groups that the paper names


def natural_groups(affinity: Affinity, share: float = SHARE) -> list[frozenset[str]]:
    """Largest sets of tasks in which every two help each other clearly, larger ones first.

    How much a source helps is read above the lowest affinity onto its target, so that levels of targets do not matter,
    and measured by the usual spread onto a target. A pair is together if both directions average above `share` of it.
    With 0.3 the published matrices give exactly the groups that the paper names; `shares_giving` tells how exact that
    number must be.

    Args:
        affinity: who helps whom.
        share: of the median spread.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> sorted(map(sorted, natural_groups(Affinity.from_matrix(matrix, list("abcd")))))
        [['a', 'b'], ['c', 'd']]
    """
    together = mutual(affinity) >= share
    found: list[frozenset[str]] = []
    for size in range(len(affinity.tasks), 1, -1):
        for members in combinations(range(len(affinity.tasks)), size):
            names = frozenset(affinity.tasks[i] for i in members)
            if all(together[i, j] for i, j in combinations(members, 2)) and not any(names <= other for other in found):
                found.append(names)
    return found


def mutual(affinity: Affinity) -> NDArray[np.float64]:
    """How much every two tasks help each other, above the lowest affinity onto each, in shares of the usual spread."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    low = np.nanmin(others, axis=0)
    usual = float(np.median(np.nanmax(others, axis=0) - low))
    above: NDArray[np.float64] = (others - low) / (usual or 1.0)
    return (above + above.T) / 2


def shares_giving(affinity: Affinity, groups: Iterable[Collection[str]]) -> tuple[float, float] | None:
    """The lowest and the highest share around `SHARE` for which exactly these groups are natural; None: not even there.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> low, high = shares_giving(Affinity.from_matrix(matrix, list("abcd")), ["ab", "cd"])
        >>> round(low, 2), round(high, 2)
        (0.07, 0.93)
    """
    wanted = {frozenset(group) for group in groups}
    found = mutual(affinity)
    levels = np.unique([0.0, *found[np.isfinite(found)]])  # between two levels the groups stay the same
    same = [(low, high) for low, high in pairwise(levels) if set(natural_groups(affinity, high)) == wanted]
    around = next((place for place, (low, high) in enumerate(same) if low < SHARE <= high), None)
    if around is None:
        return None
    first = last = around
    while first > 0 and same[first - 1][1] == same[first][0]:
        first -= 1
    while last + 1 < len(same) and same[last + 1][0] == same[last][1]:
        last += 1
    return float(same[first][0]), float(same[last][1])


def margin(affinity: Affinity, group: Collection[str], share: float = SHARE) -> float:
    """How far a group is from not being natural: above zero exactly if it is one.

    The least of how much any two of its tasks are above the share, and how much any other task misses it with one.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]], list("abcd"))
        >>> margin(affinity, "ab") > 0, margin(affinity, "ac") > 0
        (True, False)
    """
    found, inside = mutual(affinity), [affinity.tasks.index(task) for task in group]
    outside = [i for i in range(len(affinity.tasks)) if i not in inside]
    together = min(found[i, j] for i, j in combinations(inside, 2)) - share
    apart = [share - min(found[i, j] for j in inside) for i in outside]
    return float(min([together, *apart]))
