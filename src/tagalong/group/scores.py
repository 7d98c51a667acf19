"""What was measured, read from whatever it comes in: an affinity, a square table, results of groups, candidates."""

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
from tagalong.errors import is_number, name_problems, refuse

from .problem import Floats
from .solvers import MAX_LISTED


@dataclass(frozen=True, init=False)
class Candidate:
    """One network that may be chosen: what it trains, how well each task does in it, what it costs.

    Several candidates may train the same tasks, for example a full and a half-size network for one task.

    Attributes:
        trains: the tasks trained.
        values: the result of each task that the network may serve; tasks left out only help.
        cost: what the network takes of the budget.

    Example:
        >>> Candidate({"age", "ill"}, {"age": 0.9, "ill": 0.7}, cost=1)
        Candidate({age, ill}, cost=1)
    """

    trains: frozenset[str]
    values: Mapping[str, float]
    cost: float

    def __init__(self, trains: Iterable[str], values: Mapping[str, float], cost: float = 1) -> None:
        if isinstance(trains, str):
            raise ValueError(
                f"`trains` must be a collection of names, found the string {trains!r}; write {{{trains!r}}}"
            )
        names = frozenset(trains)
        foreign = sorted(map(repr, set(values) - names))
        if foreign:
            raise ValueError(f"`values` must be results of trained tasks, found {', '.join(foreign)}")
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
    """Scores of tasks in networks, as given: not scaled, not weighted.

    Attributes:
        tasks: in alphabetical order.
        matrix: [source, target], if a group's scores are means over pairs.
        given: results of whole groups that win over those means.
        listed: the only networks there are, if they are listed; the cost NaN is what `cost` says, else 1.
        singles: whether networks of one task are allowed unless the user says otherwise.
        own_costs: whether no `cost` is asked, as every network there can be has its own.
    """

    tasks: tuple[str, ...]
    matrix: Floats | None = None
    given: Mapping[frozenset[str], Mapping[str, float]] = field(default_factory=dict)
    listed: tuple[Candidate, ...] | None = None
    singles: bool = False
    own_costs: bool = False

    def of(self, task: str, trains: frozenset[str]) -> float:
        """The score of a task in a network that trains these tasks; NaN if that is not known."""
        if trains in self.given and task in self.given[trains]:
            return float(self.given[trains][task])
        if self.matrix is None:
            return float("nan")
        target = self._place[task]
        sources = sorted(self._place[name] for name in trains if name != task) or [target]
        return float(_means(self.matrix[sources, target]))

    def largest(self, singles: bool) -> Floats:
        """The largest score of each task, whatever its sign; of one task alone only if that may be chosen."""
        if self.matrix is None:
            return self._largest_result
        n = len(self.tasks)
        used = np.isfinite(self.matrix) & (~np.eye(n, dtype=bool) | singles | (n == 1))
        most: Floats = np.abs(np.where(used, self.matrix, 0.0)).max(axis=0)
        return np.maximum(most, self._largest_result)

    @cached_property
    def _largest_result(self) -> Floats:
        """Of each task, among results of whole groups."""
        most = dict.fromkeys(self.tasks, 0.0)
        for values in [entry.values for entry in self.listed] if self.listed is not None else self.given.values():
            for task, value in values.items():
                most[task] = max(most[task], abs(value))
        return np.array(list(most.values()), dtype=np.float64)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {task: i for i, task in enumerate(self.tasks)}


def read_scores(scores: Any, complete: Complete, costs: bool = False) -> Scores:
    """Reads any of the forms that `select_groups` takes; `costs` says that it was also given what networks cost."""
    if complete is not None and not (isinstance(complete, str) and complete == "pairs"):
        raise ValueError(f"`complete` must be 'pairs' or None, found {complete!r}")
    if isinstance(scores, Affinity):
        return _sorted(scores.mean, scores.tasks, bool(scores.settings.get("held_out")))
    if isinstance(scores, Mapping):
        return _of_table(scores, complete)
    if isinstance(scores, (list, tuple)) and any(isinstance(entry, Candidate) for entry in scores):
        listed = _of_candidates(scores)
        return _completed_candidates(listed, costs) if complete == "pairs" else replace(listed, own_costs=True)
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
    if not is_number(entry.cost) or entry.cost <= 0:
        problems.append(
            f"`scores`: the cost of {group_name(entry.trains)} must be a positive number, found {entry.cost!r}"
        )
    problems += [
        f"`scores`: the result of {task!r} in {group_name(entry.trains)} must be a finite number, found {value!r}"
        for task, value in entry.values.items()
        if not is_number(value)
    ]
    return problems


def _of_table(table: Mapping[Any, Any], complete: Complete) -> Scores:
    groups: dict[frozenset[str], dict[str, float]] = {}
    problems = []
    for key, values in table.items():
        if isinstance(key, str) or not isinstance(key, (frozenset, tuple)):
            problems.append(f"`scores`: a group must be a frozenset or tuple of names, found {key!r}")
        elif not isinstance(values, Mapping):
            problems.append(f"`scores`: the results of {group_name(key)} must be {{task: value}}, found {values!r}")
        elif set(values) - set(key):
            extra = ", ".join(map(repr, sorted(set(values) - set(key), key=repr)))
            problems.append(f"`scores`: the results of {group_name(key)} must be of its tasks, found {extra}")
        elif frozenset(key) in groups or len(set(key)) < len(key):
            problems.append(
                f"`scores`: a group must be given once and name each task once, found {group_name(key)} again"
            )
        else:
            groups[frozenset(key)] = dict(values)
    if not table:
        problems.append("`scores` must hold at least one group, found none")
    refuse(problems)
    scores = _of_candidates([Candidate(group, values) for group, values in groups.items()])
    listed = tuple(Candidate(group, values, math.nan) for group, values in groups.items())
    results = replace(scores, given=groups, listed=listed)
    return _completed_table(results) if complete == "pairs" else results


