"""Reads scores given as an affinity, a square table, group results, or candidates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, first_few, is_number, raise_problems, task_name_problems

from .completion import Completion, complete_pairs
from .selection_problem import Floats
from .solvers import MAX_LISTED


@dataclass(frozen=True, init=False)
class Candidate:
    """A network that may be chosen, with its tasks, their results, and its cost.

    Several candidates may have the same tasks, for example a full-size and a half-size network.

    Attributes:
        trains: the tasks on which the network is trained.
        values: the result of each task that the network may serve. The other tasks only help.
        cost: the amount of the budget that the network uses.

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
    """The scores of tasks in networks, before scaling and weighting.

    Attributes:
        tasks: the task names, in alphabetical order.
        matrix: the pairwise scores [source, target]. The score of a task in a group is a mean over pairs.
        given: the results of entire groups, which take precedence over `matrix`.
        candidates: the networks that may be chosen, or None if there is no such list. A cost of NaN means that the
            `cost` option applies.
        singles: whether single-task networks are allowed by default.
        own_costs: whether every network has its own cost, so the `cost` option is not needed.
        completion: the predictions for pairs that were never measured, or None if all pairs were. `matrix` contains
            the predictions.
        unplaced: the tasks that were left out because none of their pairs was measured.
    """

    tasks: tuple[str, ...]
    matrix: Floats | None = None
    given: Mapping[frozenset[str], Mapping[str, float]] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] | None = None
    singles: bool = False
    own_costs: bool = False
    completion: Completion | None = None
    unplaced: tuple[str, ...] = ()

    @property
    def unmeasured(self) -> float:
        """The fraction of pairs whose score was predicted because they were never measured."""
        return 0.0 if self.completion is None else self.completion.unmeasured

    def score_of(self, task: str, trains: frozenset[str]) -> float:
        """Returns the score of a task in a network trained on the given tasks, or NaN if it is unknown."""
        if trains in self.given and task in self.given[trains]:
            return float(self.given[trains][task])
        if self.matrix is None:
            return float("nan")
        target = self._task_index[task]
        sources = sorted(self._task_index[name] for name in trains if name != task) or [target]
        return float(_scaled_means(self.matrix[sources, target]))

    def max_abs_scores(self, include_single: bool) -> Floats:
        """Returns the largest absolute score of each task, including single-task scores if they are allowed."""
        if self.matrix is None:
            return self._max_abs_results
        n = len(self.tasks)
        used = np.isfinite(self.matrix) & (~np.eye(n, dtype=bool) | include_single | (n == 1))
        most: Floats = np.abs(np.where(used, self.matrix, 0.0)).max(axis=0)
        return np.maximum(most, self._max_abs_results)

    @cached_property
    def _max_abs_results(self) -> Floats:
        """The largest absolute result of each task in any listed group."""
        most = dict.fromkeys(self.tasks, 0.0)
        for values in (
            [entry.values for entry in self.candidates] if self.candidates is not None else self.given.values()
        ):
            for task, value in values.items():
                most[task] = max(most[task], abs(value))
        return np.array(list(most.values()), dtype=np.float64)

    @cached_property
    def _task_index(self) -> dict[str, int]:
        return {task: i for i, task in enumerate(self.tasks)}


def read_scores(scores: Any, complete: Complete, has_costs: bool = False, place_unmeasured: bool = False) -> Scores:
    """Reads scores in any form that `select_groups` accepts.

    Args:
        scores: see `select_groups`.
        complete: see `select_groups`.
        has_costs: whether the `cost` option was passed to `select_groups`.
        place_unmeasured: see `select_groups`.
    """
    if complete is not None and not (isinstance(complete, str) and complete == "pairs"):
        raise InvalidInput("complete", "must be 'pairs' or None", repr(complete))
    if isinstance(scores, Affinity):
        return _from_matrix(scores.mean, scores.tasks, place_unmeasured, bool(scores.settings.get("held_out")))
    if isinstance(scores, Mapping):
        return _from_table(scores, complete)
    if isinstance(scores, (list, tuple)) and any(isinstance(entry, Candidate) for entry in scores):
        listed = _from_candidates(scores)
        return _complete_candidates(listed, has_costs) if complete == "pairs" else replace(listed, own_costs=True)
    if hasattr(scores, "columns") and hasattr(scores, "index") and hasattr(scores, "to_numpy"):
        return _from_frame(scores, place_unmeasured)
    return _from_array(scores, place_unmeasured)


