"""The groups that a finished training suggests."""

from __future__ import annotations

import logging

from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.group import Grouping, select_groups
from tagalong.measure import AffinityMeter

log = logging.getLogger(__name__)


def check_budget(budget: int | None) -> int | None:
    """Returns the budget, a positive integer or None; rejects others before training starts, not after it."""
    if budget is not None and not is_positive_integer(budget):
        raise InvalidInput("budget", "must be a positive integer or None", repr(budget))
    return budget


def select_final_groups(meter: AffinityMeter | None, budget: int | None) -> Grouping | None:
    """Selects groups by what the meter measured.

    Args:
        meter: the meter of the training.
        budget: how many networks there may be; more than there are tasks means one for each. None: no groups.

    Returns:
        The grouping; None if there is no budget, nothing was measured, or no groups can be selected, for example
        because some pairs of tasks were never measured. A finished training must not fail for that.
    """
    if budget is None or meter is None or not meter.measured:
        return None
    affinity = meter.affinity()
    try:
        return select_groups(affinity, min(budget, len(affinity.tasks)))
    except ValueError as error:
        log.warning("no groups could be selected: %s", error)
        return None
