"""Have the groups stopped changing?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from ._average import Average, averages

if TYPE_CHECKING:
    from ._affinity import Affinity

FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
AGREEING = 3  # the last fifth of the history; two neighbouring prefixes agree too easily

Served = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Settled:
    """Whether the groups chosen from ever more of the history are the same; true if they are.

    Attributes:
        settled: the last three prefixes (80, 90 and 100 % by default) serve the same groups, and every prefix is
            longer than the one before.
        since: the step at the end of the first prefix from which on the groups never changed; None if
            they have not settled.
        groups: which tasks are served together, for each share of the history; none where a pair of tasks had
            not been measured yet.
    """

    settled: bool
    since: int | None
    groups: Mapping[float, Served]

    def __bool__(self) -> bool:
        return self.settled

    def __str__(self) -> str:
        verdict = f"groups unchanged since step {self.since}" if self.settled else "groups still changing"
        lines = [f"{share:>5.0%}  {_sentence(served)}" for share, served in self.groups.items()]
        return "\n".join([verdict, *lines])


def settle(affinity: Affinity, budget: int, fractions: Sequence[float]) -> Settled:
    """Selects groups on growing prefixes of the history."""
    shares = sorted(set(fractions))
    if len(shares) < 2 or not 0 < shares[0] <= shares[-1] <= 1:
        raise ValueError(f"`fractions` must be two or more shares in (0, 1], found {list(fractions)!r}")
    ends = [ceil(share * len(affinity.steps)) for share in shares]
    groups = [_served(affinity, end, budget) for end in ends]
    same = 1
    while same < len(groups) and groups[-same - 1] == groups[-1]:
        same += 1
    settled = bool(groups[-1]) and same >= min(AGREEING, len(groups)) and len({*ends}) == len(ends)
    since = int(affinity.steps[ends[-same] - 1]) if settled else None
    return Settled(settled, since, dict(zip(shares, groups, strict=True)))


def _served(affinity: Affinity, steps: int, budget: int) -> Served:
    from tagalong.group import select_groups  # only here: an affinity is data, and loads without the solvers

    matrix = averages(affinity.history[:steps], affinity.null[:steps], Average.of(affinity.settings))
    if not np.isfinite(matrix[~np.eye(len(affinity.tasks), dtype=bool)]).all():
        return ()  # some pair has not had its turn yet
    grouping = select_groups(type(affinity).from_matrix(matrix, affinity.tasks, settings=affinity.settings), budget)
    return tuple(sorted(tuple(sorted(group.serves)) for group in grouping.groups))


def _sentence(served: Served) -> str:
    return "  ".join("{" + ", ".join(group) + "}" for group in served)
