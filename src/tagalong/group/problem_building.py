"""Converts scores and options to a problem for the solvers: scaled, to be maximized, and with indices as task names.

Solvers use pairwise scores if all groups exist and have the same cost. Otherwise, every network is listed, or only a
pool of promising networks if there are too many to list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tagalong.errors import InvalidInput

from .scores import Scores
from .selection_problem import Bools, Floats, Ints, Limits, Networks, SelectionProblem, bits_of, indices
from .selection_request import SelectionRequest, Units
from .solvers import MAX_LISTED, all_networks, solve_search

POOL_BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # for which the search on the plain problem yields promising groups
QUICK = Limits(kicks=5)

ForbiddenPairs = Bools  # tasks × tasks: pairs that no network may train
CostOf = Callable[[tuple[int, ...]], float]  # the cost of a network that trains these tasks; NaN if there is none


@dataclass(frozen=True)
class ScaledProblem:
    """A problem for the solvers, and how to convert its solution back.

    Attributes:
        problem: the problem to solve.
        budgets: the budgets in the units of the problem, i.e. numbers of networks if all have the same cost.
        scale: the divisor of the weighted scores, in `units`.
        sign: −1 if scores are minimized, 1 otherwise.
        units: the units of the weighted scores.
        rows: the index of each network of the problem in the list of all networks.
        networks: the listed networks before `max_cost` is applied, used to find the smallest feasible limit.
    """

    problem: SelectionProblem
    budgets: tuple[float, ...]
    scale: float
    sign: float
    units: Units
    rows: Ints | None = None
    networks: Networks | None = None

    def to_scores(self, value: float) -> float:
        """Converts a value from the units of the problem to those of the scores."""
        return self.units.to_scores(self.sign * self.scale * value)


def build_problem(scores: Scores, request: SelectionRequest) -> ScaledProblem:
    """Builds the problem from checked scores and options."""
    units = request.units(scores)
    n = len(scores.tasks)
    bare = SelectionProblem(n, None, None, components(scores.tasks, request.must_link), min(n, request.max_size or n))
    if scores.matrix is None:
        return _build_from_networks(bare, _candidate_networks(scores, request, units), scores, request, units)
    pairs = _weighted_scores(scores.matrix, units, request.sign, request.singles(scores))
    if _is_plain(scores, request):
        scale = _largest(pairs)
        return ScaledProblem(
            replace(bare, scores=pairs / scale), tuple(_network_counts(request, n)), scale, request.sign, units
        )
    if n > MAX_LISTED and not scores.given:
        return _build_from_pool(replace(bare, scores=pairs), scores, request, units)
    networks = _group_networks(replace(bare, scores=pairs), scores, request, units)
    return _build_from_networks(bare, networks, scores, request, units)


def components(tasks: tuple[str, ...], links: Iterable[Iterable[str]]) -> tuple[int, ...]:
    """Returns the connected components of the links, as bit masks ordered by their first task."""
    sets = [1 << i for i in range(len(tasks))]
    for link in links:
        joined = bits_of([tasks.index(task) for task in set(link)])
        touched = [bits for bits in sets if bits & joined]
        sets = [bits for bits in sets if not bits & joined] + [sum(touched)]
    return tuple(sorted(sets, key=lambda bits: bits & -bits))


def _weighted_scores(matrix: Floats, units: Units, sign: float, singles: bool) -> Floats:
    if len(matrix) == 1:
        return sign * units.weighted(np.nan_to_num(matrix))  # there is only one network
    used = matrix if singles else np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    scores: Floats = sign * units.weighted(used)
    if not singles:
        np.fill_diagonal(scores, -np.inf)
    return scores


def _largest(values: Floats) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0


def _is_plain(scores: Scores, request: SelectionRequest) -> bool:
    """Returns whether all groups of allowed size exist and have the same cost, so helpers can be found by sorting."""
    constant = request.cost is None or not (callable(request.cost) or isinstance(request.cost, Mapping))
    free = request.max_cost is None or not constant or request.cost <= request.max_cost  # type: ignore[operator]
    return constant and free and not request.cannot_link and not scores.given


def _network_counts(request: SelectionRequest, n: int) -> list[float]:
    cost = 1.0 if request.cost is None else float(request.cost)  # type: ignore[arg-type]
    return [min(np.floor(budget / cost * (1 + 1e-9)), n) for budget in request.budgets]


def _build_from_networks(
    bare: SelectionProblem, networks: Networks, scores: Scores, request: SelectionRequest, units: Units
) -> ScaledProblem:
    scale = _largest(networks.values)
    networks = replace(networks, values=networks.values / scale)
    separate = _respects_cannot_link(networks.trains, scores.tasks, request)
    affordable = networks.cost <= (np.inf if request.max_cost is None else request.max_cost * (1 + 1e-9))
    problem = bare.with_networks(networks.only(separate & affordable))
    max_total = bare.n * float(networks.cost[separate & affordable].max(initial=0.0))  # no grouping costs more
    budgets = tuple(min(float(budget), max(max_total, 1e-300)) for budget in request.budgets)
    rows = np.flatnonzero(separate & affordable)
    return ScaledProblem(problem, budgets, scale, request.sign, units, rows, networks.only(separate))


def _respects_cannot_link(trains: Bools, tasks: tuple[str, ...], request: SelectionRequest) -> Bools:
    """Returns a mask of the networks that respect `cannot_link`."""
    allowed = np.ones(len(trains), dtype=bool)
    for link in request.cannot_link:
        allowed &= trains[:, [tasks.index(task) for task in set(link)]].sum(axis=1) < 2
    return allowed


def _candidate_networks(scores: Scores, request: SelectionRequest, units: Units) -> Networks:
    """Returns one row per candidate. Candidates that may not be chosen serve no tasks."""
    assert scores.candidates is not None
    n, count, singles = len(scores.tasks), len(scores.candidates), request.singles(scores)
    place = {task: i for i, task in enumerate(scores.tasks)}
    trains = np.zeros((count, n), dtype=bool)
    values, cost = np.full((count, n), np.nan), np.ones(count)
    for row, entry in enumerate(scores.candidates):
        trains[row, [place[task] for task in entry.trains]] = True
        cost[row] = request.cost_of(entry.trains) if np.isnan(entry.cost) else entry.cost
        if len(entry.trains) <= (request.max_size or n) and (len(entry.trains) > 1 or singles):
            for task, value in entry.values.items():
                values[row, place[task]] = value
    values = np.where(np.isnan(values), -np.inf, request.sign * units.weighted(values))
    kept = np.isfinite(cost)
    values[~kept], cost[~kept] = -np.inf, 1.0
    return Networks(trains, values, cost)


def _group_networks(problem: SelectionProblem, scores: Scores, request: SelectionRequest, units: Units) -> Networks:
    """Returns every group as a network, with its cost and any results given for it."""
    if problem.n > MAX_LISTED:
        expected = f"must have at most {MAX_LISTED} tasks if they include results of larger groups"
        hint = "omit some tasks, or list the networks as Candidates"
        raise InvalidInput("scores", expected, str(problem.n), hint)
    names = scores.tasks
    networks = all_networks(problem, lambda group: request.cost_of(frozenset(names[i] for i in group)))
    values = networks.values.copy()
    row_of = {bits_of(np.flatnonzero(row)): i for i, row in enumerate(networks.trains)}
    for group, results in scores.given.items():
        row = row_of.get(bits_of([names.index(task) for task in group]))
        for task, value in results.items() if row is not None else ():
            values[row, names.index(task)] = request.sign * units.weighted_score(names.index(task), value)
    return Networks(networks.trains, values, networks.cost)


def _build_from_pool(plain: SelectionProblem, scores: Scores, request: SelectionRequest, units: Units) -> ScaledProblem:
    """Uses a pool of promising networks because there are too many to list. The plain problem provides a bound."""
    assert plain.scores is not None
    scale, names = _largest(plain.scores), scores.tasks
    plain = replace(plain, scores=plain.scores / scale)
    forbidden = np.zeros((plain.n, plain.n), dtype=bool)
    for link in request.cannot_link:
        tasks = [names.index(task) for task in set(link)]
        forbidden[np.ix_(tasks, tasks)] = True
    np.fill_diagonal(forbidden, False)
    most = np.inf if request.max_cost is None else request.max_cost * (1 + 1e-9)

    def cost(group: tuple[int, ...]) -> float:
        spent = request.cost_of(frozenset(names[i] for i in group))
        return spent if spent <= most else np.nan

    pool = _feasible_networks(plain, forbidden, cost, _promising_groups(plain, forbidden))
    problem = replace(
        plain,
        scores=None,
        relaxed=plain,
        cheapest=_cheapest(request),
        more=partial(_feasible_networks, plain, forbidden, cost),
    ).with_networks(pool)
    return ScaledProblem(problem, tuple(map(float, request.budgets)), scale, request.sign, units)


def _cheapest(request: SelectionRequest) -> float:
    """Returns a lower bound on the cost of a network, which is unknown (almost 0) if `cost` is a callable."""
    if request.cost is None:
        return 1.0
    if isinstance(request.cost, Mapping):
        return min((cost for cost in request.cost.values() if cost > 0), default=1.0)  # skips NaN
    return 1e-300 if callable(request.cost) else float(request.cost)


def _feasible_networks(problem: SelectionProblem, forbidden: ForbiddenPairs, cost: CostOf, sets: set[int]) -> Networks:
    """Returns the given groups as networks, without those that are too large, contain a forbidden pair or cost NaN."""
    kept = []
    for bits in sorted(sets):
        group = list(indices(bits))
        alone = len(group) == 1 and not np.isfinite(problem.alone[group[0]])
        if not alone and len(group) <= problem.largest and not forbidden[np.ix_(group, group)].any():
            kept.append((group, cost(tuple(group))))
    kept = [(group, spent) for group, spent in kept if not np.isnan(spent)]
    member = np.zeros((len(kept), problem.n), dtype=bool)
    for row, (group, _) in enumerate(kept):
        member[row, group] = True
    size = member.sum(axis=1)[:, None]
    mean = np.where(size == 1, problem.alone, (member @ problem.pairwise) / np.maximum(size - 1, 1))
    return Networks(member, np.where(member, mean, -np.inf), np.array([spent for _, spent in kept]))


def _promising_groups(problem: SelectionProblem, forbidden: ForbiddenPairs) -> set[int]:
    """Returns all pairs, groups of tasks with their nearest tasks, and groups that the search finds ignoring costs."""
    near = problem.pairwise + problem.pairwise.T
    found = {1 << task for task in range(problem.n) if np.isfinite(problem.alone[task])}
    found |= {1 << a | 1 << b for a in range(problem.n) for b in range(a)}
    for link in problem.links:
        found |= set(_grown_groups(list(indices(link)), near, forbidden))
    for count in POOL_BUDGETS:
        if count <= problem.n and problem.largest * count >= problem.n:
            for choice in solve_search(problem, [count], QUICK)[0].choices:
                found |= set(_shrunk_groups(list(indices(choice.trains)), near, forbidden))
    return found


def _grown_groups(group: list[int], near: Floats, forbidden: ForbiddenPairs) -> Iterator[int]:
    """Yields a group, then the group with its nearest task added, its two nearest, etc., without forbidden pairs."""
    grown = list(group)
    yield bits_of(grown)
    for task in np.argsort(-near[group].sum(axis=0), kind="stable").tolist():
        if task not in grown and not forbidden[task, grown].any():
            grown.append(task)
            yield bits_of(grown)


def _shrunk_groups(group: list[int], near: Floats, forbidden: ForbiddenPairs) -> Iterator[int]:
    """Yields a group, then the group without its most distant task, etc., removing forbidden pairs first."""
    while group:
        yield bits_of(group)
        inside = np.ix_(group, group)
        loose = near[inside].sum(axis=1) - 1e6 * forbidden[inside].any(axis=1)
        group = [task for place, task in enumerate(group) if place != int(loose.argmin())]
