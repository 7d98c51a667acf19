"""Decides which models to use, from the skills of all ways of using models on validation and test rows.

`decide` is a pure function. Validation rows choose, and test rows only report.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.group import Group
from tagalong.learn import mean_skill, row_influences, task_skills

from .noise import Interval, half_width, row_stderr, seed_interval, seed_stderr, worse_tasks
from .records import Label
from .verdict import JudgedWay, ServingCost, TaskAnswer, Verdict

Rows = Mapping[str, NDArray[np.float64]]  # the skill of each task on every row, with NaN for missing labels
LOWEST_SKILL = -1.0  # of a voting task on validation rows; below it, a way went wrong
LEAST_TOLERANCE, MOST_TOLERANCE = 0.003, 0.01  # of mean skill, by which a cheaper way may fall short of the best
COPIES = ("ensemble", "best-of", "mtl")  # methods whose networks differ only in their seeds


@dataclass(frozen=True)
class Way:
    """A way of using models, with what is known about it.

    Attributes:
        label: the method and its budget.
        seeds: the seeds, in the order of what follows.
        models: the number of models in use.
        groups: the networks of each seed.
        val: the skill of each task on every validation row, by seed, from models that these rows did not pick. If only
            mean losses are known, there is one row.
        test: the same on the test rows, from the very models.
        errors: the test error of each task, in its own measure, by seed.
        cost: what answering takes.
        deciding: the cost of choosing the models, in trainings of one plain network.
        honest: whether the way was chosen without test rows and may be recommended.
        varies: whether results depend on the seed.
    """

    label: Label
    seeds: tuple[int, ...]
    models: int
    groups: tuple[tuple[Group, ...], ...]
    val: tuple[Rows, ...]
    test: tuple[Rows, ...]
    errors: tuple[Mapping[str, float], ...]
    cost: ServingCost
    deciding: float = 0.0
    honest: bool = True
    varies: bool = True


def decide(
    ways: Sequence[Way],
    reference: Label,
    *,
    weights: Mapping[str, float],
    votes: Collection[str],
    clusters: Mapping[str, Any] | None = None,
    relative: Sequence[str] = (),
    fresh: Sequence[Way] = (),
    notes: Sequence[str] = (),
) -> Verdict:
    """Decides which models to use, and reports what test rows say about them.

    Args:
        ways: the ways of using models, including the reference.
        reference: the label of the way that everything is compared with.
        weights: the weight of each task in means. Tasks without a weight are only reported.
        votes: the tasks that choose. The others have too few labelled validation rows.
        clusters: one cluster label per row of "val" and "test", or None where rows are independent.
        relative: the tasks whose skill is relative to the reference's loss.
        fresh: the ways that were trained again with seeds that chose nothing.
        notes: what else to say.
    """
    clusters = clusters or {}
    obvious = next(way for way in ways if way.label == reference)

    # Choose on validation rows. A way that went wrong on a voting task is out, unless every way did.
    honest = [way for way in ways if way.honest]
    converged = [way for way in honest if _lowest_skill(way, votes) >= LOWEST_SKILL] or honest
    voting = {task: weights[task] for task in votes}
    judged = {way.label: _Validated(way, voting) for way in ways}
    competing = [judged[way.label] for way in converged]
    best_by_size = {}
    for size in sorted({size for one in competing for size in one.sizes}):
        best_by_size[size] = max((one for one in competing if size in one.sizes), key=_Validated.rank)
    best = max(best_by_size.values(), key=_Validated.rank)
    tolerable = [
        one for one in best_by_size.values() if best.skill - one.skill <= one.tolerance(best, clusters.get("val"))
    ]
    recommended = min(tolerable, key=lambda one: (one.way.cost.order, one.way.models, -one.skill))

    # Report on test rows.
    report = _Report(obvious, weights, clusters.get("test"))
    choices = {label: report.choice(one) for label, one in judged.items()}
    copies = _matching_copies(recommended, competing)
    return Verdict(
        recommended=recommended.way.label,
        reference=reference,
        chosen=choices[recommended.way.label],
        reference_skill=float(np.mean(report.by_seed)),
        by_budget={size: choices[one.way.label] for size, one in best_by_size.items()},
        ways=tuple(choices.values()),
        per_task=tuple(report.task(task, recommended) for task in obvious.test[0]),
        worse=report.worse_tasks(recommended),
        copies=None if copies is None else copies.way.label,
        over_copies=None if copies is None else report.difference(recommended, copies),
        own_error=_best_by_own_error(converged, obvious, recommended.way),
        cheaper=_cheaper_and_ahead(competing, recommended, report),
        relative=tuple(relative),
        left_out=tuple(task for task in weights if task not in votes),
        notes=tuple(notes),
        tried=len(converged),
        seeds=len(fresh[0].seeds) if fresh else len(obvious.seeds),
        recipe=_gain_of_recipe(fresh, recommended.way.label, reference, weights, clusters.get("test")),
    )


class _Validated:
    """A way with its influences on validation rows, whose mean is its mean skill."""

    def __init__(self, way: Way, voting: Mapping[str, float]) -> None:
        self.way = way
        counted = [{task: rows[task] for task in voting} for rows in way.val]
        self.influences = np.mean([row_influences(rows, voting) for rows in counted], axis=0)
        self.by_seed = [mean_skill(task_skills(rows), voting) for rows in counted]
        self.skill = float(np.mean(self.by_seed))

    @property
    def sizes(self) -> set[int]:
        """The numbers of models for which this is a way of using them: as many as it has, and its budget."""
        budget = self.way.label[1]
        return {self.way.models} if budget is None else {self.way.models, budget}

    @property
    def picked(self) -> int:
        """The place of the seed whose networks you get: the best one on validation rows."""
        return int(np.argmax(self.by_seed))

    def rank(self) -> tuple[float, float]:
        return round(self.skill, 9), -self.way.cost.operations

    def tolerance(self, best: _Validated, clusters: Any) -> float:
        """Returns the paired standard error of the difference from the best way, within bounds."""
        errors = [row_stderr(best.influences - self.influences, clusters)]
        if best.way.seeds == self.way.seeds:
            errors.append(seed_stderr(np.subtract(best.by_seed, self.by_seed).tolist()))
        known = [error for error in errors if math.isfinite(error)]
        return float(np.clip(math.hypot(*known), LEAST_TOLERANCE, MOST_TOLERANCE))


class _Report:
    """What test rows say about the networks that you get, compared with the mean over the reference's seeds."""

    def __init__(self, reference: Way, weights: Mapping[str, float], clusters: Any) -> None:
        self.reference, self.weights, self.clusters = reference, weights, clusters
        self.by_seed = self._skills(reference)
        self.influences = np.mean([self._influences(rows) for rows in reference.test], axis=0)
        self.only_means = len(self.influences) == 1

    def choice(self, judged: _Validated) -> JudgedWay:
        way, place, reference_cost = judged.way, judged.picked, self.reference.cost.operations
        skills = self._skills(way)
        if way is self.reference:
            gain = Interval(0.0, 0.0, 0.0)
        elif self.only_means:
            gain = seed_interval(_paired(way, skills, self.reference, self.by_seed))
        else:
            gain = self._interval(self._influences(way.test[place]) - self.influences, self.by_seed)
        return JudgedWay(
            way.label,
            way.models,
            way.seeds[place],
            way.groups[place],
            judged.skill,
            float(np.mean(skills)) if self.only_means or way is self.reference else skills[place],
            gain,
            way.cost,
            way.cost.operations / reference_cost if reference_cost else None,
            way.deciding,
            way.honest,
        )

    def difference(self, judged: _Validated, other: _Validated) -> Interval:
        """Returns the gain of the networks that one way gives you over those of another."""
        if self.only_means:
            return seed_interval(_paired(judged.way, self._skills(judged.way), other.way, self._skills(other.way)))
        mine, theirs = (self._influences(one.way.test[one.picked]) for one in (judged, other))
        return self._interval(mine - theirs)

    def task(self, task: str, judged: _Validated) -> TaskAnswer:
        way, place = judged.way, judged.picked
        seeds = [rows[task] for rows in self.reference.test]
        skills = [_mean(rows) for rows in seeds]
        before = np.mean([_task_influences(rows) for rows in seeds], axis=0)
        error_before = float(np.mean([errors[task] for errors in self.reference.errors]))
        labels = int(np.isfinite(seeds[0]).sum())
        if self.only_means:
            mine = [_mean(rows[task]) for rows in way.test]
            change = seed_interval(_paired(way, mine, self.reference, skills))
            error_after = float(np.mean([errors[task] for errors in way.errors]))
            return TaskAnswer(
                task, seed_interval(skills), seed_interval(mine), change, error_before, error_after, labels
            )
        known = self._interval(before, skills)
        if way is self.reference:
            return TaskAnswer(task, known, known, Interval(0.0, 0.0, 0.0), error_before, error_before, labels)
        after = _task_influences(way.test[place][task])
        change = self._interval(after - before, skills)
        return TaskAnswer(task, known, self._interval(after), change, error_before, way.errors[place][task], labels)

    def worse_tasks(self, judged: _Validated) -> tuple[str, ...]:
        """Returns the tasks that get worse beyond noise."""
        if judged.way is self.reference or self.only_means:
            return ()
        differences = {}
        for task, rows in judged.way.test[judged.picked].items():
            seeds = [own[task] for own in self.reference.test]
            difference = _task_influences(rows) - np.mean([_task_influences(own) for own in seeds], axis=0)
            between_seeds = seed_stderr([_mean(own) for own in seeds])
            noise = math.hypot(row_stderr(difference, self.clusters), np.nan_to_num(between_seeds))
            differences[task] = float(difference.mean()), noise
        return worse_tasks(differences)

    def _influences(self, rows: Rows) -> NDArray[np.float64]:
        return row_influences({task: rows[task] for task in self.weights}, self.weights)

    def _skills(self, way: Way) -> list[float]:
        counted = ({task: rows[task] for task in self.weights} for rows in way.test)
        return [mean_skill(task_skills(rows), self.weights) for rows in counted]

    def _interval(self, influences: NDArray[Any], seeds: Sequence[float] = ()) -> Interval:
        """Returns the interval of a mean over rows, compared with a reference with these values by seed."""
        rows = row_stderr(influences, self.clusters)
        between_seeds = seed_stderr(seeds) if seeds and self.reference.varies else 0.0
        return Interval.around(float(influences.mean()), half_width(rows, between_seeds, len(seeds)))


