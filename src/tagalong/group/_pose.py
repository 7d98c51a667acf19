"""From scores and a request to the problem that solvers know: numbers instead of names, scaled, to be maximised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from reprlib import repr as short
from typing import Any

import numpy as np

from ._dynamic import MOST_LISTED
from ._listed import all_networks
from ._pool import existing, pool_networks
from ._problem import Bools, Floats, Ints, Networks, Problem, bits_of
from ._request import Request
from ._scores import Scores, Units


@dataclass(frozen=True)
class Posed:
    """A problem and how to read its answer.

    Attributes:
        problem: for the solvers.
        budgets: in the units of the problem: a number of networks where all cost the same.
        scale: what the weighted scores were divided by, in `units`.
        sign: −1 if they are to be minimised.
        units: what weighted scores are counted in.
        rows: for each network of the problem, its place in the list of all.
        networks: the listed networks before `max_cost`, to say which limit would do.
    """

    problem: Problem
    budgets: tuple[float, ...]
    scale: float
    sign: float
    units: Units
    rows: Ints | None = None
    networks: Networks | None = None

    def back(self, value: float) -> float:
        """From the units of the problem to those of the scores."""
        return self.units.back(self.sign * self.scale * value)


def pose(scores: Scores, request: Request) -> Posed:
    """Builds the problem; scores and request have been checked."""
    sign = _sign(request)
    units = request.units(scores)
    n = len(scores.tasks)
    bare = Problem(n, None, None, components(scores.tasks, request.must_link), min(n, request.max_size or n))
    if scores.matrix is None:
        return _posed_networks(bare, _candidates(scores, request, units), scores, request, units)
    pairs = _weighted(scores.matrix, units, sign, request.singles(scores))
    if not _is_plain(scores, request):
        if n > MOST_LISTED and not scores.given:
            return _posed_pool(replace(bare, scores=pairs), scores, request, units)
        networks = _groups(replace(bare, scores=pairs), scores, request, units)
        return _posed_networks(bare, networks, scores, request, units)
    scale = _largest(pairs)
    return Posed(replace(bare, scores=pairs / scale), tuple(_counts(request, n)), scale, sign, units)


def _sign(request: Request) -> float:
    return 1.0 if request.objective == "max" else -1.0


def _posed_pool(plain: Problem, scores: Scores, request: Request, units: Units) -> Posed:
    """Too many groups to list: some that are worth considering, and the plain problem for a bound."""
    assert plain.scores is not None
    scale, names = _largest(plain.scores), scores.tasks
    plain = replace(plain, scores=plain.scores / scale)
    apart = np.zeros((plain.n, plain.n), dtype=bool)
    for link in request.cannot_link:
        tasks = [names.index(task) for task in set(link)]
        apart[np.ix_(tasks, tasks)] = True
    np.fill_diagonal(apart, False)
    most = np.inf if request.max_cost is None else request.max_cost * (1 + 1e-9)

    def cost(group: tuple[int, ...]) -> float:
        spent = group_cost(request, frozenset(names[i] for i in group))
        return spent if spent <= most else np.nan

    problem = replace(
        plain, scores=None, relaxed=plain, cheapest=_cheapest(request), more=partial(existing, plain, apart, cost)
    ).with_networks(pool_networks(plain, apart, cost))
    return Posed(problem, tuple(map(float, request.budgets)), scale, _sign(request), units)


def _cheapest(request: Request) -> float:
    """What a network costs at least, as far as that can be known: of a callable nothing."""
    if request.cost is None:
        return 1.0
    if isinstance(request.cost, Mapping):
        return min((cost for cost in request.cost.values() if cost > 0), default=1.0)  # NaN is no cost
    return 1e-300 if callable(request.cost) else float(request.cost)


def _posed_networks(bare: Problem, networks: Networks, scores: Scores, request: Request, units: Units) -> Posed:
    scale = _largest(networks.values)
    networks = replace(networks, values=networks.values / scale)
    separate = _separate(networks.trains, scores.tasks, request)
    cheap = networks.cost <= (np.inf if request.max_cost is None else request.max_cost * (1 + 1e-9))
    problem = bare.with_networks(networks.only(separate & cheap))
    dearest = bare.n * float(networks.cost[separate & cheap].max(initial=0.0))  # nothing can be spent beyond it
    budgets = tuple(min(float(budget), max(dearest, 1e-300)) for budget in request.budgets)
    rows = np.flatnonzero(separate & cheap)
    return Posed(problem, budgets, scale, _sign(request), units, rows, networks.only(separate))


def components(tasks: tuple[str, ...], links: Iterable[Iterable[str]]) -> tuple[int, ...]:
    """Sets of tasks tied together by links, as bits, by first task; a task without a link is its own."""
    sets = [1 << i for i in range(len(tasks))]
    for link in links:
        joined = bits_of([tasks.index(task) for task in set(link)])
        touched = [bits for bits in sets if bits & joined]
        sets = [bits for bits in sets if not bits & joined] + [sum(touched)]
    return tuple(sorted(sets, key=lambda bits: bits & -bits))


def _weighted(matrix: Floats, units: Units, sign: float, singles: bool) -> Floats:
    if len(matrix) == 1:
        return sign * units.weighted(np.nan_to_num(matrix))  # the only network there is
    used = matrix if singles else np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)
    scores: Floats = sign * units.weighted(used)
    if not singles:
        np.fill_diagonal(scores, -np.inf)
    return scores


def _largest(values: Floats) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0


def _is_plain(scores: Scores, request: Request) -> bool:
    """Whether all groups of allowed size exist and cost the same: then helpers are found by sorting."""
    constant = request.cost is None or not (callable(request.cost) or isinstance(request.cost, Mapping))
    free = request.max_cost is None or not constant or request.cost <= request.max_cost  # type: ignore[operator]
    return constant and free and not request.cannot_link and not scores.given


def _counts(request: Request, n: int) -> list[float]:
    cost = 1.0 if request.cost is None else float(request.cost)  # type: ignore[arg-type]
    return [min(np.floor(budget / cost * (1 + 1e-9)), n) for budget in request.budgets]


def _groups(problem: Problem, scores: Scores, request: Request, units: Units) -> Networks:
    """Every group one by one, with its own cost, and with the results given for it."""
    if problem.n > MOST_LISTED:
        raise ValueError(
            f"given results of larger groups need at most {MOST_LISTED} tasks, found {problem.n}; "
            "leave some out, or list the networks as Candidates"
        )
    names = scores.tasks
    networks = all_networks(problem, lambda group: group_cost(request, frozenset(names[i] for i in group)))
    values = networks.values.copy()
    row_of = {bits_of(np.flatnonzero(row)): i for i, row in enumerate(networks.trains)}
    for group, results in scores.given.items():
        row = row_of.get(bits_of([names.index(task) for task in group]))
        for task, value in results.items() if row is not None else ():
            values[row, names.index(task)] = _sign(request) * units.one(names.index(task), value)
    return Networks(networks.trains, values, networks.cost)


def group_cost(request: Request, group: frozenset[str]) -> float:
    """What a network for these tasks costs; NaN if a mapping does not list it."""
    cost = request.cost
    if cost is None:
        return 1.0
    if isinstance(cost, Mapping):
        return float(request.listed_costs.get(group, request.listed_costs.get(len(group), np.nan)))
    if not callable(cost):
        return float(cost)
    name = f"{{{', '.join(sorted(group))}}}"
    try:
        found = cost(group)
    except Exception as error:
        raise ValueError(f"`cost` must return a positive number for {name}, but it raised {error!r}") from error
    number = _number(found)
    if not 0 < number < math.inf:
        raise ValueError(f"`cost` of {name} must be a positive number, found {short(found)}")
    return number


def _number(value: Any) -> float:
    """As a float, tensors and arrays of one number too; NaN for anything else."""
    if isinstance(value, (str, bytes, bool, complex, np.complexfloating)):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        return math.nan


def _candidates(scores: Scores, request: Request, units: Units) -> Networks:
    """One row per candidate; those that may not be chosen serve nothing."""
    assert scores.listed is not None
    n, count, singles = len(scores.tasks), len(scores.listed), request.singles(scores)
    trains = np.zeros((count, n), dtype=bool)
    values, cost = np.full((count, n), np.nan), np.ones(count)
    for row, entry in enumerate(scores.listed):
        trains[row] = [task in entry.trains for task in scores.tasks]
        cost[row] = group_cost(request, entry.trains) if np.isnan(entry.cost) else entry.cost
        if len(entry.trains) <= (request.max_size or n) and (len(entry.trains) > 1 or singles):
            for task, value in entry.values.items():
                values[row, scores.tasks.index(task)] = value
    values = np.where(np.isnan(values), -np.inf, _sign(request) * units.weighted(values))
    kept = np.isfinite(cost)
    values[~kept], cost[~kept] = -np.inf, 1.0
    return Networks(trains, values, cost)


def _separate(trains: Bools, tasks: tuple[str, ...], request: Request) -> Bools:
    """Which networks train no two tasks that cannot be linked."""
    apart = np.ones(len(trains), dtype=bool)
    for link in request.cannot_link:
        apart &= trains[:, [tasks.index(task) for task in set(link)]].sum(axis=1) < 2
    return apart
