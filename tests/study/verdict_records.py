"""Records with given changes, for tests of results and verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from tagalong.group import Group
from tagalong.study import Cost, ProblemInfo, Record, Results, Score

TASKS = ("a", "b")
TOGETHER = (Group("ab", "ab"),)
APART = (Group("a", "a"), Group("b", "b"))
HELPED = (Group("a", "a"), Group("ab", "b"))


def records(
    method: str,
    budget: int | None,
    val: Sequence[float],
    test: Sequence[float],
    groups: tuple[Group, ...] = APART,
    first: int = 0,
    honest: bool = True,
    base: float = 1.0,
) -> list[Record]:
    """Returns one record per seed, whose losses are `base` with the given change, the same for both tasks."""

    def outcomes(change: float) -> dict[str, Score]:
        return {"a": Score(base * (1 + change), 0.25), "b": Score(2 * (1 + change), 0.5)}

    count = len(groups)
    return [
        Record(
            method,
            budget,
            first + seed,
            groups,
            outcomes(v),
            outcomes(t),
            training=Cost(count, 100 * count, 2.0 * count),
            parameters=1000 * count,
            honest=honest,
        )
        for seed, (v, t) in enumerate(zip(val, test, strict=True))
    ]


def together(seeds: int = 3, first: int = 0) -> list[Record]:
    """Returns records of one network for all tasks."""
    return records("mtl", None, [0.0] * seeds, [0.0] * seeds, TOGETHER, first)


def results(found: Sequence[Record], **more: object) -> Results:
    """Returns results for the two tasks."""
    return Results(found, problem=ProblemInfo.from_tasks(TASKS), **more)  # type: ignore[arg-type]
