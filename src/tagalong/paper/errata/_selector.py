"""What the published selector of groups returns where some of them are of no use."""

from __future__ import annotations

from tagalong.group import select_groups

from .._published import published
from ._erratum import Erratum


def selector() -> list[Erratum]:
    """Published matrices for which fewer networks than tasks already give every task its best."""
    enough = []
    for problem in published():
        tasks = len(problem.affinity.tasks)
        best = select_groups(problem.affinity, tasks, **problem.options)
        if len(best.groups) < tasks:
            enough.append(f"{problem.dataset}, {problem.method}: {len(best.groups)} of {tasks}")
    return [
        Erratum(
            "published selector of groups",
            "as many groups as the budget allows",
            f"groups enough for every task to be served at its best: {'; '.join(enough)}",
            "every further group only ties, and the published selector keeps such redundant groups; ours returns the "
            "fewest groups, then the smallest",
        )
    ]
