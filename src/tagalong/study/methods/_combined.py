"""Groups of one method, trained by a rule: `tag+pcgrad`, `hoa+uw`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.learn import Problem

from ._method import Decision, Method
from ._rules import rule_problem

if TYPE_CHECKING:
    from .._lab import Lab


class Combined(Method):
    """The groups of a method, each network trained by a rule that balances its tasks.

    Args:
        groups: the method that decides; it decides as it does alone.
        rule: how the losses of each network are combined.
    """

    def __init__(self, groups: Method, rule: str) -> None:
        self.groups, self.rule = groups, rule
        self.name = f"{groups.name}+{rule}"
        self.order, self.budgeted, self.honest = groups.order, groups.budgeted, groups.honest

    def problems(self, problem: Problem) -> list[str]:
        wrong = rule_problem(self.rule, len(problem.names))
        return self.groups.problems(problem) + ([] if wrong is None else [f"`methods`: {self.name!r}: {wrong}"])

    def width(self, problem: Problem) -> float:
        return self.groups.width(problem)

    def begin(self, lab: Lab, seeds: Sequence[int]) -> None:
        self.groups.begin(lab, seeds)

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return self.groups.decide(lab, budgets, seeds)
