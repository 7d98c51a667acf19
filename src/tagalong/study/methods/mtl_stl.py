"""Trains one network for all tasks (`mtl` and variants), one per task (`stl`), or a method's groups with a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Problem, seeded_rng, width_of_size

from .method import Choice, Decision, Method, rule_problem

if TYPE_CHECKING:
    from ..runner import Runner


class Mtl(Method):
    """Trains all tasks in one network, which is the baseline of every comparison."""

    name = "mtl"
    order = 0
    budgeted = False

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice((Group(runner.tasks, runner.tasks),))}, seeds)


class Ruled(Mtl):
    """Trains all tasks in one network and combines their losses using a rule, e.g. uncertainty weighting.

    Args:
        rule: the name of the rule (see `tagalong.learn.Job`).
    """

    order = 10

    def __init__(self, rule: str) -> None:
        self.name = self.rule = rule


class Wide(Mtl):
    """Trains all tasks in one larger network, as in the paper's comparison without a latency limit.

    Args:
        times: the factor by which to enlarge the network.
        of: what to multiply, either the number of channels ("wide") or the number of parameters ("big").
    """

    order = 10

    def __init__(self, times: float, of: str = "wide") -> None:
        self.times, self.of = float(times), of
        self.name = f"mtl-{of}{times:g}"

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        method = f"`methods`: {self.name!r}"
        if not self.times > 0:
            return [InvalidInput(method, "must have a positive factor", f"{self.times:g}")]
        try:
            if problem is not None:
                with seeded_rng(0, "check"):
                    problem.make_encoder(self.width(problem))
        except (ValueError, RuntimeError) as error:
            return [InvalidInput(method, f"cannot widen this network: {error}")]
        return []

    def width(self, problem: Problem) -> float:
        return self.times if self.of == "wide" else width_of_size(problem, problem.names, self.times)


class Stl(Method):
    """Trains each task in a separate network.

    Deciding is free here, although the paper counts the cost of n training runs.
    """

    name = "stl"
    order = 10
    budgeted = False

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice(tuple(Group({task}, {task}) for task in runner.tasks))}, seeds)


class Combined(Method):
    """Uses the groups of another method, but trains each network with a rule that balances its tasks.

    Args:
        groups: the method that chooses the groups. The rule does not affect the choice of groups.
        rule: the rule that combines the task losses in each network.
    """

    def __init__(self, groups: Method, rule: str) -> None:
        self.groups, self.rule = groups, rule
        self.name = f"{groups.name}+{rule}"
        self.order, self.budgeted, self.honest = groups.order, groups.budgeted, groups.honest
        self.averages, self.measures = groups.averages, groups.measures

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        wrong = rule_problem(self.rule, len(tasks))
        problems = [] if wrong is None else [InvalidInput(f"`methods`: {self.name!r}:", wrong)]
        if not self.groups.trains:
            problems.append(InvalidInput(f"`methods`: {self.name!r}", f"{self.groups.name!r} trains no networks"))
        return self.groups.problems(tasks, problem) + problems

    def width(self, problem: Problem) -> float:
        return self.groups.width(problem)

    def begin(self, runner: Runner, seeds: Sequence[int]) -> None:
        self.groups.begin(runner, seeds)

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return self.groups.decide(runner, budgets, seeds)
