"""Records with given changes, for tests of results and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tagalong.group import Group
from tagalong.study import Cost, Label, ProblemInfo, Record, Results, RowNoise, Score, Verdict

TASKS = ("a", "b")
TOGETHER = (Group("ab", "ab"),)
APART = (Group("a", "a"), Group("b", "b"))
HELPED = (Group("a", "a"), Group("ab", "b"))
ROWS = {("tag", 2): 0.001, ("stl", None): 0.001, ("hoa", 2): 0.001}


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


def copies(method: str, count: int, val: Sequence[float], test: Sequence[float]) -> list[Record]:
    return records(method, count, val, test, tuple(Group("ab", "ab", copy=copy) for copy in range(count)))


def larger(times: int, val: Sequence[float], test: Sequence[float]) -> list[Record]:
    wide = records(f"mtl-big{times}", None, val, test, TOGETHER)
    return [replace(record, parameters=1020 * times) for record in wide]


def with_scores(found: Sequence[Record], task: str, **scores: Sequence[float]) -> list[Record]:
    """Replaces the losses of one task, by part ("val" or "test") and seed."""
    changed = list(found)
    for part, losses in scores.items():
        for place, loss in enumerate(losses):
            own = {**getattr(changed[place], part), task: Score(loss, 0.25)}
            changed[place] = replace(changed[place], **{part: own})
    return changed


def results(found: Sequence[Record], **more: Any) -> Results:
    """Returns results for the two tasks."""
    return Results(found, problem=ProblemInfo.from_tasks(TASKS), **more)


def verdict_on(
    *methods: Sequence[Record],
    noise: Mapping[Label, float] | RowNoise = ROWS,
    confirming: Sequence[int] = (),
    learning: Any = None,
    **options: float,
) -> Verdict:
    """Returns the verdict on the records of some methods, beside one network for all tasks."""
    seeds = 1 + max((record.seed for method in methods for record in method), default=2)
    every = [*together(seeds), *(record for method in methods for record in method)]
    found = results(every, noise=noise, learning=learning, settings={"confirming_seeds": list(confirming)})
    return found.verdict(**options)
