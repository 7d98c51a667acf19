"""What a method is: it decides which networks there should be for each budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group, Grouping
from tagalong.learn import Problem, check_rule

from ..records import Cost

if TYPE_CHECKING:
    from ..backend import Backend

Budget = int | None


@dataclass(frozen=True)
class Choice:
    """The networks that a method chose.

    Attributes:
        groups: what each network trains and serves.
        shares: for an expected value over many groupings, how likely each group is; None if the groups are meant.
        grouping: the answer of `select_groups`, where there is one.
    """

    groups: tuple[Group, ...]
    shares: tuple[float, ...] | None = None
    grouping: Grouping | None = None

    @staticmethod
    def of(grouping: Grouping) -> Choice:
        """The groups of a grouping."""
        return Choice(grouping.groups, grouping=grouping)


@dataclass(frozen=True)
class Decision:
    """What a method decided.

    Attributes:
        choices: by budget and seed; the budget is None for methods that have none.
        deciding: what deciding took for all budgets together, by seed.
        affinity: what the method measured, if it measured.
        about: how it came to it, for reports; as JSON can hold it.
    """

    choices: Mapping[tuple[Budget, int], Choice]
    deciding: Mapping[int, Cost] = field(default_factory=dict)
    affinity: Affinity | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def pooled(
        choices: Mapping[int, Choice] | Mapping[None, Choice],
        seeds: Sequence[int],
        deciding: Mapping[int, Cost] | None = None,
        affinity: Affinity | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Decision:
        """One choice per budget, made from all seeds together."""
        each = {(budget, seed): choice for budget, choice in choices.items() for seed in seeds}
        return Decision(each, deciding or {}, affinity, about or {})


class Method(ABC):
    """A way of deciding which networks there should be.

    Attributes:
        name: what it is called in tables.
        order: decisions are made from low to high, so that results do not depend on the order of methods.
        budgeted: whether it decides anew for every budget.
        honest: False if it looks at test data.
        rule: how the losses of its networks are combined.
    """

    name: str
    order: int = 50
    budgeted: bool = True
    honest: bool = True
    rule: str = "plain"

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        """Returns the reasons why this method cannot be used; called before any training.

        Args:
            tasks: names of all tasks.
            problem: data and architecture; None where networks are not trained here.
        """
        return []

    def width(self, problem: Problem) -> float:
        """Returns the width of its encoders, as a multiple."""
        return 1.0

    def begin(self, backend: Backend, seeds: Sequence[int]) -> None:  # noqa: B027 - most methods need nothing
        """Requests what trains all tasks together on the way, before they are trained for all methods."""

    @abstractmethod
    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        """Chooses networks: for every budget, or for None if there is none. Never looks at test data if honest."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def everything(tasks: Sequence[str]) -> tuple[Group, ...]:
    """Returns the groups of one network for all tasks."""
    return (Group(tasks, tasks),)


RULES = ("uw", "gradnorm", "pcgrad")


def rule_problem(rule: str, tasks: int = 2) -> str | None:
    """Returns why this rule cannot be used with this number of tasks; None if it can.

    Example:
        >>> rule_problem("pcgrad") is None, rule_problem("no such rule") is None
        (True, False)
    """
    try:
        check_rule(rule, tasks)
    except (ValueError, TypeError, ImportError) as error:
        return str(error)
    return None
