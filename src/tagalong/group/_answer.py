"""From a solver's numbers back to names: the grouping that the user sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._certificate import Certificate
from ._grouping import Group, Grouping, Option
from ._pose import Posed, group_cost
from ._problem import Choice, Solution, indices
from ._request import Request
from ._scores import Scores


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
