"""From scores and a request to the problem that solvers know: numbers instead of names, scaled, to be maximised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tagalong.errors import counted, refuse

from .problem import Bools, Floats, Ints, Limits, Networks, Problem, bits_of, indices
from .scores import Units, group_name, is_number, range_problems
from .solvers import MOST_LISTED, all_networks, solve_search

if TYPE_CHECKING:
    from .scores import Scores

Cost = float | Mapping[Any, float] | Callable[[frozenset[str]], float]
SOLVERS = ("auto", "exact", "lp", "columns", "milp", "search")


@dataclass(frozen=True)
class Request:
    """The options of `select_groups`, after its scores."""

    budgets: Sequence[float]
    objective: Literal["max", "min"] = "max"
    allow_single: bool | None = None
    max_size: int | None = None
    cost: Cost | None = None
    max_cost: float | None = None
    must_link: Iterable[Iterable[str]] = ()
    cannot_link: Iterable[Iterable[str]] = ()
    weights: Mapping[str, float] | None = None
    solver: str = "auto"
    time_limit: float | None = None
    seed: int = 0
    resamples: int | None = None
    stop: Callable[[], bool] | None = None

    def singles(self, scores: Scores) -> bool:
        """Whether networks of one task are allowed: as asked, or as the scores suggest."""
        return scores.singles if self.allow_single is None else self.allow_single

    def units(self, scores: Scores) -> Units:
        """What weighted scores are counted in."""
        return Units.of(scores.largest(self.singles(scores)), self._weights(scores))

    def _weights(self, scores: Scores) -> Floats:
        return np.array([float((self.weights or {}).get(task, 1.0)) for task in scores.tasks])

    @cached_property
    def listed_costs(self) -> dict[Any, float]:
        """A mapping of costs with sets as keys, however they were written."""
        assert isinstance(self.cost, Mapping)
        return {frozenset(key) if isinstance(key, tuple) else key: cost for key, cost in self.cost.items()}

    def check(self, scores: Scores) -> None:
        """Refuses what cannot be meant."""
        value_problems = self._value_problems(scores) if self._knows_singles else []
        problems = [
            *self._budget_problems(len(scores.tasks), scores),
            *self._option_problems(),
            *self._cost_problems(scores),
            *_link_problems("must_link", self.must_link, scores),
            *_link_problems("cannot_link", self.cannot_link, scores),
            *self._weight_problems(scores),
            *value_problems,
        ]
        refuse(problems)
        refuse(range_problems(scores.largest(self.singles(scores)), self._weights(scores)))

    @property
    def _knows_singles(self) -> bool:
        return self.allow_single is None or isinstance(self.allow_single, (bool, np.bool_))

    def _budget_problems(self, n: int, scores: Scores) -> list[str]:
        problems = []
        counted = self.cost is None and all(entry.cost == 1 or np.isnan(entry.cost) for entry in scores.listed or ())
        for budget in self.budgets:
            if isinstance(budget, bool) or not isinstance(budget, (int, float, np.number)):
                problems.append(f"`budget` must be a number, found {short(budget)}")
            elif not is_number(budget) or budget <= 0:
                problems.append(f"`budget` must be positive, found {short(budget)}; 1 is one network for all tasks")
            elif counted and budget != int(budget):
                problems.append(f"`budget` must be a whole number of networks, found {budget!r}; or give a `cost`")
            elif counted and budget > n:
                problems.append(f"`budget` must be from 1 to the number of tasks, {n}, found {budget!r}")
        if not len(self.budgets):
            problems.append("`budgets` must hold at least one budget, found none")
        return problems

    def _option_problems(self) -> list[str]:
        problems = []
        if not isinstance(self.objective, str) or self.objective not in ("max", "min"):
            problems.append(f"`objective` must be 'max' or 'min', found {short(self.objective)}")
        if not isinstance(self.solver, str) or self.solver not in SOLVERS:
            problems.append(f"`solver` must be one of {', '.join(map(repr, SOLVERS))}, found {short(self.solver)}")
        if not self._knows_singles:
            problems.append(f"`allow_single` must be True, False or None, found {short(self.allow_single)}")
        if self.max_size is not None and (not _is_whole(self.max_size) or self.max_size < 1):
            problems.append(f"`max_size` must be a whole number from 1, found {self.max_size!r}")
        if self.time_limit is not None and not _is_positive(self.time_limit):
            problems.append(f"`time_limit` must be a positive number of seconds, found {self.time_limit!r}")
        if not _is_whole(self.seed) or self.seed < 0:
            problems.append(f"`seed` must be a whole number from 0, found {self.seed!r}")
        if self.resamples is not None and (not _is_whole(self.resamples) or self.resamples < 0):
            problems.append(f"`resamples` must be a whole number from 0, found {self.resamples!r}")
        if self.stop is not None and not callable(self.stop):
            problems.append(f"`stop` must be a callable that returns True or False, found {self.stop!r}")
        return problems

    def _cost_problems(self, scores: Scores) -> list[str]:
        problems = []
        if self.cost is not None and scores.own_costs:
            problems.append("`cost` must be left out: each Candidate has its own")
        by_group = callable(self.cost) or isinstance(self.cost, Mapping)
        if self.cost is not None and not by_group and not _is_positive(self.cost):
            problems.append(f"`cost` must be a positive number, a mapping or a callable, found {short(self.cost)}")
        if isinstance(self.cost, Mapping):
            problems += self._cost_table_problems(self.cost)
        if self.max_cost is not None and not _is_positive(self.max_cost):
            problems.append(f"`max_cost` must be a positive number, found {self.max_cost!r}")
        unknown = scores.listed is None or any(np.isnan(entry.cost) for entry in scores.listed)
        if self.max_cost is not None and self.cost is None and unknown:
            problems.append("`max_cost` needs `cost`, what one network costs given its tasks; found none")
        return problems

    def _cost_table_problems(self, table: Mapping[Any, Any]) -> list[str]:
        keys = [key for key in table if isinstance(key, bool) or not isinstance(key, (frozenset, tuple, Integral))]
        if keys:
            return [
                "`cost` must map sets of tasks, or numbers of tasks, to costs, found the key "
                f"{short(keys[0])}; write frozenset({{'a', 'b'}}) or 2"
            ]
        problems = []
        if len(self.listed_costs) < len(table):
            problems.append("`cost` must list each group once, found one as a tuple and again in another order or form")
        for key, cost in table.items():
            unlisted = isinstance(cost, (float, np.floating)) and np.isnan(cost)  # as if the key were not there
            if not unlisted and not _is_positive(cost):
                what = f"a network of {counted(int(key), 'task')}" if isinstance(key, Integral) else group_name(key)
                problems.append(f"`cost` of {what} must be a positive number, found {short(cost)}")
        return problems

    def _weight_problems(self, scores: Scores) -> list[str]:
        if self.weights is None:
            return []
        if not isinstance(self.weights, Mapping):
            example = f"{{{scores.tasks[0]!r}: 2}}"
            return [f"`weights` must map tasks to numbers, such as {example}, found {short(self.weights)}"]
        unknown = set(self.weights) - set(scores.tasks)
        problems = []
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(f"`weights` must name tasks ({known}), found {', '.join(sorted(map(repr, unknown)))}")
        for task, weight in self.weights.items():
            if not _is_positive(weight):
                problems.append(f"`weights`: the weight of {task!r} must be a positive number, found {short(weight)}")
        return problems

    def _value_problems(self, scores: Scores) -> list[str]:
        if scores.matrix is None:
            return []
        wanted = ~np.eye(len(scores.tasks), dtype=bool)
        if self.singles(scores):
            wanted[:] = True
        bad = np.argwhere(wanted & ~np.isfinite(scores.matrix))
        if not len(bad):
            return []
        i, j = bad[0]
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        where = f"{scores.matrix[i, j]} from {scores.tasks[i]!r} onto {scores.tasks[j]!r}{more}"
        hint = (
            "measure that pair, or leave the task out"
            if i != j
            else "give the single-task score, or allow_single=False"
        )
        return [f"`scores` must be finite, found {where}; {hint}"]


def read_links(links: Any) -> Any:
    """Links as tuples of tuples, so that they can be read twice; what is no link stays as it is, to be refused."""
    if isinstance(links, str) or not isinstance(links, Iterable):
        return links
    return tuple(link if isinstance(link, str) or not isinstance(link, Iterable) else tuple(link) for link in links)


def read_budgets(budgets: Any) -> tuple[float, ...]:
    """Several budgets."""
    if isinstance(budgets, str) or not isinstance(budgets, Iterable) or getattr(budgets, "ndim", 1) == 0:
        raise ValueError(
            f"`budgets` must be a list of numbers, such as [2, 3], found {short(budgets)}; or give `budget`"
        )
    return tuple(budgets)


def _link_problems(name: str, links: Any, scores: Scores) -> list[str]:
    if not isinstance(links, tuple):
        return [f"`{name}` must be a list of sets of tasks, such as [('a', 'b')], found {short(links)}"]
    problems = []
    for link in links:
        if not isinstance(link, tuple) or len(set(map(repr, link))) < 2:
            problems.append(f"`{name}` must hold sets of two or more tasks, found {short(link)}")
            continue
        unknown = sorted({repr(task) for task in link if task not in scores.tasks})
        if unknown:
            known = ", ".join(map(repr, scores.tasks))
            problems.append(f"`{name}` must name tasks ({known}), found {', '.join(unknown)}")
    return problems


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return is_number(value) and bool(value > 0)


COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of networks for which the plain problem is searched
QUICK = Limits(kicks=5)

Apart = Bools  # tasks × tasks: pairs that no network trains


def pool_networks(problem: Problem, apart: Apart, cost: Callable[[tuple[int, ...]], float]) -> Networks:
    """Pairs, each task with its nearest, and what the search chooses without costs, peeled to smaller groups."""
    return existing(problem, apart, cost, _suggested(problem, apart))


def existing(problem: Problem, apart: Apart, cost: Callable[[tuple[int, ...]], float], sets: set[int]) -> Networks:
    """These groups as networks, less those that train a forbidden pair, are too large or cost NaN."""
    kept = []
    for bits in sorted(sets):
        group = list(indices(bits))
        alone = len(group) == 1 and not np.isfinite(problem.alone[group[0]])
        if not alone and len(group) <= problem.largest and not apart[np.ix_(group, group)].any():
            kept.append((group, cost(tuple(group))))
    kept = [(group, spent) for group, spent in kept if not np.isnan(spent)]
    member = np.zeros((len(kept), problem.n), dtype=bool)
    for row, (group, _) in enumerate(kept):
        member[row, group] = True
    return Networks(member, _scores(problem, member), np.array([spent for _, spent in kept]))


def _scores(problem: Problem, member: Bools) -> Floats:
    size = member.sum(axis=1)[:, None]
    mean = np.where(size == 1, problem.alone, (member @ problem.pairwise) / np.maximum(size - 1, 1))
    return np.where(member, mean, -np.inf)


def _suggested(problem: Problem, apart: Apart) -> set[int]:
    near = problem.pairwise + problem.pairwise.T
    units = [list(indices(link)) for link in problem.links]
    found = {1 << task for task in range(problem.n) if np.isfinite(problem.alone[task])}
    found |= {1 << a | 1 << b for a in range(problem.n) for b in range(a)}
    for unit in units:
        found |= set(_ladder(unit, near, apart))
    for count in COUNTS:
        if count <= problem.n and problem.largest * count >= problem.n:
            for choice in solve_search(problem, [count], QUICK)[0].choices:
                found |= set(_peeled(list(indices(choice.trains)), near, apart))
    return found


def _ladder(unit: list[int], near: Floats, apart: Apart) -> Iterator[int]:
    """The unit, then with its nearest task, its two nearest, …; forbidden ones are passed over."""
    group = list(unit)
    yield bits_of(group)
    for task in np.argsort(-near[unit].sum(axis=0), kind="stable").tolist():
        if task not in group and not apart[task, group].any():
            group.append(task)
            yield bits_of(group)


def _peeled(group: list[int], near: Floats, apart: Apart) -> Iterator[int]:
    """The group without its loosest task, without its two loosest, …; tasks of forbidden pairs go first."""
    while group:
        yield bits_of(group)
        inside = np.ix_(group, group)
        loose = near[inside].sum(axis=1) - 1e6 * apart[inside].any(axis=1)
        group = [task for place, task in enumerate(group) if place != int(loose.argmin())]


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
