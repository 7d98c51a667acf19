"""An estimator that no table has: measured now, while all tasks of the table's problem train in one network."""

from __future__ import annotations

from typing import Any

import numpy as np

from tagalong.learn import Job, Problem, train
from tagalong.measure import Estimator

from ._estimates import Estimate
from ._table import TruthTable


def problem_of(table: TruthTable) -> Problem | None:
    """The problem that a table is of, where it comes with the package; None where its data are elsewhere."""
    load = table.about.get("load")
    if load is None:
        return None
    from tagalong.problems import load_problem

    try:
        problem = load_problem(load["name"], **load["options"])
    except ImportError:
        return None
    return problem if problem.fingerprint == table.about["fingerprint"] else None


def measured(table: TruthTable, problem: Problem, estimator: Any, seed: int, every: int = 4) -> Estimate:
    """What an estimator says of a table's tasks.

    Args:
        table: of this problem.
        problem: what is trained.
        estimator: an `Estimator` for the meter, or a function from (problem, seed) to (gains [source, target], cost).
        seed: of the network.
        every: steps between two measurements.
    """
    if not isinstance(estimator, Estimator):
        gains, cost = estimator(problem, seed)
        return Estimate(np.asarray(gains, dtype=np.float64), float(cost))
    settings = {"estimator": estimator, "held_out": True, "every": every}
    trained = train(problem, Job(problem.names, seed), meter=settings)
    affinity = trained.affinity
    assert affinity is not None
    passes = 3 * len(problem.names) + 1
    return Estimate(affinity.mean, passes / 3 * len(affinity.steps) / trained.steps)
