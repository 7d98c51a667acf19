"""Records of results: the scores of a method with a budget and a seed; and a description of the problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tagalong.errors import as_names, raise_problems, task_name_problems
from tagalong.group import Group
from tagalong.score import Score

from .relative_losses import relative

if TYPE_CHECKING:
    from tagalong.learn import Problem

Label = tuple[str, int | None]  # a method and its budget
GROUPINGS = "tagalong-groupings"  # the format of `groupings.json`
TOGETHER: Label = ("mtl", None)  # what everything is compared with


@dataclass(frozen=True)
class Cost:
    """A cost of training or measuring.

    Attributes:
        networks: number of networks that were trained.
        steps: total number of optimizer steps; a measured step counts as the plain steps that it costs.
        seconds: time of training.
    """

    networks: int = 0
    steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.networks + other.networks, self.steps + other.steps, self.seconds + other.seconds)


@dataclass(frozen=True)
class Record:
    """The result of a method with a budget and a seed.

    Attributes:
        method: its name, such as "tag" or "tag+pcgrad".
        budget: the number of networks allowed; None for methods without a budget (mtl, stl, uw, …).
        seed: the seed of the networks.
        groups: the tasks that each network trains and serves; empty for an expected value over many groupings.
        val: validation score of each task, where it is served.
        test: test score of each task, where it is served.
        deciding: the cost of deciding on the groups, for all budgets together.
        training: the cost of training the groups.
        parameters: number of parameters of all networks together.
        latency: seconds of a forward pass through all networks, one after the other; None if not measured.
        networks: keys of the networks in the store, one per group.
        honest: False if the choice used test data (oracle).
    """

    method: str
    budget: int | None
    seed: int
    groups: tuple[Group, ...]
    val: Mapping[str, Score]
    test: Mapping[str, Score]
    deciding: Cost = field(default_factory=Cost)
    training: Cost = field(default_factory=Cost)
    parameters: int = 0
    latency: float | None = None
    networks: tuple[str, ...] = ()
    honest: bool = True

    @property
    def label(self) -> Label:
        """The method and its budget."""
        return self.method, self.budget

    @property
    def diverged(self) -> bool:
        """Whether a network diverged, or the method could not decide because one had; then some losses are NaN."""
        return any(math.isnan(outcome.loss) for outcome in self.val.values())

    def total(self, part: str = "test") -> float:
        """The sum of raw losses, as in the paper's tables."""
        outcomes: Mapping[str, Score] = getattr(self, part)
        return sum(outcome.loss for outcome in outcomes.values())

    def change(self, other: Record, part: str = "test") -> float:
        """The mean over tasks of the relative change of the loss against another record; negative is better."""
        mine: Mapping[str, Score] = getattr(self, part)
        theirs: Mapping[str, Score] = getattr(other, part)
        return sum(relative(mine[task].loss, theirs[task].loss) for task in mine) / len(mine)


def by_label(records: Sequence[Record]) -> dict[Label, list[Record]]:
    """Groups records by method and budget."""
    found: dict[Label, list[Record]] = {}
    for record in records:
        found.setdefault(record.label, []).append(record)
    return found


@dataclass(frozen=True)
class ProblemInfo:
    """A problem without its data.

    Attributes:
        name: the name of the problem.
        tasks: the names of the tasks.
        kinds: the kind of each task.
        errors: the name of the error measure of each task.
        fingerprint: a hash of the data; empty if unknown.
        rows: the number of rows of each split.
        labels: the number of labels of each task, by split.
        notes: notes on the data to show in a report.

    Example:
        >>> ProblemInfo.from_tasks(["age", "ill"]).tasks
        ('age', 'ill')
    """

    name: str
    tasks: tuple[str, ...]
    kinds: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(problem: Problem) -> ProblemInfo:
        """Returns the description of a problem."""
        return ProblemInfo(
            problem.name,
            problem.names,
            kinds={task.name: task.kind for task in problem.tasks},
            errors={task.name: task.error_name for task in problem.tasks},
            fingerprint=problem.fingerprint,
            rows={part: len(split) for part, split in problem.splits.items()},
            labels={
                part: {name: int(split.labelled(name).sum()) for name in problem.names}
                for part, split in problem.splits.items()
            },
            notes=tuple(problem.notes),
        )

    @staticmethod
    def from_tasks(tasks: Sequence[str], name: str = "own training script") -> ProblemInfo:
        """Returns a problem about which only the tasks are known."""
        names = as_names(tasks)
        raise_problems(task_name_problems(names))
        return ProblemInfo(name, names)

    def to_document(self) -> dict[str, Any]:
        """Returns the description as a JSON document."""
        return asdict(self) | {"tasks": list(self.tasks), "notes": list(self.notes)}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> ProblemInfo:
        """Reads what `to_document` returned."""
        plain = dict(document)
        return ProblemInfo(**plain | {"tasks": tuple(plain["tasks"]), "notes": tuple(plain["notes"])})
