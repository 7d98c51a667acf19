"""Local search over listed networks, for costs and links with too many tasks to list or to solve exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..problem import TIE_TOLERANCE, Limits, NetworkChoice, Networks, SelectionProblem, Solution
from .search import simple_bound

UNSERVED_VALUE = -1e6  # far below any score, so that serving all units comes first
MAX_LISTED_VALUES = 600_000  # networks × tasks; no groups are added to longer lists
MAX_COMPARED_VALUES = 5e8  # in total over all kicks and budgets; comparing takes a few seconds


def solve_exchange(problem: SelectionProblem, budgets: Sequence[int], limits: Limits) -> list[Solution | None]:
    """Returns the best choice found for each budget. It is never proven optimal.

    Raises:
        TimeoutError: If no choice was found in time.
    """
    solutions: list[Solution | None] = []
    for i, budget in enumerate(budgets):
        share = limits.share(len(budgets) - i)
        random = np.random.default_rng(limits.seed)
        rows = exchange_networks(problem, budget, [], share)
        problem, rows = _add_similar_groups(problem, budget, rows, share)

        # Random kicks: forget half of the networks, and improve the rest again.
        compared = problem.unit_values.size * budget**2 * len(budgets)
        for _ in range(min(limits.kicks, int(MAX_COMPARED_VALUES / compared))):
            if share.should_stop or len(rows) < 2:
                break
            kept = random.choice(rows, size=random.integers(len(rows)), replace=False).tolist()
            affordable = np.flatnonzero(problem.listed.cost <= problem.max_total_cost - problem.listed.cost[kept].sum())
            if len(affordable):
                kept.append(int(random.choice(affordable)))
            kicked = exchange_networks(problem, budget, kept, share)
            problem, kicked = _add_similar_groups(problem, budget, kicked, share)
            if total_value(problem, kicked) > total_value(problem, rows) + TIE_TOLERANCE:
                rows = kicked
            share.report(f"local search, {budget} networks", problem.scale * total_value(problem, rows))
        if problem.list_more is not None:
            bound = simple_bound(problem, budget)
        else:
            bound = float(problem.unit_values.max(axis=0).sum())
        is_served = serves_all(problem, rows)
        solutions.append(replace(to_solution(problem, rows, bound), proven=False) if is_served else None)
    return solutions


def _add_similar_groups(
    problem: SelectionProblem, budget: int, rows: list[int], limits: Limits
) -> tuple[SelectionProblem, list[int]]:
    """Adds groups that are similar to the chosen ones and exchanges networks, until nothing improves."""
    value = -np.inf
    while problem.list_more is not None and not limits.should_stop:
        if total_value(problem, rows) <= value + TIE_TOLERANCE:
            break
        value = total_value(problem, rows)
        problem = _list_similar_groups(problem, rows)
        rows = exchange_networks(problem, budget, rows, limits)
    return problem, rows


def exchange_networks(problem: SelectionProblem, budget: int, rows: list[int], limits: Limits) -> list[int]:
    """Adds networks to a choice, or exchanges them one by one, until nothing improves."""
    networks = problem.listed
    values = np.maximum(problem.unit_values, UNSERVED_VALUE)  # [networks, units]
    limit = problem.max_total_cost * (1 + 1e-9)
    value = total_value(problem, rows)
    while not (limits.should_stop and serves_all(problem, rows)):
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
        rows, value = best_rows, total_value(problem, best_rows)
    return sorted({rows[i] for i in values[rows].argmax(axis=0)}) if rows else rows


def total_value(problem: SelectionProblem, rows: list[int]) -> float:
    return float(problem.unit_values[rows].max(axis=0, initial=UNSERVED_VALUE).sum())


def serves_all(problem: SelectionProblem, rows: list[int]) -> bool:
    return total_value(problem, rows) > UNSERVED_VALUE / 2


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


def to_solution(problem: SelectionProblem, rows: Sequence[int], bound: float) -> Solution:
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
