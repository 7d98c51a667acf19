"""Averages networks for all tasks: copies, which differ only in their seeds (`ensemble`, `best-of`), or families."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.errors import InvalidInput, collect, is_positive_integer
from tagalong.group import Group
from tagalong.learn import Problem

from ..search import (
    ALL,
    FIRST,
    SECOND,
    Array,
    Members,
    best_set,
    cross_fitted_rows,
    read_answers,
    select_committee,
    set_yardstick,
)
from .boosting import Boosting
from .effort import read_effort
from .method import Budget, Choice, Decision, Method

if TYPE_CHECKING:
    from ..runner import Runner

Family = str | None
FAMILIES: tuple[Family, ...] = (None, "tabm", "boosting", "ridge")  # None is the problem's own network


class Ensemble(Method):
    """Trains as many copies of the network for all tasks as the budget allows, and averages their answers.

    This is the simplest use of several networks: there is nothing to decide. A grouping must do better to be useful.
    """

    name = "ensemble"
    order = 10
    averages = True

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        if problem is None:  # `check_averages` asks the runner
            return []
        unknown = [task for task in tasks if problem.task(task).averaging is None]
        return [no_average(f"`methods`: {self.name!r}", unknown)] if unknown else []

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({budget: Choice(copies(runner.tasks, range(budget))) for budget in budgets}, seeds)


class BestOf(Ensemble):
    """Trains some copies of the network for all tasks, and averages those that are best together on validation.

    This is what the effort of a search for groups buys without any idea about tasks. The networks of different seeds
    are independent, so each seed has copies of its own to choose from. Losses on validation rows are cross-fitted: the
    copies are chosen on one half of the rows, and judged on the other.

    Args:
        copies: the number of copies for each seed, or None to derive it from the effort.
        effort: the number of training runs for all seeds together, as for `auto`: a number, "quick" (20), "normal"
            (60), "thorough" (200), or a duration, which is converted to training runs like that of `auto`. Each seed
            has an equal share. If a budget is larger than that share, as many copies as the budget are averaged.
    """

    name = "best-of"
    order = 15

    def __init__(self, copies: int | None = None, effort: Any = "normal") -> None:
        self.copies, self.effort = copies, effort

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        problems = super().problems(tasks, problem)
        if self.copies is None:
            collect(problems, read_effort, self.effort)
        elif not is_positive_integer(self.copies):
            place = f"`options`: `copies` of {self.name!r}"
            problems.append(InvalidInput(place, "must be a positive integer", repr(self.copies)))
        return problems

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        counts = self._copies_by_seed(runner, seeds)
        jobs = {
            seed: [runner.group_job(group, seed) for group in copies(runner.tasks, range(max(count, *budgets)))]
            for seed, count in counts.items()
        }
        all_jobs = [job for jobs_of_seed in jobs.values() for job in jobs_of_seed]
        results = runner.networks(all_jobs, "copies", diverged=True)
        choices: dict[tuple[Budget, int], Choice] = {}
        for seed, own in jobs.items():
            converged = [number for number, job in enumerate(own) if not results[job].diverged]
            answers = None
            for budget in budgets:
                pool = [number for number in converged if number < max(counts[seed], budget)]
                if len(pool) <= budget:  # there is nothing to choose
                    choices[budget, seed] = Choice(copies(runner.tasks, pool))
                    continue
                if answers is None:
                    answers = read_answers(runner, [own[number] for number in converged])
                    set_yardstick(runner, answers)
                chosen = select_committee(answers, range(len(pool)), budget).members
                rows = cross_fitted_rows(answers, range(len(pool)), budget)
                choices[budget, seed] = Choice(copies(runner.tasks, [pool[at] for at in chosen]), val_rows=rows)
        deciding = {seed: runner.cost(jobs[seed][:count]) for seed, count in counts.items()}
        return Decision(choices, deciding, about={"trainings": sum(counts.values()), "copies": [*counts.values()]})

    def _copies_by_seed(self, runner: Runner, seeds: Sequence[int]) -> dict[int, int]:
        if self.copies is not None:
            return dict.fromkeys(seeds, self.copies)
        seconds = runner.cost([runner.job(runner.tasks, seeds[0])]).seconds
        share, rest = divmod(int(read_effort(self.effort).in_trainings(seconds)), len(seeds))
        return {seed: max(1, share + (place < rest)) for place, seed in enumerate(seeds)}


class Blend(Ensemble):
    """Trains a model of each family for all tasks, and averages those that are best together on validation rows.

    All tasks are answered by the same families, which count the same: weights of their own, and a choice for each
    task, fit the validation rows too well. For each number of models, all sets of at most as many families are
    compared by their mean skill, averaged over seeds, and cross-fitted like the copies of `best-of`.

    Args:
        boosting: the library of `boosting`.
    """

    name = "blend"
    order = 20

    def __init__(self, boosting: str = "scikit-learn") -> None:
        self.boosting = Boosting(boosting)

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        if problem is None:
            return [InvalidInput(f"`methods`: {self.name!r}", "requires the data")]
        if len(_families(problem)) < 2:
            return [InvalidInput(f"`methods`: {self.name!r}", "requires a table", "a problem with one kind of network")]
        if "boosting" in problem.alternatives:
            problem.with_network(self.boosting.network)  # which raises an error if its library is missing
        return super().problems(tasks, problem)

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        groups = []
        for family in _families(runner.problem):
            network = self.boosting.network if family == "boosting" else family
            groups.append(Group(runner.tasks, runner.tasks, network=network))
        jobs = {seed: [runner.group_job(group, seed) for group in groups] for seed in seeds}
        runner.networks(
            [job for own in jobs.values() for job in own], ", ".join(group.network or "network" for group in groups)
        )
        answers = {seed: read_answers(runner, own) for seed, own in jobs.items()}
        for own_answers in answers.values():
            set_yardstick(runner, own_answers)

        def mean_value(part: int, members: Members, others: Sequence[int]) -> Array:
            values = [own.weigh(own.losses_with(members, others)[:, :, part]) for own in answers.values()]
            return np.asarray(np.mean(values, axis=0))

        choices: dict[tuple[Budget, int], Choice] = {}
        for budget in budgets:
            best: dict[int, Members] = {}
            for part in (ALL, FIRST, SECOND):
                sizes = range(1, min(budget, len(groups)) + 1)
                best[part] = min(best_set(partial(mean_value, part), range(len(groups)), size) for size in sizes)[1]
            chosen = tuple(groups[number] for number in best[ALL])
            for seed, own_answers in answers.items():
                rows = own_answers.cross_fitted(best[SECOND], best[FIRST])
                choices[budget, seed] = Choice(chosen, val_rows=rows)
        return Decision(choices, {seed: runner.cost(own) for seed, own in jobs.items()})


def _families(problem: Problem) -> list[Family]:
    return [family for family in FAMILIES if family is None or family in problem.alternatives]


def copies(tasks: Sequence[str], numbers: Sequence[int]) -> tuple[Group, ...]:
    """Returns the copies with these numbers of the network for all tasks. Each serves every task."""
    return tuple(Group(tasks, tasks, copy=number) for number in numbers)


def no_average(place: str, tasks: Sequence[str]) -> InvalidInput:
    """Returns the error for tasks whose answers cannot be averaged."""
    names = f"{', '.join(map(repr, tasks))} with a loss of {'its' if len(tasks) == 1 else 'their'} own"
    expected = "needs to know how to average the answers for every task"
    return InvalidInput(place, expected, names, "set `Task(average=…)`")
