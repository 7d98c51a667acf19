"""Defines `Grouping`, the networks selected for a budget. Groupings can be saved as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tagalong.errors import InvalidInput, first_few, pluralize
from tagalong.files import check_document, document_text, json_safe, parse_document, report_damage
from tagalong.rendering import TextTable, tag

from .solvers import MAX_TIES
from .stability import Stability
from .taught import Taught

FORMAT = "tagalong-grouping"
VERSION = 1
SAVE_AGAIN_HINT = "save the grouping again"
NETWORK_TITLES = {"tabm": "TabM"}


@dataclass(frozen=True, init=False)
class Group:
    """A network with its cost, the tasks on which it is trained, and the subset of these tasks that it serves.

    Several networks may serve the same task if their answers are averaged. Networks that train the same tasks are told
    apart by `copy`: each copy is trained with a different seed. A network that learns from the answers of other
    networks names them in `taught`. A wider network has about `size` times as many parameters as a plain one for the
    same tasks, and uses as much of a budget as `size` plain networks. `network` names another network than the
    problem's own, e.g. "tabm", which uses as much of a budget as a plain one.

    Example:
        >>> print(Group(trains={"age", "ill"}, serves={"age"}))
        serves {age}, helped by {ill}
        >>> print(Group({"age"}, {"age"}, taught=Taught(("key 1", "key 2"))))
        serves {age}, taught by 2 networks
        >>> print(Group({"age"}, {"age"}, copy=1, size=3, network="tabm"))
        serves {age}, copy 1, 3 times the size, TabM network
    """

    trains: frozenset[str]
    serves: frozenset[str]
    cost: int | float = 1  # an integer stays one in documents
    copy: int = 0
    taught: Taught | None = None
    size: int = 1
    network: str | None = None

    def __init__(
        self,
        trains: Iterable[str],
        serves: Iterable[str],
        cost: float = 1,
        copy: int = 0,
        taught: Taught | None = None,
        size: int = 1,
        network: str | None = None,
    ) -> None:
        self.__dict__.update(trains=frozenset(trains), serves=frozenset(serves), cost=cost, copy=copy)
        self.__dict__.update(taught=taught, size=size, network=network)
        if not self.serves <= self.trains:
            others = ", ".join(map(repr, sorted(self.serves - self.trains)))
            raise InvalidInput("serves", "must contain only tasks in `trains`", others)

    @property
    def helpers(self) -> frozenset[str]:
        """The tasks that are trained but not served."""
        return self.trains - self.serves

    @property
    def network_text(self) -> str:
        """The kind of network in words, e.g. "TabM network", or an empty string for the problem's own."""
        return "" if self.network is None else f"{NETWORK_TITLES.get(self.network, self.network)} network"

    def __str__(self) -> str:
        parts = [f"serves {{{_join_names(self.serves)}}}"]
        if self.helpers:
            parts.append(f"helped by {{{_join_names(self.helpers)}}}")
        if self.copy:
            parts.append(f"copy {self.copy}")
        if self.size > 1:
            parts.append(f"{self.size} times the size")
        if self.network:
            parts.append(self.network_text)
        if self.taught:
            parts.append(str(self.taught))
        return ", ".join(parts)

    def to_document(self, *, cost: bool = True) -> dict[str, Any]:
        """Returns the group as a JSON-compatible dictionary, which mentions only what is not as usual.

        Args:
            cost: whether to include the cost.

        Example:
            >>> Group({"age"}, {"age"}, copy=1).to_document(cost=False)
            {'trains': ['age'], 'serves': ['age'], 'copy': 1}
        """
        document: dict[str, Any] = {"trains": sorted(self.trains), "serves": sorted(self.serves)}
        if cost:
            document["cost"] = self.cost
        for name, usual in (("copy", 0), ("size", 1), ("network", None)):
            if getattr(self, name) != usual:
                document[name] = getattr(self, name)
        if self.taught:
            document["taught"] = self.taught.to_document()
        return document

    def __lt__(self, other: Group) -> bool:
        return self._sort_key < other._sort_key

    @property
    def _sort_key(self) -> tuple[Any, ...]:
        kind = (repr(self.taught or ""), self.size, self.network or "")
        return sorted(self.serves), sorted(self.trains), self.cost, self.copy, *kind


