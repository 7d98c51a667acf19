"""Spends a given effort on networks and other models, and recommends the best of them for each budget.

1. Half of the effort goes into a pool. First, there are copies of the network for all tasks: as many as the largest
   budget if the effort allows, since no other use of a few trainings is safer. A small share tries one of each other
   kind of model, cheap ones first: a copy trained with uncertainty weights, larger networks, and for tables ridge,
   boosting and TabM. What is left trains networks for sets of tasks, which a `Proposer` suggests.
2. The models of the pool that are best together teach students with the other half, in two rounds. The first round
   tries several ways of teaching, and the second one uses those that were best. Some students in the second round are
   larger or learn only some tasks, if networks like them were better than copies.
3. For each budget, each family of models offers those that are best together on validation rows, judged on rows that
   did not choose them. The rule of the verdict decides: among the families that fall short of the best one by no more
   than noise, the one that costs the least in use. Sets of tasks must be clearly better than all of them, since every
   row had a say in their proposal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle
from typing import NamedTuple

import numpy as np

from tagalong.errors import InvalidInput
from tagalong.group import Group, Taught
from tagalong.learn import Job, Split, Trained, can_be_taught, width_of_size

from ..members import member_seed
from ..noise import row_stderr
from ..rule import LEAST_TOLERANCE, MOST_TOLERANCE
from ..runner import Runner
from .answers import ALL, Array, Members
from .committee import cross_fitted_rows, select_committee, select_teachers, teachers_flattery
from .flattery import small_set_flattery
from .proposals import Proposer, Trial
from .yardstick import read_answers, set_yardstick

MIN_TEACHING_EFFORT, MIN_LECTURES_EFFORT = 3, 12  # for any students, and for several ways of teaching
MIN_SEARCH_EFFORT = 8  # of the pool
ROUNDS = 3  # of proposals
OWN_SHARE, TABLE_SHARE = 0.1, 0.4  # of the effort, for other kinds of the problem's own network, and of table models
TABLE_MODELS = ("ridge", "boosting", "tabm")
FITTED_COST = {"ridge": 0.0, "boosting": 1.0}  # in trainings, whatever the time
MAX_TEACHERS = 10
STUDENT_COST = 1.5  # in trainings, before any student was trained and without additional rows
SETS = ("sets", "one for each task")  # families in which models may be trained on some tasks only
CLEAR = 3.0  # standard errors by which sets of tasks must be better
# Ways of teaching: the weight of the teachers' answers, mixtures per training row, and whether to use rows without
# labels. Students that only imitate are best alone; those that also learn from labels differ more, and are best
# together.
FEW_LECTURES = ((0.5, 0, True),)
LECTURES = ((0.5, 1, True), (1.0, 1, True), (0.5, 0, False), (1.0, 0, False))
DESCRIPTIONS = {"copy": "copies", "set": "networks proposed by auto", "student": "networks taught by others"}


@dataclass(frozen=True)
class Member:
    """A trained model that may be recommended.

    Attributes:
        kind: "copy" for the network for all tasks, "set" for a network for some tasks, "student", "wide" for a larger
            network, "uw" for a copy trained with uncertainty weights, or "ridge", "boosting" or "tabm".
        group: the tasks that it was trained on, its copy number, size and kind of network, and who taught it.
        result: its result.
        effort: what its training cost, in trainings of one plain network.
    """

    kind: str
    group: Group
    result: Trained
    effort: float


class Family(NamedTuple):
    """Models to choose from, and how (see `select_committee`)."""

    pool: Sequence[int]
    models: int
    passes: int | None = None
    fewer: bool = False


@dataclass(frozen=True)
class Plan:
    """The recommended models for a budget.

    Attributes:
        groups: the models, and the tasks that each of them answers.
        family: the family of the models.
        expected: the expected gain in mean skill over one plain network, on rows that did not choose the models, less
            what these rows flatter: students, whose teachers they selected, and networks for few tasks, whose epochs
            they chose.
        doubt: the standard error of `expected` due to the finite number of validation rows.
        families: `expected` of every family.
        rows: the loss of each task on every validation row, from models that the row did not choose.
    """

    groups: tuple[Group, ...]
    family: str
    expected: float
    doubt: float
    families: dict[str, float]
    rows: dict[str, Array] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Spending:
    """What an effort was spent on.

    Attributes:
        plans: the recommendation for each budget.
        members: the models that may be recommended, in the order of their training.
        lost: those that diverged.
        teachers: the networks that teach the students, with repetitions.
    """

    plans: dict[int, Plan]
    members: tuple[Member, ...]
    lost: tuple[Member, ...]
    teachers: tuple[Group, ...]

    @property
    def spent(self) -> float:
        """The total effort."""
        return sum(member.effort for member in (*self.members, *self.lost))


def spend(
    runner: Runner,
    budgets: Sequence[int],
    effort: float,
    seed: int,
    *,
    passes: int | None = None,
    teach: bool = True,
) -> Spending:
    """Trains models and recommends the best of them for each budget.

    Args:
        runner: the runner, which must provide the outputs of networks.
        budgets: the numbers of models to recommend.
        effort: the number of full trainings. The steps of students, which take longer, count in full, those of larger
            networks as many times as their size, and those of TabM networks by their multiplications.
        seed: the seed of the record to which the networks belong. All networks are copies for this seed.
        passes: 1 if a single network answers each task, or None if the answers of several may be averaged.
        teach: whether to train students.
    """
    return _Spender(runner, tuple(budgets), effort, seed, passes, teach).run()


def needed_copies(effort: float, budgets: Sequence[int], passes: int | None) -> int:
    """Returns as many copies as the largest budget that the effort pays for, or 1 if one network answers each task."""
    return max((budget for budget in budgets if budget <= effort), default=1) if passes is None else 1


def divide_effort(
    effort: float, budgets: Sequence[int], passes: int | None = None, *, sets: bool = True, teach: bool = True
) -> tuple[int, int]:
    """Returns the numbers of copies and of networks for sets of tasks; students have the rest of the effort.

    Copies come first: for every budget that the effort can pay for, there are as many copies, so that the result is
    expected to be at least as good as that of copies alone. If one network answers each task, one is enough for that.

    Example:
        >>> divide_effort(4, [1, 2, 4]), divide_effort(60, [1, 2, 3])
        ((4, 0), (15, 15))
    """
    needed, share = needed_copies(effort, budgets, passes), 1.0
    if teach:
        share = 1 / 2 if effort >= MIN_LECTURES_EFFORT else 2 / 3
    pool = max(1, needed, round(share * effort))
    copies = max(math.ceil(pool / 2), needed) if sets and pool >= MIN_SEARCH_EFFORT else pool
    return copies, pool - copies


@dataclass
class _Spender:
    runner: Runner
    budgets: tuple[int, ...]
    effort: float
    seed: int
    passes: int | None
    teach: bool
    members: list[Member] = field(default_factory=list)
    lost: list[Member] = field(default_factory=list)
    copies: int = 0  # of copies and students, including those that diverged
    flattery: float = 0.0  # of students (see `teachers_flattery`)
    spent: float = 0.0

    def run(self) -> Spending:
        runner = self.runner
        self.tasks, self.everything = runner.tasks, frozenset(runner.tasks)
        self.answers = read_answers(runner, [])

        others = self._other_models()
        rest = self.effort - sum(map(self._cost_of_step, others))
        sets = len(self.tasks) > 1
        copies, networks = divide_effort(rest, self.budgets, self.passes, sets=sets, teach=self._can_teach)
        self._train({Group(self.tasks, self.tasks, copy=number): "copy" for number in range(copies)})
        self.copies = copies
        self.yardstick = set_yardstick(runner, self.answers)
        everyone = [(number,) for number in range(len(self.members))]
        self.base = self.answers.losses(everyone)[:, :, ALL].mean(0)
        self._train(others)
        if networks:
            self._search_sets(copies, networks)

        teachers: Members = ()
        if self._can_teach and self.effort - self.spent >= 1:
            teachers = self._teach_students()
        plans = {budget: self.plan(budget) for budget in self.budgets}
        groups = tuple(self.members[number].group for number in teachers)
        return Spending(plans, tuple(self.members), tuple(self.lost), groups)

    # The pool ---------------------------------------------------------------------------------------------------------

    def _other_models(self) -> dict[Group, str]:
        """Returns one model of each other kind that the effort pays for, cheap ones first."""
        problem, everything = self.runner.problem, partial(Group, self.tasks, self.tasks)
        if not self.runner.trains:
            return {}
        own = {everything(rule="uw"): "uw"} if len(self.tasks) > 1 else {}
        with suppress(InvalidInput):  # the network cannot be larger
            for size in sorted({budget for budget in self.budgets if budget > 1}):
                width_of_size(problem, self.tasks, size)
                own[everything(size=size)] = "wide"
        tables = {everything(network=name): name for name in TABLE_MODELS if name in problem.alternatives}

        chosen: dict[Group, str] = {}
        left = self.effort - needed_copies(self.effort, self.budgets, self.passes)  # which come first
        for share, models in ((OWN_SHARE, own), (TABLE_SHARE, tables)):
            allowed = min(left, share * self.effort)
            for group, kind in models.items():
                cost = self._cost_of_step(group)
                if cost <= allowed:
                    allowed, left = allowed - cost, left - cost
                    chosen[group] = kind
        return chosen

    def _cost_of_step(self, group: Group) -> float:
        """Returns what a step costs, in steps of a plain network, or what a model that is fitted costs in trainings."""
        if group.network in FITTED_COST:
            return FITTED_COST[group.network]
        return group.size * self.runner.step_cost(group.network)

    def _search_sets(self, copies: int, networks: int) -> None:
        """Trains networks for the sets of tasks that the results so far suggest, in a few rounds."""
        seeds = [member_seed(self.seed, number) for number in range(copies)]
        trained = {Trial(self.everything, member.result.job.seed): member.result for member in self._of("copy")}
        converged = tuple(trial.seed for trial in trained)
        budgets = sorted({min(max(2, budget), len(self.tasks)) for budget in self.budgets})
        proposer = Proposer(self.tasks, converged, tuple(budgets), self.answers.worth * self.base)
        proposer.add(trained)
        left, effort = networks, len(converged) + networks
        while left:
            trials = proposer.propose(min(left, max(2, math.ceil(networks / ROUNDS))), effort)
            groups = {Group(trial.tasks, trial.tasks, copy=seeds.index(trial.seed)): trial for trial in trials}
            results = self._train({group: "set" for group in groups if group.trains != self.everything})
            if not results:
                break
            proposer.add({groups[group]: result for group, result in results.items()})
            left -= len(results)

    def _train(self, kinds: Mapping[Group, str]) -> dict[Group, Trained]:
        """Trains models, and adds those that converge to the members."""
        if not kinds:
            return {}
        jobs: dict[Group, Job] = {group: self.runner.group_job(group, self.seed) for group in kinds}
        description = DESCRIPTIONS.get(next(iter(kinds.values())), "other kinds of models")
        trained = self.runner.networks(jobs.values(), description, diverged=True)
        results = {group: trained[job] for group, job in jobs.items()}
        converged = [group for group, result in results.items() if not result.diverged]
        if not self.members:  # the first ones are copies
            self._steps = float(np.mean([results[group].steps for group in converged]))
        outputs = self.runner.outputs([jobs[group] for group in converged], "val")
        for group, result in results.items():
            effort = self._cost_of_step(group)
            if not result.diverged and kinds[group] not in ("copy", "set", *FITTED_COST):
                effort *= result.steps / self._steps
            self.spent += effort
            (self.lost if result.diverged else self.members).append(Member(kinds[group], group, result, effort))
            if not result.diverged:
                self.answers.add(outputs[jobs[group]])
        return results

    def _of(self, *kinds: str) -> list[Member]:
        return [member for member in self.members if member.kind in kinds]

    def _numbers(self, *kinds: str) -> list[int]:
        return [number for number, member in enumerate(self.members) if member.kind in kinds]

    # Students ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _teachable(self) -> frozenset[str]:
        """The tasks that students can learn from answers."""
        problem = self.runner.problem
        if not self.runner.trains or not isinstance(problem.train, Split):
            return frozenset()
        targets = problem.train.targets
        return frozenset(task.name for task in problem.tasks if can_be_taught(task, targets[task.name]))

    @property
    def _can_teach(self) -> bool:
        return self.teach and self.effort >= MIN_TEACHING_EFFORT and bool(self._teachable)

    def _teach_students(self) -> Members:
        """Trains students until the effort is spent, and returns their teachers."""
        problem, pool = self.runner.problem, range(len(self.members))
        teachers = select_teachers(self.answers, pool, MAX_TEACHERS)
        self.flattery = teachers_flattery(self.answers, pool, MAX_TEACHERS)
        keys = tuple(self.members[number].result.key for number in teachers)
        can_mix = isinstance(problem.train, Split) and problem.train.inputs.is_floating_point()
        lectures = [
            Taught(keys, mix=mix, mixtures=mixtures, unlabelled=unlabelled and problem.unlabelled is not None)
            for mix, mixtures, unlabelled in (LECTURES if self.effort >= MIN_LECTURES_EFFORT else FEW_LECTURES)
            if can_mix or not mixtures
        ]
        lectures = list(dict.fromkeys(lectures))
        students = [Group(self.tasks, (), taught=lecture) for lecture in lectures]
        special = self._special_students() if len(lectures) > 1 else []
        self._train_students(students, (self.effort + self.spent) / 2 if len(lectures) > 1 else self.effort)

        # The best way to teach one network, and those that are used together, have the rest of the effort.
        best = {size: min(lectures, key=partial(self._value_of_lecture, size)) for size in (1, 2)}
        students = [replace(group, taught=best[1]) for group in special]
        wanted = dict.fromkeys(best[min(budget, 2)] for budget in self.budgets)
        students += [Group(self.tasks, (), taught=lecture) for lecture in wanted]
        while self._train_students(students, self.effort):
            pass
        return teachers

    def _special_students(self) -> list[Group]:
        """Returns larger students, and students for some tasks, if plain networks like them are better than copies."""
        special: dict[Group, None] = {}
        for budget in self.budgets:
            skills = self.plan(budget).families
            for name, family in self._families(budget).items():
                if name in ("copies", "taught") or not skills[name] > skills["copies"]:
                    continue
                groups = self._committee(family)
                alone = sum(len(group.serves) for group in groups) == len(self.tasks)
                for group in groups:
                    is_set = alone and group.trains < self.everything
                    if (group.size > 1 or is_set) and group.trains & self._teachable:
                        special[Group(group.trains, (), size=group.size)] = None
        return list(special)

    def _train_students(self, students: Sequence[Group], until: float) -> bool:
        """Trains as many students as the effort allows, of each kind in turn, and returns whether any.

        At least one is trained in all.
        """
        groups: list[Group] = []
        expected = self.spent
        too_expensive: set[Group] = set()
        for student in cycle(students):
            cost = self._expected_cost(student)
            if expected + cost > until and (groups or self._of("student")):
                too_expensive.add(student)
                if len(too_expensive) == len(students):
                    break
                continue
            expected += cost
            groups.append(replace(student, copy=self.copies + len(groups)))
        self.copies += len(groups)
        if groups:
            self._train(dict.fromkeys(groups, "student"))
        return bool(groups)

    def _expected_cost(self, student: Group) -> float:
        """Returns the mean cost of students that were taught alike, or a guess."""
        alike = [member for member in self._of("student") if member.group.taught == student.taught]
        if alike:
            return student.size * float(np.mean([member.effort / member.group.size for member in alike]))
        assert student.taught is not None
        rows = self.runner.problem.unlabelled if student.taught.unlabelled else None
        unlabelled = 0 if rows is None else len(rows) / len(self.runner.problem.train)
        return student.size * STUDENT_COST * (1 + student.taught.mixtures + unlabelled)

    def _value_of_lecture(self, count: int, lecture: Taught) -> float:
        """Returns the mean value of averages of as many students that were taught like this."""
        pool = [number for number in self._whole if self.members[number].group.taught == lecture]
        sets = [(one,) for one in pool] if count == 1 else [(one, two) for one in pool for two in pool if one < two]
        if not pool:
            return math.inf
        return float(self.answers.weigh(self.answers.losses(sets or [(pool[0],)])[:, :, ALL]).mean())

    # The choice -------------------------------------------------------------------------------------------------------

    @property
    def _whole(self) -> list[int]:
        """The copies, and the students of the same size for all tasks."""
        return [
            number
            for number in self._numbers("copy", "student")
            if self.members[number].group.trains == self.everything and self.members[number].group.size == 1
        ]

    def _families(self, budget: int) -> dict[str, Family]:
        """Returns the families of models to choose from, those that cost the least in use first."""
        singles = {kind: self._numbers(kind) for kind in ("ridge", "boosting", "tabm", "uw")}
        others = sorted(number for numbers in singles.values() for number in numbers)
        everyone = [number for number, member in enumerate(self.members) if member.group.size == 1]
        sets = everyone if len(everyone) > len(self._whole) + len(others) else []
        pools = {
            "ridge": singles["ridge"],
            "taught": self._whole if len(self._whole) > len(self._numbers("copy")) else [],
            "copies": self._numbers("copy"),
            "uw": singles["uw"],
            "boosting": singles["boosting"],
            "tabm": singles["tabm"],
            "mixed": [*self._whole, *others] if others else [],
            "sets": sets,
        }
        # A model of another kind may be so much better that averaging it with a plain network does not pay.
        families = {
            name: Family(pool, budget, self.passes, any(self.members[number].group.network for number in pool))
            for name, pool in pools.items()
        }
        for size in range(2, budget + 1):
            larger = [number for number, member in enumerate(self.members) if member.group.size == size]
            families[f"{size} times the size"] = Family(larger, budget // size, self.passes)
        if self.passes is None and budget > 1:
            families["one for each task"] = Family(sets, budget, 1)
        return {name: family for name, family in families.items() if family.pool}

    def plan(self, budget: int) -> Plan:
        """Returns the models for a budget, by the rule of the verdict."""
        stopping = small_set_flattery((member.result for member in self.members), len(self.tasks))
        relative = np.array([stopping[len(member.group.trains)] for member in self.members])
        is_taught = np.array([member.group.taught is not None for member in self.members])
        relative += is_taught * self.flattery / float(self.answers.weigh(self.base[None])[0] or 1.0)
        flattery = relative[:, None] * np.abs(self.base)

        families, rows, influences = self._families(budget), {}, {}
        for name, family in families.items():
            rows[name] = cross_fitted_rows(self.answers, *family, flattery=flattery)
            influences[name] = self.yardstick.influences(rows[name])
        skills = {name: float(values.mean()) for name, values in influences.items()}

        safe = [name for name in families if name not in SETS]
        best = max(safe, key=skills.__getitem__)
        chosen = next(
            name
            for name in safe
            if skills[best] - skills[name]
            <= np.clip(self._stderr(influences[best] - influences[name]), LEAST_TOLERANCE, MOST_TOLERANCE)
        )
        for name in SETS:
            if name in families:
                difference = influences[name] - influences[chosen]
                if difference.mean() > CLEAR * self._stderr(difference):
                    chosen = name
        copies = [cross_fitted_rows(self.answers, [number], 1) for number in self._numbers("copy")]
        plain = np.mean([self.yardstick.influences(losses) for losses in copies], axis=0)
        return Plan(
            self._committee(families[chosen]),
            chosen,
            skills[chosen] - float(plain.mean()),
            self._stderr(influences[chosen] - plain),
            {name: skill - float(plain.mean()) for name, skill in skills.items()},
            rows[chosen],
        )

    def _committee(self, family: Family) -> tuple[Group, ...]:
        committee = select_committee(self.answers, *family)
        groups = []
        for number in committee.members:
            serves = [task for task, by in zip(self.tasks, committee.answers, strict=True) if number in by]
            if serves:
                groups.append(replace(self.members[number].group, serves=frozenset(serves)))
        return tuple(sorted(groups))

    def _stderr(self, differences: Array) -> float:
        groups = self.runner.problem.val.groups
        return float(np.nan_to_num(row_stderr(differences, None if groups is None else groups.numpy())))
