"""What was measured, read from whatever it comes in: an affinity, a square table, results of groups, candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tagalong._names import name_problems, refuse
from tagalong.affinity import Affinity

from ._candidate import Candidate
from ._problem import Floats

Complete = Literal["pairs"] | None


@dataclass(frozen=True)
class Scores:
    """Scores of tasks in networks, as given: not scaled, not weighted.

    Attributes:
        tasks: in alphabetical order.
        matrix: [source, target], if a group's scores are means over pairs.
        given: results of whole groups that win over those means.
        listed: the only networks there are, if they are listed.
        singles: whether networks of one task are allowed unless the user says otherwise.
    """

    tasks: tuple[str, ...]
    matrix: Floats | None = None
    given: Mapping[frozenset[str], Mapping[str, float]] = field(default_factory=dict)
    listed: tuple[Candidate, ...] | None = None
    singles: bool = False

    def of(self, task: str, trains: frozenset[str]) -> float:
        """The score of a task in a network that trains these tasks; NaN if that is not known."""
        if trains in self.given and task in self.given[trains]:
            return float(self.given[trains][task])
        if self.matrix is None:
            return float("nan")
        target = self._place[task]
        sources = [self._place[name] for name in trains if name != task] or [target]
        return float(self.matrix[sources, target].mean())

    @cached_property
    def _place(self) -> dict[str, int]:
        return {task: i for i, task in enumerate(self.tasks)}

    def with_matrix(self, matrix: Floats) -> Scores:
        """The same tasks with other values."""
        return replace(self, matrix=matrix)


def read_scores(scores: Any, complete: Complete) -> Scores:
    """Reads any of the forms that `select_groups` takes."""
    if complete not in (None, "pairs"):
        raise ValueError(f"`complete` must be 'pairs' or None, found {complete!r}")
    if isinstance(scores, Affinity):
        return _sorted(scores.mean, scores.tasks, bool(scores.settings.get("held_out")))
    if isinstance(scores, Mapping):
        return _of_table(scores, complete)
    if isinstance(scores, (list, tuple)) and any(isinstance(entry, Candidate) for entry in scores):
        return _of_candidates(scores)
    if hasattr(scores, "columns") and hasattr(scores, "index") and hasattr(scores, "to_numpy"):
        return _of_frame(scores)
    return _of_array(scores)


def _sorted(matrix: Floats, tasks: tuple[str, ...], singles: bool = False) -> Scores:
    order = sorted(range(len(tasks)), key=tasks.__getitem__)
    return Scores(tuple(tasks[i] for i in order), np.array(matrix)[np.ix_(order, order)], singles=singles)


def _of_array(scores: Any) -> Scores:
    try:
        matrix = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError):
        expected = "an Affinity, a square table, a mapping from groups to results or a list of Candidates"
        raise ValueError(f"`scores` must be {expected}, found {type(scores).__name__} that holds no numbers") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"`scores` must be square, one row and column per task, found the shape {matrix.shape}")
    return _sorted(matrix, tuple(map(str, range(len(matrix)))))


def _of_frame(frame: Any) -> Scores:
    columns, rows = tuple(map(str, frame.columns)), tuple(map(str, frame.index))
    problems = name_problems(columns, "`scores`: column names") + name_problems(rows, "`scores`: row names")
    if set(columns) != set(rows):
        apart = ", ".join(map(repr, sorted(set(columns) ^ set(rows))))
        problems.append(f"`scores` must name the same tasks in rows and columns, found only in one of them: {apart}")
    refuse(problems)
    try:
        matrix = np.asarray(frame.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`scores` must hold numbers, found {error}") from None
    return _sorted(matrix[[rows.index(name) for name in columns]], columns)


def _of_candidates(scores: Any) -> Scores:
    strange = [entry for entry in scores if not isinstance(entry, Candidate)]
    if strange:
        raise ValueError(f"`scores` must be Candidates throughout, found {type(strange[0]).__name__}")
    problems = [problem for entry in scores for problem in _candidate_problems(entry)]
    tasks = frozenset().union(*(entry.trains for entry in scores))
    unserved = tasks - frozenset().union(*(entry.values for entry in scores))
    if not problems:
        problems = name_problems(tuple(tasks))
    if unserved and not problems:
        names = ", ".join(map(repr, sorted(unserved)))
        problems.append(f"`scores` must serve every task, found no result for {names}; add a network that has one")
    refuse(problems)
    return Scores(tuple(sorted(tasks)), listed=tuple(scores), singles=any(len(entry.trains) == 1 for entry in scores))


def _candidate_problems(entry: Candidate) -> list[str]:
    problems = []
    if not entry.trains:
        problems.append("`scores`: a network must train at least one task, found none")
    if not _is_finite(entry.cost) or entry.cost <= 0:
        problems.append(f"`scores`: the cost of {_named(entry.trains)} must be a positive number, found {entry.cost!r}")
    problems += [
        f"`scores`: the result of {task!r} in {_named(entry.trains)} must be a finite number, found {value!r}"
        for task, value in entry.values.items()
        if not _is_finite(value)
    ]
    return problems


def _of_table(table: Mapping[Any, Any], complete: Complete) -> Scores:
    groups: dict[frozenset[str], dict[str, float]] = {}
    problems = []
    for key, values in table.items():
        if isinstance(key, str) or not isinstance(key, (frozenset, tuple)):
            problems.append(f"`scores`: a group must be a frozenset or tuple of names, found {key!r}")
        elif not isinstance(values, Mapping):
            problems.append(f"`scores`: the results of {_named(key)} must be {{task: value}}, found {values!r}")
        elif set(values) - set(key):
            extra = ", ".join(map(repr, sorted(set(values) - set(key), key=repr)))
            problems.append(f"`scores`: the results of {_named(key)} must be of its tasks, found {extra}")
        elif frozenset(key) in groups or len(set(key)) < len(key):
            problems.append(f"`scores`: a group must be given once and name each task once, found {_named(key)} again")
        else:
            groups[frozenset(key)] = dict(values)
    if not table:
        problems.append("`scores` must hold at least one group, found none")
    refuse(problems)
    scores = _of_candidates([Candidate(group, values) for group, values in groups.items()])
    listed = replace(scores, given=groups)
    return _completed(listed) if complete == "pairs" else listed


def _completed(scores: Scores) -> Scores:
    """Groups of three and more from pairs, as HOA does; given results stay."""
    names = scores.tasks
    matrix = np.full((len(names), len(names)), np.nan)
    missing = []
    for target, one in enumerate(names):
        for source, other in enumerate(names):
            pair = frozenset({one, other})
            matrix[source, target] = scores.given.get(pair, {}).get(one, np.nan)
            if source != target and np.isnan(matrix[source, target]):
                missing.append(f"{one!r} in {_named(pair)}")
    if missing:
        some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ValueError(f"`complete='pairs'` needs the results of all pairs, found none of {some}")
    larger = {group: values for group, values in scores.given.items() if len(group) > 2}
    return Scores(names, matrix, larger, singles=scores.singles)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and bool(np.isfinite(value))


def _named(group: Any) -> str:
    return "{" + ", ".join(sorted(map(str, group))) + "}"
