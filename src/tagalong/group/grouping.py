"""Defines `Grouping`, the networks selected for a budget. Groupings can be saved as JSON or YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import yaml

from tagalong.errors import InvalidInput, is_integer, is_positive_integer
from tagalong.files import DocumentError, check_document, document_text, parse_document, report_damage

from .grouping_text import explanation, html_table, remarks, summary, text_table
from .stability import Stability
from .taught import Taught

FORMAT = "tagalong-grouping"
VERSION = 1
SAVE_AGAIN_HINT = "save the grouping again"
NETWORK_TITLES = {"tabm": "TabM"}
PLAIN_FIELDS = ("value", "bound", "status", "budget", "objective", "solver")  # stored unchanged in a document


class GroupingFileError(DocumentError):
    """Raised if text or a file does not contain a valid grouping."""


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
        >>> print(Group({"age"}, {"age"}, copy=1))
        serves {age}, copy 1
        >>> print(Group({"age"}, {"age"}, taught=Taught(("key 1", "key 2"))))
        serves {age}, taught by 2 networks
        >>> print(Group({"age"}, {"age"}, size=3))
        serves {age}, 3 times the size
        >>> print(Group({"age"}, {"age"}, network="tabm"))
        serves {age}, TabM network
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
        object.__setattr__(self, "trains", frozenset(trains))
        object.__setattr__(self, "serves", frozenset(serves))
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "copy", copy)
        object.__setattr__(self, "taught", taught)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "network", network)
        self.__post_init__()

    def __post_init__(self) -> None:  # reading a document calls only this
        if not self.serves <= self.trains:
            extra = ", ".join(map(repr, sorted(self.serves - self.trains)))
            raise InvalidInput("serves", "must contain only tasks in `trains`", extra)
        if not is_integer(self.copy, minimum=0):
            raise InvalidInput("copy", "must be a non-negative integer", repr(self.copy))
        if not isinstance(self.taught, Taught | None):
            raise InvalidInput("taught", "must be a Taught or None", repr(self.taught))
        if not is_positive_integer(self.size):
            raise InvalidInput("size", "must be a positive integer", repr(self.size))
        if self.network is not None and not (isinstance(self.network, str) and self.network):
            raise InvalidInput("network", "must be the name of a network or None", repr(self.network))

    @property
    def helpers(self) -> frozenset[str]:
        """The tasks that are trained but not served."""
        return self.trains - self.serves

    @property
    def network_text(self) -> str:
        """The kind of network in words, e.g. "TabM network", or an empty string for the problem's own."""
        return "" if self.network is None else f"{NETWORK_TITLES.get(self.network, self.network)} network"

    def __str__(self) -> str:
        helped = f", helped by {{{', '.join(sorted(self.helpers))}}}" if self.helpers else ""
        copy = f", copy {self.copy}" if self.copy else ""
        size = f", {self.size} times the size" if self.size > 1 else ""
        network = f", {self.network_text}" if self.network else ""
        taught = f", {self.taught}" if self.taught else ""
        return f"serves {{{', '.join(sorted(self.serves))}}}{helped}{copy}{size}{network}{taught}"

    def to_document(self, *, cost: bool = True) -> dict[str, Any]:
        """Returns the group as a JSON-compatible dictionary.

        Copy 0 and size 1 are not mentioned, nor that a network is not taught or is the problem's own, so that plain
        groups are written as they always were.

        Args:
            cost: whether to include the cost.

        Example:
            >>> Group({"age"}, {"age"}, copy=1).to_document(cost=False)
            {'trains': ['age'], 'serves': ['age'], 'copy': 1}
        """
        document: dict[str, Any] = {"trains": sorted(self.trains), "serves": sorted(self.serves)}
        document |= {"cost": self.cost} if cost else {}
        document |= {"copy": self.copy} if self.copy else {}
        document |= {"size": self.size} if self.size > 1 else {}
        document |= {"network": self.network} if self.network else {}
        return document | ({"taught": self.taught.to_document()} if self.taught else {})

    def __lt__(self, other: Group) -> bool:
        return self._sort_key < other._sort_key

    @property
    def _sort_key(self) -> tuple[list[str], list[str], float, int, str, int, str]:
        taught = repr(self.taught) if self.taught else ""
        return sorted(self.serves), sorted(self.trains), self.cost, self.copy, taught, self.size, self.network or ""


