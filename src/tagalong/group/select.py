"""`select_groups` finds the best networks for a budget, and `score_grouping` scores networks chosen elsewhere.

Scores and options are checked (`scores`) and converted to a numerical problem (`problem`). Its solution (`solvers`) is
converted back to task names (`grouping`), and repeated on resampled scores (`stability`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, cast, get_args, overload

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_integer, is_positive, is_positive_integer

from .grouping import Group, Grouping, GroupingsByBudget
from .problem import Constraints, Limits, Links, SelectionProblem, Solution, build_problem, to_group
from .scores import Candidate, Complete, Cost, Objective, Scores, assemble_grouping, group_name, read_scores
from .solvers import solve
from .stability import assess_stability, default_resamples, resampled_matrices

SolverName = Literal["auto", "exact", "milp", "search"]
DEFAULT_SECONDS = 10.0  # most selections take less than a second
LAST_RESORT_SECONDS = 20.0  # for resamples on a slow machine; the usual number takes about three seconds
MAX_BUDGETS = 16  # numbers of networks if no budget is given
P = ParamSpec("P")


class _Selection(Protocol[P]):
    # What `select_groups` returns depends on its budget.

    @overload
    def __call__(self, scores: Any, budget: int, *args: P.args, **options: P.kwargs) -> Grouping: ...
    @overload
    def __call__(
        self, scores: Any, budget: Iterable[int] | None = None, *args: P.args, **options: P.kwargs
    ) -> GroupingsByBudget: ...


def _typed_by_budget(function: Callable[Concatenate[Any, Any, P], Any]) -> _Selection[P]:
    return cast("_Selection[P]", function)


@_typed_by_budget
def select_groups(
    scores: Any,
    budget: int | Iterable[int] | None = None,
    *,
    objective: Objective = "max",
    allow_single: bool | None = None,
    max_size: int | None = None,
    cost: Cost | None = None,
    max_cost: float | None = None,
    max_total_cost: float | None = None,
    must_link: Links = (),
    cannot_link: Links = (),
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
    place_unmeasured: bool = False,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    resamples: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Grouping | GroupingsByBudget:
    """Chooses up to `budget` networks to train. Each task is served by one of them.

    A network may also be trained on tasks that it does not serve, if they help the others. The score of a task in a
    network is either the mean affinity of the network's other tasks onto it, or a value from a table of results. The
    sum of the scores of all tasks is maximized (or minimized). Values that differ by less than 1e-9 times the largest
    score are ties. Ties are broken in favor of fewer groups, then smaller groups, then alphabetical order. This order
    and the list of ties are guaranteed if the solution is proven by "exact", unless there are thousands of ties. "milp"
    and "search" only drop groups that add no value.

    The "auto" solver proves the best grouping by dynamic programming for up to 16 tasks. For more tasks, a local search
    returns a grouping with a bound on how much better the best one may be. Listed networks, and a `max_total_cost` for
    networks of different costs, use an integer program where dynamic programming does not suit.

    Args:
        scores: an `Affinity`, a square array or DataFrame [source, target], a mapping from groups to results
            `{frozenset: {task: value}}`, or a list of `Candidate` objects. In an affinity or a square table, pairs that
            were never measured are NaN. They are predicted from the measured pairs, and `Grouping.unmeasured` is their
            fraction.
        budget: the maximum number of networks, or several such numbers. By default, every number up to the number of
            tasks, but at most 16.
        objective: "max" if larger scores are better, or "min" for losses.
        allow_single: whether a network may be trained on a single task, with the diagonal as its score. By default,
            this is allowed for held-out affinities, if the self-affinity of every task was measured, and for tables
            that contain single-task results.
        max_size: the maximum number of tasks per network.
        cost: the cost of a network. This can be a number, a function of the set of task names, or a mapping from sets
            or numbers of tasks to costs. Networks that are not in the mapping cannot be chosen. Candidates have their
            own costs.
        max_cost: the maximum cost of a single network, for example to limit latency.
        max_total_cost: the maximum sum of the costs of all networks.
        must_link: sets of tasks that must be served by the same network.
        cannot_link: sets of tasks that must not be trained in the same network. With `cannot_link`, or limits on costs
            that depend on the group, a local search considers only promising groups of more than 14 tasks (10 with a
            limited sum of different costs).
        weights: the weight of each task in the sum. Defaults to 1.
        complete: if "pairs", groups of three or more tasks are added to a table of results. Their scores are means over
            pairs. Given values take precedence.
        place_unmeasured: whether to place tasks without any measured pair, as if they were average tasks. By default,
            they are left out with a warning (`Grouping.unplaced`).
        solver: "exact" (dynamic programming), "milp" (integer program), "search" (local search with a bound), or
            "auto".
        time_limit: the time limit in seconds for everything, resamples included, after which the best grouping found so
            far is returned. By default, only the search is limited, to 10 seconds, of which it rarely takes one.
        seed: the random seed for the search and the resamples.
        resamples: the number of resamples used to assess how stable the groups are, if `scores` is an affinity with a
            history or standard errors (`Affinity.bootstrap`), or if some pairs were never measured. In each resample,
            predicted scores are drawn from their distribution. Defaults to 100 for up to 12 tasks, 20 for up to 40 (10
            for many budgets), and 0 for more.
        stop: a function that is called regularly, except while an integer program is solved. When this function returns
            True, the selection ends as if `time_limit` had passed.

    Returns:
        The grouping, or the grouping for each number of networks if `budget` is not a single number.

    Raises:
        ValueError: If the input is invalid.

    Example:
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> print(select_groups(affinity, budget=2))
        2 networks for 3 tasks, total 11 (proven optimal)
        network  serves  helped by  score
              1  0, 1                  10
              2  2       0              1
    """
    # The scores, and what tasks and networks count.
    task_scores = read_scores(
        scores,
        objective=objective,
        allow_single=allow_single,
        cost=cost,
        weights=weights,
        complete=complete,
        place_unmeasured=place_unmeasured,
    )
    tasks = task_scores.tasks

    # The other options.
    if solver not in get_args(SolverName):
        raise InvalidInput("solver", f"must be one of {', '.join(map(repr, get_args(SolverName)))}", repr(solver))
    for name, number, minimum in (("max_size", max_size, 1), ("resamples", resamples, 0), ("seed", seed, 0)):
        if number is not None and not is_integer(number, minimum):
            raise InvalidInput(name, f"must be an integer of at least {minimum}", repr(number))
    for name, limit in (("time_limit", time_limit), ("max_cost", max_cost), ("max_total_cost", max_total_cost)):
        if limit is not None and not is_positive(limit):
            raise InvalidInput(name, "must be a positive number", repr(limit))
        if limit is not None and name != "time_limit" and cost is None and not task_scores.own_costs:
            raise InvalidInput(name, "requires `cost` unless the networks have their own costs")
    for name, links in (("must_link", must_link), ("cannot_link", cannot_link)):
        for link in links:
            if isinstance(link, str) or len(set(link)) < 2 or not set(link) <= set(tasks):
                known = ", ".join(map(repr, tasks))
                raise InvalidInput(name, f"must be sets of two or more of the tasks ({known})", repr(link))
    budgets = _read_budgets(budget, task_scores)

    # The problem.
    constraints = Constraints(max_size, max_cost, max_total_cost, must_link, cannot_link)
    limits = Limits(time.monotonic() + (time_limit or DEFAULT_SECONDS), seed, stop=stop)
    problem = build_problem(task_scores, constraints, list_networks=solver == "milp")

    # Resamples need standard errors or unmeasured pairs. Their number is fixed: without `time_limit`, only the search
    # is limited to ten seconds.
    affinity = scores if isinstance(scores, Affinity) and scores.has_errors else None
    if affinity is None and not task_scores.unmeasured:
        if resamples:
            raise InvalidInput("resamples", "requires standard errors or unmeasured pairs", str(resamples))
        resamples = 0
    elif resamples is None:
        resamples = default_resamples(len(tasks), len(budgets))
    is_shared = time_limit and resamples and not problem.can_be_exact
    search_limits = limits.share(2) if is_shared else limits

    # The solution for each number of networks. Without a budget, numbers that are too small are left out.
    used_solver, solutions = solve(problem, budgets, solver, search_limits)
    groupings = {}
    for k, solution in zip(budgets, solutions, strict=True):
        if solution is not None:
            groupings[k] = _to_grouping(task_scores, problem, solution, k, used_solver)
        elif budget is not None or k == budgets[-1]:
            limit_text = "" if max_total_cost is None else f" and a `max_total_cost` of {max_total_cost:g}"
            hint = "relax one of `max_size`, `must_link`, `cannot_link`, `max_cost`, `max_total_cost`, `allow_single`"
            expected = "was found to serve all tasks under these constraints"
            raise InvalidInput(f"no grouping with a `budget` of {k}{limit_text}", expected, hint=hint)

    # How stable the groups are, and what further networks gain.
    signed = {k: task_scores.sign * grouping.value for k, grouping in groupings.items()}
    gains = {k: signed[k] - signed[j] for j, k in pairwise(signed)}
    errors: dict[int, float] = {}
    if resamples:
        matrices = resampled_matrices(task_scores, affinity, resamples, seed)
        if not time_limit:
            limits = replace(limits, deadline=limits.deadline + LAST_RESORT_SECONDS)
        groupings, gains, errors = assess_stability(groupings, gains, task_scores, matrices, constraints, limits)
    if isinstance(budget, Iterable) or budget is None:
        return GroupingsByBudget(groupings, gains, errors)
    return groupings[budgets[0]]


def _read_budgets(budget: Any, scores: Scores) -> list[int]:
    if budget is None:
        return list(range(1, min(len(scores.tasks), MAX_BUDGETS) + 1))
    n = len(scores.tasks) + len(scores.unplaced)
    budgets = list(budget) if isinstance(budget, Iterable) and not isinstance(budget, str) else [budget]
    if not budgets or not all(is_positive_integer(networks) and networks <= n for networks in budgets):
        expected = f"must be a number of networks from 1 to {n}, the number of tasks"
        raise InvalidInput("budget", expected, repr(budget), hint="limit costs with `max_total_cost`")
    return sorted({int(networks) for networks in budgets})  # each gain is that over the next smaller number


def _to_grouping(scores: Scores, problem: SelectionProblem, solution: Solution, budget: int, solver: str) -> Grouping:
    networks = []
    for choice in solution.choices:
        group = to_group(scores, problem, choice)
        if scores.candidates is not None:
            values = scores.candidates[problem.listed.candidates[choice.row]].values
        else:
            values = {task: scores.score_of(task, group.trains | {task}) for task in scores.tasks}
        networks.append((group, {task: float(value) for task, value in values.items() if np.isfinite(value)}))
    ties = tuple(tuple(sorted(to_group(scores, problem, choice) for choice in tie)) for tie in solution.ties)
    status: Literal["optimal", "feasible"] = "optimal" if solution.proven else "feasible"
    return assemble_grouping(scores, networks, budget, problem.scale * solution.bound, status, solver, ties)


def score_grouping(
    scores: Any,
    groups: Iterable[Group | Iterable[str]],
    *,
    objective: Objective = "max",
    allow_single: bool | None = None,
    cost: Cost | None = None,
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
) -> Grouping:
    """Scores an existing grouping in the same way as `select_groups` does.

    Args:
        scores: the scores, in any form that `select_groups` accepts. The other options also have the same meaning as in
            `select_groups`.
        groups: the groups, given as `Group` objects or as sets of task names. A `Group` specifies which tasks it
            serves. Otherwise, each task is served by the network in which it has the best score.
        objective: "max" or "min".
        allow_single: whether a network may be trained on a single task.
        cost: the cost of a network as a function of its tasks.
        weights: the weight of each task in the sum.
        complete: if "pairs", missing results of larger groups are computed from pairs.

    Returns:
        A `Grouping` with solver "given". Its bound is the value that would result if every task had its best partner,
        and its budget is the number of groups.

    Raises:
        InvalidInput: If a task is unknown or not served, or a group has no known result.

    Example:
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> score_grouping(affinity, [{"0", "1"}, {"1", "2"}]).value
        10.0
    """
    task_scores = read_scores(
        scores, objective=objective, allow_single=allow_single, cost=cost, weights=weights, complete=complete
    )
    # Each task is served by the network in which it has the best score, unless a `Group` says otherwise.
    groups = list(groups)
    networks = [_look_up(group, task_scores) for group in groups]
    serves: list[set[str]] = [set() for _ in networks]
    for task in task_scores.tasks:
        serving = [row for row, group in enumerate(groups) if not isinstance(group, Group) or task in group.serves]
        able = [row for row in serving if task in networks[row].values]
        if not able:
            raise InvalidInput("groups", f"must serve {task!r}")
        best = max(able, key=lambda row: task_scores.sign * networks[row].values[task])
        serves[best].add(task)
    chosen = [
        (Group(network.trains, served, network.cost), network.values)
        for network, served in zip(networks, serves, strict=True)
    ]

    # In no grouping is a task better than in its best network or with its best partner.
    highest = np.nanmax(task_scores.sign * task_scores.table, axis=0).tolist()
    bound = task_scores.sign * task_scores.total(dict(zip(task_scores.tasks, highest, strict=True)))
    return assemble_grouping(task_scores, chosen, len(networks), bound)


def _look_up(group: Group | Iterable[str], scores: Scores) -> Candidate:
    trains = group.trains if isinstance(group, Group) else frozenset(group)
    if isinstance(group, str) or not trains or not trains <= set(scores.tasks):
        raise InvalidInput("groups", f"must be sets of known tasks ({', '.join(map(repr, scores.tasks))})", repr(group))
    if len(trains) == 1 and not scores.allows_single:
        raise InvalidInput("groups", "must have two or more tasks unless `allow_single=True`", group_name(trains))
    values: Mapping[str, float]
    if scores.candidates is None:
        values, cost = {task: scores.score_of(task, trains) for task in trains}, np.nan
    else:
        # Several listed networks may train these tasks: prefer the stated cost, then better results, then lower costs.
        listed = [entry for entry in scores.candidates if entry.trains == trains]
        if not listed:
            raise InvalidInput("groups", "must have a result in `scores`", group_name(trains))
        stated = group.cost if isinstance(group, Group) else None
        network = max(listed, key=lambda one: (one.cost == stated, scores.sign * scores.total(one.values), -one.cost))
        values, cost = network.values, network.cost
    if np.isnan(cost):
        cost = scores.cost_of(trains)
    if np.isnan(cost):
        raise InvalidInput("groups", "must have an entry in `cost`", group_name(trains))
    return Candidate(trains, values, cost)
