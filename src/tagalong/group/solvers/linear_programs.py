"""Solves linear and integer programs over served sets with HiGHS, within a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import csc_matrix, hstack, identity, vstack

from ..selection_problem import (
    TIE_TOLERANCE,
    Bools,
    Floats,
    Ints,
    Limits,
    SelectionProblem,
    Solution,
    solution_value,
    tasks_in_mask,
)
from .served_sets import network_for

OBJECTIVE_SCALE = 1e5  # turns the HiGHS tolerance of 1e-6 into 1e-11 of the largest score
POLL_SECONDS = 0.05  # between calls of `stop`


@dataclass(frozen=True)
class DualPrices:
    """The dual prices of the tasks and of a network. These prices prove a bound."""

    tasks: Floats
    network: float

    @classmethod
    def from_prices(cls, prices: Floats) -> DualPrices:
        """Splits the dual vector of a solution into the prices of the tasks and the price of a network."""
        return cls(prices[:-1], float(prices[-1]))

    def bound(self, networks: int) -> float:
        """Returns a bound on the value of any choice. It is valid if no served set is profitable."""
        return float(self.tasks.sum() + networks * self.network)

    @property
    def prices(self) -> Floats:
        """The prices of the tasks, followed by the price of a network."""
        return np.append(self.tasks, self.network)


@dataclass(frozen=True)
class Stabilization:
    """Pulls prices toward `center`. Optimal prices are not unique, and balanced prices rule out more sets.

    Up to `strength` units of every task may be bought or sold at its central price. The resulting error in the bound is
    at most `strength` times the distance from the center.
    """

    center: Floats
    strength: float


def find_prices(
    problem: SelectionProblem,
    members: Bools,
    values: Floats,
    networks: float,
    limits: Limits,
    stabilization: Stabilization | None = None,
) -> DualPrices:
    """Returns the dual prices of the linear program over the given served sets (rows).

    Linked tasks have equal prices.
    """
    unit, size = first_tasks(problem)
    stabilization = stabilization or Stabilization(np.zeros(problem.n), 0.0)
    center = np.array([stabilization.center[list(tasks_in_mask(link))].sum() for link in problem.links])
    trade = identity(len(unit))
    result = linear_program(
        limits,
        -OBJECTIVE_SCALE * np.concatenate([values, center, -center]),
        A_ub=csc_matrix(np.append(np.ones(len(values)), np.zeros(2 * len(unit)))[None]),
        b_ub=[networks],
        A_eq=hstack([csc_matrix(members[:, unit].T.astype(np.float64)), trade, -trade], format="csc"),
        b_eq=np.ones(len(unit)),
        bounds=np.array([(0, np.inf)] * len(values) + [(0, stabilization.strength)] * (2 * len(unit))),
    )
    unit_prices = -result.eqlin.marginals / OBJECTIVE_SCALE / size
    tasks = np.zeros(problem.n)
    for price, link in zip(unit_prices, problem.links, strict=True):
        tasks[list(tasks_in_mask(link))] = price
    return DualPrices(tasks, max(float(-result.ineqlin.marginals[0]) / OBJECTIVE_SCALE, 0.0))


def first_tasks(problem: SelectionProblem) -> tuple[Ints, Ints]:
    """Returns the first task of each link, which represents the link, and the size of each link."""
    links = [tasks_in_mask(link) for link in problem.links]
    return np.array([link[0] for link in links]), np.array([len(link) for link in links])


def best_choice(
    problem: SelectionProblem,
    members: Bools,
    values: Floats,
    networks: int,
    start: Solution,
    dual: DualPrices,
    limits: Limits,
) -> Solution:
    """Returns the best choice among the given served sets. They must include all sets that could improve on `start`."""
    chosen, best = _solve_integer_program(problem, members, values, networks, limits)
    known = solution_value(problem, start.choices)
    choices = () if chosen is None else tuple(network_for(problem, np.flatnonzero(row)) for row in chosen)
    if chosen is None or solution_value(problem, choices) < known:
        choices = start.choices
    value, bound = solution_value(problem, choices), dual.bound(networks)
    proven = best - value <= TIE_TOLERANCE
    return Solution(choices, max(value, min(best, bound)) if proven else bound, proven, prices=dual.prices)


def _solve_integer_program(
    problem: SelectionProblem, members: Bools, values: Floats, networks: int, limits: Limits
) -> tuple[Bools | None, float]:
    """Returns the sets of the best partition, and the bound proven by HiGHS."""
    unit, _ = first_tasks(problem)
    rows = vstack([csc_matrix(members[:, unit].T.astype(np.float64)), csc_matrix(np.ones((1, len(values))))])
    low, high = np.append(np.ones(len(unit)), 0), np.append(np.ones(len(unit)), networks)
    result = integer_program(
        limits,
        -OBJECTIVE_SCALE * values,
        constraints=LinearConstraint(rows, low, high),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
    )
    if result.x is None:
        return None, np.inf if result.status == 1 else -np.inf
    bound = -result.mip_dual_bound / OBJECTIVE_SCALE if result.mip_dual_bound is not None else np.inf
    return members[result.x > 0.5], float(bound)


def linear_program(limits: Limits, objective: Any, **constraints: Any) -> OptimizeResult:
    """Runs `scipy.optimize.linprog` without a deadline, because unfinished runs do not yield valid prices.

    Raises:
        TimeoutError: If `limits.stop` returns True.
    """
    return _run_stoppable(limits, lambda: linprog(objective, method="highs", **constraints))


def integer_program(limits: Limits, objective: Any, **constraints: Any) -> OptimizeResult:
    """Runs `scipy.optimize.milp` until the deadline.

    Raises:
        TimeoutError: If `limits.stop` returns True.
    """
    options: dict[str, float] = {"mip_rel_gap": 0.0}
    if np.isfinite(limits.deadline):
        options["time_limit"] = max(limits.seconds_left, 0.01)
    return _run_stoppable(limits, lambda: milp(objective, options=options, **constraints))


def _run_stoppable(limits: Limits, function: Callable[[], OptimizeResult]) -> OptimizeResult:
    """Runs a function in a thread and polls `stop`.

    HiGHS cannot be interrupted, so the thread is abandoned if the solver must stop.
    """
    if limits.stop is None:
        return function()
    outcome: list[OptimizeResult | BaseException] = []

    def run_function() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # re-raised below
            outcome.append(error)

    worker = threading.Thread(target=run_function, daemon=True)
    worker.start()
    while not outcome:
        if limits.stop():
            raise TimeoutError("stopped before any grouping was found")
        worker.join(POLL_SECONDS)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
