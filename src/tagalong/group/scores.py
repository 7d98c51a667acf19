"""Reads scores given as an affinity, a square table, group results, or candidates, and what networks cost."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, first_few, is_number, is_positive

from .completion import Floats, complete_pairs
from .grouping import Group, Grouping, NetworkScore

MAX_LISTED = 14  # tasks for which all groups can be listed
Complete = Literal["pairs"] | None
Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
Objective = Literal["max", "min"]
Results = Mapping[Any, Mapping[str, float]]


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
        for task, value in values.items():
            if task not in self.trains or not is_number(value):
                expected = "must be finite, and of tasks that it trains"
                raise InvalidInput(f"the results of {group_name(trains)}", expected, f"{value} for {task!r}")
        if cost <= 0 or cost == math.inf:
            raise InvalidInput(f"the cost of {group_name(trains)}", "must be a positive number", repr(cost))


@dataclass(frozen=True)
class Scores:
    """The scores of tasks in networks, before scaling, and how much the tasks and the networks count.

    Attributes:
        tasks: the task names, in alphabetical order.
        matrix: the pairwise scores [source, target]. The score of a task in a group is a mean over pairs.
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
        return 1.0 if self.objective == "max" else -1.0

    @property
    def own_costs(self) -> bool:
        # Whether the networks are listed with their costs, so that the `cost` option does not apply.
        return any(not math.isnan(entry.cost) for entry in self.candidates or ())

    @property
    def allows_single(self) -> bool:
        # Whether a network may be trained on a single task, which is necessary if there is only one.
        return self.singles or len(self.tasks) == 1

    @cached_property
    def table(self) -> Floats:
        """The results of all candidates [candidates, tasks], or all pairwise scores; NaN where there is none."""
        if self.candidates is not None:
            rows = [[entry.values.get(task, math.nan) for task in self.tasks] for entry in self.candidates]
            return np.array(rows, dtype=np.float64)
        unused = np.eye(len(self.tasks), dtype=bool) & (not self.allows_single)
        return np.where(unused, np.nan, np.nan_to_num(np.asarray(self.matrix)))

    def score_of(self, task: str, trains: frozenset[str]) -> float:
        # Returns the mean score of the other tasks of a network onto a task.
        assert self.matrix is not None
        sources = sorted(self._place[name] for name in trains - {task} or {task})
        return float(self.matrix[sources, self._place[task]].mean())

    @cached_property
    def _place(self) -> dict[str, int]:
        return {task: i for i, task in enumerate(self.tasks)}

    def total(self, scores: Mapping[str, float]) -> float:
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
    if complete not in ("pairs", None):
        raise InvalidInput("complete", "must be 'pairs' or None", repr(complete))
    if isinstance(scores, Mapping):
        read = _from_results(scores, complete)
    elif isinstance(scores, (list, tuple)) and any(isinstance(entry, Candidate) for entry in scores):
        if complete is not None:
            raise InvalidInput("complete", "requires results by group; specify `cost` if networks have costs")
        read = _from_candidates(scores)
    else:
        read = _from_affinity(_as_affinity(scores), place_unmeasured)

    # What tasks and networks count.
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

    singles = read.singles if allow_single is None else allow_single
    if read.matrix is not None:
        used = ~np.eye(len(read.tasks), dtype=bool) | singles
        for source, target in np.argwhere(used & np.isnan(read.matrix)):
            found = f"none for {read.tasks[source]!r} on {read.tasks[target]!r}"
            raise InvalidInput("scores", "must have a value for each pair, and for single tasks if allowed", found)
    return replace(read, objective=objective, weights=weights, cost=1.0 if cost is None else cost, singles=singles)


