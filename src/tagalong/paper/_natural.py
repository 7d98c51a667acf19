"""Groups that stand out in a matrix of affinities."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from tagalong.affinity import Affinity


def natural_groups(affinity: Affinity, share: float = 0.3) -> list[frozenset[str]]:
    """Largest sets of tasks in which every two help each other clearly, larger ones first.

    How much a source helps is read above the lowest affinity onto its target, so that levels of targets do not matter,
    and measured by the usual spread onto a target. A pair is together if both directions average above `share` of it.
    With 0.3 the published matrices give exactly the groups that the paper names.

    Args:
        affinity: who helps whom.
        share: of the median spread.

    Example:
        >>> matrix = [[0, 9, 1, 1], [9, 0, 1, 1], [1, 2, 0, 8], [2, 1, 8, 0]]
        >>> sorted(map(sorted, natural_groups(Affinity.from_matrix(matrix, list("abcd")))))
        [['a', 'b'], ['c', 'd']]
    """
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    low = np.nanmin(others, axis=0)
    usual = float(np.median(np.nanmax(others, axis=0) - low))
    above = (others - low) / (usual or 1.0)
    mutual = (above + above.T) / 2 >= share
    found: list[frozenset[str]] = []
    for size in range(len(affinity.tasks), 1, -1):
        for members in combinations(range(len(affinity.tasks)), size):
            names = frozenset(affinity.tasks[i] for i in members)
            if all(mutual[i, j] for i, j in combinations(members, 2)) and not any(names <= other for other in found):
                found.append(names)
    return found
