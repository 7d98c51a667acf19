"""`select_groups` finds the best networks for a budget.

Scores and options are checked and converted to a numerical problem. Its solution is then converted back to task names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity

from .grouping import Group, Grouping, Option
from .infeasible import explain_infeasible
from .problem_building import ScaledProblem, build_problem
from .scores import Complete, Scores, read_scores
from .selection_problem import Floats, InfeasibleError, Limits, NetworkChoice, Solution, tasks_in_mask
from .selection_request import Cost, SelectionRequest, SolverName, read_budgets, read_links
from .solvers import choose_solver
from .stability import Served, stability

RESAMPLES_BY_TASKS = ((12, 100), (40, 20))  # (maximum number of tasks, resamples); none for more tasks


def select_groups(
    scores: Any,
    budget: float,
    *,
    objective: Literal["max", "min"] = "max",
    allow_single: bool | None = None,
    max_size: int | None = None,
    cost: Cost | None = None,
    max_cost: float | None = None,
    must_link: Iterable[Iterable[str]] = (),
    cannot_link: Iterable[Iterable[str]] = (),
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
    place_unmeasured: bool = False,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    resamples: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Grouping:
    """Chooses up to `budget` networks to train. Each task is served by one of them.

    A network may also be trained on tasks that it does not serve, if they help the others. The score of a task in a
    network is either the mean affinity of the network's other tasks onto it, or a value from a table of results. The
    sum of the scores of all tasks is maximized (or minimized). Values that differ by less than 1e-9 times the largest
    score are ties. Ties are broken in favor of fewer groups, then smaller groups, then alphabetical order. This order
    and the list of ties are guaranteed if the solution is proven by "exact", unless there are thousands of ties. "milp"
    and "search" only drop groups that add no value.

    The "auto" solver proves the best grouping by dynamic programming for up to 16 tasks. For more tasks, a local search
    returns a grouping with a bound on how much better the best one may be. Listed networks, `cannot_link` and costs
    that depend on the group use an integer program where dynamic programming takes too long.

    Args:
        scores: an `Affinity`, a square array or DataFrame [source, target], a mapping from groups to results
            `{frozenset: {task: value}}`, or a list of `Candidate` objects. In an affinity or a square table, pairs that
            were never measured are NaN. They are predicted from the measured pairs, and `Grouping.unmeasured` is their
            fraction.
        budget: the maximum number of networks. If networks have costs (see `cost`), this is the maximum total cost
            instead.
        objective: "max" if larger scores are better, or "min" for losses.
        allow_single: whether a network may be trained on a single task, with the diagonal as its score. By default,
            this is allowed for held-out affinities, if the self-affinity of every task was measured, and for tables
            that contain single-task results.
        max_size: the maximum number of tasks per network.
        cost: the cost of a network. This can be a number, a function of the set of task names, or a mapping from sets
            or numbers of tasks to costs. Networks that are not in the mapping cannot be chosen. Candidates have their
            own costs.
        max_cost: the maximum cost of a single network, for example to limit latency.
        must_link: sets of tasks that must be served by the same network.
        cannot_link: sets of tasks that must not be trained in the same network. With `cannot_link`, `max_cost` or a
            cost that depends on the group, problems with more than 14 tasks are solved by a search over promising
            groups. The result has a valid bound but is never proven optimal.
        weights: the weight of each task in the sum. Defaults to 1.
        complete: if "pairs", groups of three or more tasks are added to a table of results. Their scores are means over
            pairs. Given values take precedence.
        place_unmeasured: whether to place tasks without any measured pair, as if they were average tasks. By default,
            they are left out with a warning (`Grouping.unplaced`).
        solver: "exact" (dynamic programming), "milp" (integer program), "search" (local search with a bound), or
            "auto".
        time_limit: the time limit in seconds, after which the best grouping found so far is returned.
        seed: the random seed for the search and the resamples.
        resamples: the number of resamples used to assess how stable the groups are, if `scores` is an affinity with a
            history or standard errors (`Affinity.bootstrap`), or if some pairs were never measured. In each resample,
            predicted scores are drawn from their distribution. Defaults to 100 for up to 12 tasks, 20 for up to 40, and
            0 for more.
        stop: a function that is called several times per second in this thread. When this function returns True, the
            selection ends as if `time_limit` had passed.

    Returns:
        The grouping. For multiple budgets, see `select_groups_by_budget`.

    Raises:
        ValueError: If the input is invalid. The message lists every problem.

    Example:
        >>> affinity = [[0, 5, 1], [5, 0, 0], [0, 0, 0]]
        >>> print(select_groups(affinity, budget=2))
        2 networks for 3 tasks, total 11 (proven optimal)
        network  serves  helped by  score
              1  0, 1                  10
              2  2       0              1
    """
    groupings = select_groups_by_budget(
        scores,
        (budget,),
        objective=objective,
        allow_single=allow_single,
        max_size=max_size,
        cost=cost,
        max_cost=max_cost,
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
    (grouping,) = groupings.values()
    return grouping


def select_groups_by_budget(
    scores: Any,
    budgets: Iterable[float],
    *,
    objective: Literal["max", "min"] = "max",
    allow_single: bool | None = None,
    max_size: int | None = None,
    cost: Cost | None = None,
    max_cost: float | None = None,
    must_link: Iterable[Iterable[str]] = (),
    cannot_link: Iterable[Iterable[str]] = (),
    weights: Mapping[str, float] | None = None,
    complete: Complete = None,
    place_unmeasured: bool = False,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    resamples: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> dict[float, Grouping]:
    """Chooses the networks to train for several budgets at once.

    This is faster than calling `select_groups` repeatedly.

    Args:
        scores: the scores. See `select_groups` for details on all arguments.
        budgets: the maximum numbers of networks, or the maximum total costs.
        objective: "max" or "min".
        allow_single: whether a network may be trained on a single task.
        max_size: the maximum number of tasks per network.
        cost: the cost of a network as a function of its tasks.
        max_cost: the maximum cost of a single network.
        must_link: sets of tasks that must be served by the same network.
        cannot_link: sets of tasks that must not be trained in the same network.
        weights: the weight of each task in the sum.
        complete: how to fill in the results of larger groups that a table of results lacks.
        place_unmeasured: whether to place tasks without any measured pair.
        solver: the name of the solver.
        time_limit: the time limit in seconds, for all budgets together.
        seed: the random seed.
        resamples: the number of bootstrap resamples. All budgets use the same resamples.
        stop: a function that ends the selection early by returning True.

    Returns:
        A grouping for each budget.

    Raises:
        ValueError: If the input is invalid. The message lists every problem.

    Example:
        >>> groupings = select_groups_by_budget([[0, 5, 1], [5, 0, 0], [0, 0, 0]], [1, 2])
        >>> {budget: grouping.value for budget, grouping in groupings.items()}
        {1: 5.5, 2: 11.0}
    """
    request = SelectionRequest(
        budgets=read_budgets(budgets),
        objective=objective,
        allow_single=allow_single,
        max_size=max_size,
        cost=cost,
        max_cost=max_cost,
        must_link=read_links(must_link),
        cannot_link=read_links(cannot_link),
        weights=weights,
        solver=solver,
        time_limit=time_limit,
        seed=seed,
        resamples=resamples,
        stop=stop,
    )
    read = read_scores(scores, complete, place_unmeasured)
    request.check(read)
    groupings = _solve_request(read, request)
    affinity = scores if isinstance(scores, Affinity) and scores.has_errors else None
    if affinity is not None or read.completion is not None:
        groupings = _add_stability(affinity, read, request, groupings)
    return dict(zip(request.budgets, groupings, strict=True))


def _solve_request(scores: Scores, request: SelectionRequest) -> list[Grouping]:
    deadline = float("inf") if request.time_limit is None else time.monotonic() + request.time_limit
    scaled = build_problem(scores, request)
    name, solutions = _solve_scaled_problem(scaled, request, Limits(deadline, request.seed, stop=request.stop))
    return [
        _to_grouping(scores, request, scaled, solution, budget, name)
        for solution, budget in zip(solutions, request.budgets, strict=True)
    ]


def _solve_scaled_problem(
    scaled_problem: ScaledProblem, request: SelectionRequest, limits: Limits
) -> tuple[str, list[Solution]]:
    try:
        if min(scaled_problem.budgets) <= 0 or (
            not scaled_problem.problem.serves_all and scaled_problem.problem.relaxed is None
        ):
            raise InfeasibleError
        name, solver = choose_solver(request.solver, scaled_problem.problem, scaled_problem.budgets)
        return name, solver(scaled_problem.problem, scaled_problem.budgets, limits)
    except InfeasibleError:
        raise explain_infeasible(scaled_problem, request, min(request.budgets)) from None


def _to_grouping(
    scores: Scores,
    request: SelectionRequest,
    scaled_problem: ScaledProblem,
    solution: Solution,
    budget: float,
    solver: str,
) -> Grouping:
    """Converts a solution to a grouping, with values in the units of the scores."""
    groups = _make_groups(scores, request, scaled_problem, solution.choices)
    per_task = {
        task: _task_score(scores, scaled_problem, task, choice)
        for choice in solution.choices
        for task in _task_names(scores, choice.serves)
    }
    value = scaled_problem.scaling.to_scores(
        sum(scaled_problem.scaling.weighted_score(i, per_task[task]) for i, task in enumerate(scores.tasks))
    )
    bound = (
        value
        if solution.proven
        else scaled_problem.sign
        * max(scaled_problem.sign * value, scaled_problem.sign * scaled_problem.to_scores(solution.bound))
    )
    return Grouping(
        groups=groups,
        value=value,
        bound=bound,
        status="optimal" if solution.proven else "feasible",
        per_task={task: per_task[task] for task in scores.tasks},
        budget=float(budget) if budget != int(budget) else int(budget),
        objective=request.objective,
        solver=solver,
        ties=tuple(tuple(sorted(_make_groups(scores, request, scaled_problem, tie))) for tie in solution.ties),
        options={task: _scored_options(scores, scaled_problem, solution, task) for task in scores.tasks},
        unmeasured=scores.unmeasured,
        unplaced=scores.unplaced,
    )


def _make_groups(
    scores: Scores, request: SelectionRequest, scaled_problem: ScaledProblem, choices: Sequence[NetworkChoice]
) -> tuple[Group, ...]:
    return tuple(
        Group(
            _task_names(scores, choice.trains),
            _task_names(scores, choice.serves),
            _network_cost(scores, request, scaled_problem, choice),
        )
        for choice in choices
    )


def _network_cost(
    scores: Scores, request: SelectionRequest, scaled_problem: ScaledProblem, choice: NetworkChoice
) -> float:
    if scaled_problem.problem.networks is not None and scaled_problem.problem.more is None:
        return float(scaled_problem.problem.networks.cost[choice.row])
    return request.cost_of(_task_names(scores, choice.trains))


def _task_names(scores: Scores, bit_mask: int) -> frozenset[str]:
    return frozenset(scores.tasks[i] for i in tasks_in_mask(bit_mask))


def _task_score(scores: Scores, scaled_problem: ScaledProblem, task: str, choice: NetworkChoice) -> float:
    if scores.candidates is not None and scaled_problem.rows is not None:
        return float(scores.candidates[scaled_problem.rows[choice.row]].values[task])
    score = scores.score_of(task, _task_names(scores, choice.trains))
    return 0.0 if np.isnan(score) else score  # a single task whose score is unknown


def _scored_options(scores: Scores, scaled_problem: ScaledProblem, solution: Solution, task: str) -> tuple[Option, ...]:
    """Returns the task's score in each chosen network, best first.

    Networks that do not include the task are scored as if it were added, unless networks are listed as candidates.
    """
    options = {}
    for choice in solution.choices:
        trains = _task_names(scores, choice.trains)
        if scores.candidates is None:
            options[trains | {task}] = scores.score_of(task, trains | {task})
        elif scaled_problem.rows is not None and task in scores.candidates[scaled_problem.rows[choice.row]].values:
            options[trains] = float(scores.candidates[scaled_problem.rows[choice.row]].values[task])
    known = [Option(trains, score) for trains, score in options.items() if np.isfinite(score)]
    return tuple(sorted(known, key=lambda option: (-scaled_problem.sign * option.score, sorted(option.trains))))


def _add_stability(
    affinity: Affinity | None, scores: Scores, request: SelectionRequest, groupings: list[Grouping]
) -> list[Grouping]:
    """Adds the stability of each grouping, which is computed by repeating the selection on resampled scores."""
    n = len(scores.tasks)
    number = next((most for tasks, most in RESAMPLES_BY_TASKS if n <= tasks), 0)
    number = number if request.resamples is None else request.resamples
    if not number:
        return groupings
    quick = replace(request, solver="auto" if n <= RESAMPLES_BY_TASKS[0][0] else "search", time_limit=None)
    others: list[list[Served]] = [[] for _ in groupings]
    for resampled in _resample_scores(affinity, scores, number, request.seed):
        if request.stop is not None and request.stop():
            break
        scaled = build_problem(resampled, quick)
        options = quick if scaled.problem.networks is None else replace(quick, solver="auto")
        _, solutions = _solve_scaled_problem(scaled, options, Limits(seed=request.seed, kicks=3, stop=request.stop))
        for found, solution in zip(others, solutions, strict=True):
            found.append(frozenset(_task_names(scores, choice.serves) for choice in solution.choices))
    if not others[0]:
        return groupings
    return [
        replace(grouping, resampled=stability(frozenset(group.serves for group in grouping.groups), found))
        for grouping, found in zip(groupings, others, strict=True)
    ]


def _resample_scores(affinity: Affinity | None, scores: Scores, number: int, seed: int) -> Iterator[Scores]:
    """Yields resampled scores: of the affinity if its errors are known, and of the predictions for unmeasured pairs.

    Pairs without values in a resample keep their average. Predictions are drawn from their distribution.
    """
    assert scores.matrix is not None
    random = np.random.default_rng([1, seed])  # independent of the bootstrap
    matrices: Iterable[Floats] = repeat(scores.matrix, number)
    if affinity is not None:
        matrices = affinity.only(scores.tasks).bootstrap(number, seed)
    for matrix in matrices:
        kept = np.where(np.isfinite(matrix), matrix, scores.matrix)
        yield replace(scores, matrix=kept if scores.completion is None else scores.completion.draw(kept, random))
