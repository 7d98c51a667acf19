"""Decides which models to use, from the skills of all ways of using models on validation and test rows.

`decide` is a pure function. Validation rows choose, and test rows only report.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.group import Group
from tagalong.learn import mean_skill, row_influences, task_skills

from .noise import Interval, below_zero, between_folds, half_width, row_stderr, seed_interval, seed_stderr
from .records import Label, SkillScale
from .verdict import JudgedWay, ServingCost, TaskAnswer, Verdict
from .words import notes_on

Rows = Mapping[str, NDArray[np.float64]]  # the skill of each task on every row, with NaN for missing labels
LOWEST_SKILL = -1.0  # of a voting task on validation rows; below it, a way went wrong
LEAST_TOLERANCE, MOST_TOLERANCE = 0.003, 0.01  # of mean skill, by which a cheaper way may fall short of the best
FEWEST_LABELS, FEWEST_OF_RARER_CLASS = 20, 5  # on validation rows, of a task that has a vote
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


@dataclass(frozen=True)
class Evidence:
    """What is known about the ways of using models.

    Attributes:
        ways: the ways of using models, without those in which a network diverged.
        reference: the label of the way that everything is compared with, fixed before training.
        scale: what turns mean losses into skills, with the weight of each task.
        labels: for each task, how many validation rows have a label, and how many of these are of the rarer classes.
            Tasks with few of them do not choose. Unknown numbers count as enough.
        clusters: one cluster label per row of "val" and "test", or None where rows are independent.
        folds: the evidence of each fold, whose rows are joined here, or an empty tuple if there is one split.
        late: how many networks were best in one of their last epochs, and of how many this is known.
        lost: the ways that are left out since a network diverged.
        heavy_tails: the tasks whose loss is mostly that of a few rows.
        has_few_seeds: whether the noise between trainings is known badly.
    """

    ways: tuple[Way, ...]
    reference: Label
    scale: SkillScale
    labels: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    clusters: Mapping[str, NDArray[Any] | None] = field(default_factory=dict)
    folds: tuple[Evidence, ...] = ()
    late: tuple[int, int] = (0, 0)
    lost: tuple[Label, ...] = ()
    heavy_tails: tuple[str, ...] = ()
    has_few_seeds: bool = False

    @property
    def votes(self) -> tuple[str, ...]:
        """The tasks that choose: those with enough labelled validation rows, or all tasks if none has enough."""
        votes = []
        for task in self.scale.weights:
            labelled, rarer = self.labels.get(task, (FEWEST_LABELS, FEWEST_OF_RARER_CLASS))
            if labelled >= FEWEST_LABELS and rarer >= FEWEST_OF_RARER_CLASS:
                votes.append(task)
        return tuple(votes or self.scale.weights)

    def way(self, label: Label) -> Way | None:
        """Returns the way with this label, or None if there is none."""
        return next((way for way in self.ways if way.label == label), None)


def decide(evidence: Evidence, fresh: Evidence | None = None) -> Verdict:
    """Decides which models to use, and reports what test rows say about them.

    Args:
        evidence: the ways of using models, including the reference.
        fresh: the same for the ways that were trained again with seeds that chose nothing.
    """
    scale = evidence.scale
    reference = evidence.way(evidence.reference)
    assert reference is not None

    # Choose on validation rows, and in each fold on its own.
    votes = {task: scale.weights[task] for task in evidence.votes}
    judged = {way.label: _Validated(way, votes) for way in evidence.ways}
    competing, best_by_size, recommended = _choose(list(judged.values()), evidence.clusters.get("val"))
    picked_in = 0
    for fold in evidence.folds:
        in_fold = [_Validated(way, votes) for way in fold.ways if way.label in judged]
        picked_in += _choose(in_fold, fold.clusters.get("val"))[-1].way.label == recommended.way.label

    # Report on test rows.
    report = _Report(evidence, reference)
    choices = {label: report.choice(one) for label, one in judged.items()}
    copies = _matching_copies(recommended, competing)
    return Verdict(
        recommended=recommended.way.label,
        reference=evidence.reference,
        chosen=choices[recommended.way.label],
        reference_skill=float(np.mean(report.by_seed)),
        by_budget={size: choices[one.way.label] for size, one in best_by_size.items()},
        ways=tuple(choices.values()),
        per_task=tuple(report.task(task, recommended) for task in reference.test[0]),
        worse=report.worse_tasks(recommended),
        copies=None if copies is None else copies.way.label,
        over_copies=None if copies is None else report.difference(recommended, copies),
        own_error=_best_by_own_error([one.way for one in competing], reference, recommended.way),
        cheaper=report.cheaper_and_ahead(competing, recommended),
        relative=scale.relative,
        left_out=tuple(task for task in scale.weights if task not in votes),
        notes=tuple(notes_on(evidence)),
        tried=len(competing),
        seeds=len((fresh or evidence).ways[0].seeds),
        folds=max(1, len(evidence.folds)),
        picked_in=picked_in if evidence.folds else 1,
        recipe=None if fresh is None else _gain_of_recipe(fresh, recommended.way.label),
    )


class _Validated:
    """A way with its influences on validation rows, whose mean is its mean skill."""

    def __init__(self, way: Way, votes: Mapping[str, float]) -> None:
        self.way = way
        counted = [{task: rows[task] for task in votes} for rows in way.val]
        skills = [task_skills(rows) for rows in counted]
        self.influences = np.mean([row_influences(rows, votes) for rows in counted], axis=0)
        self.by_seed = [mean_skill(own, votes) for own in skills]
        self.skill = float(np.mean(self.by_seed))
        lowest = np.min([list(own.values()) for own in skills])  # NaN if a loss is
        self.converged = bool(lowest >= LOWEST_SKILL)

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

    def tolerance(self, best: _Validated, clusters: NDArray[Any] | None) -> float:
        """Returns the paired standard error of the difference from the best way, within bounds."""
        errors = [row_stderr(best.influences - self.influences, clusters)]
        if best.way.seeds == self.way.seeds:
            errors.append(seed_stderr(np.subtract(best.by_seed, self.by_seed).tolist()))
        known = [error for error in errors if math.isfinite(error)]
        return float(np.clip(math.hypot(*known), LEAST_TOLERANCE, MOST_TOLERANCE))


def _choose(
    judged: Sequence[_Validated], clusters: NDArray[Any] | None
) -> tuple[list[_Validated], dict[int, _Validated], _Validated]:
    """Returns the ways that compete, the best one for each number of models, and the recommended one."""
    honest = [one for one in judged if one.way.honest]
    # A way that went wrong on a voting task is out, unless every way did.
    competing = [one for one in honest if one.converged] or honest
    best_by_size = {}
    for size in sorted({size for one in competing for size in one.sizes}):
        best_by_size[size] = max((one for one in competing if size in one.sizes), key=_Validated.rank)
    best = max(best_by_size.values(), key=_Validated.rank)
    # The cheapest way that is hardly worse is recommended, and stands for its number of models.
    tolerable = [one for one in competing if best.skill - one.skill <= one.tolerance(best, clusters)]
    recommended = min(tolerable, key=lambda one: (*one.way.cost.order, one.way.deciding, one.way.models, -one.skill))
    return competing, best_by_size | dict.fromkeys(sorted(recommended.sizes), recommended), recommended


class _Report:
    """What test rows say about the networks that you get, compared with the mean over the reference's seeds."""

    def __init__(self, evidence: Evidence, reference: Way) -> None:
        self.reference, self.weights, self.clusters = reference, evidence.scale.weights, evidence.clusters.get("test")
        sizes = [len(next(iter(fold.ways[0].test[0].values()))) for fold in evidence.folds]
        self.folds = np.repeat(np.arange(len(sizes)), sizes) if sizes else None  # the fold of each row
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
            differences[task] = self._estimate(difference, [_mean(own) for own in seeds])
        return below_zero(differences)

    def cheaper_and_ahead(self, competing: Collection[_Validated], recommended: _Validated) -> Label | None:
        """Returns the way that is furthest ahead on test rows, of those that are cheaper and ahead beyond noise."""
        if self.only_means:
            return None
        mine, lags = self._influences(recommended.way.test[recommended.picked]), {}
        for one in competing:
            if one.way.cost.order < recommended.way.cost.order:
                theirs = self._influences(one.way.test[one.picked])
                lags[one.way.label] = self._estimate(mine - theirs)
        return min(below_zero(lags), key=lambda label: lags[label], default=None)

    def _influences(self, rows: Rows) -> NDArray[np.float64]:
        return row_influences({task: rows[task] for task in self.weights}, self.weights)

    def _skills(self, way: Way) -> list[float]:
        counted = ({task: rows[task] for task in self.weights} for rows in way.test)
        return [mean_skill(task_skills(rows), self.weights) for rows in counted]

    def _interval(self, influences: NDArray[Any], seeds: Sequence[float] = ()) -> Interval:
        """Returns the interval of a mean over rows, compared with a reference with these values by seed."""
        return Interval.around(float(influences.mean()), half_width(*self._noise(influences, seeds)))

    def _estimate(self, influences: NDArray[Any], seeds: Sequence[float] = ()) -> tuple[float, float]:
        """Returns the mean over rows and its standard error."""
        by_rows, other, _ = self._noise(influences, seeds)
        return float(influences.mean()), math.hypot(by_rows, np.nan_to_num(other))

    def _noise(self, influences: NDArray[Any], seeds: Sequence[float]) -> tuple[float, float, int]:
        """Returns the standard errors due to rows, and due to folds or the reference's seeds, and how many there are.

        Each fold has networks of its own, whose luck includes that of their seeds.
        """
        by_rows = row_stderr(influences, self.clusters)
        if self.folds is not None:
            return by_rows, between_folds(influences, self.folds, by_rows), int(self.folds[-1]) + 1
        if seeds and self.reference.varies:
            return by_rows, seed_stderr(seeds), len(seeds)
        return by_rows, 0.0, 1


def _gain_of_recipe(fresh: Evidence, label: Label) -> Interval | None:
    """Returns the mean gain over paired fresh seeds, whose interval accounts for seeds and rows."""
    way, reference = fresh.way(label), fresh.way(fresh.reference)
    if label == fresh.reference or way is None or reference is None:
        return None
    mine, theirs = _Report(fresh, way), _Report(fresh, reference)
    changes = _paired(way, mine.by_seed, reference, theirs.by_seed)
    if mine.only_means:
        return seed_interval(changes)
    rows = row_stderr(mine.influences - theirs.influences, mine.clusters)
    return Interval.around(float(np.mean(changes)), half_width(rows, seed_stderr(changes), len(changes)))


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
