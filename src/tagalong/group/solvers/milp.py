"""An integer program that decides which of the listed networks are chosen and which of them serves each task.

This is the formulation of Standley et al. (2020) that Fifty et al. (2021) cite for network selection. It can take any
constraint and any number of listed networks, but is slow if there are many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_matrix

from ..problem import (
    TIE_TOLERANCE,
    Limits,
    NetworkChoice,
    Networks,
    SelectionProblem,
    Solution,
)
from .search import simple_bound

OBJECTIVE_SCALE = 1e5  # turns the HiGHS tolerance of 1e-6 into 1e-11 of the largest score
POLL_SECONDS = 0.05  # between calls of `stop`


def solve_milp(problem: SelectionProblem, budgets: Sequence[int], limits: Limits) -> list[Solution | None]:
    """Returns the best choice for each budget, found by branch and cut.

    If the list is incomplete, similar groups are added to it and the program is solved again until nothing improves.

    Raises:
        TimeoutError: If no choice was found in time.
    """
    solutions: list[Solution | None] = []
    for i, budget in enumerate(budgets):
        share = limits.share(len(budgets) - i)
        solution = _solve_listed(problem, budget, share)
        if solution is not None and problem.more is not None:
            problem, solution = _extend_list(problem, solution, budget, share)
        solutions.append(solution)
    return solutions


def _extend_list(
    problem: SelectionProblem, solution: Solution, budget: int, limits: Limits
) -> tuple[SelectionProblem, Solution]:
    value = problem.value_of(solution.choices)
    while not limits.should_stop:
        problem = _add_similar_groups(problem, solution.choices)
        try:
            better = _solve_listed(problem, budget, limits)
        except TimeoutError:
            break
        if better is None or problem.value_of(better.choices) <= value + TIE_TOLERANCE:
            break
        solution, value = better, problem.value_of(better.choices)
    return problem, Solution(solution.choices, max(simple_bound(problem, budget), value), False)


def _add_similar_groups(problem: SelectionProblem, choices: Sequence[NetworkChoice]) -> SelectionProblem:
    """Adds groups that differ from a chosen group by one unit."""
    networks = problem.networks
    assert networks is not None
    assert problem.more is not None
    listed = {trains.tobytes() for trains in networks.trains}
    similar = {}
    for choice in choices:
        for unit in problem.units:
            group = networks.trains[choice.row].copy()
            group[list(unit)] = not group[unit[0]]
            if group.tobytes() not in listed:
                similar[group.tobytes()] = group
    if not similar:
        return problem
    added = problem.more(np.array(list(similar.values())))
    joined = Networks(
        np.concatenate([networks.trains, added.trains]),
        np.concatenate([networks.values, added.values]),
        np.concatenate([networks.cost, added.cost]),
        np.concatenate([networks.candidates, added.candidates]),
    )
    return replace(problem, networks=joined)


def _solve_listed(problem: SelectionProblem, budget: int, limits: Limits) -> Solution | None:
    networks = problem.networks
    assert networks is not None
    if not len(networks.cost):
        return None
    # Variables: whether each network is chosen, and whether it serves a unit, for each unit that it can serve.
    unit_values = np.stack([networks.values[:, list(unit)].sum(axis=1) for unit in problem.units], axis=1)
    rows, units = np.nonzero(np.isfinite(unit_values))
    count, pairs = len(networks.cost), np.arange(len(rows))
    price = TIE_TOLERANCE / (2 * problem.n)  # eliminates networks that add nothing
    objective = -OBJECTIVE_SCALE * np.append(np.full(count, -price), unit_values[rows, units])

    # At most `budget` networks within the total cost; each unit is served once, by a network that is chosen.
    spent = np.zeros((2, count + len(pairs)))
    spent[0, :count] = 1.0
    if problem.max_total_cost < np.inf:
        spent[1, :count] = networks.cost / problem.max_total_cost
    once = coo_matrix((np.ones(len(pairs)), (units, count + pairs)), shape=(len(problem.units), count + len(pairs)))
    signs = np.repeat([1.0, -1.0], len(pairs))
    columns = np.concatenate([count + pairs, rows])
    chosen = coo_matrix((signs, (np.tile(pairs, 2), columns)), shape=(len(pairs), count + len(pairs)))
    constraints = [
        LinearConstraint(spent, -np.inf, [budget, 1 + 1e-9]),
        LinearConstraint(once, 1, 1),
        LinearConstraint(chosen, -np.inf, 0),
    ]
    options: dict[str, float] = {"mip_rel_gap": 0.0}
    if np.isfinite(limits.deadline):
        options["time_limit"] = max(limits.seconds_left, 0.01)
    result = _run_stoppable(
        limits,
        lambda: milp(
            objective,
            constraints=constraints,
            integrality=np.ones(len(objective)),
            bounds=Bounds(0, 1),
            options=options,
        ),
    )
    if result.status == 2:
        return None
    if result.x is None:
        raise TimeoutError("`time_limit` was too short to find any choice of networks; increase it")
    serving = result.x[count:] > 0.5
    choices = []
    for row in np.unique(rows[serving]):
        served = [task for unit in units[serving & (rows == row)] for task in problem.units[unit]]
        choices.append(
            NetworkChoice(tuple(np.flatnonzero(networks.trains[row]).tolist()), tuple(sorted(served)), int(row))
        )
    value = problem.value_of(choices)
    bound = float(unit_values.max(axis=0).sum())  # with every unit in its best network
    if result.mip_dual_bound is not None:
        bound = min(bound, -result.mip_dual_bound / OBJECTIVE_SCALE + TIE_TOLERANCE / 2)
    bound = max(bound, value)
    return Solution(tuple(choices), bound, bound - value <= TIE_TOLERANCE)


def _run_stoppable(limits: Limits, function: Callable[[], OptimizeResult]) -> OptimizeResult:
    """Runs a function in a thread and polls `stop`.

    HiGHS cannot be interrupted, so the thread is abandoned if the solver must stop.
    """
    outcome: list[OptimizeResult | BaseException] = []

    def run_function() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # re-raised below
            outcome.append(error)

    worker = threading.Thread(target=run_function, daemon=True)
    worker.start()
    while not outcome:
        if limits.stop is not None and limits.stop():
            raise TimeoutError("stopped before any grouping was found")
        limits.report("integer program: still searching")
        worker.join(POLL_SECONDS)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
