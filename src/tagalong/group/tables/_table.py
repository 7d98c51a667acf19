"""Scores from a file, and what kind they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tagalong._names import counted, name_problems, refuse
from tagalong.affinity import Affinity

from .._candidate import Candidate


@dataclass(frozen=True)
class ScoreTable:
    """What `select_groups` takes, with the kind of table it came from.

    Attributes:
        kind: "affinity" (saved by tagalong), "square" (a plain square table), "results" (of groups) or
            "candidates" (results with costs).
        tasks: names, as the file orders them.
        scores: for `select_groups`.
        axis: what the rows of a square table were.
    """

    kind: Literal["affinity", "square", "results", "candidates"]
    tasks: tuple[str, ...]
    scores: Any
    axis: Literal["source", "target"] = "source"

    @property
    def has_singles(self) -> bool:
        """Whether the diagonal of a square table holds anything: single-task results, if the rest are pairs."""
        return isinstance(self.scores, Affinity) and bool(np.isfinite(np.diag(self.scores.mean)).any())

    def only(self, tasks: Iterable[str]) -> ScoreTable:
        """These tasks alone: their part of a square table, or the groups among them."""
        names = tuple(tasks)
        problems = name_problems(names)
        unknown = [task for task in names if task not in self.tasks]
        if unknown:
            known = ", ".join(map(repr, self.tasks))
            problems.append(f"`tasks` must be among {known}, found {', '.join(map(repr, unknown))}")
        refuse(problems)
        return replace(self, tasks=names, scores=_part(self.scores, names))

    def __str__(self) -> str:
        tasks = counted(len(self.tasks), "task")
        if self.kind == "candidates":
            return f"{counted(len(self.scores), 'network')} with their costs for {tasks}"
        if self.kind == "results":
            return f"results of {counted(len(self.scores), 'group')} of {tasks}"
        way = "row helps column" if self.axis == "source" else "column helps row"
        steps = len(self.scores.steps)
        over = f" over {counted(steps, 'measured step')}" if steps else ""
        return f"{'affinity' if self.kind == 'affinity' else 'square table'} of {tasks}{over}, {way}"


def _part(scores: Any, tasks: tuple[str, ...]) -> Any:
    if isinstance(scores, Affinity):
        return scores.only(tasks)
    inside = set(tasks)
    if isinstance(scores, Mapping):
        kept: Any = {group: values for group, values in scores.items() if group <= inside}
    else:
        kept = [entry for entry in scores if isinstance(entry, Candidate) and entry.trains <= inside]
    if not kept:
        raise ValueError(f"`tasks` must leave a group, found none among {', '.join(map(repr, tasks))}")
    return kept
