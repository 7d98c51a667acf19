"""HiGHS under our limits: it sees the deadline, and somebody who asks it to stop does not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, linprog, milp

from ._problem import Limits

POLL = 0.05  # seconds between two looks at `stop`


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
