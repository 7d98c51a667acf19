"""`select_groups` finds the best networks for a budget.

Scores and options are checked and converted to a numerical problem. Its solution is then converted back to task names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise, repeat
from typing import Any, Unpack, overload

import numpy as np

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_positive_integer

from .build import build_problem
from .by_budget import GroupingsByBudget
from .grouping import Group, Grouping, Option
from .options import Cost, Links, Objective, SelectionOptions, SelectionRequest, SolverName
from .problem import Floats, Limits, NetworkChoice, SelectionProblem, Solution
from .scores import Complete, Scores, read_scores
from .solvers import DEFAULT_SECONDS, solve
from .stability import Served, stability

MAX_BUDGETS = 16  # numbers of networks if no budget is given
RESAMPLES_BY_TASKS = ((12, 100), (40, 20))  # (maximum number of tasks, resamples); none for more tasks


@overload
def select_groups(scores: Any, budget: int, **options: Unpack[SelectionOptions]) -> Grouping: ...


@overload
def select_groups(
    scores: Any, budget: Iterable[int] | None = None, **options: Unpack[SelectionOptions]
) -> GroupingsByBudget: ...


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
    returns a grouping with a bound on how much better the best one may be. Listed networks, `cannot_link` and a
    `max_total_cost` for networks of different costs use an integer program where dynamic programming does not suit.

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
            that depend on the group, only promising groups are considered for more than 14 tasks (10 if there are many
            different costs). The result has a valid bound but is never proven optimal.
        weights: the weight of each task in the sum. Defaults to 1.
        complete: if "pairs", groups of three or more tasks are added to a table of results. Their scores are means over
            pairs. Given values take precedence.
        place_unmeasured: whether to place tasks without any measured pair, as if they were average tasks. By default,
            they are left out with a warning (`Grouping.unplaced`).
        solver: "exact" (dynamic programming), "milp" (integer program), "search" (local search with a bound), or
            "auto".
        time_limit: the time limit in seconds, after which the best grouping found so far is returned. Defaults to 10
            seconds for "milp" and "search".
        seed: the random seed for the search and the resamples.
        resamples: the number of resamples used to assess how stable the groups are, if `scores` is an affinity with a
            history or standard errors (`Affinity.bootstrap`), or if some pairs were never measured. In each resample,
            predicted scores are drawn from their distribution. Defaults to 100 for up to 12 tasks, 20 for up to 40, and
            0 for more.
        stop: a function that is called several times per second in this thread. When this function returns True, the
            selection ends as if `time_limit` had passed.

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
    request = SelectionRequest(
        objective=objective,
        allow_single=allow_single,
        max_size=max_size,
        cost=cost,
        max_cost=max_cost,
        max_total_cost=max_total_cost,
        must_link=must_link,
        cannot_link=cannot_link,
        weights=weights,
        complete=complete,
        place_unmeasured=place_unmeasured,
        solver=solver,
        time_limit=time_limit,
        seed=seed,
        resamples=resamples,
        stop=stop,
    )
    task_scores = read_scores(scores, request.complete, request.place_unmeasured)
    request.check(task_scores)
    budgets = _read_budgets(budget, task_scores)
    deadline = time.monotonic() + (request.time_limit or np.inf)
    limits = Limits(deadline, request.seed, stop=request.stop)
    problem = build_problem(task_scores, request)
    used_solver, solutions = solve(problem, budgets, solver, limits)
    groupings = {}
    for k, solution in zip(budgets, solutions, strict=True):
        if solution is not None:
            groupings[k] = _to_grouping(task_scores, request, problem, solution, k, used_solver)
        elif budget is not None or k == budgets[-1]:  # without a budget, numbers that are too small are left out
            limit = "" if request.max_total_cost is None else f" and a `max_total_cost` of {request.max_total_cost:g}"
            hint = "relax one of `max_size`, `must_link`, `cannot_link`, `max_cost`, `max_total_cost`, `allow_single`"
            expected = "can serve all tasks under these constraints"
            raise InvalidInput(f"no grouping with a `budget` of {k}{limit}", expected, hint=hint)

    affinity = scores if isinstance(scores, Affinity) and scores.has_errors else None
    gains: dict[int, float] = {}
    errors: dict[int, float] = {}
    if affinity is not None or task_scores.completion is not None:
        groupings, gains, errors = _resample(affinity, task_scores, request, groupings)
    if not isinstance(budget, Iterable) and budget is not None:
        return groupings[budgets[0]]
    if not gains:
        signed = {k: request.sign * grouping.value for k, grouping in groupings.items()}
        gains = {k: signed[k] - signed[j] for j, k in pairwise(signed)}
    return GroupingsByBudget(groupings, gains, errors)


def _read_budgets(budget: Any, scores: Scores) -> list[int]:
    if budget is None:
        return list(range(1, min(len(scores.tasks), MAX_BUDGETS) + 1))
    n = len(scores.tasks) + len(scores.unplaced)
    several = isinstance(budget, Iterable) and not isinstance(budget, str)
    budgets = list(budget) if several else [budget]
    if not budgets or not all(is_positive_integer(networks) and networks <= n for networks in budgets):
        expected = f"must be a number of networks from 1 to {n}, the number of tasks"
        raise InvalidInput("budget", expected, repr(budget), hint="limit costs with `max_total_cost`")
    return sorted({int(networks) for networks in budgets})  # each gain is that over the next smaller number


def _to_grouping(
    scores: Scores, request: SelectionRequest, problem: SelectionProblem, solution: Solution, budget: int, solver: str
) -> Grouping:
    """Converts a solution to a grouping, with values in the units of the scores."""
    tasks, networks = scores.tasks, problem.networks

    def to_group(choice: NetworkChoice) -> Group:
        trains = frozenset(tasks[i] for i in choice.trains)
        cost = request.cost_of(trains)
        if networks is not None and scores.candidates is not None:
            cost = float(networks.cost[choice.row])
        return Group(trains, (tasks[i] for i in choice.serves), cost)

    def score_of(task: str, choice: NetworkChoice, trains: frozenset[str]) -> float:
        if scores.candidates is not None and networks is not None:
            return float(scores.candidates[networks.candidates[choice.row]].values.get(task, np.nan))
        return scores.score_of(task, trains)

    groups = tuple(map(to_group, solution.choices))
    per_task: dict[str, float] = {}
    for choice, group in zip(solution.choices, groups, strict=True):
        per_task |= {task: score_of(task, choice, group.trains) for task in group.serves}
    per_task = {task: float(np.nan_to_num(per_task[task])) for task in tasks}  # a single task may have no score
    value = request.total(per_task)
    bound = value if solution.proven else request.sign * max(request.sign * value, problem.scale * solution.bound)

    # The score that each task has or would have in each network, best first.
    options: dict[str, tuple[Option, ...]] = {}
    for task in tasks:
        scored = {}
        for choice, group in zip(solution.choices, groups, strict=True):
            trains = group.trains if scores.candidates is not None else group.trains | {task}
            scored[trains] = float(score_of(task, choice, trains))
        finite = [Option(trains, score) for trains, score in scored.items() if np.isfinite(score)]
        options[task] = tuple(sorted(finite, key=lambda option: (-request.sign * option.score, sorted(option.trains))))
    return Grouping(
        groups=groups,
        value=value,
        bound=bound,
        status="optimal" if solution.proven else "feasible",
        per_task=per_task,
        budget=budget,
        objective=request.objective,
        solver=solver,
        ties=tuple(tuple(sorted(map(to_group, tie))) for tie in solution.ties),
        options=options,
        unmeasured=scores.unmeasured,
        unplaced=scores.unplaced,
    )


def _resample(
    affinity: Affinity | None, scores: Scores, request: SelectionRequest, groupings: dict[int, Grouping]
) -> tuple[dict[int, Grouping], dict[int, float], dict[int, float]]:
    """Repeats the selection on resampled scores.

    Returns:
        The groupings with their stability, the gain of each further network, and its standard error.
    """
    assert scores.matrix is not None
    tasks, n, budgets = scores.tasks, len(scores.tasks), list(groupings)
    number = request.resamples
    if number is None:
        number = next((count for most, count in RESAMPLES_BY_TASKS if n <= most), 0)
    random = np.random.default_rng([1, request.seed])  # independent of the bootstrap
    matrices: Iterable[Floats] = repeat(scores.matrix, number)
    if affinity is not None and number:
        matrices = affinity.only(scores.tasks).bootstrap(number, request.seed)
    limits = Limits(time.monotonic() + DEFAULT_SECONDS, request.seed, stop=request.stop)
    quick = replace(limits, deadline=np.inf, kicks=3)  # of each resample; the time for all of them is limited above
    served: list[list[Served]] = [[] for _ in budgets]
    resampled_totals, mirrored_totals = [], []  # [resamples, budgets]
    for matrix in matrices:
        if limits.should_stop:
            break
        # Pairs without values in a resample keep their average. Predictions are drawn from their distribution.
        matrix = np.where(np.isfinite(matrix), matrix, scores.matrix)
        if scores.completion is not None:
            predictions = random.normal(scores.completion.matrix, scores.completion.stderr)
            matrix = np.where(scores.completion.predicted, predictions, matrix)
        resampled = replace(scores, matrix=matrix)
        problem = build_problem(resampled, request)
        solver = "search" if n > RESAMPLES_BY_TASKS[0][0] and problem.networks is None else "auto"
        if problem.list_more is not None:
            quick.deadline = time.monotonic() + 0.5
        _, solutions = solve(problem, budgets, solver, quick)
        groups = []
        for sets, solution in zip(served, solutions, strict=True):
            choices = () if solution is None else solution.choices
            groups.append([Group((tasks[i] for i in c.trains), (tasks[i] for i in c.serves)) for c in choices])
            sets.append(frozenset(group.serves for group in groups[-1]))
        if len(budgets) > 1:
            # Groups fit the errors of the scores from which they were chosen. So those chosen with errors in one
            # direction are scored with the same errors in the opposite direction.
            mirrored = replace(scores, matrix=2 * scores.matrix - matrix)
            mirrored_totals.append([_total(mirrored, request, chosen) for chosen in groups])
            resampled_totals.append([_total(resampled, request, groupings[k].groups) for k in budgets])
    if served[0]:
        groupings = {
            k: replace(grouping, resampled=stability(frozenset(group.serves for group in grouping.groups), sets))
            for (k, grouping), sets in zip(groupings.items(), served, strict=True)
        }
    if len(resampled_totals) < 2:
        return groupings, {}, {}
    gains = request.sign * np.diff(np.mean(mirrored_totals, axis=0))
    errors = np.std(np.diff(resampled_totals, axis=1), axis=0, ddof=1)
    further = budgets[1:]
    return groupings, dict(zip(further, gains.tolist(), strict=True)), dict(zip(further, errors.tolist(), strict=True))


def _total(scores: Scores, request: SelectionRequest, groups: Iterable[Group]) -> float:
    return request.total({task: scores.score_of(task, group.trains) for group in groups for task in group.serves})