def _gain_of_recipe(
    fresh: Sequence[Way], label: Label, reference: Label, weights: Mapping[str, float], clusters: Any
) -> Interval | None:
    """Returns the mean gain over paired fresh seeds, whose interval accounts for seeds and rows."""
    found = {way.label: way for way in fresh}
    if label == reference or label not in found or reference not in found:
        return None
    mine, theirs = (_Report(found[one], weights, clusters) for one in (label, reference))
    changes = _paired(mine.reference, mine.by_seed, theirs.reference, theirs.by_seed)
    rows = row_stderr(mine.influences - theirs.influences, clusters)
    error = half_width(0.0 if mine.only_means else rows, seed_stderr(changes), len(changes))
    return Interval.around(float(np.mean(changes)), error)


def _paired(way: Way, values: Sequence[float], other: Way, others: Sequence[float]) -> list[float]:
    """Returns the differences for the seeds that both have."""
    theirs = dict(zip(other.seeds, others, strict=True))
    return [value - theirs[seed] for seed, value in zip(way.seeds, values, strict=True) if seed in theirs]


def _mean(rows: NDArray[Any]) -> float:
    return float(np.nanmean(rows)) if np.isfinite(rows).any() else math.nan


def _task_influences(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Returns a value per row whose mean is the task's skill, without the floor of means."""
    labelled = np.isfinite(rows)
    if not labelled.any():
        return np.full(len(rows), np.nan)
    skill = rows[labelled].mean()
    return np.asarray(skill + np.where(labelled, rows - skill, 0.0) / labelled.mean())


def _lowest_skill(way: Way, votes: Collection[str]) -> float:
    """Returns the lowest skill of a voting task on validation rows over all seeds; NaN losses count as the lowest."""
    skills = [skill for rows in way.val for task, skill in task_skills(rows).items() if task in votes]
    return min((-math.inf if math.isnan(skill) else skill for skill in skills), default=-math.inf)


def _matching_copies(judged: _Validated, others: Collection[_Validated]) -> _Validated | None:
    """Returns the best copies of as many networks, if these are networks for sets of tasks."""
    groups = judged.way.groups[judged.picked]
    tasks = frozenset().union(*(group.serves for group in groups))
    if all(group.trains == tasks for group in groups):
        return None
    copies = [one for one in others if one.way.models == judged.way.models and one.way.label[0] in COPIES]
    return max(copies, key=_Validated.rank, default=None)


def _best_by_own_error(ways: Sequence[Way], reference: Way, recommended: Way) -> Label | None:
    """Returns the way with the lowest mean error relative to the reference's, if it is not the recommended one."""

    def relative_error(way: Way) -> float:
        ratios = []
        for task in reference.errors[0]:
            before, after = (np.mean([errors[task] for errors in one.errors]) for one in (reference, way))
            if math.isfinite(before) and before > 0:
                ratios.append(float(after / before))
        return float(np.mean(ratios)) if ratios else math.nan

    errors = {way.label: relative_error(way) for way in ways}
    known = {label: error for label, error in errors.items() if math.isfinite(error)}
    if recommended.label not in known:
        return None
    best = min(known, key=lambda label: known[label])
    return best if known[best] < known[recommended.label] else None


def _cheaper_and_ahead(judged: Collection[_Validated], recommended: _Validated, report: _Report) -> Label | None:
    """Returns the way that is furthest ahead on test rows, if one is cheaper than the recommended one and ahead."""
    ahead = {}
    for one in judged:
        if one.way.cost.order < recommended.way.cost.order:
            gain = report.difference(one, recommended)
            if gain.above_zero:
                ahead[one.way.label] = gain.estimate
    return max(ahead, key=lambda label: ahead[label], default=None)
