"""How `auto` divides its effort between copies, networks for sets of tasks, wider and TabM networks, and students."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_TEACHING_EFFORT, MIN_LECTURES_EFFORT = 3, 12  # of everything: for any students, and for several ways of teaching
MIN_SEARCH_EFFORT = 8  # of the pool
WIDE_SHARE, WIDE_SHARE_OF_ONE_PASS = 0.1, 0.25  # of the effort, and the same if one network answers each task
MAX_WIDE_COPIES = 4  # of each size
TABM_SHARE, MAX_TABM_COPIES = 0.4, 4  # of the effort


@dataclass(frozen=True)
class Shares:
    """How an effort is divided before students are trained.

    Attributes:
        copies: the number of copies of the network for all tasks.
        sets: the effort for networks for sets of tasks.
        wide: the sizes of wider networks.
        tabm: the number of TabM networks.
    """

    copies: int
    sets: int
    wide: tuple[int, ...]
    tabm: int = 0


def divide_effort(
    effort: float,
    budgets: Sequence[int],
    passes: int | None = None,
    *,
    spent: float = 0.0,
    sets: bool = True,
    wide: bool = True,
    tabm_cost: float | None = None,
    teach: bool = True,
) -> Shares:
    """Divides an effort between copies, networks for sets of tasks, wider and TabM networks; students have the rest.

    Copies come first: for every budget that the effort can pay for, there are as many copies, so that the result is
    expected to be at least as good as that of copies alone. (If at most m networks answer a task, m of them are enough
    for that.) A TabM network costs dozens of training runs, and is trained only if the share of TabM networks pays for
    it. Of what is left, wider networks have a small share, which must leave enough for a search, smaller ones first.

    Args:
        effort: the number of full training runs.
        budgets: the numbers of networks to recommend.
        passes: the maximum number of networks that answer a task, or None for no limit.
        spent: the effort that is already spent.
        sets: whether to train networks for sets of tasks.
        wide: whether to train wider networks.
        tabm_cost: what a TabM network is expected to cost, in full training runs, or None to train none.
        teach: whether to train students.

    Example:
        >>> divide_effort(4, [1, 2, 4])
        Shares(copies=4, sets=0, wide=(), tabm=0)
        >>> divide_effort(60, [1, 2, 3])
        Shares(copies=14, sets=14, wide=(2, 3), tabm=0)
        >>> divide_effort(60, [1, 2, 3], passes=1)
        Shares(copies=11, sets=11, wide=(2, 3, 2, 3, 2, 3), tabm=0)
        >>> divide_effort(100, [1, 2, 3], tabm_cost=40)
        Shares(copies=14, sets=14, wide=(2, 3), tabm=1)
    """
    payable = max((budget for budget in budgets if budget <= effort), default=1)
    needed = payable if passes is None else min(passes, payable)
    pool_share = 1.0
    if teach:
        pool_share = 1 / 2 if effort >= MIN_LECTURES_EFFORT else 2 / 3
    least = needed if not sets or pool_share * effort < MIN_SEARCH_EFFORT else max(needed, MIN_SEARCH_EFFORT)
    tabm = 0
    if tabm_cost is not None:
        allowed = min(TABM_SHARE * effort, effort - least / pool_share)
        tabm = max(0, min(MAX_TABM_COPIES, math.floor(allowed / tabm_cost)))
        effort -= tabm * tabm_cost
    allowed = (WIDE_SHARE_OF_ONE_PASS if passes == 1 else WIDE_SHARE) * effort
    allowed = min(allowed, effort - least / pool_share)
    sizes = _wide_sizes(budgets, allowed) if wide else ()
    pool = max(1, needed, round(pool_share * (effort - sum(sizes)) - spent))
    copies = max(math.ceil(pool / 2), needed) if sets and pool >= MIN_SEARCH_EFFORT else pool
    return Shares(copies, pool - copies, sizes, tabm)


def _wide_sizes(budgets: Sequence[int], allowed: float) -> tuple[int, ...]:
    """Returns the sizes of as many wider networks as the effort allows, the same number of each size if possible."""
    sizes: list[int] = []
    for size in sorted({budget for budget in budgets if budget > 1}) * MAX_WIDE_COPIES:
        if sum(sizes) + size > allowed:
            break
        sizes.append(size)
    return tuple(sizes)
