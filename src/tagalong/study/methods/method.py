"""Defines `Method`, the base class of all methods, which decide which networks to train for each budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Group, Grouping
from tagalong.learn import Problem, check_rule
from tagalong.score import Score

from ..records import Cost

if TYPE_CHECKING:
    from ..runner import Runner

Budget = int | None


@dataclass(frozen=True)
class Choice:
    """The networks that a method chose.

    Attributes:
        groups: the tasks that each network is trained on and serves.
        shares: the probability of each group if the scores are averages over many groupings, or None if all groups are
            used.
        grouping: the result of `select_groups`, if it was used.
        scores: the scores of each task on the "val" and "test" rows if predictions are made without networks.
        val_rows: the losses of each task on the validation rows, from networks that these rows did not pick, if the
            method picked networks. They only count in the verdict.
    """

    groups: tuple[Group, ...]
    shares: tuple[float, ...] | None = None
    grouping: Grouping | None = None
    scores: Mapping[str, Mapping[str, Score]] | None = None
    val_rows: Mapping[str, NDArray[np.float64]] | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def of(grouping: Grouping) -> Choice:
        """Returns a choice that consists of the groups of a grouping."""
        return Choice(grouping.groups, grouping=grouping)


@dataclass(frozen=True)
class Decision:
    """A method's decision.

    Attributes:
        choices: the choice for each budget and seed. The budget is None for methods without a budget.
        deciding: for each seed, the total cost of deciding for all budgets.
        affinity: the affinity that the method measured, or None.
        about: a JSON document that describes how the method reached its decision, for reports.
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
        """Returns a decision with one choice per budget, which is the same for all seeds."""
        each = {(budget, seed): choice for budget, choice in choices.items() for seed in seeds}
        return Decision(each, deciding or {}, affinity, about or {})


class Method(ABC):
    """A way of deciding which networks to train.

    Attributes:
        name: the method's name in tables.
        order: a number that determines when the method decides. Methods with lower numbers decide first, regardless of
            their order in the request.
        budgeted: whether the method makes a separate choice for each budget.
        honest: whether the method avoids using test data.
        averages: whether several networks may serve a task. Their answers are then averaged.
        trains: whether the method trains networks.
        measures: whether the method measures affinities.
        rule: the rule that combines the task losses in each network.
    """

    name: str
    order: int = 50
    budgeted: bool = True
    honest: bool = True
    averages: bool = False
    trains: bool = True
    measures: bool = False
    rule: str = "plain"

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        """Returns the reasons why this method cannot be used.

        This method is called before any training.

        Args:
            tasks: the names of all tasks.
            problem: the data and architecture, or None if networks are not trained here.
        """
        return []

    def width(self, problem: Problem) -> float:
        """Returns the factor by which encoders are widened."""
        return 1.0

    def begin(self, runner: Runner, seeds: Sequence[int]) -> None:  # noqa: B027 - optional hook
        """Makes measurements while the network for all tasks is trained.

        This method is called before any other training.
        """

    @abstractmethod
    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        """Chooses networks for each budget.

        If the method is not `budgeted`, the only budget is None. Honest methods must not use test data.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


RULE_NAMES = ("uw", "gradnorm", "pcgrad")


def rule_problem(rule: str, tasks: int = 2) -> str | None:
    """Returns why this rule cannot be used with this number of tasks, or None if it can.

    Example:
        >>> rule_problem("pcgrad") is None, rule_problem("no such rule") is None
        (True, False)
    """
    try:
        check_rule(rule, tasks)
    except (ValueError, TypeError, ImportError) as error:
        return str(error)
    return None
