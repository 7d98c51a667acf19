"""Spends a given effort on networks, of which the best few are recommended for each budget.

1. Half of the effort goes into a pool: copies of the network for all tasks, networks for sets of tasks that `search`
   proposes, and a few wider networks. A network of k times the size costs as much effort per step, and uses as much of
   a budget, as k plain ones. There are as many copies as the largest budget, if the effort allows, since no other use
   of a few trainings is safer. If a table has the default network and the effort pays for it, TabM networks join the
   pool. Their steps cost as much effort as their multiplications say, but each is one network of a budget.
2. The networks of the pool that are best together teach students with the other half, in two rounds. The first round
   tries several ways of teaching, and the second one uses those that were best. In the second round, students may also
   be wider or learn only some tasks, if plain networks like them were better than copies.
3. For each budget, the networks that are best together on validation are recommended. They include students unless
   copies are better on rows that did not choose them. Wider networks, TabM networks and sets of tasks must be clearly
   better there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle
from typing import Any

import numpy as np
from scipy.special import ndtr, stdtrit

from tagalong.errors import InvalidInput
from tagalong.group import Group, Taught
from tagalong.learn import Split, Trained, can_be_taught, width_of_size

from ..members import member_seed
from ..relative_losses import MAX_RATIO, relative_change, row_stderr
from ..runner import Runner
from ..summary import stderr
from .answers import ALL, Answers, Array, Members
from .committee import (
    cross_fitted_rows,
    mean_relative_loss,
    select_committee,
    select_teachers,
    teachers_flattery,
)
from .recommendation import SearchSettings
from .search import search
from .shares import MIN_LECTURES_EFFORT, MIN_TEACHING_EFFORT, TABM_SHARE, Shares, divide_effort
from .spending_result import Kind, Member, Plan, Spending, SpendingRound
from .trial import small_set_flattery

MIN_LEFT_TO_TEACH = 1  # of everything, for any students
MAX_TEACHERS = 10
STUDENT_COST = 1.5  # in full training runs, before any student was trained and without additional rows
TABM = "tabm"  # the name of TabM networks among `Problem.alternatives`
DESCRIPTIONS = {
    "copy": "copies",
    "set": "networks proposed by auto",
    "wide": "wider networks",
    "tabm": "TabM networks",
    "student": "networks taught by others",
}
# Standard errors by which the networks of a pool must be better than those of the pools before it, on rows that did not
# choose them. Students are rarely worse than copies, but wider networks, TabM networks and sets of tasks often are.
# Standard errors do not count the luck of the choice itself, which matters most where there is most to choose from:
# sets of tasks.
REQUIRED_GAIN = {"copies": 0.0, "taught": -0.5, "wide": 1.0, "tabm": 1.0, "all": 3.0}
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
class Course:
    """A kind of student.

    Attributes:
        lecture: how it is taught.
        tasks: its tasks.
        size: the number of parameters, as a multiple of those of a plain network for these tasks.
    """

    lecture: Lecture
    tasks: frozenset[str]
    size: int = 1


@dataclass(frozen=True)
class SpendingSettings:
    """What an effort may be spent on.

    Attributes:
        passes: the maximum number of networks that answer a task, or None for no limit.
        sets: whether to train networks for sets of tasks.
        teach: whether to train students.
        mixtures: whether students may learn from mixtures of training rows.
        wide: whether to train wider networks.
        tabm: whether to train TabM networks.
        search: the settings of the search for sets of tasks.
    """

    passes: int | None = None
    sets: bool = True
    teach: bool = True
    mixtures: bool = True
    wide: bool = True
    tabm: bool = True
    search: SearchSettings = field(default_factory=SearchSettings)


def spend(
    runner: Runner,
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
        runner: the runner, which must provide the outputs of networks.
        budgets: the numbers of networks to recommend.
        effort: the number of full training runs. The steps of students, which take longer, count in full, those of
            wider networks as many times as their size, and those of TabM networks by their multiplications.
        seed: the seed of the record to which the networks belong. All networks are copies for this seed.
        hints: see `search`.
        errors: see `search`.
        spent: see `search`.
        settings: what to spend the effort on, or None for the defaults.
    """
    given = settings or SpendingSettings()
    return _Spender(runner, tuple(budgets), effort, seed, hints, errors, spent, given).run()


