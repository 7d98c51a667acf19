"""One line of the results: a method, a budget, a seed, and how every task did."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tagalong.group import Group


@dataclass(frozen=True)
class Cost:
    """What something took.

    Attributes:
        networks: trained.
        steps: of the optimiser, over all of them; one that is measured counts as the plain ones it is worth.
        seconds: of computing.
    """

    networks: int = 0
    steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.networks + other.networks, self.steps + other.steps, self.seconds + other.seconds)


@dataclass(frozen=True)
class Outcome:
    """How a task did where it is served: its loss, and its error in its own measure (lower is better)."""

    loss: float
    error: float


@dataclass(frozen=True)
class Record:
    """What a method reached for a budget with a seed.

    Attributes:
        method: its name, such as "tag" or "tag+pcgrad".
        budget: how many networks were allowed; None for methods that have no budget (mtl, stl, uw, …).
        seed: of the networks.
        groups: the networks, what each trains and serves; empty for an expected value over many groupings.
        val: validation outcome of each task, where it is served.
        test: test outcome of each task.
        deciding: what it took to decide on the groups, for all budgets together.
        training: what it took to train the groups.
        parameters: of all networks together.
        latency: seconds of one forward pass through all networks, one after the other; None if not measured.
        networks: keys of the networks in the store, one per group.
        honest: False where the choice looked at test data (oracle).
    """

    method: str
    budget: int | None
    seed: int
    groups: tuple[Group, ...]
    val: Mapping[str, Outcome]
    test: Mapping[str, Outcome]
    deciding: Cost = field(default_factory=Cost)
    training: Cost = field(default_factory=Cost)
    parameters: int = 0
    latency: float | None = None
    networks: tuple[str, ...] = ()
    honest: bool = True

    @property
    def diverged(self) -> bool:
        """Whether a network diverged, or the method could not decide for one that did: some losses are then NaN."""
        return any(math.isnan(outcome.loss) for outcome in self.val.values())

    def total(self, part: str = "test") -> float:
        """The sum of raw losses, as in the paper's tables."""
        outcomes: Mapping[str, Outcome] = getattr(self, part)
        return sum(outcome.loss for outcome in outcomes.values())

    def change(self, other: Record, part: str = "test") -> float:
        """The mean over tasks of the relative change of the loss against another record; negative is better."""
        mine: Mapping[str, Outcome] = getattr(self, part)
        theirs: Mapping[str, Outcome] = getattr(other, part)
        return sum(relative(mine[task].loss, theirs[task].loss) for task in mine) / len(mine)


def relative(mine: float, theirs: float) -> float:
    """The change from their loss to mine as a share of theirs; negative is better, below zero too.

    Example:
        >>> relative(0.9, 1.0) < 0, relative(-1.1, -1.0) < 0, relative(0.0, 0.0)
        (True, True, 0.0)
    """
    if mine == theirs:
        return 0.0
    return (mine - theirs) / abs(theirs) if theirs else math.copysign(math.inf, mine)


def ratio(mine: float, theirs: float) -> float:
    """One more than `relative`: my loss over theirs, so that it ranks losses below zero too; never infinite.

    Example:
        >>> ratio(0.5, 2.0), ratio(-3.0, -2.0), ratio(-1.0, -2.0)
        (0.25, 0.5, 1.5)
    """
    if theirs < 0:
        return 1 + (mine - theirs) / -theirs
    return mine / max(theirs, sys.float_info.min)
