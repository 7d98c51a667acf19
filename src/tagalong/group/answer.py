"""From a solver's numbers back to names: the grouping that the user sees, or why nothing fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .grouping import Group, Grouping, Option
from .posing import group_cost
from .problem import Choice, Floats, Problem, Solution, indices
from .solvers import MOST_LISTED, MOST_PAIRWISE, Certificate, best_split, listed_values, served_values

if TYPE_CHECKING:
    from .posing import Posed, Request
    from .scores import Scores


def answer(scores: Scores, request: Request, posed: Posed, solution: Solution, budget: float, solver: str) -> Grouping:
    """The grouping behind a solution, with values in the units of the scores."""
    groups = _groups(scores, request, posed, solution.choices)
    per_task = {
        task: _score(scores, posed, task, choice)
        for choice in solution.choices
        for task in _names(scores, choice.serves)
    }
    value = posed.units.back(sum(posed.units.one(i, per_task[task]) for i, task in enumerate(scores.tasks)))
    bound = value if solution.proven else posed.sign * max(posed.sign * value, posed.sign * posed.back(solution.bound))
    return Grouping(
        groups=groups,
        value=value,
        bound=bound,
        status="optimal" if solution.proven else "feasible",
        per_task={task: per_task[task] for task in scores.tasks},
        budget=float(budget) if budget != int(budget) else int(budget),
        objective=request.objective,
        solver=solver,
        ties=tuple(tuple(sorted(_groups(scores, request, posed, tie))) for tie in solution.ties),
        options={task: _options(scores, posed, solution, task) for task in scores.tasks},
        certificate=_certificate(scores, posed, solution),
    )


def _groups(scores: Scores, request: Request, posed: Posed, choices: Sequence[Choice]) -> tuple[Group, ...]:
    return tuple(
        Group(_names(scores, choice.trains), _names(scores, choice.serves), _cost(scores, request, posed, choice))
        for choice in choices
    )


def _cost(scores: Scores, request: Request, posed: Posed, choice: Choice) -> float:
    if posed.problem.networks is not None and posed.problem.more is None:
        return float(posed.problem.networks.cost[choice.row])
    return group_cost(request, _names(scores, choice.trains))


def _names(scores: Scores, bits: int) -> frozenset[str]:
    return frozenset(scores.tasks[i] for i in indices(bits))


def _score(scores: Scores, posed: Posed, task: str, choice: Choice) -> float:
    if scores.listed is not None and posed.rows is not None:
        return float(scores.listed[posed.rows[choice.row]].values[task])
    score = scores.of(task, _names(scores, choice.trains))
    return 0.0 if np.isnan(score) else score  # one task alone whose score nobody knows


def _options(scores: Scores, posed: Posed, solution: Solution, task: str) -> tuple[Option, ...]:
    """What the task scores in each chosen network, joining those that do not train it; best first."""
    options = {}
    for choice in solution.choices:
        trains = _names(scores, choice.trains)
        if scores.listed is None:
            options[trains | {task}] = scores.of(task, trains | {task})
        elif posed.rows is not None and task in scores.listed[posed.rows[choice.row]].values:
            options[trains] = float(scores.listed[posed.rows[choice.row]].values[task])
    known = [Option(trains, score) for trains, score in options.items() if np.isfinite(score)]
    return tuple(sorted(known, key=lambda option: (-posed.sign * option.score, sorted(option.trains))))


def _certificate(scores: Scores, posed: Posed, solution: Solution) -> Certificate | None:
    if solution.prices is None:
        return None
    with np.errstate(over="ignore"):
        prices = np.ldexp(posed.scale * solution.prices, posed.units.exponent)
    if not np.isfinite(prices).all():
        return None
    # Tiny prices are rounded when they are stored; upwards they still hold.
    low = np.ldexp(prices, -posed.units.exponent) < posed.scale * solution.prices
    prices[low] = np.nextafter(prices[low], np.inf)
    *tasks, network = (posed.sign * prices).tolist()
    return Certificate(dict(zip(scores.tasks, tasks, strict=True)), network)


def cheapest(problem: Problem) -> float:
    """What serving all tasks costs at least, infinite if nothing does; −1 if there are too many tasks to say."""
    if not problem.serves_all:
        return float("inf")
    if problem.networks is None:
        if problem.n > MOST_PAIRWISE:
            return -1.0
        worth = np.where(np.isfinite(served_values(problem)), -1.0, -np.inf)
    elif problem.n > MOST_LISTED:
        return -1.0
    else:
        costs, table = listed_values(problem, np.zeros(len(problem.networks.cost)))
        worth = np.where(np.isfinite(table), -costs[:, None], -np.inf).max(axis=0)
    worth[0] = 0.0
    return -float(_repeated(worth)[-1])


def _repeated(worth: Floats) -> Floats:
    """The best worth of each set when it may be split into any number of sets."""
    best = worth
    while True:
        better = best_split(worth, best)
        if (better <= best).all():
            return best
        best = better


def explain_infeasible(posed: Posed, request: Request, budget: float) -> ValueError:
    """One sentence that names the smallest feasible budget and limit, where they can be computed."""
    needed = cheapest(posed.problem)
    start = f"`budget` of {budget:g} cannot serve all tasks under these constraints"
    cost = float(request.cost) if isinstance(request.cost, (int, float)) and posed.networks is None else 1.0
    if 0 <= needed * cost <= budget * (1 + 1e-9):
        return ValueError(
            f"`solver` found nothing within the `budget` of {budget:g}, though there is; try solver='exact'"
        )
    if 0 <= needed < np.inf:
        return ValueError(f"{start}; the smallest budget that can is {needed * cost:g}")
    limit = _smallest_limit(posed, budget) if request.max_cost is not None else None
    if limit is not None:
        return ValueError(
            f"`max_cost` of {request.max_cost:g} leaves tasks unserved; the smallest that works is {limit:g}"
        )
    why = "no budget can" if needed == np.inf else "allow more networks or relax a constraint"
    return ValueError(f"{start}; {why}: look at `max_size`, `must_link`, `cannot_link`, `max_cost` and `allow_single`")


def _smallest_limit(posed: Posed, budget: float) -> float | None:
    networks = posed.networks
    if networks is None or posed.problem.n > MOST_LISTED:
        return None
    limits = np.unique(networks.cost)
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        problem = replace(posed.problem).with_networks(networks.only(networks.cost <= limits[middle]))
        low, high = (low, middle) if cheapest(problem) <= budget * (1 + 1e-9) else (middle + 1, high)
    return float(limits[low]) if low < len(limits) else None