def _completed_table(scores: Scores) -> Scores:
    """Groups of three and more from pairs, as HOA does; given results stay."""
    matrix = _pair_matrix(scores.tasks, scores.listed or ())
    _need_all_pairs(scores.tasks, matrix)
    larger = {group: values for group, values in scores.given.items() if len(group) > 2}
    return Scores(scores.tasks, matrix, larger, singles=scores.singles)


def _completed_candidates(scores: Scores, costs: bool) -> Scores:
    """Candidates, and groups of three and more from pairs, as HOA does; given results and costs stay.

    With `cost`, every pair is listed once, and a group that is not listed costs what it says. Without, a network is
    taken to cost the same whatever it trains: as much as the pairs. Where all pairs are listed at several costs, as
    networks of several sizes, each size is completed on its own.
    """
    names, listed = scores.tasks, scores.listed or ()
    if len(names) < 3:
        return scores
    if len(names) > MAX_LISTED:
        raise ValueError(
            f"`complete='pairs'` needs at most {MAX_LISTED} tasks where networks have their own costs, found "
            f"{len(names)}; leave some out, or give results without costs and `cost`"
        )
    sizes = [math.nan] if costs else sorted({entry.cost for entry in listed if len(entry.trains) == 2})
    pairs = {size: _pair_matrix(names, [entry for entry in listed if _is_of(size, entry)]) for size in sizes}
    whole = {size: matrix for size, matrix in pairs.items() if not _missing_pairs(names, matrix)}
    if not whole:
        _need_all_pairs(names, np.fmax.reduce([*pairs.values(), np.full((len(names), len(names)), np.nan)]))
        raise ValueError(
            "`complete='pairs'` needs all pairs at one cost, or `cost`, what a network costs given its tasks; found "
            f"pairs that cost {sizes[0]:g} to {sizes[-1]:g}"
        )
    for size, matrix in whole.items():
        larger = _larger_groups(names, matrix)
        listed = _with_larger(listed, larger, size, listed_at=size if len(whole) > 1 else math.nan)
    return replace(scores, listed=listed)


def _with_larger(
    listed: Sequence[Candidate], larger: Mapping[frozenset[str], dict[str, float]], cost: float, listed_at: float
) -> tuple[Candidate, ...]:
    """Larger networks that are listed (at this cost; NaN: at any), with the results they lack; then all others."""
    found, known = [], set()
    for entry in listed:
        if entry.trains in larger and _is_of(listed_at, entry):
            known.add(entry.trains)
            found.append(Candidate(entry.trains, larger[entry.trains] | dict(entry.values), entry.cost))
        else:
            found.append(entry)
    found += [Candidate(group, means, cost) for group, means in larger.items() if group not in known]
    return tuple(found)


def _larger_groups(names: tuple[str, ...], matrix: Floats) -> dict[frozenset[str], dict[str, float]]:
    """Every group of three and more with what its tasks score: the mean over their pairs; small groups first."""
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
    """Over the last axis, of numbers near 1: sums neither overflow nor vanish."""
    values = np.ascontiguousarray(values)  # sums of one number of terms are made in one order, whatever the axes
    power = np.frexp(np.abs(values).max(axis=-1))[1]
    means: Floats = np.ldexp(np.ldexp(values, -power[..., None]).mean(axis=-1), power)
    return means


def _is_of(size: float, entry: Candidate) -> bool:
    """Whether a network has this cost; NaN stands for any."""
    return math.isnan(size) or entry.cost == size


def _pair_matrix(names: tuple[str, ...], listed: Iterable[Candidate]) -> Floats:
    """Results of pairs [source, target] and, on the diagonal, of single tasks; NaN where there is none."""
    place = {name: i for i, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    for entry in listed:
        for task, value in entry.values.items() if len(entry.trains) <= 2 else ():
            (source,) = entry.trains - {task} or {task}
            if source != task and not np.isnan(matrix[place[source], place[task]]):
                again = f"{task!r} in {group_name(entry.trains)}"
                raise ValueError(
                    f"`complete='pairs'` needs one result of each pair, found {again} more than once; where networks "
                    "come in several sizes, give each size its own cost and leave `cost` out"
                )
            matrix[place[source], place[task]] = value
    return matrix


def _missing_pairs(names: tuple[str, ...], matrix: Floats) -> list[str]:
    return [
        f"{one!r} in {group_name({one, other})}"
        for target, one in enumerate(names)
        for source, other in enumerate(names)
        if source != target and np.isnan(matrix[source, target])
    ]


def _need_all_pairs(names: tuple[str, ...], matrix: Floats) -> None:
    missing = _missing_pairs(names, matrix)
    if missing:
        some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ValueError(f"`complete='pairs'` needs the results of all pairs, found none of {some}")


def group_name(group: Any) -> str:
    """The group as messages name it."""
    return "{" + ", ".join(sorted(map(str, group))) + "}"
