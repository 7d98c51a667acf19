"""Averages copies of the network for all tasks, which differ only in their seeds (`ensemble`, `best-of`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.group import Group
from tagalong.learn import Problem

from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from ..backend import Backend
    from ..store import NetworkResult


class Ensemble(Method):
    """Trains as many copies of the network for all tasks as the budget allows, and averages their answers.

    This is the simplest use of several networks: there is nothing to decide. A grouping must do better to be useful.
    """

    name = "ensemble"
    order = 10
    averages = True

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        if problem is None:  # `check_averages` asks the backend
            return []
        unknown = [task for task in tasks if problem.task(task).averaging is None]
        return [no_average(f"`methods`: {self.name!r}", unknown)] if unknown else []

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({budget: Choice(copies(backend.tasks, range(budget))) for budget in budgets}, seeds)


class BestOf(Ensemble):
    """Trains some copies of the network for all tasks, and averages those that are best on validation.

    This is what the effort of a search for groups buys without any idea about tasks.

    Args:
        copies: the number of copies to train for each seed. If a budget is larger, all copies are averaged.
    """

    name = "best-of"
    order = 15

    def __init__(self, copies: int = 8) -> None:
        self.copies = copies

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        found = super().problems(tasks, problem)
        if not is_positive_integer(self.copies):
            place = f"`options`: `copies` of {self.name!r}"
            found.append(InvalidInput(place, "must be a positive integer", repr(self.copies)))
        return found

    def networks_per_seed(self, tasks: int) -> int:
        return self.copies

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        groups = copies(backend.tasks, range(self.copies))
        jobs = {seed: [backend.group_job(group, seed) for group in groups] for seed in seeds}
        results = backend.networks([job for some in jobs.values() for job in some], "copies", diverged=True)
        choices: dict[tuple[int | None, int], Choice] = {}
        for seed, some in jobs.items():
            ranking = _best_first([results[job] for job in some])
            for budget in budgets:
                chosen = sorted(ranking[:budget])
                choices[budget, seed] = Choice(tuple(groups[number] for number in chosen))
        return Decision(choices, {seed: backend.cost(some) for seed, some in jobs.items()})


def _best_first(results: Sequence[NetworkResult]) -> list[int]:
    """Returns the numbers of the networks that converged, best first.

    Networks are ranked by their validation losses relative to the mean over networks, averaged over tasks.
    """
    converged = [number for number, result in enumerate(results) if not result.diverged]
    if not converged:
        return []
    losses = np.array([[score.loss for score in results[number].val.values()] for number in converged])
    scale = np.abs(losses.mean(0))
    relative = np.divide(losses - losses.mean(0), scale, out=np.zeros_like(losses), where=scale > 0)
    return [converged[place] for place in np.argsort(relative.mean(1), kind="stable")]


def copies(tasks: Sequence[str], numbers: Sequence[int]) -> tuple[Group, ...]:
    """Returns the copies with these numbers of the network for all tasks. Each serves every task."""
    return tuple(Group(tasks, tasks, copy=number) for number in numbers)


def no_average(place: str, tasks: Sequence[str]) -> InvalidInput:
    """Returns the error for tasks whose answers cannot be averaged."""
    found = f"{', '.join(map(repr, tasks))} with a loss of {'its' if len(tasks) == 1 else 'their'} own"
    return InvalidInput(
        place, "needs to know how to average the answers for every task", found, "set `Task(average=…)`"
    )