def _from_matrix(matrix: Floats, tasks: tuple[str, ...], place_unmeasured: bool, allow_single: bool = False) -> Scores:
    measured = ~np.isnan(matrix) & ~np.eye(len(tasks), dtype=bool)
    has_pair = np.asarray((measured | measured.T).any(axis=0))
    unplaced: tuple[str, ...] = ()
    if has_pair.any() and not place_unmeasured:
        unplaced = tuple(sorted(tasks[i] for i in np.flatnonzero(~has_pair)))
    if unplaced:
        warnings.warn(
            f"no pair was measured for {first_few([repr(task) for task in unplaced])}; "
            "no network serves them, unless place_unmeasured=True",
            stacklevel=2,
        )
    order = sorted((i for i, task in enumerate(tasks) if task not in unplaced), key=tasks.__getitem__)
    sorted_matrix = np.array(matrix)[np.ix_(order, order)]
    completion = complete_pairs(sorted_matrix)
    return Scores(
        tuple(tasks[i] for i in order),
        sorted_matrix if completion is None else completion.matrix,
        singles=allow_single and not np.isnan(np.diagonal(sorted_matrix)).any(),
        completion=completion,
        unplaced=unplaced,
    )


def _from_array(scores: Any, place_unmeasured: bool) -> Scores:
    try:
        matrix = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError):
        expected = "must be an Affinity, a square table, a mapping from groups to results, or a list of Candidates"
        raise InvalidInput("scores", expected, f"{type(scores).__name__} with non-numeric values") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        found = f"shape {matrix.shape}"
        raise InvalidInput("scores", "must be square, with one row and one column per task", found)
    return _from_matrix(matrix, tuple(map(str, range(len(matrix)))), place_unmeasured)


