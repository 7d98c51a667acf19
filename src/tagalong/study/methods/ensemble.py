"""Averages copies of the network for all tasks, which differ only in their seeds (`ensemble`, `best-of`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, collect, is_positive_integer
from tagalong.group import Group
from tagalong.learn import Job, Problem, weighted_losses

from ..search.answers import ALL, FIRST, SECOND, Answers
from ..search.committee import mean_relative_loss
from .effort import read_effort
from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from ..runner import Runner

Array = NDArray[np.float64]
Sets = NDArray[np.int64]  # [sets, members]
MAX_ENUMERATED_SETS = 2_000  # more than all pairs of 60 candidates
MIN_GAIN = 1e-12  # exchanges that change the value by rounding errors would never end


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
    are independent, so each seed has copies of its own to choose from.

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
        choices: dict[tuple[int | None, int], Choice] = {}
        for seed, jobs_of_seed in jobs.items():
            converged = [number for number, job in enumerate(jobs_of_seed) if not results[job].diverged]
            pools = {k: [copy for copy in converged if copy < max(counts[seed], k)] for k in budgets}
            for budget, choice in _choose_copies(runner, jobs_of_seed, pools).items():
                choices[budget, seed] = choice
        deciding = {seed: runner.cost(jobs[seed][:count]) for seed, count in counts.items()}
        return Decision(choices, deciding, about={"trainings": sum(counts.values()), "copies": [*counts.values()]})

    def _copies_by_seed(self, runner: Runner, seeds: Sequence[int]) -> dict[int, int]:
        if self.copies is not None:
            return dict.fromkeys(seeds, self.copies)
        seconds = runner.cost([runner.job(runner.tasks, seeds[0])]).seconds
        share, rest = divmod(int(read_effort(self.effort).in_trainings(seconds)), len(seeds))
        return {seed: max(1, share + (place < rest)) for place, seed in enumerate(seeds)}


def _choose_copies(runner: Runner, jobs: Sequence[Job], pools: Mapping[int, Sequence[int]]) -> dict[int, Choice]:
    """Returns the copies that are best together on the validation rows, for each budget.

    Losses on these rows are cross-fitted: the copies are chosen on one half of the rows, and judged on the other.

    Args:
        runner: the runner that has the networks.
        jobs: the copies.
        pools: the numbers of the copies to choose from, by budget.
    """
    if all(len(pool) <= budget for budget, pool in pools.items()):  # there is nothing to choose
        return {budget: Choice(copies(runner.tasks, pool)) for budget, pool in pools.items()}
    candidates = max(pools.values(), key=len)
    answers = _answers(runner, [jobs[copy] for copy in candidates])
    single = answers.losses([(number,) for number in range(len(answers))])
    choices = {}
    for budget, pool in pools.items():
        places = {part: _best_copies(answers, single, len(pool), budget, part) for part in (ALL, FIRST, SECOND)}
        rows = {}
        for number, task in enumerate(answers.tasks):
            by_second, by_first = (answers.row_losses(number, places[part]) for part in (SECOND, FIRST))
            rows[task.name] = np.where(answers.first, by_second, by_first)
        chosen = sorted(pool[place] for place in places[ALL])
        was_picked = len(pool) > budget
        choices[budget] = Choice(
            copies(runner.tasks, chosen), val_rows=weighted_rows(runner, rows) if was_picked else None
        )
    return choices


def weighted_rows(runner: Runner, losses: Mapping[str, Array]) -> dict[str, Array]:
    """Multiplies losses on the validation rows by the weights of the rows, if they have any."""
    weights = runner.problem.val.weights
    if weights is None:
        return dict(losses)
    numbers = weights.double().numpy()[None]
    return {task: weighted_losses(rows[None], numbers)[0] for task, rows in losses.items()}


def _answers(runner: Runner, jobs: Sequence[Job]) -> Answers:
    outputs = runner.outputs(jobs, "val")
    tasks = [task for name in runner.tasks if (task := runner.task(name)) is not None]
    answers = Answers(tasks, runner.targets("val"))
    for job in jobs:
        answers.add(outputs[job])
    return answers


def _best_copies(answers: Answers, single: Array, count: int, size: int, part: int) -> tuple[int, ...]:
    """Returns the copies, of the first `count`, whose average is best on a part of the rows."""
    base = single[:, :, part].mean(0)

    def losses(sets: Sets) -> Array:
        members = [tuple(one) for one in sets.tolist()]
        return mean_relative_loss(answers.losses(members)[:, :, part], base)

    return best_set(losses, count, min(size, count))


def best_set(values: Callable[[Sets], Array], candidates: int, size: int) -> tuple[int, ...]:
    """Finds the set of candidates with the lowest value.

    All sets are compared if there are few. Otherwise, the candidate that is best together with those before it is added
    until the set is complete, and then members are exchanged for other candidates, one at a time, until no exchange
    lowers the value.

    Args:
        values: a function that returns the value of each set, given the members of each set [sets, members].
        candidates: the number of candidates.
        size: the number of members.

    Example:
        >>> weights = np.array([5.0, 1.0, 4.0, 2.0])
        >>> best_set(lambda sets: weights[sets].sum(1), candidates=4, size=2)
        (1, 3)
    """
    if comb(candidates, size) <= MAX_ENUMERATED_SETS:
        sets = np.array(list(combinations(range(candidates), size)))
        return tuple(sets[np.argmin(values(sets))].tolist())
    chosen: tuple[int, ...] = ()
    while len(chosen) < size:
        larger = np.array([(*chosen, other) for other in range(candidates) if other not in chosen])
        larger_values = values(larger)
        chosen = tuple(larger[np.argmin(larger_values)].tolist())
    value = larger_values.min()
    while True:
        others = [other for other in range(candidates) if other not in chosen]
        swapped = np.array([(*chosen[:i], other, *chosen[i + 1 :]) for i in range(size) for other in others])
        swapped_values = values(swapped)
        if not swapped_values.min() < value - MIN_GAIN:
            return tuple(sorted(chosen))
        chosen, value = tuple(swapped[np.argmin(swapped_values)].tolist()), swapped_values.min()


def copies(tasks: Sequence[str], numbers: Sequence[int]) -> tuple[Group, ...]:
    """Returns the copies with these numbers of the network for all tasks. Each serves every task."""
    return tuple(Group(tasks, tasks, copy=number) for number in numbers)


def no_average(place: str, tasks: Sequence[str]) -> InvalidInput:
    """Returns the error for tasks whose answers cannot be averaged."""
    names = f"{', '.join(map(repr, tasks))} with a loss of {'its' if len(tasks) == 1 else 'their'} own"
    expected = "needs to know how to average the answers for every task"
    return InvalidInput(place, expected, names, "set `Task(average=…)`")
