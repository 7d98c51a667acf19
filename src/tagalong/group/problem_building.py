"""Converts scores and options to a problem for the solvers, with scaled scores to maximize and tasks as integers.

Solvers use pairwise scores if all groups are allowed and have the same cost. Otherwise, they use a list of all
networks, or of only the promising ones if there are too many to list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tagalong.errors import InvalidInput

from .scores import Scores
from .selection_problem import Bools, Floats, Ints, Limits, Networks, SelectionProblem, tasks_in_mask, to_bit_mask
from .selection_request import ScoreScaling, SelectionRequest
from .solvers import MAX_LISTED, all_networks, solve_search

POOL_BUDGETS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
)  # budgets of the searches for promising groups
QUICK_LIMITS = Limits(kicks=5)

ForbiddenPairs = Bools  # a mask (tasks × tasks) of the pairs that must not be trained in the same network
CostOf = Callable[[tuple[int, ...]], float]  # returns the cost of a network with the given tasks, or NaN


@dataclass(frozen=True)
class ScaledProblem:
    """A problem for the solvers, and the information needed to convert its solution back.

    Attributes:
        problem: the problem to solve.
        budgets: the budgets. If all networks have the same cost, budgets are numbers of networks.
        scale: the value by which the weighted scores are divided after applying `scaling`.
        sign: −1 if scores are minimized, otherwise 1.
        scaling: the scaling of the weighted scores by powers of two.
        rows: the index of each of the problem's networks in the list of all networks.
        networks: the networks before `max_cost` is applied, which are used to find the smallest feasible limit.
    """

    problem: SelectionProblem
    budgets: tuple[float, ...]
    scale: float
    sign: float
    scaling: ScoreScaling
    rows: Ints | None = None
    networks: Networks | None = None

    def to_scores(self, value: float) -> float:
        """Converts a value of the problem back to the original scale of the scores."""
        return self.scaling.to_scores(self.sign * self.scale * value)


def build_problem(scores: Scores, request: SelectionRequest) -> ScaledProblem:
    """Builds the problem from checked scores and options."""
    scaling = request.scaling(scores)
    n = len(scores.tasks)
    bare = SelectionProblem(
        n, None, None, link_components(scores.tasks, request.must_link), min(n, request.max_size or n)
    )
    if scores.matrix is None:
        return _build_from_networks(bare, _candidate_networks(scores, request, scaling), scores, request, scaling)
    pairs = _weighted_scores(scores.matrix, scaling, request.sign, request.allows_single_tasks(scores))
    if _is_unconstrained(scores, request):
        scale = _max_abs_score(pairs)
        return ScaledProblem(
            replace(bare, scores=pairs / scale), tuple(_network_counts(request, n)), scale, request.sign, scaling
        )
    if n > MAX_LISTED and not scores.given:
        return _build_from_pool(replace(bare, scores=pairs), scores, request, scaling)
    networks = _group_networks(replace(bare, scores=pairs), scores, request, scaling)
    return _build_from_networks(bare, networks, scores, request, scaling)


def link_components(tasks: tuple[str, ...], links: Iterable[Iterable[str]]) -> tuple[int, ...]:
    """Returns the connected components of the links, as bit masks ordered by their first task."""
    sets = [1 << i for i in range(len(tasks))]
    for link in links:
        joined = to_bit_mask([tasks.index(task) for task in set(link)])
        touched = [bits for bits in sets if bits & joined]
        sets = [bits for bits in sets if not bits & joined] + [sum(touched)]
    return tuple(sorted(sets, key=lambda bit_mask: bit_mask & -bit_mask))


def _weighted_scores(matrix: Floats, scaling: ScoreScaling, sign: float, allow_single: bool) -> Floats:
    if len(matrix) == 1:
        return sign * scaling.weighted(np.nan_to_num(matrix))  # there is only one network
    used = matrix if allow_single else np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    scores: Floats = sign * scaling.weighted(used)
    if not allow_single:
        np.fill_diagonal(scores, -np.inf)
    return scores


def _max_abs_score(values: Floats) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0


def _is_unconstrained(scores: Scores, request: SelectionRequest) -> bool:
    """Returns whether all groups up to the maximum size are allowed and have the same cost."""
    constant = request.cost is None or not (callable(request.cost) or isinstance(request.cost, Mapping))
    free = request.max_cost is None or not constant or request.cost <= request.max_cost  # type: ignore[operator]
    return constant and free and not request.cannot_link and not scores.given


def _network_counts(request: SelectionRequest, n: int) -> list[float]:
    cost = 1.0 if request.cost is None else float(request.cost)  # type: ignore[arg-type]
    return [min(np.floor(budget / cost * (1 + 1e-9)), n) for budget in request.budgets]


def _build_from_networks(
    base_problem: SelectionProblem, networks: Networks, scores: Scores, request: SelectionRequest, scaling: ScoreScaling
) -> ScaledProblem:
    scale = _max_abs_score(networks.values)
    networks = replace(networks, values=networks.values / scale)
    separate = _respects_cannot_link(networks.trains, scores.tasks, request)
    affordable = networks.cost <= (np.inf if request.max_cost is None else request.max_cost * (1 + 1e-9))
    problem = base_problem.with_networks(networks.only(separate & affordable))
    max_total = base_problem.n * float(networks.cost[separate & affordable].max(initial=0.0))  # no grouping costs more
    budgets = tuple(min(float(budget), max(max_total, 1e-300)) for budget in request.budgets)
    rows = np.flatnonzero(separate & affordable)
    return ScaledProblem(problem, budgets, scale, request.sign, scaling, rows, networks.only(separate))


def _respects_cannot_link(trains: Bools, tasks: tuple[str, ...], request: SelectionRequest) -> Bools:
    """Returns a mask of the networks that respect `cannot_link`."""
    allowed = np.ones(len(trains), dtype=bool)
    for link in request.cannot_link:
        allowed &= trains[:, [tasks.index(task) for task in set(link)]].sum(axis=1) < 2
    return allowed


def _candidate_networks(scores: Scores, request: SelectionRequest, scaling: ScoreScaling) -> Networks:
    """Returns the candidates as networks. Candidates that violate a constraint serve no tasks."""
    assert scores.candidates is not None
    n, count, singles = len(scores.tasks), len(scores.candidates), request.allows_single_tasks(scores)
    place = {task: i for i, task in enumerate(scores.tasks)}
    trains = np.zeros((count, n), dtype=bool)
    values, cost = np.full((count, n), np.nan), np.ones(count)
    for row, entry in enumerate(scores.candidates):
        trains[row, [place[task] for task in entry.trains]] = True
        cost[row] = request.cost_of(entry.trains) if np.isnan(entry.cost) else entry.cost
        if len(entry.trains) <= (request.max_size or n) and (len(entry.trains) > 1 or singles):
            for task, value in entry.values.items():
                values[row, place[task]] = value
    values = np.where(np.isnan(values), -np.inf, request.sign * scaling.weighted(values))
    kept = np.isfinite(cost)
    values[~kept], cost[~kept] = -np.inf, 1.0
    return Networks(trains, values, cost)


def _group_networks(
    problem: SelectionProblem, scores: Scores, request: SelectionRequest, scaling: ScoreScaling
) -> Networks:
    """Returns a network for every group, with its cost and any results given for it."""
    if problem.n > MAX_LISTED:
        expected = f"must have at most {MAX_LISTED} tasks if they include results for groups of three or more"
        hint = "omit some tasks, or list the networks as Candidates"
        raise InvalidInput("scores", expected, str(problem.n), hint)
    names = scores.tasks
    networks = all_networks(problem, lambda group: request.cost_of(frozenset(names[i] for i in group)))
    values = networks.values.copy()
    row_of = {to_bit_mask(np.flatnonzero(row)): i for i, row in enumerate(networks.trains)}
    for group, results in scores.given.items():
        row = row_of.get(to_bit_mask([names.index(task) for task in group]))
        for task, value in results.items() if row is not None else ():
            values[row, names.index(task)] = request.sign * scaling.weighted_score(names.index(task), value)
    return Networks(networks.trains, values, networks.cost)


def _build_from_pool(
    relaxed: SelectionProblem, scores: Scores, request: SelectionRequest, scaling: ScoreScaling
) -> ScaledProblem:
    """Builds a problem from promising networks only, because there are too many to list."""
    assert relaxed.scores is not None
    scale, names = _max_abs_score(relaxed.scores), scores.tasks
    relaxed = replace(relaxed, scores=relaxed.scores / scale)
    forbidden = np.zeros((relaxed.n, relaxed.n), dtype=bool)
    for link in request.cannot_link:
        tasks = [names.index(task) for task in set(link)]
        forbidden[np.ix_(tasks, tasks)] = True
    np.fill_diagonal(forbidden, False)
    most = np.inf if request.max_cost is None else request.max_cost * (1 + 1e-9)

    def cost(group: tuple[int, ...]) -> float:
        spent = request.cost_of(frozenset(names[i] for i in group))
        return spent if spent <= most else np.nan

    pool = _feasible_networks(relaxed, forbidden, cost, _promising_groups(relaxed, forbidden))
    problem = replace(
        relaxed,
        scores=None,
        relaxed=relaxed,
        cheapest=_min_network_cost(request),
        more=partial(_feasible_networks, relaxed, forbidden, cost),
    ).with_networks(pool)
    return ScaledProblem(problem, tuple(map(float, request.budgets)), scale, request.sign, scaling)


def _min_network_cost(request: SelectionRequest) -> float:
    """Returns a lower bound on the cost of a network. If `cost` is a callable, the bound is just above 0."""
    if request.cost is None:
        return 1.0
    if isinstance(request.cost, Mapping):
        return min((cost for cost in request.cost.values() if cost > 0), default=1.0)  # skips NaN
    return 1e-300 if callable(request.cost) else float(request.cost)


def _feasible_networks(
    problem: SelectionProblem, forbidden_pairs: ForbiddenPairs, cost: CostOf, sets: set[int]
) -> Networks:
    """Returns a network for each given group that is allowed and has a known cost."""
    kept = []
    for bits in sorted(sets):
        group = list(tasks_in_mask(bits))
        alone = len(group) == 1 and not np.isfinite(problem.single_task_scores[group[0]])
        if not alone and len(group) <= problem.largest and not forbidden_pairs[np.ix_(group, group)].any():
            kept.append((group, cost(tuple(group))))
    kept = [(group, spent) for group, spent in kept if not np.isnan(spent)]
    member = np.zeros((len(kept), problem.n), dtype=bool)
    for row, (group, _) in enumerate(kept):
        member[row, group] = True
    size = member.sum(axis=1)[:, None]
    mean = np.where(size == 1, problem.single_task_scores, (member @ problem.pairwise_scores) / np.maximum(size - 1, 1))
    return Networks(member, np.where(member, mean, -np.inf), np.array([spent for _, spent in kept]))


def _promising_groups(problem: SelectionProblem, forbidden_pairs: ForbiddenPairs) -> set[int]:
    """Returns all pairs, groups of tasks with high affinity, and groups found by a search that ignores costs."""
    near = problem.pairwise_scores + problem.pairwise_scores.T
    found = {1 << task for task in range(problem.n) if np.isfinite(problem.single_task_scores[task])}
    found |= {1 << a | 1 << b for a in range(problem.n) for b in range(a)}
    for link in problem.links:
        found |= set(_grown_groups(list(tasks_in_mask(link)), near, forbidden_pairs))
    for count in POOL_BUDGETS:
        if count <= problem.n and problem.largest * count >= problem.n:
            for choice in solve_search(problem, [count], QUICK_LIMITS)[0].choices:
                found |= set(_shrunk_groups(list(tasks_in_mask(choice.trains)), near, forbidden_pairs))
    return found


def _grown_groups(group: list[int], similarity: Floats, forbidden_pairs: ForbiddenPairs) -> Iterator[int]:
    """Yields a group and then repeatedly adds the nearest task, skipping tasks that form a forbidden pair."""
    grown = list(group)
    yield to_bit_mask(grown)
    for task in np.argsort(-similarity[group].sum(axis=0), kind="stable").tolist():
        if task not in grown and not forbidden_pairs[task, grown].any():
            grown.append(task)
            yield to_bit_mask(grown)


def _shrunk_groups(group: list[int], similarity: Floats, forbidden_pairs: ForbiddenPairs) -> Iterator[int]:
    """Yields a group and then repeatedly removes the most distant task, starting with tasks in forbidden pairs."""
    while group:
        yield to_bit_mask(group)
        inside = np.ix_(group, group)
        loose = similarity[inside].sum(axis=1) - 1e6 * forbidden_pairs[inside].any(axis=1)
        group = [task for place, task in enumerate(group) if place != int(loose.argmin())]