def _from_frame(frame: Any, place_unmeasured: bool) -> Scores:
    columns, rows = tuple(map(str, frame.columns)), tuple(map(str, frame.index))
    problems = task_name_problems(columns, "`scores`: column names") + task_name_problems(rows, "`scores`: row names")
    if set(columns) != set(rows):
        apart = ", ".join(map(repr, sorted(set(columns) ^ set(rows))))
        expected = "must have the same tasks in rows and columns"
        problems.append(InvalidInput("scores", expected, f"{apart} in only one of them"))
    raise_problems(problems)
    try:
        values = frame.to_numpy(dtype=object) if hasattr(frame, "isna") else np.asarray(frame.to_numpy(), dtype=object)
        missing = frame.isna() if hasattr(frame, "isna") else np.zeros(values.shape, dtype=bool)
        matrix = np.where(missing, np.nan, values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("scores", "must contain only numbers", str(error)) from None
    return _from_matrix(matrix[[rows.index(name) for name in columns]], columns, place_unmeasured)


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
        hint = "add a network with a result for each of these tasks"
        problems.append(InvalidInput("scores", "must have a result for every task", f"none for {names}", hint))
    raise_problems(problems)
    return Scores(
        tuple(sorted(tasks)), candidates=tuple(scores), singles=any(len(entry.trains) == 1 for entry in scores)
    )


def _candidate_problems(entry: Candidate) -> list[InvalidInput]:
    problems, name = [], group_name(entry.trains)
    if not entry.trains:
        problems.append(_score_problem("each network must train at least one task", "none"))
    if not is_number(entry.cost) or entry.cost <= 0:
        problems.append(_score_problem(f"the cost of {name} must be a positive number", repr(entry.cost)))
    problems += [
        _score_problem(f"the result of {task!r} in {name} must be a finite number", repr(value))
        for task, value in entry.values.items()
        if not is_number(value)
    ]
    return problems


def _score_problem(expected: str, found: str) -> InvalidInput:
    return InvalidInput("`scores`:", expected, found)


def _from_table(table: Mapping[Any, Any], complete: Complete) -> Scores:
    groups: dict[frozenset[str], dict[str, float]] = {}
    problems = []
    for key, values in table.items():
        if isinstance(key, str) or not isinstance(key, (frozenset, tuple)):
            problems.append(_score_problem("a group must be a frozenset or tuple of names", repr(key)))
        elif not isinstance(values, Mapping):
            problems.append(
                _score_problem(f"the results of {group_name(key)} must be a mapping {{task: value}}", repr(values))
            )
        elif set(values) - set(key):
            extra = ", ".join(map(repr, sorted(set(values) - set(key), key=repr)))
            problems.append(
                _score_problem(f"the results of {group_name(key)} must include only tasks in the group", extra)
            )
        elif frozenset(key) in groups or len(set(key)) < len(key):
            expected = "each group must be listed only once and contain each task only once"
            problems.append(_score_problem(expected, f"a duplicate: {group_name(key)}"))
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
    """Adds groups of three or more tasks, with results computed from pairs (as in HOA). Existing results are kept."""
    matrix = _pairwise_results(scores.tasks, scores.candidates or ())
    _require_all_pairs(scores.tasks, matrix)
    larger = {group: values for group, values in scores.given.items() if len(group) > 2}
    return Scores(scores.tasks, matrix, larger, singles=scores.singles)


def _complete_candidates(scores: Scores, has_costs: bool) -> Scores:
    """Adds groups of three or more tasks, with results computed from pairs (as in HOA).

    Existing results and costs are kept.

    If `cost` was passed, every pair must be listed once, and `cost` applies to the added groups. Otherwise, added
    groups cost the same as pairs. If every pair is listed at more than one cost, e.g. for networks of different
    sizes, groups are added at each of those costs.
    """
    names, listed = scores.tasks, scores.candidates or ()
    if len(names) < 3:
        return scores
    if len(names) > MAX_LISTED:
        raise InvalidInput(
            "`complete='pairs'`",
            f"supports at most {MAX_LISTED} tasks if networks have their own costs",
            str(len(names)),
            "omit some tasks, or pass `cost` and results without costs",
        )
    sizes = [math.nan] if has_costs else sorted({entry.cost for entry in listed if len(entry.trains) == 2})
    pairs = {size: _pairwise_results(names, [entry for entry in listed if _has_cost(size, entry)]) for size in sizes}
    complete_sizes = {size: matrix for size, matrix in pairs.items() if not _missing_pairs(names, matrix)}
    if not complete_sizes:
        _require_all_pairs(names, np.fmax.reduce([*pairs.values(), np.full((len(names), len(names)), np.nan)]))
        expected = "requires `cost` unless all pairs have the same cost"
        raise InvalidInput("`complete='pairs'`", expected, f"costs from {sizes[0]:g} to {sizes[-1]:g}")
    for size, matrix in complete_sizes.items():
        larger = _larger_groups(names, matrix)
        listed = _add_larger_groups(listed, larger, size, listed_cost=size if len(complete_sizes) > 1 else math.nan)
    return replace(scores, candidates=listed)


def _add_larger_groups(
    candidates: Sequence[Candidate],
    larger_groups: Mapping[frozenset[str], dict[str, float]],
    cost: float,
    listed_cost: float,
) -> tuple[Candidate, ...]:
    """Fills in missing results of the listed networks and appends networks that are not listed.

    Results are filled in only for networks whose cost is `listed_cost`, or for all networks if `listed_cost` is NaN.
    The added networks have the cost `cost`.
    """
    found, known = [], set()
    for entry in candidates:
        if entry.trains in larger_groups and _has_cost(listed_cost, entry):
            known.add(entry.trains)
            found.append(Candidate(entry.trains, larger_groups[entry.trains] | dict(entry.values), entry.cost))
        else:
            found.append(entry)
    found += [Candidate(group, means, cost) for group, means in larger_groups.items() if group not in known]
    return tuple(found)


def _larger_groups(names: tuple[str, ...], matrix: Floats) -> dict[frozenset[str], dict[str, float]]:
    """Returns all groups of three or more tasks, ordered by size. Task scores are means over pairs."""
    found = {}
    for size in range(3, len(names) + 1):
        groups = np.array(list(combinations(range(len(names)), size)))
        others = np.array([np.delete(np.arange(size), place) for place in range(size)])
        means = _scaled_means(matrix[groups[:, others], groups[:, :, None]])
        for group, scores in zip(groups.tolist(), means.tolist(), strict=True):
            tasks = [names[i] for i in group]
            found[frozenset(tasks)] = dict(zip(tasks, scores, strict=True))
    return found


def _scaled_means(values: Floats) -> Floats:
    """Returns means over the last axis, scaling values to prevent overflow and underflow."""
    values = np.ascontiguousarray(values)  # makes the order of summation independent of the strides
    power = np.frexp(np.abs(values).max(axis=-1))[1]
    means: Floats = np.ldexp(np.ldexp(values, -power[..., None]).mean(axis=-1), power)
    return means


def _has_cost(cost: float, entry: Candidate) -> bool:
    """Returns whether a network has the given cost. A cost of NaN matches any network."""
    return math.isnan(cost) or entry.cost == cost


def _pairwise_results(names: tuple[str, ...], candidates: Iterable[Candidate]) -> Floats:
    """Returns the results of pairs [source, target], with single tasks on the diagonal. Missing results are NaN."""
    place = {name: i for i, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    for entry in candidates:
        for task, value in entry.values.items() if len(entry.trains) <= 2 else ():
            (source,) = entry.trains - {task} or {task}
            if source != task and not np.isnan(matrix[place[source], place[task]]):
                found = f"{task!r} in {group_name(entry.trains)} more than once"
                hint = "if the networks differ in size, list a cost for each network and omit `cost`"
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
        raise InvalidInput("`complete='pairs'`", "requires results for all pairs", f"none for {first_few(missing)}")


def group_name(group: Any) -> str:
    """Formats a group for messages."""
    return "{" + ", ".join(sorted(map(str, group))) + "}"
