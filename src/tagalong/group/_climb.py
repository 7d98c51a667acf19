"""Served sets that are worth more than their prices, by climbing from known ones: quick, and sure of nothing."""

from __future__ import annotations

import numpy as np

from ._master import Dual, first_tasks
from ._problem import Bools, Floats, Problem, indices
from ._served import values_of

STARTS = 60  # sets to climb from
STEPS = 12
PAYING = 1e-9  # what a set must earn to be kept


def climb(problem: Problem, members: Bools, values: Floats, dual: Dual) -> Bools:
    """New sets that pay, found by adding or dropping one unit at a time, the best each time."""
    earned = values - members @ dual.tasks
    start = np.argsort(-earned, kind="stable")[:STARTS]
    here, worth, found = members[start], earned[start], [members[:0]]
    flips = np.zeros((len(problem.links), problem.n), dtype=bool)
    for unit, link in enumerate(problem.links):
        flips[unit, list(indices(link))] = True
    for _ in range(STEPS):
        near = here[:, None] ^ flips
        earns = _earned(problem, near.reshape(-1, problem.n), dual).reshape(len(here), -1)
        found.append(near[earns > dual.network + PAYING])
        best = earns.argmax(axis=1)
        climbing = earns.max(axis=1) > worth + PAYING
        if not climbing.any():
            break
        here, worth = near[np.arange(len(here)), best][climbing], earns.max(axis=1)[climbing]
    return np.unique(np.concatenate(found), axis=0)


def _earned(problem: Problem, members: Bools, dual: Dual) -> Floats:
    earned: Floats = values_of(problem, members) - members @ dual.tasks
    return earned


def neighbours(problem: Problem, served: Bools) -> Bools:
    """Served sets with one unit more or less, every unit alone, and every pair of units: a start for prices."""
    unit, _ = first_tasks(problem)
    flips = np.zeros((len(unit), problem.n), dtype=bool)
    for number, link in enumerate(problem.links):
        flips[number, list(indices(link))] = True
    pairs = (flips[:, None] | flips).reshape(-1, problem.n)
    near = (served[:, None] ^ flips).reshape(-1, problem.n)
    sets = np.unique(np.concatenate([served, near, pairs]), axis=0)
    return sets[np.isfinite(values_of(problem, sets))]
