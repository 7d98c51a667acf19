"""Whether units of several tasks fit into networks of limited size, and how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, hstack, identity

from ._problem import Ints


def packed(sizes: Sequence[int], places: int, room: int) -> Ints | None:
    """A place for each unit so that no place holds more than `room` tasks; None if there is no such way.

    Largest first into the emptiest place, which spreads units evenly; where that fails, fullest place that still
    has room; where that fails too, an integer programme decides.
    """
    if max(sizes) > room or sum(sizes) > places * room:
        return None
    for fullest in (False, True):
        place = _greedy(sizes, places, room, fullest)
        if place is not None:
            return place
    return _decided(sizes, places, room)


def _greedy(sizes: Sequence[int], places: int, room: int, fullest: bool) -> Ints | None:
    place, load = np.zeros(len(sizes), dtype=np.int64), np.zeros(places, dtype=np.int64)
    for unit in np.argsort(-np.array(sizes), kind="stable"):
        fits = load + sizes[unit] <= room
        if not fits.any():
            return None
        order = np.where(fits, -load if fullest else load, np.iinfo(np.int64).max)
        place[unit] = order.argmin()
        load[place[unit]] += sizes[unit]
    return place


def _decided(sizes: Sequence[int], places: int, room: int) -> Ints | None:
    """How many units of each size every place holds."""
    kinds, number = np.unique(sizes, return_counts=True)
    limits = block_diag([kinds[None]] * places)
    totals = hstack([identity(len(kinds))] * places)
    result = milp(
        np.zeros(places * len(kinds)),
        constraints=[LinearConstraint(limits, -np.inf, room), LinearConstraint(totals, number, number)],
        integrality=np.ones(places * len(kinds)),
        bounds=Bounds(0, np.tile(number, places)),
    )
    if result.x is None:
        return None
    held = np.round(result.x).astype(np.int64).reshape(places, len(kinds))
    place = np.zeros(len(sizes), dtype=np.int64)
    for kind, size in enumerate(kinds):
        place[np.flatnonzero(np.array(sizes) == size)] = np.repeat(np.arange(places), held[:, kind])
    return place
