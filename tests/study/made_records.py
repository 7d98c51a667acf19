"""Records with given losses, for tests of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tagalong.group import Group
from tagalong.study import Cost, ProblemInfo, Record, Results, Score

TASKS = ("a", "b")
TOGETHER = (Group("ab", "ab"),)
APART = (Group("a", "a"), Group("b", "b"))


def records(
    method: str,
    budget: int | None,
    val: Sequence[float],
    test: Sequence[float],
    groups: tuple[Group, ...] = APART,
    honest: bool = True,
) -> list[Record]:
    """Returns one record per seed, whose losses have the given change from 1 and 2."""
    count = len(groups)
    made = []
    for seed, (val_change, test_change) in enumerate(zip(val, test, strict=True)):
        scores = [{"a": Score(1 + x, 0.25 + x), "b": Score(2 * (1 + x), 0.5 + x)} for x in (val_change, test_change)]
        training = Cost(count, 100 * count, 2.0 * count)
        made.append(
            Record(method, budget, seed, groups, *scores, training=training, parameters=1000 * count, honest=honest)
        )
    return made


def together(seeds: int = 3) -> list[Record]:
    """Returns records of one network for all tasks."""
    return records("mtl", None, [0.0] * seeds, [0.0] * seeds, TOGETHER)


def results(found: Sequence[Record], **more: Any) -> Results:
    """Returns results for the two tasks."""
    return Results(found, problem=ProblemInfo.from_tasks(TASKS), **more)
