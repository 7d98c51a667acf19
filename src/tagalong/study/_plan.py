"""Which networks to train with an own script, so that a verdict can be given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from tagalong._names import name_problems, refuse
from tagalong.affinity import Affinity
from tagalong.group import Group, select_groups

from ._change import TOGETHER, Label
from ._relative import Losses, Reference, Subset, relative_table

MEASURED = ("tag", "cs")  # decided by an affinity
TRIED = ("hoa", "optimal")  # decided by validation losses of other networks
METHODS = ("mtl", "stl", *MEASURED, *TRIED)
MOST = 12  # tasks of which all subsets are trained


@dataclass(frozen=True)
class Plan:
    """The networks to train, and what for.

    Attributes:
        tasks: of all networks together.
        methods: what will be compared; `mtl` always.
        budgets: how many networks there may be.
        seeds: of each network.
        groupings: for each method and budget the groups, where they are decided.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    seeds: tuple[int, ...]
    groupings: Mapping[Label, tuple[Group, ...]] = field(default_factory=dict)

    @property
    def undecided(self) -> list[tuple[str, int]]:
        """Methods and budgets that wait for validation losses."""
        tried = [(method, budget) for method in TRIED if method in self.methods for budget in self.budgets]
        return [label for label in tried if label not in self.groupings]

    def deciding(self, method: str) -> list[Subset]:
        """The networks whose validation losses decide a method."""
        everything = frozenset(self.tasks)
        if method in MEASURED:
            return [everything]
        sizes = {"hoa": (1, 2), "optimal": range(1, len(self.tasks) + 1)}.get(method, ())
        return [frozenset(some) for size in sizes for some in itertools.combinations(self.tasks, size)]

    @property
    def networks(self) -> list[tuple[tuple[str, ...], int]]:
        """Tasks and seed of every network known to be needed; all together first."""
        chosen = [group.trains for groups in self.groupings.values() for group in groups]
        tried = [subset for method in TRIED if method in self.methods for subset in self.deciding(method)]
        subsets = dict.fromkeys([frozenset(self.tasks), *chosen, *tried])
        return [(self.ordered(subset), seed) for seed in self.seeds for subset in subsets]

    def ordered(self, tasks: Subset) -> tuple[str, ...]:
        """The tasks in the order of the plan."""
        return tuple(task for task in self.tasks if task in tasks)

    def decided(self, losses: Losses) -> Plan:
        """The plan with the groups that validation losses decide, as a study decides them.

        Args:
            losses: gives the validation loss of a task in the network of these tasks with this seed.
        """
        groupings = dict(self.groupings)
        for method, budget in self.undecided:
            reference: Reference = "alone" if method == "hoa" else "together"
            table = relative_table(self.deciding(method), self.tasks, self.seeds, losses, reference)
            complete: Literal["pairs"] | None = "pairs" if method == "hoa" else None
            found = select_groups(table, budgets=[budget], complete=complete, objective="min")
            groupings[method, budget] = found[budget].groups
        return replace(self, groupings=groupings)

    def to_csv(self, path: str | Path) -> Path:
        """Writes one row per network, seed and task with empty columns for losses that you fill in."""
        from ._plan_csv import write

        return write(self, Path(path))


def plan(
    affinity: Affinity | None,
    budgets: Sequence[int],
    methods: Sequence[str] = ("mtl", "stl", "tag"),
    seeds: int | Sequence[int] = 3,
    *,
    tasks: Sequence[str] | None = None,
) -> Plan:
    """Which networks to train for a verdict on these methods.

    Args:
        affinity: decides the groups of `tag` or `cs`; None if neither is asked for.
        budgets: how many networks there may be.
        methods: "stl", "tag", "cs", "hoa" (all pairs first), "optimal" (all subsets); "mtl" is always among them.
        seeds: how many, or which.
        tasks: their names; by default those of the affinity.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 5, 1], [5, 0, 0], [0, 0, 0]], ["age", "ill", "fit"])
        >>> for tasks, seed in plan(affinity, [2], methods=["tag"], seeds=1).networks:
        ...     print(*tasks)
        age ill fit
        age ill
        age fit
    """
    names = tuple(tasks if tasks is not None else (() if affinity is None else affinity.tasks))
    numbers = tuple(range(seeds)) if isinstance(seeds, (int, np.integer)) else tuple(seeds)
    wanted = tuple(dict.fromkeys(["mtl", *methods]))
    refuse(_problems(affinity, names, wanted, tuple(budgets), numbers))
    made = Plan(names, wanted, tuple(sorted(set(map(int, budgets)))), tuple(map(int, numbers)))
    groupings: dict[Label, tuple[Group, ...]] = {TOGETHER: (Group(names, names),)}
    if "stl" in wanted:
        groupings["stl", None] = tuple(Group({task}, {task}) for task in names)
    for method in MEASURED:
        if method in wanted and affinity is not None:
            found = select_groups(affinity.only(names), budgets=made.budgets)
            groupings |= {(method, int(budget)): grouping.groups for budget, grouping in found.items()}
    return replace(made, groupings=groupings)


def _problems(
    affinity: Affinity | None,
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    budgets: tuple[int, ...],
    seeds: tuple[int, ...],
) -> list[str]:
    problems = name_problems(tasks)
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        problems.append(f"`methods` must be among {_listed(METHODS)}, found {_listed(unknown)}")
    measured = [method for method in methods if method in MEASURED]
    if measured and affinity is None:
        problems.append(f"`affinity` must be given for {_listed(measured)}, found None; measure it or leave them out")
    lacking = [] if affinity is None else [task for task in tasks if task not in affinity.tasks]
    if measured and lacking:
        problems.append(f"`affinity` must know every task, found nothing about {_listed(lacking)}")
    wrong = [budget for budget in budgets if not _whole(budget, 1, len(tasks))]
    if wrong:
        problems.append(f"`budgets` must be whole numbers from 1 to {len(tasks)}, the number of tasks, found {wrong}")
    if not budgets and any(method in MEASURED + TRIED for method in methods):
        problems.append("`budgets` must hold at least one number of networks, found none")
    if not seeds or not all(_whole(seed, 0) for seed in seeds) or len(set(seeds)) < len(seeds):
        problems.append(f"`seeds` must be a number from 1 or distinct whole numbers, found {list(seeds)}")
    if "optimal" in methods and len(tasks) > MOST:
        problems.append(f"`methods`: 'optimal' trains all {2 ** len(tasks) - 1} subsets; use 'hoa' above {MOST} tasks")
    return problems


def _whole(value: object, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(least <= value <= most)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
