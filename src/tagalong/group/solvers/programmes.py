"""Linear and integer programmes over served sets, solved by HiGHS under our limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import csc_matrix, hstack, identity, vstack

from ..problem import TIE, Bools, Floats, Ints, Limits, Problem, Solution, indices, solution_value
from .served_sets import network_for

SHARP = 1e5  # the solver stops at 1e-6 of its units: 1e-11 of the largest score
POLL = 0.05  # seconds between two looks at `stop`


@dataclass(frozen=True)
class Dual:
    """Prices of the tasks and of a network, and what they prove."""

    tasks: Floats
    network: float

    @classmethod
    def of(cls, prices: Floats) -> Dual:
        """From the prices of a solution."""
        return cls(prices[:-1], float(prices[-1]))

    def bound(self, networks: int) -> float:
        """No choice is worth more, if no served set is worth more than its prices."""
        return float(self.tasks.sum() + networks * self.network)

    @property
    def prices(self) -> Floats:
        """Of the tasks, then of a network."""
        return np.append(self.tasks, self.network)


@dataclass(frozen=True)
class Pull:
    """Draws prices towards `center`: many prices are optimal, and even ones leave few sets in doubt.

    Up to `strength` of every task may be bought or sold at its central price, so the prices of the sets alone are off
    by no more than strength × distance.
    """

    center: Floats
    strength: float


def find_prices(
    problem: Problem, members: Bools, values: Floats, networks: float, limits: Limits, pull: Pull | None = None
) -> Dual:
    """The dual of the linear programme over these served sets (rows); linked tasks share one price evenly."""
    unit, size = first_tasks(problem)
    pull = pull or Pull(np.zeros(problem.n), 0.0)
    center = np.array([pull.center[list(indices(link))].sum() for link in problem.links])
    trade = identity(len(unit))
    result = linear_programme(
        limits,
        -SHARP * np.concatenate([values, center, -center]),
        A_ub=csc_matrix(np.append(np.ones(len(values)), np.zeros(2 * len(unit)))[None]),
        b_ub=[networks],
        A_eq=hstack([csc_matrix(members[:, unit].T.astype(np.float64)), trade, -trade], format="csc"),
        b_eq=np.ones(len(unit)),
        bounds=np.array([(0, np.inf)] * len(values) + [(0, pull.strength)] * (2 * len(unit))),
    )
    of_unit = -result.eqlin.marginals / SHARP / size
    tasks = np.zeros(problem.n)
    for price, link in zip(of_unit, problem.links, strict=True):
        tasks[list(indices(link))] = price
    return Dual(tasks, max(float(-result.ineqlin.marginals[0]) / SHARP, 0.0))


def first_tasks(problem: Problem) -> tuple[Ints, Ints]:
    """The first task of each link, which stands for all of it, and how many there are."""
    links = [indices(link) for link in problem.links]
    return np.array([link[0] for link in links]), np.array([len(link) for link in links])


def best_choice(
    problem: Problem, members: Bools, values: Floats, networks: int, start: Solution, dual: Dual, limits: Limits
) -> Solution:
    """The best choice of these served sets, which are all that could beat `start`."""
    chosen, best = _best_partition(problem, members, values, networks, limits)
    known = solution_value(problem, start.choices)
    choices = () if chosen is None else tuple(network_for(problem, np.flatnonzero(row)) for row in chosen)
    if chosen is None or solution_value(problem, choices) < known:
        choices = start.choices
    value, bound = solution_value(problem, choices), dual.bound(networks)
    proven = best - value <= TIE
    return Solution(choices, max(value, min(best, bound)) if proven else bound, proven, prices=dual.prices)


def _best_partition(
    problem: Problem, members: Bools, values: Floats, networks: int, limits: Limits
) -> tuple[Bools | None, float]:
    """The sets of the best partition, and the bound that the integer solver proves."""
    unit, _ = first_tasks(problem)
    rows = vstack([csc_matrix(members[:, unit].T.astype(np.float64)), csc_matrix(np.ones((1, len(values))))])
    low, high = np.append(np.ones(len(unit)), 0), np.append(np.ones(len(unit)), networks)
    result = integer_programme(
        limits,
        -SHARP * values,
        constraints=LinearConstraint(rows, low, high),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
    )
    if result.x is None:
        return None, np.inf if result.status == 1 else -np.inf
    bound = -result.mip_dual_bound / SHARP if result.mip_dual_bound is not None else np.inf
    return members[result.x > 0.5], float(bound)


def linear_programme(limits: Limits, objective: Any, **constraints: Any) -> OptimizeResult:
    """`scipy.optimize.linprog`, always to its end unless somebody stops it: prices of half a solve prove nothing.

    Raises:
        TimeoutError: stopped.
    """
    return _stoppable(limits, lambda: linprog(objective, method="highs", **constraints))


def integer_programme(limits: Limits, objective: Any, **constraints: Any) -> OptimizeResult:
    """`scipy.optimize.milp` until the deadline.

    Raises:
        TimeoutError: stopped.
    """
    options: dict[str, float] = {"mip_rel_gap": 0.0}
    if np.isfinite(limits.deadline):
        options["time_limit"] = max(limits.seconds_left, 0.01)
    return _stoppable(limits, lambda: milp(objective, options=options, **constraints))


def _stoppable(limits: Limits, call: Callable[[], OptimizeResult]) -> OptimizeResult:
    """The call in a thread of its own while this one asks `stop`; HiGHS cannot be interrupted, only left behind."""
    if limits.stop is None:
        return call()
    outcome: list[OptimizeResult | BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # raised again where the result is awaited
            outcome.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    while worker.is_alive():
        if limits.stop():
            raise TimeoutError("stopped before any choice of networks was found")
        worker.join(POLL)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
