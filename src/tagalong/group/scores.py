"""Reads scores given as an affinity, a square table, group results, or candidates, and what networks cost."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, first_few, is_number, is_positive

from .completion import complete_pairs
from .grouping import Grouping, NetworkScore
from .groups import Group
from .problem import Floats

Complete = Literal["pairs"] | None
Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
Objective = Literal["max", "min"]


@dataclass(frozen=True, init=False)
class Candidate:
    """A network that may be chosen, with its tasks, their results, and its cost.

    Several candidates may have the same tasks, for example a full-size and a half-size network.

    Attributes:
        trains: the tasks on which the network is trained.
        values: the result of each task that the network may serve. The other tasks only help.
        cost: the cost of the network. NaN means that the `cost` option of the selection applies.

    Example:
        >>> Candidate(["age"], {"age": 0.9}, cost=0.5)
        Candidate(trains=frozenset({'age'}), values={'age': 0.9}, cost=0.5)
    """

    trains: frozenset[str]
    values: Mapping[str, float]
    cost: float

    def __init__(self, trains: Iterable[str], values: Mapping[str, float], cost: float = 1) -> None:
        if isinstance(trains, str):
            raise InvalidInput("trains", "must be a collection of names", f"the string {trains!r}")
        self.__dict__.update(trains=frozenset(trains), values=dict(values), cost=cost)
        invalid = [task for task, value in values.items() if task not in self.trains or not is_number(value)]
        if invalid:
            found = f"{values[invalid[0]]} for {invalid[0]!r}"
            raise InvalidInput(
                f"the results of {group_name(trains)}", "must be finite, and of tasks that it trains", found
            )
        if cost <= 0 or cost == math.inf:
            raise InvalidInput(f"the cost of {group_name(trains)}", "must be a positive number", repr(cost))


@dataclass(frozen=True)
class Scores:
    """The scores of tasks in networks, before scaling, and how much the tasks and the networks count.

    Attributes:
        tasks: the task names, in alphabetical order.
        matrix: the pairwise scores [source, target]. The score of a task in a group is a mean over pairs.
        group_results: the results of entire groups, which take precedence over `matrix`.
        candidates: the networks that may be chosen, or None if all groups of tasks may be. There is no `matrix` then.
        singles: whether a network may be trained on a single task.
        stderr: the standard deviation of the pairs in `matrix` that were predicted, and zero for measured ones.
        unmeasured: the fraction of pairs whose score was predicted.
        unplaced: the tasks that were left out because none of their pairs was measured.
        objective: "max" or "min".
        weights: the weight of each task in the sum; 1 for other tasks.
        cost: the cost of a network: a number, a function of its tasks, or a mapping from its tasks or their number.
    """

    tasks: tuple[str, ...]
    matrix: Floats | None = None
    group_results: Mapping[frozenset[str], Mapping[str, float]] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] | None = None
    singles: bool = False
    stderr: Floats | None = None
    unmeasured: float = 0.0
    unplaced: tuple[str, ...] = ()
    objective: Objective = "max"
    weights: Mapping[str, float] = field(default_factory=dict)
    cost: Cost = 1.0

    @property
    def sign(self) -> float:
        """The sign of the scores: −1 if they are minimized, otherwise 1."""
        return 1.0 if self.objective == "max" else -1.0

    @property
    def own_costs(self) -> bool:
        """Whether the networks are listed with their costs, so that the `cost` option does not apply."""
        return any(not math.isnan(entry.cost) for entry in self.candidates or ())

    def score_of(self, task: str, trains: frozenset[str]) -> float:
        """Returns the score of a task in a network trained on the given tasks, or NaN if it is unknown."""
        if task in self.group_results.get(trains, ()):
            return float(self.group_results[trains][task])
        if self.matrix is None:
            return math.nan
        sources = sorted(self._place[name] for name in trains - {task} or {task})
        return float(self.matrix[sources, self._place[task]].mean())

    @cached_property
    def _place(self) -> dict[str, int]:
        return {task: i for i, task in enumerate(self.tasks)}

    def total(self, scores: Mapping[str, float]) -> float:
        """Returns the weighted sum of the scores of tasks."""
        return float(sum(self.weights.get(task, 1.0) * score for task, score in scores.items()))

    def cost_of(self, trains: frozenset[str]) -> float:
        """Returns the cost of a network trained on the given tasks, or NaN if it cannot be chosen."""
        cost: Any = self.cost
        if isinstance(cost, Mapping):
            cost = cost.get(trains, cost.get(len(trains), math.nan))
        elif callable(cost):
            cost = cost(trains)
        if not is_positive(cost) and cost == cost:
            raise InvalidInput("cost", f"must be a positive number for {group_name(trains)}", repr(cost))
        return float(cost)


def read_scores(
    scores: Any,
    *,
    objective: Objective = "max",
    allow_single: bool | None = None,
    cost: Cost | None = None,
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
    place_unmeasured: bool = False,
) -> Scores:
    """Reads scores in any form that `select_groups` accepts, and checks the options that say how they count.

    For the arguments, see `select_groups`.
    """
    if objective not in ("max", "min"):
        raise InvalidInput("objective", "must be 'max' or 'min'", repr(objective))
    read = _read(scores, complete, place_unmeasured)
    weights = {} if weights is None else weights
    if not isinstance(weights, Mapping) or not all(map(is_positive, weights.values())):
        raise InvalidInput("weights", "must map tasks to positive numbers", repr(weights))
    if not set(weights) <= set(read.tasks):
        raise InvalidInput("weights", f"must be for {', '.join(map(repr, read.tasks))}", repr(weights))

    if cost is not None and read.own_costs:
        raise InvalidInput("cost", "cannot be combined with candidates, which have their own costs")
    if isinstance(cost, Mapping):
        if any(isinstance(key, str) for key in cost):
            raise InvalidInput("cost", "must map groups, e.g. ('a', 'b'), or group sizes to costs", repr(cost))
        cost = {frozenset(key) if isinstance(key, tuple) else key: value for key, value in cost.items()}
    elif cost is not None and not callable(cost):
        if not is_positive(cost):
            raise InvalidInput("cost", "must be a positive number, a mapping or a callable", repr(cost))
        cost = float(cost)

    singles = read.singles if allow_single is None else allow_single
    if read.matrix is not None:
        used = ~np.eye(len(read.tasks), dtype=bool) | singles
        for source, target in np.argwhere(used & ~np.isfinite(read.matrix)):
            found = f"{read.matrix[source, target]} for {read.tasks[source]!r} on {read.tasks[target]!r}"
            raise InvalidInput("scores", "must be finite", found)
    return replace(read, objective=objective, weights=weights, cost=1.0 if cost is None else cost, singles=singles)


def _read(scores: Any, complete: Complete, place_unmeasured: bool) -> Scores:
    if complete not in ("pairs", None):
        raise InvalidInput("complete", "must be 'pairs' or None", repr(complete))
    if isinstance(scores, Affinity):
        return _from_matrix(scores.mean, scores.tasks, place_unmeasured, bool(scores.settings.get("held_out")))
    if hasattr(scores, "columns"):
        return _from_frame(scores, place_unmeasured)
    if isinstance(scores, Mapping):
        return _from_results(scores, complete)
    if isinstance(scores, (list, tuple)) and any(isinstance(entry, Candidate) for entry in scores):
        if complete is not None:
            raise InvalidInput("complete", "requires results by group; specify `cost` if networks have costs")
        return _from_candidates(scores)
    try:
        matrix = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError):
        expected = "must be an Affinity, a square table, a mapping from groups to results, or a list of Candidates"
        raise InvalidInput("scores", expected, f"{type(scores).__name__} with non-numeric values") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InvalidInput("scores", "must be square, with one row and one column per task", f"shape {matrix.shape}")
    return _from_matrix(matrix, tuple(map(str, range(len(matrix)))), place_unmeasured)


def _from_matrix(matrix: Floats, tasks: tuple[str, ...], place_unmeasured: bool, allow_single: bool = False) -> Scores:
    # Leave out tasks without any measured pair, unless nothing was measured at all.
    measured = ~np.isnan(matrix) & ~np.eye(len(tasks), dtype=bool)
    has_pair = np.asarray((measured | measured.T).any(axis=0))
    placed = np.ones(len(tasks), dtype=bool) if place_unmeasured or not has_pair.any() else has_pair
    unplaced = tuple(sorted(tasks[i] for i in np.flatnonzero(~placed)))
    if unplaced:
        warnings.warn(
            f"no pair was measured for {first_few([repr(task) for task in unplaced])}; "
            "no network serves them, unless place_unmeasured=True",
            stacklevel=2,
        )
    order = sorted(np.flatnonzero(placed), key=tasks.__getitem__)
    matrix = np.array(matrix)[np.ix_(order, order)]
    completed, stderr = complete_pairs(matrix)
    predicted = (np.isnan(matrix) & np.isfinite(completed)).sum()
    return Scores(
        tuple(tasks[i] for i in order),
        completed,
        singles=allow_single and not np.isnan(np.diagonal(matrix)).any(),
        stderr=stderr,
        unmeasured=float(predicted / max(1, len(order) * (len(order) - 1))),
        unplaced=unplaced,
    )


def _from_frame(frame: Any, place_unmeasured: bool) -> Scores:
    columns, rows = [str(name) for name in frame.columns], [str(name) for name in frame.index]
    if sorted(columns) != sorted(rows) or len(set(columns)) < len(columns):
        expected = "must have the same distinct tasks in rows and columns"
        raise InvalidInput("scores", expected, f"columns {', '.join(columns)} and rows {', '.join(rows)}")
    values = frame.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return _from_matrix(values[[rows.index(name) for name in columns]], tuple(columns), place_unmeasured)


def _from_candidates(candidates: Iterable[Candidate]) -> Scores:
    candidates = tuple(candidates)
    tasks = {task for entry in candidates for task in entry.trains}
    unserved = tasks - {task for entry in candidates for task in entry.values}
    if unserved:
        raise InvalidInput(
            "scores", "must have a result for every task", f"none for {first_few(sorted(map(repr, unserved)))}"
        )
    singles = any(len(entry.trains) == 1 for entry in candidates)
    return Scores(tuple(sorted(tasks)), candidates=candidates, singles=singles)


def _from_results(results: Mapping[Any, Any], complete: Complete) -> Scores:
    """Reads the results of entire groups. If `complete` is "pairs", other groups are scored by their pairs, as in HOA.

    Given results of groups of three or more tasks take precedence over the means over their pairs.
    """
    if not results or len({frozenset(group) for group in results}) < len(results):
        found = ", ".join(map(group_name, results)) or "none"
        raise InvalidInput("scores", "must contain at least one group, and each only once", found)
    scores = _from_candidates(Candidate(group, values, math.nan) for group, values in results.items())
    if complete is None:
        return scores

    by_group: dict[frozenset[str], Mapping[str, float]] = {frozenset(group): results[group] for group in results}
    matrix = np.array(
        [
            [by_group.get(frozenset({source, target}), {}).get(target, np.nan) for target in scores.tasks]
            for source in scores.tasks
        ]
    )
    for i, j in np.argwhere(np.isnan(matrix) & ~np.eye(len(matrix), dtype=bool)):
        pair = group_name([scores.tasks[i], scores.tasks[j]])
        raise InvalidInput("complete", "requires results for all pairs", f"none for {scores.tasks[j]!r} in {pair}")
    larger = {group: values for group, values in by_group.items() if len(group) > 2}
    return Scores(scores.tasks, matrix, larger, singles=scores.singles)


def assemble_grouping(
    scores: Scores,
    networks: Sequence[tuple[Group, Mapping[str, float]]],
    budget: int,
    bound: float,
    status: Literal["optimal", "feasible"] = "feasible",
    solver: str = "given",
    ties: tuple[tuple[Group, ...], ...] = (),
) -> Grouping:
    """Returns a grouping with its scores.

    Args:
        scores: the scores.
        networks: each network, and the scores that tasks have in it or would have if it were trained on them, too.
        budget: the number of networks that was requested.
        bound: a bound on the value. It is moved to the value if rounding put it on the wrong side.
        status: whether the grouping is proven optimal. Then its value is the bound.
        solver: the name of the solver.
        ties: other groupings that are equally good.
    """
    per_task = {task: values.get(task, 0.0) for group, values in networks for task in group.serves}
    per_task = {task: per_task[task] for task in scores.tasks}
    value = scores.total(per_task)
    options = {}
    for task in scores.tasks:
        in_networks = {group.trains | {task}: values[task] for group, values in networks if task in values}
        ranked = sorted(in_networks.items(), key=lambda entry: (-scores.sign * entry[1], sorted(entry[0])))
        options[task] = tuple(NetworkScore(trains, score) for trains, score in ranked)
    return Grouping(
        groups=tuple(group for group, _ in networks),
        value=value,
        bound=value if status == "optimal" else scores.sign * max(scores.sign * value, scores.sign * bound),
        status=status,
        per_task=per_task,
        budget=budget,
        objective=scores.objective,
        solver=solver,
        ties=ties,
        options=options,
        unmeasured=scores.unmeasured,
        unplaced=scores.unplaced,
    )


def group_name(group: Iterable[Any]) -> str:
    """Formats a group for messages."""
    return "{" + ", ".join(sorted(map(str, group))) + "}"
