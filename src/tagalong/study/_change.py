"""Changes against other records of the same seeds, and what costs are against those of all together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._record import Cost, Record

Label = tuple[str, int | None]
TOGETHER: Label = ("mtl", None)


def by_label(records: Sequence[Record]) -> dict[Label, list[Record]]:
    """The records of each method and budget."""
    found: dict[Label, list[Record]] = {}
    for record in records:
        found.setdefault((record.method, record.budget), []).append(record)
    return found


def changes(found: Sequence[Record], others: Sequence[Record], part: str = "test") -> list[float]:
    """The relative change of each record against that of the others with the same seed; negative is better.

    None at all if one of them diverged: what the other seeds reached would be the luck of those that are left.
    """
    if any(record.diverged for record in [*found, *others]):
        return []
    same_seed = {record.seed: record for record in others}
    return [record.change(same_seed[record.seed], part) for record in found if record.seed in same_seed]


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else math.nan


def stderr(values: Sequence[float]) -> float:
    """The standard error of a mean.

    Example:
        >>> round(stderr([1.0, 2.0, 3.0]), 3)
        0.577
    """
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean over seeds, steps and networks to whole numbers."""
    whole, count = sum(costs, Cost()), max(1, len(costs))
    return Cost(round(whole.networks / count), round(whole.steps / count), whole.seconds / count)


def in_units_of(cost: Cost, unit: Cost) -> float | None:
    """A cost against another, by steps where they are known, else by seconds; None where neither is.

    Seconds would flatter networks that were trained many at once, and change from machine to machine.
    """
    if unit.steps and (cost.steps or not cost.networks):
        return cost.steps / unit.steps
    return cost.seconds / unit.seconds if unit.seconds and (cost.seconds or not cost.networks) else None
