"""Every task in a network of its own: `stl`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.group import Group

from ._method import Choice, Decision, Method

if TYPE_CHECKING:
    from .._lab import Lab


class Stl(Method):
    """Every task alone. Nothing is decided; training takes all n runs, which is what the paper reports as its cost."""

    name = "stl"
    order = 10
    budgeted = False

    def decide(self, lab: Lab, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice(tuple(Group({task}, {task}) for task in lab.problem.names))}, seeds)
