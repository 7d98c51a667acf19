"""The best groups for every number of networks, so that a page can show any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._run import Run

if TYPE_CHECKING:
    from tagalong.affinity import Affinity
    from tagalong.group import Grouping

SECONDS = 10.0  # of solving, where proofs would take longer
RESAMPLES = ((9, 100), (40, 20))  # up to so many tasks, so many resamples; none above
SELECT = ("allow_single", "max_size", "must_link", "cannot_link", "solver")


def all_budgets(run: Run) -> dict[int, Grouping]:
    """One grouping for each k from 1 to n: the run's own, and the others chosen in the same way."""
    affinity = run.affinity
    if affinity is None or len(affinity.tasks) < 2:
        return {}
    from tagalong.group import select_groups

    known = {k: grouping for k, grouping in run.groupings.items() if set(grouping.tasks) == set(affinity.tasks)}
    missing = [k for k in range(1, len(affinity.tasks) + 1) if k not in known]
    if missing:
        limits: dict[str, Any] = {"time_limit": SECONDS, "resamples": _resamples(affinity)}
        chosen = select_groups(affinity, budgets=missing, **limits, **_asked(run))
        known |= {int(k): grouping for k, grouping in chosen.items()}
    return dict(sorted(known.items()))


def _resamples(affinity: Affinity) -> int:
    return next((most for tasks, most in RESAMPLES if len(affinity.tasks) <= tasks), 0)


def _asked(run: Run) -> dict[str, Any]:
    """What the study asked of `select_groups`."""
    options = run.results.settings.get("options") or {}
    asked = options.get("tag", {}) if isinstance(options, dict) else {}
    return {name: asked[name] for name in SELECT if name in asked}


def shown_budget(run: Run, groupings: dict[int, Grouping]) -> int:
    """Which of them a page shows first: the one the verdict is about, else the largest the run asked for, else 2."""
    candidate = run.results.verdict().candidate
    wanted = [candidate[1] if candidate else None, max(run.groupings, default=None), 2, 1]
    return next(k for k in wanted if k in groupings)
