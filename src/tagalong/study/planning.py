"""Which networks to train with your own script: what methods compare, as far as it is known before any training."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import listed, name_problems, named, noted, refuse
from tagalong.files import write_atomic
from tagalong.group import Group, select_groups, select_groups_by_budget

from .records import TOGETHER, Label
from .relative_losses import Losses, Reference, Subset, relative_table

ESTIMATORS = {"tag": ("lookahead", "gradient"), "cs": ("cosine", "cosine_kernels")}
MEASURED = tuple(ESTIMATORS)  # decided by an affinity
TRIED = ("hoa", "optimal")  # decided by validation losses of other networks
METHODS = ("mtl", "stl", *MEASURED, *TRIED)
MOST = 12  # tasks of which all subsets are trained
# Columns of the CSV: which network and task, what they are for, what the user fills in, and may fill in.
KEYS = ("network", "seed", "task")
PLANNED = ("serves", "decides")
NEEDED = ("val_loss", "test_loss")
OPTIONAL = ("val_error", "test_error", "test_rows", "steps", "seconds", "parameters")


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
            groupings[method, budget] = select_groups(table, budget, complete=complete, objective="min").groups
        return replace(self, groupings=groupings)

    def to_csv(self, path: str | Path) -> Path:
        """Writes one row per network, seed and task with empty columns for losses that you fill in.

        `serves` says for which methods and budgets the network serves the task, `decides` for which its losses decide.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*KEYS, *PLANNED, *NEEDED, *OPTIONAL[:2]])
        waiting = {csv_label(label): set(self.deciding(label[0])) for label in self.undecided}
        for tasks, seed in self.networks:
            subset = frozenset(tasks)
            decides = [label for label, deciding in waiting.items() if subset in deciding]
            for task in tasks:
                serves = [csv_label(label) for label, groups in self.groupings.items() if _serves(groups, subset, task)]
                writer.writerow(["+".join(tasks), seed, task, " ".join(serves), " ".join(decides), "", "", "", ""])
        write_atomic(Path(path), text.getvalue())
        return Path(path)


def _serves(groups: Sequence[Group], subset: Subset, task: str) -> bool:
    return any(group.trains == subset and task in group.serves for group in groups)


def csv_label(label: Label) -> str:
    """A method and budget in one word, such as "tag:2"."""
    return label[0] if label[1] is None else f"{label[0]}:{label[1]}"


def read_csv_label(text: str) -> Label:
    """The method and budget that such a word names."""
    method, _, budget = text.partition(":")
    if budget and not budget.isdigit():
        raise ValueError(f"columns `serves` and `decides` must hold labels such as 'stl' or 'tag:2', found {text!r}")
    return method, int(budget) if budget else None


def plan(
    affinity: Affinity | Sequence[Affinity] | None,
    budgets: Sequence[int],
    methods: Sequence[str] | None = None,
    seeds: int | Sequence[int] = 3,
    *,
    tasks: Sequence[str] | None = None,
) -> Plan:
    """Which networks to train for a verdict on these methods.

    Args:
        affinity: one, or several. One measured with "cosine" (or "cosine_kernels") decides the groups of `cs`; any
            other, such as "lookahead", "gradient" or a matrix of unknown origin, those of `tag`. None if neither is
            asked for.
        budgets: how many networks there may be.
        methods: "stl", "tag", "cs", "hoa" (all pairs first), "optimal" (all subsets); "mtl" is always among them. By
            default `stl`, and those of `tag` and `cs` that there is an affinity for.
        seeds: how many, or which.
        tasks: their names; by default those of the affinity.

    Raises:
        ValueError: with every problem at once; a method that has no affinity, or two, is one.

    Example:
        >>> affinity = Affinity.from_matrix([[0, 5, 1], [5, 0, 0], [0, 0, 0]], ["age", "ill", "fit"])
        >>> for tasks, seed in plan(affinity, [2], methods=["tag"], seeds=1).networks:
        ...     print(*tasks)
        age ill fit
        age ill
        age fit
    """
    problems: list[str] = []
    given = noted(problems, _affinities, affinity)
    names = noted(problems, _tasks, given or (), tasks)
    wanted = ("stl", *(_served(given or ()) or ("tag",))) if methods is None else methods
    chosen = noted(problems, listed, wanted, "methods", "names", "['stl', 'tag']") or ()
    sizes = noted(problems, listed, budgets, "budgets", "numbers of networks", "[2, 3]")
    numbers = noted(problems, _seeds, seeds)
    if given is not None and names is not None:
        problems += name_problems(names) + _method_problems(chosen, len(names))
        problems += _affinity_problems(given, names, chosen)
        problems += [] if sizes is None else _budget_problems(sizes, len(names), chosen)
    refuse(problems)
    made = Plan(names, tuple(dict.fromkeys(["mtl", *chosen])), tuple(sorted(set(map(int, sizes)))), numbers)
    groupings: dict[Label, tuple[Group, ...]] = {TOGETHER: (Group(names, names),)}
    if "stl" in made.methods:
        groupings["stl", None] = tuple(Group({task}, {task}) for task in names)
    for method in MEASURED:
        if method in made.methods:
            (measured,) = (one for one in given if _method_of(one) == method)
            found = select_groups_by_budget(measured.only(names), made.budgets)
            groupings |= {(method, int(budget)): grouping.groups for budget, grouping in found.items()}
    return replace(made, groupings=groupings)