def _as_affinity(scores: Any) -> Affinity:
    if isinstance(scores, Affinity):
        return scores
    try:
        if not hasattr(scores, "columns"):
            return Affinity.from_matrix(np.array(scores, dtype=np.float64))
        frame = scores.rename(index=str, columns=str)
        if set(frame.columns) != set(frame.index):
            raise ValueError(f"columns {', '.join(frame.columns)} and rows {', '.join(frame.index)}")
        square = frame.loc[list(frame.columns)].astype("Float64")
        return Affinity.from_matrix(square.to_numpy(dtype=np.float64, na_value=np.nan), frame.columns)
    except (TypeError, ValueError) as error:
        expected = "must be an Affinity, a square table, a mapping from groups to results, or a list of Candidates"
        raise InvalidInput("scores", expected, str(error).replace("`", "")) from error


def _from_affinity(affinity: Affinity, place_unmeasured: bool) -> Scores:
    # Leave out tasks without any measured pair, unless nothing was measured at all.
    matrix, tasks = affinity.mean, affinity.tasks
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

    # Predict the other pairs that were not measured.
    order = sorted(np.flatnonzero(placed), key=tasks.__getitem__)
    matrix = matrix[np.ix_(order, order)]
    completed, stderr = complete_pairs(matrix)
    predicted = (np.isnan(matrix) & np.isfinite(completed)).sum()
    return Scores(
        tuple(tasks[i] for i in order),
        completed,
        singles=bool(affinity.settings.get("held_out")) and not np.isnan(np.diagonal(matrix)).any(),
        stderr=stderr,
        unmeasured=float(predicted / max(1, len(order) * (len(order) - 1))),
        unplaced=unplaced,
    )


def _from_candidates(candidates: Iterable[Candidate]) -> Scores:
    candidates = tuple(candidates)
    tasks = {task for entry in candidates for task in entry.trains}
    unserved = tasks - {task for entry in candidates for task in entry.values}
    if unserved:
        found = f"none for {first_few(sorted(map(repr, unserved)))}"
        raise InvalidInput("scores", "must have a result for every task", found)
    singles = any(len(entry.trains) == 1 for entry in candidates)
    return Scores(tuple(sorted(tasks)), candidates=candidates, singles=singles)


def _from_results(results: Results, complete: Complete) -> Scores:
    # If `complete` is "pairs", other groups are scored by their pairs, as in HOA. Given results take precedence.
    by_group = {frozenset(group): Candidate(group, values, math.nan) for group, values in results.items()}
    if not results or len(by_group) < len(results):
        raise InvalidInput("scores", "must contain at least one group, and each only once", str(list(results)))
    given = _from_candidates(by_group.values())
    if complete is None:
        return given

    tasks = given.tasks
    matrix = np.full((len(tasks), len(tasks)), np.nan)
    for i, j in np.ndindex(matrix.shape):
        pair = frozenset({tasks[i], tasks[j]})
        if pair in by_group:
            matrix[i, j] = by_group[pair].values.get(tasks[j], np.nan)
        if i != j and np.isnan(matrix[i, j]):
            found = f"none for {tasks[j]!r} in {group_name(pair)}"
            raise InvalidInput("complete", "requires results for all pairs", found)
    pairwise = Scores(tasks, matrix, singles=given.singles)
    if max(map(len, by_group)) <= 2:
        return pairwise

    # Means over pairs cannot express the results of larger groups, so that all groups are listed.
    if len(tasks) > MAX_LISTED:
        expected = f"must have at most {MAX_LISTED} tasks if they include results for groups of three or more"
        raise InvalidInput("scores", expected, str(len(tasks)), "omit some tasks, or list the networks as Candidates")
    candidates = [candidate for group, candidate in by_group.items() if len(group) == 1]
    for size in range(2, len(tasks) + 1):
        for group in combinations(tasks, size):
            trains = frozenset(group)
            values = {task: pairwise.score_of(task, trains) for task in group}
            if trains in by_group:
                values |= by_group[trains].values
            candidates.append(Candidate(trains, values, math.nan))
    return _from_candidates(candidates)


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
    return "{" + ", ".join(sorted(map(str, group))) + "}"
