"""An integer program that decides which of the listed networks are chosen and which of them serves each task.

This is the formulation of Standley et al. (2020) that Fifty et al. (2021) cite for network selection. It can take any
constraint and any number of listed networks, but is slow if there are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
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
UNSERVED_VALUE = -1e6  # far below any score, so that serving all units comes first
MAX_LISTED_VALUES = 600_000  # networks × tasks; no groups are added to longer lists
POLL_SECONDS = 0.05  # between calls of `stop`
GRACE_SECONDS = 0.5  # since HiGHS does not always end on time


def solve_milp(problem: SelectionProblem, budgets: Sequence[int], limits: Limits) -> list[Solution | None]:
    """Returns the best choice for each budget, found by branch and cut.

    Raises:
        TimeoutError: If no choice was found in time.
    """
    solutions: list[Solution | None] = []
    late = False
    for i, budget in enumerate(budgets):
        share = limits.share(len(budgets) - i)
        # A first choice, in case HiGHS finds no better one in time.
        rows = _exchange_networks(problem, budget, [], share)
        first_value = _value(problem, rows)
        highs_limits = share if problem.list_more is None else share.share(1.5)
        highs_rows, bound = _branch_and_cut(problem, budget, first_value, highs_limits)
        if highs_rows and _value(problem, highs_rows) >= first_value - TIE_TOLERANCE:
            rows = highs_rows
        if not _serves_all(problem, rows):
            late |= bound > -np.inf
            solutions.append(None)
            continue
        if problem.list_more is None:
            solutions.append(_to_solution(problem, rows, bound))
            continue

        # Add groups that are similar to the chosen ones, and improve the choice by exchanges.
        value = -np.inf
        while not share.should_stop and _value(problem, rows) > value + TIE_TOLERANCE:
            value = _value(problem, rows)
            problem = _list_similar_groups(problem, rows)
            rows = _exchange_networks(problem, budget, rows, share)
        solutions.append(replace(_to_solution(problem, rows, simple_bound(problem, budget)), proven=False))
    if late and not any(solutions):
        raise TimeoutError("no choice of networks was found in time; increase `time_limit`")
    return solutions


def _exchange_networks(problem: SelectionProblem, budget: int, rows: list[int], limits: Limits) -> list[int]:
    """Adds networks to a choice, or exchanges them one by one, until nothing improves."""
    networks = problem.listed
    values = np.maximum(problem.unit_values, UNSERVED_VALUE)  # [networks, units]
    limit = problem.max_total_cost * (1 + 1e-9)
    value = _value(problem, rows)
    while not (limits.should_stop and _serves_all(problem, rows)):
        best_rows, best_rate = rows, TIE_TOLERANCE
        for removed in [None, *rows]:
            kept = [row for row in rows if row != removed]
            current = values[kept].max(axis=0, initial=UNSERVED_VALUE)
            gain = np.maximum(values, current).sum(axis=1) - value
            # Until all units are served, gains are divided by costs, or expensive networks would use up the budget.
            rate = gain / networks.cost if (current == UNSERVED_VALUE).any() else gain
            rate = np.where(networks.cost <= limit - networks.cost[kept].sum(), rate, -np.inf)
            if len(kept) < budget and rate.max(initial=0.0) > best_rate:
                best_rows, best_rate = [*kept, int(rate.argmax())], float(rate.max())
        if best_rows is rows:
            break
        rows, value = best_rows, _value(problem, best_rows)
    return sorted({rows[i] for i in values[rows].argmax(axis=0)}) if rows else rows


def _value(problem: SelectionProblem, rows: list[int]) -> float:
    return float(problem.unit_values[rows].max(axis=0, initial=UNSERVED_VALUE).sum())


def _serves_all(problem: SelectionProblem, rows: list[int]) -> bool:
    return _value(problem, rows) > UNSERVED_VALUE / 2


def _list_similar_groups(problem: SelectionProblem, rows: list[int]) -> SelectionProblem:
    """Adds groups to the list that differ from a chosen group by one unit."""
    networks = problem.listed
    assert problem.list_more is not None
    if networks.trains.size > MAX_LISTED_VALUES:
        return problem
    listed = {trains.tobytes() for trains in networks.trains}
    similar = {}
    for row in rows:
        for unit in problem.units:
            group = networks.trains[row].copy()
            group[list(unit)] = not group[unit[0]]
            if group.tobytes() not in listed:
                similar[group.tobytes()] = group
    if not similar:
        return problem
    added = problem.list_more(np.array(list(similar.values())))
    columns: list[Any] = [np.concatenate(parts) for parts in zip(networks, added, strict=True)]
    return replace(problem, networks=Networks(*columns))


def _to_solution(problem: SelectionProblem, rows: Sequence[int], bound: float) -> Solution:
    """Returns the solution in which each unit is served by the best of the chosen networks."""
    serving = np.array(rows)[problem.unit_values[list(rows)].argmax(axis=0)]
    choices = []
    for row in np.unique(serving).tolist():
        served = [task for unit, by in zip(problem.units, serving, strict=True) if by == row for task in unit]
        trains = np.flatnonzero(problem.listed.trains[row])
        choices.append(NetworkChoice(tuple(trains.tolist()), tuple(sorted(served)), row))
    value = problem.value_of(choices)
    bound = max(bound, value)
    return Solution(tuple(choices), bound, bound - value <= TIE_TOLERANCE)


def _branch_and_cut(
    problem: SelectionProblem, budget: int, first_value: float, limits: Limits
) -> tuple[list[int], float]:
    """Returns the rows of the best networks found in time, if any, and a bound, which is −inf if there are none."""
    costs = problem.listed.cost
    if not len(costs):
        return [], -np.inf
    # Variables: whether each network is chosen, and whether it serves a unit, for each unit that it can serve.
    unit_values = problem.unit_values
    rows, units = np.nonzero(np.isfinite(unit_values))
    count, pairs = len(costs), np.arange(len(rows))
    price = TIE_TOLERANCE / (2 * problem.n)  # eliminates networks that add nothing
    objective = -OBJECTIVE_SCALE * np.append(np.full(count, -price), unit_values[rows, units])

    # At most `budget` networks within the total cost; each unit is served once, by a network that is chosen.
    spent = np.zeros((2, count + len(pairs)))
    spent[0, :count] = 1.0
    if problem.max_total_cost < np.inf:
        spent[1, :count] = costs / problem.max_total_cost
    once = coo_matrix((np.ones(len(pairs)), (units, count + pairs)), shape=(len(problem.units), count + len(pairs)))
    signs = np.repeat([1.0, -1.0], len(pairs))
    columns = np.concatenate([count + pairs, rows])
    chosen = coo_matrix((signs, (np.tile(pairs, 2), columns)), shape=(len(pairs), count + len(pairs)))
    constraints = [
        LinearConstraint(spent, -np.inf, [budget, 1 + 1e-9]),
        LinearConstraint(once, 1, 1),
        LinearConstraint(chosen, -np.inf, 0),
    ]
    # HiGHS cannot be interrupted, so it runs in a thread, which is abandoned if the solver must stop. Python waits for
    # the threads of an executor when it exits; ending the process within HiGHS would abort it.
    executor = ThreadPoolExecutor(1)
    pending = executor.submit(
        milp,
        objective,
        constraints=constraints,
        integrality=np.ones(len(objective)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "time_limit": max(limits.seconds_left, 0.01)},
    )
    executor.shutdown(wait=False)
    bound = float(unit_values.max(axis=0).sum())  # with every unit in its best network
    while not pending.done():
        if limits.seconds_left < -GRACE_SECONDS or (limits.stop is not None and limits.stop()):
            return [], bound
        known = problem.scale * first_value if first_value > UNSERVED_VALUE / 2 else np.nan
        limits.report(f"integer program, {budget} networks", known, problem.scale * bound)
        wait([pending], POLL_SECONDS)
    result = pending.result()
    if result.status == 2:
        return [], -np.inf
    if result.mip_dual_bound is not None:
        bound = min(bound, -result.mip_dual_bound / OBJECTIVE_SCALE + TIE_TOLERANCE / 2)
    if result.x is None:
        return [], bound
    return np.unique(rows[result.x[count:] > 0.5]).tolist(), bound
