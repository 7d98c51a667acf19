"""Reads scores in any of the accepted forms: an affinity, a square table, group results, or candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, first_few, is_number, raise_problems, task_name_problems

from .selection_problem import Floats
from .solvers import MAX_LISTED


@dataclass(frozen=True, init=False)
class Candidate:
    """A network that may be chosen: the tasks it trains, their results, and its cost.

    Multiple candidates may train the same tasks, for example a full-size and a half-size network for one task.

    Attributes:
        trains: the tasks that the network trains.
        values: the result of each task that the network may serve. Other trained tasks only help.
        cost: the part of the budget that the network uses.

    Example:
        >>> Candidate({"age", "ill"}, {"age": 0.9, "ill": 0.7}, cost=1)
        Candidate({age, ill}, cost=1)
    """

    trains: frozenset[str]
    values: Mapping[str, float]
    cost: float

    def __init__(self, trains: Iterable[str], values: Mapping[str, float], cost: float = 1) -> None:
        if isinstance(trains, str):
            hint = f"write {{{trains!r}}}"
            raise InvalidInput("trains", "must be a collection of names", f"the string {trains!r}", hint)
        names = frozenset(trains)
        untrained = sorted(map(repr, set(values) - names))
        if untrained:
            raise InvalidInput("values", "must contain results only for tasks in `trains`", ", ".join(untrained))
        object.__setattr__(self, "trains", names)
        object.__setattr__(self, "values", MappingProxyType(dict(values)))
        object.__setattr__(self, "cost", cost)

    def __repr__(self) -> str:
        return f"Candidate({{{', '.join(sorted(map(str, self.trains)))}}}, cost={self.cost:g})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Candidate, (self.trains, dict(self.values), self.cost)  # read-only mappings cannot be pickled

    def __hash__(self) -> int:
        return hash((self.trains, tuple(sorted(self.values.items())), self.cost))


Complete = Literal["pairs"] | None


@dataclass(frozen=True)
class Scores:
    """Scores of tasks in networks, neither scaled nor weighted.

    Attributes:
        tasks: the task names, in alphabetical order.
        matrix: the pairwise scores [source, target], if the scores in a group are means over pairs.
        given: results of entire groups, which take precedence over those means.
        candidates: the only networks that exist, if they are listed. A cost of NaN stands for `cost`, which is 1 by
            default.
        singles: whether single-task networks are allowed by default.
        own_costs: whether every network has its own cost, in which case `cost` is not needed.
    """

    tasks: tuple[str, ...]
    matrix: Floats | None = None
    given: Mapping[frozenset[str], Mapping[str, float]] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] | None = None
    singles: bool = False
    own_costs: bool = False

    def score_of(self, task: str, trains: frozenset[str]) -> float:
        """Returns the score of a task in a network that trains the given tasks. NaN if it is unknown."""
        if trains in self.given and task in self.given[trains]:
            return float(self.given[trains][task])
        if self.matrix is None:
            return float("nan")
        target = self._index[task]
        sources = sorted(self._index[name] for name in trains if name != task) or [target]
        return float(_means(self.matrix[sources, target]))

    def largest(self, singles: bool) -> Floats:
        """Returns the largest absolute score of each task, including single-task scores if these are allowed."""
        if self.matrix is None:
            return self._largest_result
        n = len(self.tasks)
        used = np.isfinite(self.matrix) & (~np.eye(n, dtype=bool) | singles | (n == 1))
        most: Floats = np.abs(np.where(used, self.matrix, 0.0)).max(axis=0)
        return np.maximum(most, self._largest_result)

    @cached_property
    def _largest_result(self) -> Floats:
        """The largest absolute result of each task over entire groups."""
        most = dict.fromkeys(self.tasks, 0.0)
        for values in (
            [entry.values for entry in self.candidates] if self.candidates is not None else self.given.values()
        ):
            for task, value in values.items():
                most[task] = max(most[task], abs(value))
        return np.array(list(most.values()), dtype=np.float64)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {task: i for i, task in enumerate(self.tasks)}


def read_scores(scores: Any, complete: Complete, costs: bool = False) -> Scores:
    """Reads scores in any form that `select_groups` accepts.

    Args:
        scores: see `select_groups`.
        complete: see `select_groups`.
        costs: whether `cost` was also passed to `select_groups`.
    """
    if complete is not None and not (isinstance(complete, str) and complete == "pairs"):
        raise InvalidInput("complete", "must be 'pairs' or None", repr(complete))
    if isinstance(scores, Affinity):
        return _from_matrix(scores.mean, scores.tasks, bool(scores.settings.get("held_out")))
    if isinstance(scores, Mapping):
        return _from_table(scores, complete)
    if isinstance(scores, (list, tuple)) and any(isinstance(entry, Candidate) for entry in scores):
        listed = _from_candidates(scores)
        return _complete_candidates(listed, costs) if complete == "pairs" else replace(listed, own_costs=True)
    if hasattr(scores, "columns") and hasattr(scores, "index") and hasattr(scores, "to_numpy"):
        return _from_frame(scores)
    return _from_array(scores)


def _from_matrix(matrix: Floats, tasks: tuple[str, ...], singles: bool = False) -> Scores:
    order = sorted(range(len(tasks)), key=tasks.__getitem__)
    return Scores(tuple(tasks[i] for i in order), np.array(matrix)[np.ix_(order, order)], singles=singles)


def _from_array(scores: Any) -> Scores:
    try:
        matrix = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError):
        expected = "must be an Affinity, a square table, a mapping from groups to results or a list of Candidates"
        raise InvalidInput("scores", expected, f"{type(scores).__name__} with non-numeric values") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        found = f"shape {matrix.shape}"
        raise InvalidInput("scores", "must be square, with one row and one column per task", found)
    return _from_matrix(matrix, tuple(map(str, range(len(matrix)))))


def _from_frame(frame: Any) -> Scores:
    columns, rows = tuple(map(str, frame.columns)), tuple(map(str, frame.index))
    problems = task_name_problems(columns, "`scores`: column names") + task_name_problems(rows, "`scores`: row names")
    if set(columns) != set(rows):
        apart = ", ".join(map(repr, sorted(set(columns) ^ set(rows))))
        expected = "must have the same tasks in rows and columns"
        problems.append(InvalidInput("scores", expected, f"{apart} in only one of them"))
    raise_problems(problems)
    try:
        matrix = np.asarray(frame.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("scores", "must contain only numbers", str(error)) from None
    return _from_matrix(matrix[[rows.index(name) for name in columns]], columns)


def _from_candidates(scores: Any) -> Scores:
    others = [entry for entry in scores if not isinstance(entry, Candidate)]
    if others:
        raise InvalidInput("scores", "must contain only Candidates", type(others[0]).__name__)
    problems = [problem for entry in scores for problem in _candidate_problems(entry)]
    tasks = frozenset().union(*(entry.trains for entry in scores))
    unserved = tasks - frozenset().union(*(entry.values for entry in scores))
    if not problems:
        problems = task_name_problems(tuple(tasks))
    if unserved and not problems:
        names = ", ".join(map(repr, sorted(unserved)))
        hint = "add a network with a result for each of them"
        problems.append(InvalidInput("scores", "must serve every task", f"no result for {names}", hint))
    raise_problems(problems)
    return Scores(
        tuple(sorted(tasks)), candidates=tuple(scores), singles=any(len(entry.trains) == 1 for entry in scores)
    )


def _candidate_problems(entry: Candidate) -> list[InvalidInput]:
    problems, name = [], group_name(entry.trains)
    if not entry.trains:
        problems.append(_problem("a network must train at least one task", "none"))
    if not is_number(entry.cost) or entry.cost <= 0:
        problems.append(_problem(f"the cost of {name} must be a positive number", repr(entry.cost)))
    problems += [
        _problem(f"the result of {task!r} in {name} must be a finite number", repr(value))
        for task, value in entry.values.items()
        if not is_number(value)
    ]
    return problems


def _problem(expected: str, found: str) -> InvalidInput:
    return InvalidInput("`scores`:", expected, found)


def _from_table(table: Mapping[Any, Any], complete: Complete) -> Scores:
    groups: dict[frozenset[str], dict[str, float]] = {}
    problems = []
    for key, values in table.items():
        if isinstance(key, str) or not isinstance(key, (frozenset, tuple)):
            problems.append(_problem("a group must be a frozenset or tuple of names", repr(key)))
        elif not isinstance(values, Mapping):
            problems.append(
                _problem(f"the results of {group_name(key)} must be a mapping {{task: value}}", repr(values))
            )
        elif set(values) - set(key):
            extra = ", ".join(map(repr, sorted(set(values) - set(key), key=repr)))
            problems.append(_problem(f"the results of {group_name(key)} must include only its own tasks", extra))
        elif frozenset(key) in groups or len(set(key)) < len(key):
            expected = "each group must be listed once and contain each task once"
            problems.append(_problem(expected, f"{group_name(key)} repeated"))
        else:
            groups[frozenset(key)] = dict(values)
    if not table:
        problems.append(InvalidInput("scores", "must contain at least one group", "none"))
    raise_problems(problems)
    scores = _from_candidates([Candidate(group, values) for group, values in groups.items()])
    listed = tuple(Candidate(group, values, math.nan) for group, values in groups.items())
    results = replace(scores, given=groups, candidates=listed)
    return _complete_table(results) if complete == "pairs" else results


def _complete_table(scores: Scores) -> Scores:
    """Adds groups of three or more tasks, with results computed from pairs as in HOA. Given results are kept."""
    matrix = _pair_matrix(scores.tasks, scores.candidates or ())
    _require_all_pairs(scores.tasks, matrix)
    larger = {group: values for group, values in scores.given.items() if len(group) > 2}
    return Scores(scores.tasks, matrix, larger, singles=scores.singles)


def _complete_candidates(scores: Scores, costs: bool) -> Scores:
    """Adds groups of three or more tasks, with results computed from pairs as in HOA. Given results and costs are kept.

    With `cost`, every pair must be listed once, and `cost` applies to the added groups. Without it, added groups cost
    the same as the pairs. If all pairs are listed at multiple costs, e.g. for networks of different sizes, each size is
    completed separately.
    """
    names, listed = scores.tasks, scores.candidates or ()
    if len(names) < 3:
        return scores
    if len(names) > MAX_LISTED:
        limit = f"supports at most {MAX_LISTED} tasks if networks have their own costs"
        hint = "omit some tasks, or pass `cost` and results without costs"
        raise InvalidInput("`complete='pairs'`", limit, str(len(names)), hint)
    sizes = [math.nan] if costs else sorted({entry.cost for entry in listed if len(entry.trains) == 2})
    pairs = {size: _pair_matrix(names, [entry for entry in listed if _has_cost(size, entry)]) for size in sizes}
    complete_sizes = {size: matrix for size, matrix in pairs.items() if not _missing_pairs(names, matrix)}
    if not complete_sizes:
        _require_all_pairs(names, np.fmax.reduce([*pairs.values(), np.full((len(names), len(names)), np.nan)]))
        expected = "requires `cost` unless all pairs have the same cost"
        raise InvalidInput("`complete='pairs'`", expected, f"pairs that cost {sizes[0]:g} to {sizes[-1]:g}")
    for size, matrix in complete_sizes.items():
        larger = _larger_groups(names, matrix)
        listed = _with_larger(listed, larger, size, listed_at=size if len(complete_sizes) > 1 else math.nan)
    return replace(scores, candidates=listed)


def _with_larger(
    listed: Sequence[Candidate], larger: Mapping[frozenset[str], dict[str, float]], cost: float, listed_at: float
) -> tuple[Candidate, ...]:
    """Returns the listed networks, with missing results filled in, followed by the added ones.

    Only networks whose cost is `listed_at` are filled in (all if it is NaN). The added ones have the cost `cost`.
    """
    found, known = [], set()
    for entry in listed:
        if entry.trains in larger and _has_cost(listed_at, entry):
            known.add(entry.trains)
            found.append(Candidate(entry.trains, larger[entry.trains] | dict(entry.values), entry.cost))
        else:
            found.append(entry)
    found += [Candidate(group, means, cost) for group, means in larger.items() if group not in known]
    return tuple(found)


def _larger_groups(names: tuple[str, ...], matrix: Floats) -> dict[frozenset[str], dict[str, float]]:
    """Returns all groups of three or more tasks, in order of size, with task scores as means over pairs."""
    found = {}
    for size in range(3, len(names) + 1):
        groups = np.array(list(combinations(range(len(names)), size)))
        others = np.array([np.delete(np.arange(size), place) for place in range(size)])
        means = _means(matrix[groups[:, others], groups[:, :, None]])
        for group, scores in zip(groups.tolist(), means.tolist(), strict=True):
            tasks = [names[i] for i in group]
            found[frozenset(tasks)] = dict(zip(tasks, scores, strict=True))
    return found


def _means(values: Floats) -> Floats:
    """Returns means over the last axis, with scaling to prevent overflow and underflow of sums."""
    values = np.ascontiguousarray(values)  # makes the order of summation independent of the strides
    power = np.frexp(np.abs(values).max(axis=-1))[1]
    means: Floats = np.ldexp(np.ldexp(values, -power[..., None]).mean(axis=-1), power)
    return means


def _has_cost(size: float, entry: Candidate) -> bool:
    """Returns whether a network has the given cost. NaN matches any cost."""
    return math.isnan(size) or entry.cost == size


def _pair_matrix(names: tuple[str, ...], listed: Iterable[Candidate]) -> Floats:
    """Returns the results of pairs [source, target], with single tasks on the diagonal. NaN where there is none."""
    place = {name: i for i, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    for entry in listed:
        for task, value in entry.values.items() if len(entry.trains) <= 2 else ():
            (source,) = entry.trains - {task} or {task}
            if source != task and not np.isnan(matrix[place[source], place[task]]):
                found = f"{task!r} in {group_name(entry.trains)} more than once"
                hint = "if networks differ in size, list a cost for each of them and omit `cost`"
                raise InvalidInput("`complete='pairs'`", "requires exactly one result per pair", found, hint)
            matrix[place[source], place[task]] = value
    return matrix


def _missing_pairs(names: tuple[str, ...], matrix: Floats) -> list[str]:
    return [
        f"{one!r} in {group_name({one, other})}"
        for target, one in enumerate(names)
        for source, other in enumerate(names)
        if source != target and np.isnan(matrix[source, target])
    ]


def _require_all_pairs(names: tuple[str, ...], matrix: Floats) -> None:
    missing = _missing_pairs(names, matrix)
    if missing:
        raise InvalidInput("`complete='pairs'`", "requires the results of all pairs", f"none for {first_few(missing)}")


def group_name(group: Any) -> str:
    """Formats a group for messages."""
    return "{" + ", ".join(sorted(map(str, group))) + "}"
