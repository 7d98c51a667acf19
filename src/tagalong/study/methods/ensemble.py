"""Averages copies of the network for all tasks, which differ only in their seeds (`ensemble`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Problem

from .method import Choice, Decision, Method

if TYPE_CHECKING:
    from ..backend import Backend


class Ensemble(Method):
    """Trains as many copies of the network for all tasks as the budget allows, and averages their answers.

    This is the simplest use of several networks: there is nothing to decide. A grouping must do better to be useful.
    """

    name = "ensemble"
    order = 10
    averages = True

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        place = f"`methods`: {self.name!r}"
        if problem is None:
            return [InvalidInput(place, "needs the networks' predictions, so it cannot use networks trained elsewhere")]
        unknown = [task for task in tasks if problem.task(task).averaging is None]
        return [no_average(place, unknown)] if unknown else []

    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({budget: Choice(copies(backend.tasks, range(budget))) for budget in budgets}, seeds)


def copies(tasks: Sequence[str], numbers: Sequence[int]) -> tuple[Group, ...]:
    """Returns the copies with these numbers of the network for all tasks. Each serves every task."""
    return tuple(Group(tasks, tasks, copy=number) for number in numbers)


def no_average(place: str, tasks: Sequence[str]) -> InvalidInput:
    """Returns the error for tasks whose answers cannot be averaged."""
    found = f"{', '.join(map(repr, tasks))} with a loss of {'its' if len(tasks) == 1 else 'their'} own"
    return InvalidInput(
        place, "needs to know how to average the answers for every task", found, "set `Task(average=…)`"
    )
