"""The best groups for every number of networks, so that a page can show any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._budgets_file import Solved
from ._run import Run

if TYPE_CHECKING:
    from tagalong.affinity import Affinity
    from tagalong.group import Grouping

SECONDS = 4.0  # of solving, where proofs would take longer
PROVEN = 24  # tasks, above which a search with a bound does as well in a fraction of the time
QUICK = 12  # tasks, above which what was solved is kept
RESAMPLES = ((9, 100), (QUICK, 20))  # up to so many tasks, so many resamples; above, those of the run's own budgets
SELECT = ("allow_single", "max_size", "must_link", "cannot_link", "solver")


def all_budgets(run: Run) -> dict[int, Grouping]:
    """One grouping for each k from 1 to n: the run's own, and the others chosen in the same way."""
    affinity = run.affinity
    if affinity is None or len(affinity.tasks) < 2:
        return {}
    known = {k: grouping for k, grouping in run.groupings.items() if set(grouping.tasks) == set(affinity.tasks)}
    missing = [k for k in range(1, len(affinity.tasks) + 1) if k not in known]
    if missing:
        known |= _solved(run, affinity, missing)
    return dict(sorted(known.items()))


def _solved(run: Run, affinity: Affinity, missing: list[int]) -> dict[int, Grouping]:
    """Chosen now, or kept in the folder of the run where that takes long."""
    from tagalong.group import select_groups

    n = len(affinity.tasks)
    resamples = next((most for tasks, most in RESAMPLES if n <= tasks), 0)
    options: dict[str, Any] = {"solver": "auto" if n <= PROVEN else "search", "time_limit": SECONDS, **_asked(run)}
    kept = Solved.of(run.folder, affinity, missing, options) if n > QUICK else None
    if kept is not None and (found := kept.read()):
        return found
    chosen = select_groups(affinity, budgets=missing, resamples=resamples, **options)
    solved = {int(k): grouping for k, grouping in chosen.items()}
    if kept is not None:
        kept.write(solved)
    return solved


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
