"""`Method`: the base class of all methods, which decide which networks to train for each budget."""

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
        groups: the tasks that each network trains and serves.
        shares: the probability of each group if the scores are averages over many groupings; None if all groups are
            used.
        grouping: the result of `select_groups`, if the method used it.
    """

    groups: tuple[Group, ...]
    shares: tuple[float, ...] | None = None
    grouping: Grouping | None = None

    @staticmethod
    def of(grouping: Grouping) -> Choice:
        """Returns a choice with the groups of a grouping."""
        return Choice(grouping.groups, grouping=grouping)


@dataclass(frozen=True)
class Decision:
    """The decision of a method.

    Attributes:
        choices: the choice for each budget and seed; the budget is None for methods without one.
        deciding: the total cost of deciding for all budgets, by seed.
        affinity: the affinity that the method measured, if any.
        about: a JSON document for reports that describes how the method reached its decision.
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
        """Returns a decision that makes the same choice for all seeds, one per budget."""
        each = {(budget, seed): choice for budget, choice in choices.items() for seed in seeds}
        return Decision(each, deciding or {}, affinity, about or {})


class Method(ABC):
    """A way of deciding which networks to train.

    Attributes:
        name: the name of the method in tables.
        order: methods decide in ascending order, so that results do not depend on their order in a request.
        budgeted: whether the method makes a separate choice for each budget.
        honest: False if the method uses test data.
        rule: the rule that combines the losses of each network.
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
            problem: data and architecture; None if networks are not trained here.
        """
        return []

    def width(self, problem: Problem) -> float:
        """Returns the factor by which to widen the encoders."""
        return 1.0

    def begin(self, backend: Backend, seeds: Sequence[int]) -> None:  # noqa: B027 - optional hook
        """Makes measurements that also train the network for all tasks; called before it is trained without them."""

    @abstractmethod
    def decide(self, backend: Backend, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        """Chooses networks for each budget, or for None if not `budgeted`. Honest methods must not use test data."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def everything(tasks: Sequence[str]) -> tuple[Group, ...]:
    """Returns a single group with all tasks."""
    return (Group(tasks, tasks),)


RULES = ("uw", "gradnorm", "pcgrad")


def rule_problem(rule: str, tasks: int = 2) -> str | None:
    """Returns the reason why this rule cannot be used with this number of tasks; None if it can.

    Example:
        >>> rule_problem("pcgrad") is None, rule_problem("no such rule") is None
        (True, False)
    """
    try:
        check_rule(rule, tasks)
    except (ValueError, TypeError, ImportError) as error:
        return str(error)
    return None