@dataclass
class _Spender:
    runner: Runner
    budgets: tuple[int, ...]
    effort: float
    seed: int
    hints: Array | None
    errors: Array | None
    spent: float
    settings: SpendingSettings
    members: list[Member] = field(default_factory=list)
    rounds: list[SpendingRound] = field(default_factory=list)
    copies: int = 0  # of copies and students, including those that diverged
    flattery: float = 0.0  # of students (see `teachers_flattery`)

    def run(self) -> Spending:
        self.tasks = self.runner.tasks
        known = [task for name in self.tasks if (task := self.runner.task(name)) is not None]
        self.answers = Answers(known, self.runner.targets("val"), self.runner.problem.val.groups)
        shares = self._divide_effort(self.settings.wide)
        no_wider = self._why_not_wider(max(shares.wide)) if shares.wide else None
        self._fill_pool(shares if no_wider is None else self._divide_effort(wide=False))
        teachers = self._teach_students() if self._can_teach and self.effort - self.spent >= MIN_LEFT_TO_TEACH else ()
        groups = tuple(self.members[one].group for one in teachers)
        return Spending(self.plans, tuple(self.rounds), self.spent, groups, no_wider)

    @property
    def _can_teach(self) -> bool:
        return self.settings.teach and self.effort >= MIN_TEACHING_EFFORT and bool(self._teachable)

    @cached_property
    def _teachable(self) -> frozenset[str]:
        """The tasks that students can learn from answers."""
        problem = self.runner.problem
        if not self.runner.trains or not isinstance(problem.train, Split):
            return frozenset()
        targets = problem.train.targets
        return frozenset(task.name for task in problem.tasks if can_be_taught(task, targets[task.name]))

    def _divide_effort(self, wide: bool) -> Shares:
        sets = self.settings.sets and len(self.tasks) > 1
        given = self.effort, self.budgets, self.settings.passes
        return divide_effort(
            *given, spent=self.spent, sets=sets, wide=wide, tabm_cost=self._tabm_cost, teach=self._can_teach
        )

    @cached_property
    def _tabm_cost(self) -> float | None:
        """What a TabM network costs if it takes as many steps as a plain one, or None if none is to be trained."""
        problem = self.runner.problem
        if not self.settings.tabm or TABM not in problem.alternatives:
            return None
        return self.runner.step_cost(TABM)

    def _why_not_wider(self, size: int) -> str | None:
        """Returns why networks of this size cannot be trained, or None if they can."""
        if not self.runner.trains:
            return "networks are trained elsewhere"
        try:
            width_of_size(self.runner.problem, self.tasks, size)
        except InvalidInput as error:
            return str(error)
        return None

    def _fill_pool(self, shares: Shares) -> None:
        """Trains copies, networks for the sets of tasks that a search proposes, and wider networks."""
        self._train([Group(self.tasks, self.tasks, copy=number) for number in range(shares.copies)], "copy")
        self.copies = shares.copies
        if shares.sets:
            self._search_sets(shares)
        if shares.wide:
            numbers = [shares.wide[:place].count(size) for place, size in enumerate(shares.wide)]
            sized = zip(numbers, shares.wide, strict=True)
            self._train([Group(self.tasks, self.tasks, copy=number, size=size) for number, size in sized], "wide")
        if shares.tabm:
            self._train_tabm(shares.tabm)

    def _train_tabm(self, most: int) -> None:
        """Trains a TabM network, and then as many more as their share pays for if they take as many steps."""
        groups = [Group(self.tasks, self.tasks, copy=number, network=TABM) for number in range(most)]
        before = self.spent
        self._train(groups[:1], "tabm")
        payable = math.floor(TABM_SHARE * self.effort / (self.spent - before))
        if payable > 1 and most > 1:
            self._train(groups[1:payable], "tabm")

    def _search_sets(self, shares: Shares) -> None:
        seeds = [member_seed(self.seed, number) for number in range(shares.copies)]
        converged = [seeds[member.group.copy] for member in self.members]
        effort = len(converged) + shares.sets
        settings = replace(self.settings.search, together=len(converged) / effort, reserved=0.0)
        budgets = sorted({min(max(2, budget), len(self.tasks)) for budget in self.budgets})
        found = search(self.runner, budgets, effort, converged, hints=self.hints, errors=self.errors, settings=settings)
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
        self.flattery = teachers_flattery(self.answers, MAX_TEACHERS, self.base, pool=range(len(self.members)))
        self._keys = tuple(self.members[number].result.key for number in teachers)
        wanted = LECTURES if self.effort >= MIN_LECTURES_EFFORT else FEW_LECTURES
        lectures = [one for one in wanted if self._can_mix or not one.mixtures]
        everything = frozenset(self.tasks)
        special = self._special_students() if len(lectures) > 1 else []
        first = (self.effort + self.spent) / 2 if len(lectures) > 1 else self.effort
        self._train_students([Course(lecture, everything) for lecture in lectures], first)
        alone = min(lectures, key=partial(self._lecture_value, 1))
        courses = [Course(alone, tasks, size) for tasks, size in special]
        courses += [Course(lecture, everything) for lecture in self._best_lectures(lectures)]
        while self._train_students(courses, self.effort):
            pass
        return teachers

    def _special_students(self) -> list[tuple[frozenset[str], int]]:
        """Returns the tasks and sizes of students other than plain ones for all tasks.

        They are like the networks of the pool that are better than copies on rows that did not choose them: wider
        networks, and networks for sets of tasks if one network answers each task.
        """
        found: dict[tuple[frozenset[str], int], None] = {}
        for budget, plan in self.plans.items():
            for name, pool in self._pools(budget).items():
                if not plan.alternatives[name] < plan.alternatives["copies"]:
                    continue
                groups = self._groups(budget, pool, self._rows_and_passes(budget, pool)[1])
                alone = sum(len(group.serves) for group in groups) == len(self.tasks)
                for group in groups:
                    if group.size > 1 or (alone and len(group.trains) < len(self.tasks)):
                        found[group.trains, group.size] = None
        return [(tasks, size) for tasks, size in found if tasks & self._teachable]

    @property
    def _can_mix(self) -> bool:
        rows = self.runner.problem.train
        return self.settings.mixtures and isinstance(rows, Split) and rows.inputs.is_floating_point()

    def _train_students(self, courses: Sequence[Course], until: float) -> bool:
        """Trains as many students as the effort allows, of each kind in turn, and returns whether any.

        At least one is trained in all.
        """
        groups: list[Group] = []
        expected = self.spent
        unaffordable: set[Course] = set()
        for course in cycle(courses):
            cost = self._expected_cost(course)
            if expected + cost > until and (groups or self._students):
                unaffordable.add(course)
                if len(unaffordable) == len(courses):
                    break
                continue
            expected += cost
            groups.append(
                Group(
                    course.tasks,
                    course.tasks,
                    copy=self.copies + len(groups),
                    taught=self._taught(course.lecture),
                    size=course.size,
                )
            )
        if not groups:
            return False
        self.copies += len(groups)
        self._train(groups, "student")
        return True

    def _taught(self, lecture: Lecture) -> Taught:
        unlabelled = self.runner.problem.unlabelled is not None and lecture.unlabelled
        return Taught(self._keys, mix=lecture.mix, mixtures=lecture.mixtures, unlabelled=unlabelled)

    def _expected_cost(self, course: Course) -> float:
        """Returns the mean cost of students that were taught alike, or a guess."""
        alike = [member for member in self._students if member.group.taught == self._taught(course.lecture)]
        if alike:
            return course.size * float(np.mean([member.effort / member.group.size for member in alike]))
        problem = self.runner.problem
        rows = problem.unlabelled if course.lecture.unlabelled else None
        unlabelled = 0 if rows is None else len(rows) / len(problem.train)
        return course.size * STUDENT_COST * (1 + course.lecture.mixtures + unlabelled)

    @property
    def _students(self) -> list[Member]:
        return [member for member in self.members if member.kind == "student"]

    def _best_lectures(self, lectures: Sequence[Lecture]) -> list[Lecture]:
        """Returns the lectures whose students are best alone and best together, as far as the budgets need them."""
        sizes = dict.fromkeys(min(budget, 2) for budget in self.budgets)
        return list(dict.fromkeys(min(lectures, key=partial(self._lecture_value, size)) for size in sizes))

    def _lecture_value(self, size: int, lecture: Lecture) -> float:
        taught = self._taught(lecture)
        pool = [number for number in self._whole if self.members[number].group.taught == taught]
        if not pool:
            return math.inf
        sets = [(one,) for one in pool] if size == 1 else [(one, two) for one in pool for two in pool if one < two]
        losses = self.answers.losses(sets or [(pool[0],)])[:, :, ALL]
        return float(mean_relative_loss(losses, self.base[:, ALL]).mean())

    def _train(
        self,
        groups: Sequence[Group],
        kind: Kind,
        partly: Sequence[tuple[Trained, float]] = (),
    ) -> None:
        jobs = {group: self.runner.group_job(group, self.seed) for group in groups}
        results = self.runner.networks(jobs.values(), DESCRIPTIONS[kind], diverged=True)
        trained = [(group, results[job]) for group, job in jobs.items() if not results[job].diverged]
        if not self.members:  # the first ones are copies
            self._steps = float(np.mean([result.steps for _, result in trained]))
        added = [
            Member(kind, group, result, 1.0 if kind in ("copy", "set") else cost * result.steps / self._steps, cost)
            for group, result in trained
            for cost in [self._step_cost(group)]
        ]
        outputs = self.runner.outputs([member.result.job for member in added], "val")
        for member in added:
            self.answers.add(outputs[member.result.job])
        self.members += added
        others = [*partly, *((results[job], self._step_cost(g)) for g, job in jobs.items() if results[job].diverged)]
        self.spent += sum(member.effort for member in added) + sum(effort for _, effort in others)
        self.base = self.answers.losses([(number,) for number in self._copies]).mean(0)
        self.plans = {budget: self._plan(budget) for budget in self.budgets}
        best = {budget: plan.expected for budget, plan in self.plans.items()}
        self.rounds.append(SpendingRound(tuple(added), tuple(others), self.spent, best))

    def _step_cost(self, group: Group) -> float:
        return float(group.size) if group.network is None else group.size * self.runner.step_cost(group.network)

    @property
    def _copies(self) -> list[int]:
        return [number for number, member in enumerate(self.members) if member.kind == "copy"]

    @property
    def _whole(self) -> list[int]:
        """The networks for all tasks that are neither wider nor TabM networks: copies and students."""
        everything = frozenset(self.tasks)
        return [
            number
            for number, group in enumerate(member.group for member in self.members)
            if group.trains == everything and group.size == 1 and group.network is None
        ]

    def _plan(self, budget: int) -> Plan:
        """Returns the best networks of the smallest pool that no larger one clearly beats."""
        pools = self._pools(budget)
        found = {name: self._rows_and_passes(budget, pool) for name, pool in pools.items()}
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
            self._groups(budget, pools[chosen], found[chosen][1]),
            expected,
            math.hypot(self._stderr(rows[chosen], plain), (1 + expected) * self._plain_stderr()),
            {name: _change(some, plain) for name, some in rows.items()},
            chosen,
            rows[chosen],
        )

    def _rows_and_passes(self, budget: int, pool: Sequence[int]) -> tuple[dict[str, Array], int | None]:
        """Returns the losses of the best networks of a pool, and the limit on the networks that answer a task.

        Without a limit, each task is answered by all networks that were trained on it, unless it is clearly better to
        choose one network for each task, e.g. because tasks conflict.
        """
        stopping = small_set_flattery((member.result for member in self.members), len(self.tasks))
        flattery = [
            stopping[len(member.group.trains)] + (self.flattery if member.group.taught else 0.0)
            for member in self.members
        ]
        given = self.answers, budget, self.base
        fitted = partial(cross_fitted_rows, *given, **self._selection(pool), flattery=flattery)
        passes = self.settings.passes
        rows = fitted(passes=passes)
        if passes is None and budget > 1:
            single = fitted(passes=1)
            if -_change(single, rows) > REQUIRED_SINGLE_GAIN * self._stderr(single, rows):
                return single, 1
        return rows, passes

    def _selection(self, pool: Sequence[int]) -> dict[str, Any]:
        """Returns the arguments for selecting from a pool.

        A TabM network may be so much better than others that averaging it with one of them does not pay.
        """
        fewer = any(self.members[number].kind == "tabm" for number in pool)
        return {"pool": pool, "sizes": self._sizes, "fewer": fewer}

    def _pools(self, budget: int) -> dict[str, list[int]]:
        """Returns the networks to choose from, with the safest first."""
        plain = [number for number, size in enumerate(self._sizes) if size == 1]
        tabm = [number for number, member in enumerate(self.members) if member.kind == "tabm"]
        pools = {
            "copies": self._copies,
            "taught": self._whole,
            "wide": [number for number, size in enumerate(self._sizes) if 1 < size <= budget],
            "tabm": sorted([*self._whole, *tabm]) if tabm else [],
            "all": plain,
        }
        if len(self._whole) == len(self._copies):
            del pools["taught"]
        if len(plain) == len(self._whole) + len(tabm):
            del pools["all"]
        return {name: pool for name, pool in pools.items() if pool}

    @property
    def _sizes(self) -> list[int]:
        return [member.group.size for member in self.members]

    def _groups(self, budget: int, pool: Sequence[int], passes: int | None) -> tuple[Group, ...]:
        chosen = select_committee(self.answers, budget, self.base, **self._selection(pool), passes=passes)
        groups = []
        for number in chosen.members:
            group = self.members[number].group
            serves = [task for task, some in zip(self.tasks, chosen.answers, strict=True) if number in some]
            if serves:
                groups.append(replace(group, serves=frozenset(serves)))
        return tuple(sorted(groups))

    def _plain_stderr(self) -> float:
        """Returns the standard error of the mean loss of the copies, relative to that loss.

        It is larger by a factor of Student's t-distribution if there are few copies, so that one standard error on both
        sides contains the loss of a plain network with the probability of a normal distribution.
        """
        losses = self.answers.losses([(number,) for number in self._copies])[:, :, ALL]
        relative = mean_relative_loss(losses, self.base[:, ALL])
        count = len(relative)
        return stderr(relative.tolist()) * float(stdtrit(count - 1, ndtr(1.0))) if count > 1 else 0.0

    def _stderr(self, rows: dict[str, Array], reference: dict[str, Array]) -> float:
        error = row_stderr([rows], [reference], self.answers.clusters)
        return error if math.isfinite(error) else 0.0


def _change(rows: dict[str, Array], reference: dict[str, Array]) -> float:
    labelled = [task for task in rows if not np.isnan(rows[task]).all()]
    changes = [relative_change(float(np.nanmean(rows[task])), float(np.nanmean(reference[task]))) for task in labelled]
    return float(np.mean(np.clip(changes, -MAX_RATIO, MAX_RATIO))) if labelled else 0.0