@dataclass(frozen=True)
class Option:
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
        budget: the requested budget.
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
    budget: int | float
    objective: Literal["max", "min"] = "max"
    solver: str = "given"
    ties: tuple[tuple[Group, ...], ...] = ()
    options: Mapping[str, tuple[Option, ...]] = field(default_factory=dict, repr=False)
    resampled: Stability | None = field(default=None, repr=False)
    unmeasured: float = field(default=0.0, repr=False)
    unplaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(sorted(self.groups)))
        object.__setattr__(self, "per_task", MappingProxyType(dict(self.per_task)))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Grouping.from_document, (self.to_document(),)  # read-only mappings cannot be pickled

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
            >>> losses = {"0": 0.5, "1": 0.25, "2": 1.0}
            >>> mask = grouping.loss_mask(0)
            >>> sum(loss for task, loss in losses.items() if mask[task])
            0.75
        """
        chosen = group if isinstance(group, Group) else self.groups[group]
        return {task: task in chosen.trains for task in self.tasks}

    def explain(self, task: str) -> str:
        """Explains why a task is served by its network, and names the second-best network.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> print(grouping.explain("1"))
            1 is served by {0, 1} with 5, the best of the 2 networks for it; next best: {0, 1, 2} with 2.5.
        """
        return explanation(self, task)

    @property
    def summary(self) -> str:
        """A one-line summary: the number of networks, their total score, and whether the grouping is proven optimal."""
        return summary(self)

    @property
    def remarks(self) -> list[str]:
        """Remarks on equally good groupings, unmeasured pairs, and the stability of this grouping, one per line."""
        return remarks(self)

    def to_document(self) -> dict[str, Any]:
        """Returns the grouping as a JSON-compatible dictionary, which `from_document` reads."""
        document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        document |= {name: getattr(self, name) for name in PLAIN_FIELDS}
        document["groups"] = [group.to_document() for group in self.groups]
        document["per_task"] = dict(self.per_task)
        document["ties"] = [[group.to_document() for group in tie] for tie in self.ties]
        document["options"] = {
            task: [{"trains": sorted(option.trains), "score": option.score} for option in options]
            for task, options in self.options.items()
        }
        if self.resampled is not None:
            document["resampled"] = {
                "resamples": self.resampled.resamples,
                "share": self.resampled.share,
                "tasks": list(self.resampled.tasks),
                "together": [list(row) for row in self.resampled.together],
                "same": list(self.resampled.same),
            }
        if self.unmeasured:
            document["unmeasured"] = self.unmeasured
        if self.unplaced:
            document["unplaced"] = list(self.unplaced)
        return document

    @staticmethod
    def from_document(document: Any) -> Grouping:
        """Reads a dictionary created by `to_document`."""
        checked = check_document(document, "a grouping", FORMAT, VERSION, GroupingFileError, SAVE_AGAIN_HINT)
        with report_damage("the grouping", GroupingFileError, SAVE_AGAIN_HINT):
            return _read_grouping(checked)

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
        checked = parse_document(text, "a grouping", FORMAT, VERSION, GroupingFileError, SAVE_AGAIN_HINT)
        return Grouping.from_document(checked)

    def to_yaml(self) -> str:
        """Returns the grouping as YAML text, which is easy to edit by hand. `from_yaml` reads it."""
        return yaml.safe_dump(
            self.to_document(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=110
        )  # the flow style None puts short lists on one line

    @staticmethod
    def from_yaml(text: str) -> Grouping:
        """Reads YAML text created by `to_yaml`.

        Example:
            >>> from tagalong.group import select_groups
            >>> grouping = select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2)
            >>> print("\\n".join(grouping.to_yaml().splitlines()[2:11]))
            value: 11.0
            bound: 11.0
            status: optimal
            budget: 2
            objective: max
            solver: exact
            groups:
            - trains: ['0', '1']
              serves: ['0', '1']
            >>> Grouping.from_yaml(grouping.to_yaml()) == grouping
            True
        """
        try:
            document = _read_yaml(text)
        except ValueError as error:
            raise GroupingFileError("the grouping", f"is not valid YAML: {error}") from error
        return Grouping.from_document(document)

    def __str__(self) -> str:
        return text_table(self)

    def _repr_html_(self) -> str:
        return html_table(self)


def _read_grouping(document: Mapping[str, Any]) -> Grouping:
    from tagalong.documents import build  # pydantic is loaded only where documents enter

    grouping = build(Grouping, document)
    tasks = sorted(grouping.per_task)
    for groups in (grouping.groups, *grouping.ties):
        if sorted(task for group in groups for task in group.serves) != tasks or not tasks:
            raise ValueError("groups must serve each task of per_task exactly once")
    unknown = {task for group in grouping.groups for task in group.trains}.difference(tasks)
    if unknown:
        raise ValueError(f"groups must train only tasks of per_task, found {', '.join(sorted(unknown))}")
    stability = grouping.resampled
    if stability is not None:
        lengths = {len(stability.same), len(stability.together), *map(len, stability.together)}
        if lengths != {len(stability.tasks)}:
            raise ValueError(f"resampled.together must be a square table for {len(stability.tasks)} tasks")
    return grouping


def _read_yaml(text: str) -> Any:
    try:
        return yaml.load(text, _UniqueKeysLoader)
    except yaml.YAMLError as error:
        raise ValueError(_describe_yaml_error(error)) from error
    except RecursionError:
        raise ValueError("too deeply nested") from None


def _describe_yaml_error(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} in line {mark.line + 1}" if mark is not None else str(problem)


class _UniqueKeysLoader(yaml.SafeLoader):
    """Rejects repeated keys, of which PyYAML's own loader silently keeps the last value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
