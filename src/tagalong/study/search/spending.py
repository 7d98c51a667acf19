"""Spends a given effort on networks, of which the best few are recommended for each budget.

1. Half of the effort goes into a pool: copies of the network for all tasks, and networks for sets of tasks that
   `search` proposes.
2. The networks of the pool that are best together teach students with the other half, in two rounds. The first round
   tries several ways of teaching, and the second one uses those that were best.
3. For each budget, the networks that are best together on validation are recommended. They include students unless
   copies are better on rows that did not choose them, and sets of tasks only if they are clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from tagalong.group import Group, Taught
from tagalong.learn import Split, can_be_taught

from ..backend import Backend
from ..members import member_seed
from ..network_result import NetworkResult
from ..relative_losses import MAX_RATIO, relative_change
from ..summary import stderr
from ..uncertainty import row_stderr
from .answers import ALL, Answers, Array, Members
from .committee import cross_fitted_rows, mean_relative_loss, select_committee, select_teachers
from .recommendation import SearchSettings
from .search import search

MIN_TEACHING_EFFORT, MIN_LECTURES_EFFORT = 3, 12  # of everything: for any students, and for several ways of teaching
MIN_SEARCH_EFFORT = 8  # of the pool
MAX_TEACHERS = 10
STUDENT_COST = 1.5  # in full training runs, before any student was trained and without additional rows
DESCRIPTIONS = {"copy": "copies", "set": "networks proposed by auto", "student": "networks taught by others"}
# Standard errors by which the networks of a larger pool must be better than those of the smaller ones, on rows that did
# not choose them. Students are rarely worse than copies, but sets of tasks often are.
REQUIRED_GAIN = {"copies": 0.0, "taught": -0.5, "all": 2.0}
REQUIRED_SINGLE_GAIN = 2.0  # the same, for one network to answer each task instead of all that were trained on it


@dataclass(frozen=True)
class Lecture:
    """A way of teaching.

    Attributes:
        mix: the weight of the teachers' answers in the loss.
        mixtures: the number of mixtures of two training rows to learn from, as a multiple of the training rows.
        unlabelled: whether to learn from rows without labels, if there are any.
    """

    mix: float
    mixtures: int
    unlabelled: bool = True


# Students that only imitate are best alone; those that also learn from labels differ more, and are best together.
FEW_LECTURES = (Lecture(0.5, 0),)
LECTURES = (Lecture(0.5, 1), Lecture(1.0, 1), Lecture(0.5, 0, False), Lecture(1.0, 0, False))


@dataclass(frozen=True)
class SpendingSettings:
    """What an effort may be spent on.

    Attributes:
        passes: the maximum number of networks that answer a task, or None for no limit.
        sets: whether to train networks for sets of tasks.
        teach: whether to train students.
        mixtures: whether students may learn from mixtures of training rows.
        search: the settings of the search for sets of tasks.
    """

    passes: int | None = None
    sets: bool = True
    teach: bool = True
    mixtures: bool = True
    search: SearchSettings = field(default_factory=SearchSettings)


@dataclass(frozen=True)
class Member:
    """A trained network that may be recommended.

    Attributes:
        kind: "copy" for the network for all tasks, "set" for a network for some tasks, or "student".
        group: the tasks that it was trained on, its copy number, and who taught it.
        result: its result.
        effort: what its training cost, in full training runs.
    """

    kind: Literal["copy", "set", "student"]
    group: Group
    result: NetworkResult
    effort: float


@dataclass(frozen=True)
class Plan:
    """The recommended networks for a budget.

    Attributes:
        groups: the networks, and the tasks that each of them answers.
        expected: the expected relative change in loss from one plain network, averaged over tasks, on rows that did not
            choose the networks.
        doubt: the standard error of `expected`, due to the finite number of validation rows and of plain networks.
        alternatives: `expected` of the best networks among the copies, among copies and students, and among all
            networks, by the name of the pool.
        pool: the name of the pool from which the networks were chosen.
    """

    groups: tuple[Group, ...]
    expected: float
    doubt: float
    alternatives: dict[str, float]
    pool: str


@dataclass(frozen=True)
class SpendingRound:
    """Networks that were trained together.

    Attributes:
        members: the networks that converged.
        others: the results and efforts of networks that cannot be recommended, since they diverged or were trained only
            in part.
        spent: the total effort after this round.
        best: for each budget, the expected change of the best networks so far.
    """

    members: tuple[Member, ...]
    others: tuple[tuple[NetworkResult, float], ...]
    spent: float
    best: dict[int, float]


@dataclass(frozen=True)
class Spending:
    """What an effort was spent on.

    Attributes:
        plans: the recommendation for each budget.
        rounds: the rounds, in order.
        spent: the total effort.
        teachers: the networks that teach the students, with repetitions.
    """

    plans: dict[int, Plan]
    rounds: tuple[SpendingRound, ...]
    spent: float
    teachers: tuple[Group, ...]


def spend(
    backend: Backend,
    budgets: Sequence[int],
    effort: float,
    seed: int,
    *,
    hints: Array | None = None,
    errors: Array | None = None,
    spent: float = 0.0,
    settings: SpendingSettings | None = None,
) -> Spending:
    """Trains networks and recommends the best of them for each budget.

    Args:
        backend: the backend, which must provide the outputs of networks.
        budgets: the numbers of networks to recommend.
        effort: the number of full training runs. The steps of students, which take longer, count in full.
        seed: the seed of the record to which the networks belong. All networks are copies for this seed.
        hints: see `search`.
        errors: see `search`.
        spent: see `search`.
        settings: what to spend the effort on, or None for the defaults.
    """
    given = settings or SpendingSettings()
    return _Spender(backend, tuple(budgets), effort, seed, hints, errors, spent, given).run()


@dataclass
class _Spender:
    backend: Backend
    budgets: tuple[int, ...]
    effort: float
    seed: int
    hints: Array | None
    errors: Array | None
    spent: float
    settings: SpendingSettings
    members: list[Member] = field(default_factory=list)
    rounds: list[SpendingRound] = field(default_factory=list)
    copies: int = 0  # of networks for all tasks, including students and those that diverged

    def run(self) -> Spending:
        self.tasks, problem = self.backend.tasks, self.backend.problem
        known = [task for name in self.tasks if (task := self.backend.task(name)) is not None]
        clusters = None if problem is None else problem.val.groups
        self.answers = Answers(known, self.backend.targets("val"), clusters)
        self._fill_pool()
        teachers = self._teach_students() if self._can_teach else ()
        return Spending(self.plans, tuple(self.rounds), self.spent, tuple(self.members[one].group for one in teachers))

    @property
    def _can_teach(self) -> bool:
        problem = self.backend.problem
        if (
            not self.settings.teach
            or self.effort < MIN_TEACHING_EFFORT
            or not self.backend.can_teach
            or problem is None
        ):
            return False
        rows = problem.train
        return isinstance(rows, Split) and any(can_be_taught(task, rows.targets[task.name]) for task in problem.tasks)

    def _fill_pool(self) -> None:
        """Trains copies, and networks for the sets of tasks that a search proposes."""
        share = self.effort / 2 if self.effort >= MIN_LECTURES_EFFORT else 2 * self.effort / 3
        effort = max(1, round((share if self._can_teach else self.effort) - self.spent))
        searching = self.settings.sets and effort >= MIN_SEARCH_EFFORT and len(self.tasks) > 1
        copies = math.ceil(effort / 2) if searching else effort
        self._train([Group(self.tasks, self.tasks, copy=number) for number in range(copies)], "copy")
        self.copies = copies
        if not searching:
            return
        seeds = [member_seed(self.seed, number) for number in range(copies)]
        converged = [seeds[member.group.copy] for member in self.members]
        effort -= copies - len(converged)
        settings = replace(self.settings.search, together=len(converged) / effort, reserved=0.0)
        budget = min(max(2, *self.budgets), len(self.tasks))
        found = search(
            self.backend, [budget], effort, converged, hints=self.hints, errors=self.errors, settings=settings
        )
        sets = [
            Group(trial.tasks, trial.tasks, copy=seeds.index(trial.seed))
            for step in found.steps
            for trial in step.results
            if trial.fraction == 1 and len(trial.tasks) < len(self.tasks)
        ]
        partly = [
            (result, step.efforts[trial])
            for step in found.steps
            for trial, result in step.results.items()
            if trial.fraction < 1
        ]
        self._train(sets, "set", partly)

    def _teach_students(self) -> Members:
        """Trains students until the effort is spent, and returns their teachers."""
        teachers = select_teachers(self.answers, MAX_TEACHERS, self.base, pool=range(len(self.members)))
        self._keys = tuple(self.members[number].result.key for number in teachers)
        wanted = LECTURES if self.effort >= MIN_LECTURES_EFFORT else FEW_LECTURES
        lectures = [one for one in wanted if self._can_mix or not one.mixtures]
        first = (self.effort + self.spent) / 2 if len(lectures) > 1 else self.effort
        self._train_students(lectures, first)
        best = self._best_lectures(lectures) if len(lectures) > 1 else lectures
        while self._train_students(best, self.effort):
            pass
        return teachers

    @property
    def _can_mix(self) -> bool:
        assert self.backend.problem is not None
        rows = self.backend.problem.train
        return self.settings.mixtures and isinstance(rows, Split) and rows.inputs.is_floating_point()

    def _train_students(self, lectures: Sequence[Lecture], until: float) -> bool:
        """Trains as many students as the effort allows, by each of the lectures in turn, and returns whether any.

        At least one is trained in all.
        """
        groups: list[Group] = []
        expected = self.spent
        while True:
            lecture = lectures[len(groups) % len(lectures)]
            expected += self._expected_cost(lecture)
            if expected > until and (groups or self._students):
                break
            groups.append(Group(self.tasks, self.tasks, copy=self.copies + len(groups), taught=self._taught(lecture)))
        if not groups:
            return False
        self.copies += len(groups)
        self._train(groups, "student")
        return True

    def _taught(self, lecture: Lecture) -> Taught:
        """Returns how students of a lecture are taught."""
        assert self.backend.problem is not None
        unlabelled = self.backend.problem.unlabelled is not None and lecture.unlabelled
        return Taught(self._keys, mix=lecture.mix, mixtures=lecture.mixtures, unlabelled=unlabelled)

    def _expected_cost(self, lecture: Lecture) -> float:
        """Returns the mean cost of students that were taught alike, or a guess."""
        known = [member.effort for member in self._students if member.group.taught == self._taught(lecture)]
        if known:
            return float(np.mean(known))
        problem = self.backend.problem
        assert problem is not None
        rows = problem.unlabelled if lecture.unlabelled else None
        unlabelled = 0 if rows is None else len(rows) / len(problem.train)
        return STUDENT_COST * (1 + lecture.mixtures + unlabelled)

    @property
    def _students(self) -> list[Member]:
        return [member for member in self.members if member.kind == "student"]

    def _best_lectures(self, lectures: Sequence[Lecture]) -> list[Lecture]:
        """Returns the lectures whose students are best alone and best together, as far as the budgets need them."""
        sizes = dict.fromkeys(min(budget, 2) for budget in self.budgets)
        return list(dict.fromkeys(min(lectures, key=partial(self._lecture_value, size)) for size in sizes))

    def _lecture_value(self, size: int, lecture: Lecture) -> float:
        """Returns the mean loss of a lecture's students, alone or in pairs."""
        pool = [number for number, member in enumerate(self.members) if member.group.taught == self._taught(lecture)]
        if not pool:
            return math.inf
        sets = [(one,) for one in pool] if size == 1 else [(one, two) for one in pool for two in pool if one < two]
        losses = self.answers.losses(sets or [(pool[0],)])[:, :, ALL]
        return float(mean_relative_loss(losses, self.base[:, ALL]).mean())

    def _train(
        self,
        groups: Sequence[Group],
        kind: Literal["copy", "set", "student"],
        partly: Sequence[tuple[NetworkResult, float]] = (),
    ) -> None:
        """Trains networks and adds those that converged."""
        jobs = {group: self.backend.group_job(group, self.seed) for group in groups}
        results = self.backend.networks(jobs.values(), DESCRIPTIONS[kind], diverged=True)
        trained = [(group, results[job]) for group, job in jobs.items() if not results[job].diverged]
        if not self.members:  # the first ones are copies
            self._steps = float(np.mean([result.steps for _, result in trained]))
        added = [
            Member(kind, group, result, result.steps / self._steps if kind == "student" else 1.0)
            for group, result in trained
        ]
        outputs = self.backend.outputs([member.result.job for member in added], "val")
        for member in added:
            self.answers.add(outputs[member.result.job])
        self.members += added
        others = [*partly, *((results[job], 1.0) for job in jobs.values() if results[job].diverged)]
        self.spent += sum(member.effort for member in added) + sum(effort for _, effort in others)
        self.base = self.answers.losses([(number,) for number in self._copies]).mean(0)
        self.plans = {budget: self._plan(budget) for budget in self.budgets}
        best = {budget: plan.expected for budget, plan in self.plans.items()}
        self.rounds.append(SpendingRound(tuple(added), tuple(others), self.spent, best))

    @property
    def _copies(self) -> list[int]:
        return [number for number, member in enumerate(self.members) if member.kind == "copy"]

    def _plan(self, budget: int) -> Plan:
        """Returns the best networks of the smallest pool that no larger one clearly beats."""
        found = {name: self._rows_and_passes(budget, pool) for name, pool in self._pools().items()}
        rows = {name: own for name, (own, _) in found.items()}
        chosen = next(iter(rows))
        for name in rows:
            gain = -_change(rows[name], rows[chosen])
            if gain > REQUIRED_GAIN[name] * self._stderr(rows[name], rows[chosen]):
                chosen = name
        plain = {
            task.name: np.mean([self.answers.row_losses(number, (copy,)) for copy in self._copies], axis=0)
            for number, task in enumerate(self.answers.tasks)
        }
        expected = _change(rows[chosen], plain)
        return Plan(
            self._groups(budget, self._pools()[chosen], found[chosen][1]),
            expected,
            math.hypot(self._stderr(rows[chosen], plain), (1 + expected) * self._plain_stderr()),
            {name: _change(some, plain) for name, some in rows.items()},
            chosen,
        )

    def _rows_and_passes(self, budget: int, pool: Sequence[int]) -> tuple[dict[str, Array], int | None]:
        """Returns the losses of the best networks of a pool, and the limit on the networks that answer a task.

        Without a limit, each task is answered by all networks that were trained on it, unless it is clearly better to
        choose one network for each task, e.g. because tasks conflict.
        """

        def fitted(passes: int | None) -> dict[str, Array]:
            return cross_fitted_rows(self.answers, budget, self.base, pool=pool, passes=passes)

        passes = self.settings.passes
        rows = fitted(passes)
        if passes is None and budget > 1:
            single = fitted(1)
            if -_change(single, rows) > REQUIRED_SINGLE_GAIN * self._stderr(single, rows):
                return single, 1
        return rows, passes

    def _pools(self) -> dict[str, list[int]]:
        """Returns the networks to choose from, with the safest first."""
        kinds = [member.kind for member in self.members]
        pools = {"copies": self._copies}
        if "student" in kinds:
            pools["taught"] = [number for number, kind in enumerate(kinds) if kind != "set"]
        if "set" in kinds:
            pools["all"] = list(range(len(kinds)))
        return pools

    def _groups(self, budget: int, pool: Sequence[int], passes: int | None) -> tuple[Group, ...]:
        chosen = select_committee(self.answers, budget, self.base, pool=pool, passes=passes)
        groups = []
        for number in chosen.members:
            group = self.members[number].group
            serves = [task for task, some in zip(self.tasks, chosen.answers, strict=True) if number in some]
            if serves:
                groups.append(Group(group.trains, serves, copy=group.copy, taught=group.taught))
        return tuple(sorted(groups))

    def _plain_stderr(self) -> float:
        """Returns the standard error of the loss of one plain network, relative to its mean, over the copies."""
        losses = self.answers.losses([(number,) for number in self._copies])[:, :, ALL]
        relative = mean_relative_loss(losses, self.base[:, ALL])
        return stderr(relative.tolist()) if len(relative) > 1 else 0.0

    def _stderr(self, rows: dict[str, Array], reference: dict[str, Array]) -> float:
        error = row_stderr([rows], [reference], self.answers.clusters)
        return error if math.isfinite(error) else 0.0


def _change(rows: dict[str, Array], reference: dict[str, Array]) -> float:
    """Returns the relative change of the mean loss, averaged over tasks."""
    labelled = [task for task in rows if not np.isnan(rows[task]).all()]
    changes = [relative_change(float(np.nanmean(rows[task])), float(np.nanmean(reference[task]))) for task in labelled]
    return float(np.mean(np.clip(changes, -MAX_RATIO, MAX_RATIO))) if labelled else 0.0
