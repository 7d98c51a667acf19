"""Selects groups based on the affinities measured during training."""

from __future__ import annotations

import logging

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.group import Grouping, select_groups
from tagalong.measure import AffinityMeter

log = logging.getLogger(__name__)


def check_budget(budget: int | None) -> int | None:
    """Returns the budget if it is a positive integer or None, and raises an error otherwise."""
    if budget is not None and not is_positive_integer(budget):
        raise InvalidInput("budget", "must be a positive integer or None", repr(budget))
    return budget


def final_affinity(meter: AffinityMeter | None) -> Affinity | None:
    """Returns the affinity of the meter's first estimator, or None if nothing was measured."""
    if meter is None or not (meter.measured or meter.observed):
        return None
    try:
        return meter.affinity()
    except RuntimeError as error:  # only another estimator has measured something
        log.warning("no affinity: %s", error)
        return None


def select_final_groups(meter: AffinityMeter | None, budget: int | None) -> Grouping | None:
    """Selects groups based on the measured affinities. Failures are only logged, because training has already finished.

    Args:
        meter: the meter used during training.
        budget: the maximum number of networks, capped at the number of tasks. If None, no groups are selected.

    Returns:
        The grouping, or None if there is no budget, nothing was measured or the selection fails. Tasks without any
        measured pair are left out with a warning.
    """
    affinity = None if budget is None else final_affinity(meter)
    if budget is None or affinity is None:
        return None
    try:
        return select_groups(affinity, min(budget, len(affinity.tasks)))
    except ValueError as error:
        log.warning("could not select groups: %s", error)
        return None
