"""What an effort was spent on: trained networks, rounds, and the recommended networks for each budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tagalong.group import Group
from tagalong.learn import Trained

Kind = Literal["copy", "set", "wide", "tabm", "student"]


@dataclass(frozen=True)
class Member:
    """A trained network that may be recommended.

    Attributes:
        kind: "copy" for the network for all tasks, "set" for a network for some tasks, "wide" for a wider network for
            all tasks, "tabm" for a TabM network for all tasks, or "student".
        group: the tasks that it was trained on, its copy number, size and kind of network, and who taught it.
        result: its result.
        effort: what its training cost, in full training runs.
        step_cost: what a step of its training cost, as a multiple of a step of a plain network.
    """

    kind: Kind
    group: Group
    result: Trained
    effort: float
    step_cost: float = 1.0


@dataclass(frozen=True)
class Plan:
    """The recommended networks for a budget.

    Attributes:
        groups: the networks, and the tasks that each of them answers.
        expected: the expected relative change in loss from one plain network, averaged over tasks, on rows that did not
            choose the networks, and less what these rows flatter: students, whose teachers they selected, and networks
            for few tasks, whose epochs they chose.
        doubt: the standard error of `expected`, due to the finite number of validation rows and of plain networks.
        alternatives: `expected` of the best networks among the copies, among copies and students for all tasks, among
            wider networks, among copies, students and TabM networks, and among all networks that are not wider, by the
            name of the pool.
        pool: the name of the pool from which the networks were chosen.
        rows: the losses of each task on the validation rows, from networks that these rows did not choose.
    """

    groups: tuple[Group, ...]
    expected: float
    doubt: float
    alternatives: dict[str, float]
    pool: str
    rows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class SpendingRound:
    """Networks that were trained together.

    Attributes:
        members: the networks that converged.
        others: the results and efforts of networks that cannot be recommended, since they diverged or were trained only
            in part.
        spent: the total effort after this round.
        best: for each budget, the expected change of the best networks so far.
    """

    members: tuple[Member, ...]
    others: tuple[tuple[Trained, float], ...]
    spent: float
    best: dict[int, float]


@dataclass(frozen=True)
class Spending:
    """What an effort was spent on.

    Attributes:
        plans: the recommendation for each budget.
        rounds: the rounds, in order.
        spent: the total effort.
        teachers: the networks that teach the students, with repetitions.
        no_wider: why no wider networks were trained although the effort allowed it, or None.
    """

    plans: dict[int, Plan]
    rounds: tuple[SpendingRound, ...]
    spent: float
    teachers: tuple[Group, ...]
    no_wider: str | None = None