def _served(affinities: Sequence[Affinity]) -> tuple[str, ...]:
    """The methods whose groups these affinities decide."""
    found = {_method_of(affinity) for affinity in affinities}
    return tuple(method for method in MEASURED if method in found)


def _method_of(affinity: Affinity) -> str:
    # what is not known to be a cosine is taken for what `tag` groups by: a matrix without settings, an own estimator
    return "cs" if affinity.settings.get("estimator") in ESTIMATORS["cs"] else "tag"


def _affinities(given: Affinity | Sequence[Affinity] | None) -> tuple[Affinity, ...]:
    found = () if given is None else (given,) if isinstance(given, Affinity) else given
    if not isinstance(found, Sequence) or not all(isinstance(one, Affinity) for one in found):
        raise ValueError(
            f"`affinity` must be an Affinity, a list of them, or None, found {given!r}; see Affinity.from_matrix"
        )
    return tuple(found)


def _tasks(affinities: Sequence[Affinity], tasks: Sequence[str] | None) -> tuple[str, ...]:
    if tasks is None and len({frozenset(affinity.tasks) for affinity in affinities}) > 1:
        found = " and ".join(", ".join(affinity.tasks) for affinity in affinities)
        raise ValueError(f"`affinity` must hold affinities between the same tasks, found {found}")
    return named(tasks if tasks is not None else affinities[0].tasks if affinities else ())


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    found: Any = range(seeds) if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool) else seeds
    if isinstance(found, Iterable) and not isinstance(found, str):
        found = list(found)
        if found and all(_whole(seed, 0) for seed in found) and len(set(found)) == len(found):
            return tuple(map(int, found))
    raise ValueError(f"`seeds` must be a number from 1 or distinct whole numbers, found {found!r}")


def _method_problems(methods: Sequence[str], tasks: int) -> list[str]:
    problems = []
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        problems.append(f"`methods` must be among {_listed(METHODS)}, found {_listed(unknown)}")
    if "optimal" in methods and tasks > MOST:
        problems.append(f"`methods`: 'optimal' trains all {2**tasks - 1} subsets; use 'hoa' above {MOST} tasks")
    return problems


def _affinity_problems(affinities: Sequence[Affinity], tasks: Sequence[str], methods: Sequence[str]) -> list[str]:
    measured = [method for method in MEASURED if method in methods]
    if measured and not affinities:
        return [f"`affinity` must be given for {_listed(measured)}, found None; measure it or leave them out"]
    problems = []
    for method in measured:
        mine = [affinity for affinity in affinities if _method_of(affinity) == method]
        if not mine:
            wanted = " or ".join(map(repr, ESTIMATORS[method]))
            problems.append(
                f"`affinity` must include one measured with the estimator {wanted} for {method!r}, found "
                f"{_origins(affinities)}; measure it or leave {method!r} out"
            )
        if len(mine) > 1:
            problems.append(f"`affinity` must hold one for {method!r}, found {len(mine)}: {_origins(mine)}; choose one")
        lacking = [task for task in tasks if any(task not in affinity.tasks for affinity in mine)]
        if lacking:
            problems.append(f"`affinity` must know every task, found nothing about {_listed(lacking)}")
    return list(dict.fromkeys(problems))


def _origins(affinities: Sequence[Affinity]) -> str:
    known = [affinity.settings.get("estimator") for affinity in affinities]
    return ", ".join("one without an estimator" if name is None else repr(name) for name in known)


def _budget_problems(budgets: Sequence[int], tasks: int, methods: Sequence[str]) -> list[str]:
    problems = []
    wrong = [budget for budget in budgets if not _whole(budget, 1, tasks)]
    if wrong:
        problems.append(f"`budgets` must be whole numbers from 1 to {tasks}, the number of tasks, found {wrong}")
    if not budgets and any(method in MEASURED + TRIED for method in methods):
        problems.append("`budgets` must hold at least one number of networks, found none")
    return problems


def _whole(value: object, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(least <= value <= most)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names))
