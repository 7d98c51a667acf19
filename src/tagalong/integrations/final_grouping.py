"""Selects groups from the affinities measured during a finished training."""

from __future__ import annotations

import logging

from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.group import Grouping, select_groups
from tagalong.measure import AffinityMeter

log = logging.getLogger(__name__)


def check_budget(budget: int | None) -> int | None:
    """Returns the budget if it is a positive integer or None; rejects anything else before training starts."""
    if budget is not None and not is_positive_integer(budget):
        raise InvalidInput("budget", "must be a positive integer or None", repr(budget))
    return budget


def select_final_groups(meter: AffinityMeter | None, budget: int | None) -> Grouping | None:
    """Selects groups based on the measured affinities.

    Args:
        meter: the meter used during training.
        budget: the maximum number of networks, capped at the number of tasks; None selects no groups.

    Returns:
        The grouping, or None if there is no budget, nothing was measured, or no groups can be selected, for example
        because some pairs of tasks were never measured. A finished training must not fail because of that.
    """
    if budget is None or meter is None or not meter.measured:
        return None
    affinity = meter.affinity()
    try:
        return select_groups(affinity, min(budget, len(affinity.tasks)))
    except ValueError as error:
        log.warning("could not select groups: %s", error)
        return None
