"""Records with the scores of a method for one budget and seed, and a description of the problem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tagalong.documents import NumberOrNull
from tagalong.errors import as_names, raise_problems, task_name_problems
from tagalong.group import Group, Taught
from tagalong.score import Score

if TYPE_CHECKING:
    from tagalong.learn import Problem

Label = tuple[str, int | None]  # a method and its budget
TOGETHER: Label = ("mtl", None)  # the baseline of every comparison


@dataclass(frozen=True)
class Cost:
    """The cost of training or measuring.

    Attributes:
        networks: the number of trained networks.
        steps: the total number of optimizer steps. A step with a measurement counts as the number of plain steps that
            cost the same, and so does a step of a TabM network that a problem has as an alternative.
        seconds: the training time in seconds.
    """

    networks: int = 0
    steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.networks + other.networks, self.steps + other.steps, self.seconds + other.seconds)


@dataclass(frozen=True)
class Record:
    """The result of a method for one budget and seed.

    Attributes:
        method: the name of the method, e.g. "tag" or "tag+pcgrad".
        budget: the maximum number of networks, or None for methods without a budget (mtl, stl, uw, …).
        seed: the seed of the networks.
        groups: the tasks that each network is trained on and serves, or an empty tuple if the scores are averages over
            many groupings.
        val: each task's validation score, from the network that serves it, or from the average of the networks that
            serve it.
        test: each task's test score, from the same networks.
        deciding: the cost of choosing the groups, which is shared by all budgets.
        training: the cost of training the groups.
        parameters: the total number of parameters in all networks.
        latency: the duration in seconds of a forward pass through all networks in sequence, or None if not measured.
        networks: the store keys of the networks, one per group.
        honest: whether the groups were chosen without test data (False for the oracle).
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
        """Whether a network diverged or the method could not decide because of a diverged network.

        In that case, some losses are NaN.
        """
        return any(math.isnan(score.loss) for scores in (self.val, self.test) for score in scores.values())

    def total(self, part: str = "test") -> float:
        """The sum of raw losses, as in the paper's tables."""
        outcomes: Mapping[str, Score] = getattr(self, part)
        return sum(outcome.loss for outcome in outcomes.values())


@dataclass(frozen=True)
class SkillScale:
    """What turns mean losses into skills: (loss of the constant − loss) / unit.

    Attributes:
        constants: the mean loss of each task's constant on the rows of "val" and "test".
        units: the loss of each task's constant on all rows.
        weights: the weight of each task in means. Other tasks are only reported.
        relative: the tasks without a constant, which are compared with the loss of the reference instead.
        folds: the scale of each fold, or an empty tuple if there is one split. Fold i of n has the seeds i, i + n, …
    """

    constants: Mapping[str, Mapping[str, NumberOrNull]]
    units: Mapping[str, float]
    weights: Mapping[str, float]
    relative: tuple[str, ...] = ()
    folds: tuple[SkillScale, ...] = ()

    def skills(self, record: Record, part: str = "test") -> dict[str, float]:
        """Returns the skill of each task, or NaN if the task has no labels."""
        if self.folds:
            return self.folds[record.seed % len(self.folds)].skills(record, part)
        losses = {task: score.loss for task, score in getattr(record, part).items()}
        return {task: (self.constants[part][task] - losses[task]) / unit for task, unit in self.units.items()}

    def mean(self, record: Record, part: str = "test") -> float:
        """Returns the mean over tasks of their skills, each of which counts as at least −1; NaN if one diverged.

        Tasks without labels in this part are left out.
        """
        skills = {task: skill for task, skill in self.skills(record, part).items() if not math.isnan(skill)}
        labelled = [task for task in self.weights if task in skills]
        total = sum(self.weights[task] for task in labelled)
        if not total or record.diverged:
            return math.nan
        return sum(self.weights[task] * max(skills[task], -1.0) for task in labelled) / total


def by_label(records: Sequence[Record]) -> dict[Label, list[Record]]:
    """Groups records by method and budget."""
    found: dict[Label, list[Record]] = {}
    for record in records:
        found.setdefault(record.label, []).append(record)
    return found


@dataclass(frozen=True)
class ProblemInfo:
    """A description of a problem, without its data.

    Attributes:
        name: the name of the problem.
        tasks: the names of the tasks.
        kinds: the kind of each task.
        errors: the name of each task's error metric.
        fingerprint: a hash of the data, or an empty string if unknown.
        rows: the number of rows in each split.
        labels: the number of labels for each task, by split.
        notes: notes about the data, shown in reports.

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
        splits = {part: split for part, split in problem.splits.items() if len(split)}
        if not splits:  # only the losses of networks are known
            return ProblemInfo.from_tasks(problem.names, problem.name)
        return ProblemInfo(
            problem.name,
            problem.names,
            kinds={task.name: task.kind for task in problem.tasks},
            errors={task.name: task.error_name for task in problem.tasks},
            fingerprint=problem.fingerprint,
            rows={part: len(split) for part, split in splits.items()},
            labels={
                part: {name: int(split.labelled(name).sum()) for name in problem.names}
                for part, split in splits.items()
            },
            notes=tuple(problem.notes),
        )

    @staticmethod
    def from_tasks(tasks: Sequence[str], name: str = "own training script") -> ProblemInfo:
        """Returns the description of a problem for which only the tasks are known."""
        names = as_names(tasks)
        raise_problems(task_name_problems(names))
        return ProblemInfo(name, names)


def averaged_tasks(groups: Iterable[Group]) -> frozenset[str]:
    """Returns the tasks that several networks serve, whose answers are averaged.

    Example:
        >>> sorted(averaged_tasks([Group({"age", "ill"}, {"age", "ill"}), Group({"age"}, {"age"})]))
        ['age']
    """
    served = Counter(task for group in groups for task in group.serves)
    return frozenset(task for task, networks in served.items() if networks > 1)


def network_key(group: Group) -> tuple[frozenset[str], int, Taught | None, int, str | None, str]:
    """Returns what tells the network of a group from others of the same record, whichever tasks it serves."""
    return group.trains, group.copy, group.taught, group.size, group.network, group.rule


def check_served(groups: Sequence[Group], tasks: Collection[str]) -> None:
    """Checks that networks serve every task, and that no network is averaged with itself."""
    if {task for group in groups for task in group.serves} != set(tasks):
        raise ValueError("groups must serve every task")
    served = [(task, network_key(group)) for group in groups for task in group.serves]
    if len(set(served)) < len(served):
        raise ValueError("groups must serve a task by different networks or copies")


def label_key(label: Label) -> str:
    """Formats a method and budget as a single word, e.g. "tag:2"."""
    method, budget = label
    return method if budget is None else f"{method}:{budget}"
