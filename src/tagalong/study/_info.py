"""What results need to know of the problem, without its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tagalong._names import name_problems, named, refuse

if TYPE_CHECKING:
    from tagalong.learn import Problem


@dataclass(frozen=True)
class ProblemInfo:
    """A problem without its data.

    Attributes:
        name: of the problem.
        tasks: their names.
        kinds: of each task.
        errors: what the error of each task is called.
        fingerprint: of the data; empty if unknown.
        rows: of each split.
        labels: how many rows have a label of each task, by split.
        notes: what a report should say about the data.

    Example:
        >>> ProblemInfo.named(["age", "ill"]).tasks
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
        """What there is to know of a problem."""
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
    def named(tasks: Sequence[str], name: str = "own training script") -> ProblemInfo:
        """A problem of which only the tasks are known."""
        names = named(tasks)
        refuse(name_problems(names))
        return ProblemInfo(name, names)

    def to_document(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self) | {"tasks": list(self.tasks), "notes": list(self.notes)}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> ProblemInfo:
        """Reads what `to_document` gave."""
        plain = dict(document)
        return ProblemInfo(**plain | {"tasks": tuple(plain["tasks"]), "notes": tuple(plain["notes"])})