@dataclass(frozen=True)
class NetworkScore:
    """A network that could serve a task, and the score of the task in that network."""

    trains: frozenset[str]
    score: float


@dataclass(frozen=True)
class Grouping:
    """The networks chosen for a budget, their scores, and whether they are proven optimal.

    Attributes:
        groups: the networks, in sorted order. Every task is served by exactly one network.
        value: the sum of the scores of all tasks, weighted if weights were given.
        bound: a bound on the value of any grouping, up to a tolerance of 1e-9 times the largest score. If the grouping
            is proven optimal, the bound equals `value`.
        status: "optimal" if the grouping is proven optimal up to ties, otherwise "feasible".
        per_task: the score of each task in the network that serves it.
        budget: the maximum number of networks that was requested.
        objective: "max" or "min".
        solver: the name of the solver that found the grouping.
        ties: up to eight other groupings with the same value and the same number of groups.
        options: the score of each task in each of the chosen networks, sorted from best to worst.
        resampled: the result of repeating the selection on resamples, or None if there are no standard errors and all
            pairs were measured.
        unmeasured: the fraction of pairs of tasks that were never measured. Their scores were predicted from the other
            pairs.
        unplaced: the tasks that no network serves because none of their pairs was measured.

    Example:
        >>> from tagalong.group import select_groups
        >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
        >>> grouping.value, grouping.status, sorted(grouping.served_by("2").trains)
        (11.0, 'optimal', ['0', '2'])
    """

    groups: tuple[Group, ...]
    value: float
    bound: float
    status: Literal["optimal", "feasible"]
    per_task: Mapping[str, float]
    budget: int
    objective: Literal["max", "min"] = "max"
    solver: str = "given"
    ties: tuple[tuple[Group, ...], ...] = ()
    options: Mapping[str, tuple[NetworkScore, ...]] = field(default_factory=dict, repr=False)
    resampled: Stability | None = field(default=None, repr=False)
    unmeasured: float = field(default=0.0, repr=False)
    unplaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(sorted(self.groups)))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks, in alphabetical order."""
        return tuple(sorted(self.per_task))

    @property
    def gap(self) -> float:
        """The relative difference between `bound` and `value`."""
        distance = abs(self.bound - self.value)
        return distance / abs(self.value) if self.value else (float("inf") if distance else 0.0)

    @property
    def stability(self) -> float | None:
        """The fraction of resamples that lead to the same grouping, or None if there are no resamples."""
        return None if self.resampled is None else self.resampled.share

    def served_by(self, task: str) -> Group:
        """Returns the group that serves a task."""
        for group in self.groups:
            if task in group.serves:
                return group
        raise InvalidInput("task", f"must be one of {', '.join(map(repr, self.tasks))}", repr(task))

    def loss_mask(self, group: Group | int) -> dict[str, bool]:
        """Returns whether the network of a group is trained on each task's loss.

        Args:
            group: one of `groups`, or its index.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> grouping.loss_mask(1)
            {'0': True, '1': False, '2': True}
        """
        trains = (self.groups[group] if isinstance(group, int) else group).trains
        return {task: task in trains for task in self.tasks}

    def explain(self, task: str) -> str:
        """Returns a sentence about the network that serves a task and about the second-best network.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> print(grouping.explain("1"))
            1 is served by {0, 1} with 5, the best of the 2 networks for it; next best: {0, 1, 2} with 2.5.
        """
        group, score = self.served_by(task), self.per_task[task]
        start = f"{task} is served by {{{_join_names(group.trains)}}} with {score:.6g}"
        others = [option for option in self.options.get(task, ()) if option.trains != group.trains]
        if not others:
            return f"{start}, the only chosen network that can."
        next_best = f"{{{_join_names(others[0].trains)}}} with {others[0].score:.6g}"
        is_better = others[0].score > score if self.objective == "max" else others[0].score < score
        if is_better:
            return f"{start}; {next_best} would be better for it alone, but not for all tasks together."
        return f"{start}, the best of the {len(self.groups)} networks for it; next best: {next_best}."

    @property
    def summary(self) -> str:
        """A one-line summary: the number of networks, their total score, and whether the grouping is proven optimal."""
        gap = f"feasible, bound {self.bound:.6g}, gap {self.gap:.1%}"
        proof = "proven optimal" if self.status == "optimal" else gap
        networks = f"{pluralize(len(self.groups), 'network')} for {pluralize(len(self.tasks), 'task')}"
        return f"{networks}, total {self.value:.6g} ({proof})"

    @property
    def remarks(self) -> list[str]:
        """Remarks on equally good groupings, unmeasured pairs, and the stability of this grouping, one per line."""
        remarks = []
        if self.ties:
            count = f"{'at least ' * (len(self.ties) == MAX_TIES)}{pluralize(len(self.ties), 'other grouping')}"
            remarks += [f"equally good: {count}, for example:", *(f"  {group}" for group in self.ties[0])]
        if self.unmeasured:
            remarks.append(f"{self.unmeasured:.1%} of pairs were never measured; their scores are predictions")
        if self.unplaced:
            remarks.append(f"not placed, as none of their pairs was measured: {first_few(self.unplaced, 12)}")
        if self.resampled is not None:
            remarks.append(str(self.resampled))
        return remarks

    def __str__(self) -> str:
        table = TextTable("network", "serves", "helped by", "score", numbers=("network", "score"))
        for number, group in enumerate(self.groups, 1):
            score = sum(self.per_task[task] for task in sorted(group.serves))  # sorted to make rounding deterministic
            table.add_row(str(number), _join_names(group.serves), _join_names(group.helpers), f"{score:.6g}")
        return "\n".join([self.summary, *table.lines(), *self.remarks])

    def _repr_html_(self) -> str:
        return tag("pre", self)

    def to_document(self) -> dict[str, Any]:
        """Returns the grouping as a JSON-compatible dictionary, which `from_document` reads."""
        document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for name in ("value", "bound", "status", "budget", "objective", "solver", "groups", "per_task", "ties"):
            document[name] = json_safe(getattr(self, name))
        document["options"] = {
            task: [{"trains": sorted(option.trains), "score": option.score} for option in options]
            for task, options in self.options.items()
        }
        for name in ("resampled", "unmeasured", "unplaced"):
            if getattr(self, name):
                document[name] = json_safe(getattr(self, name))
        return document

    @staticmethod
    def from_document(document: Any) -> Grouping:
        """Reads a dictionary created by `to_document`."""
        from tagalong.documents import build  # pydantic is loaded only where documents enter

        checked = check_document(document, "a grouping", FORMAT, VERSION, hint=SAVE_AGAIN_HINT)
        with report_damage("the grouping", hint=SAVE_AGAIN_HINT):
            grouping = build(Grouping, checked)
            served = sorted(task for group in grouping.groups for task in group.serves)
            if not served or served != sorted(grouping.per_task):
                raise ValueError("groups must serve each task of per_task exactly once")
        return grouping

    def to_json(self) -> str:
        """Returns the grouping as JSON text, which `from_json` reads."""
        return document_text(FORMAT, VERSION, self.to_document())

    @staticmethod
    def from_json(text: str) -> Grouping:
        """Reads JSON text created by `to_json`.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> Grouping.from_json(grouping.to_json()) == grouping
            True
        """
        return Grouping.from_document(parse_document(text, "a grouping", FORMAT, VERSION, hint=SAVE_AGAIN_HINT))


def _join_names(tasks: Iterable[str]) -> str:
    return ", ".join(sorted(tasks))
