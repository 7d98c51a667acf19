"""Reads a finished run and selects groups for every budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, damage_logger
from tagalong.group import Grouping, select_groups

from .documents import NETWORKS_FOLDER, NETWORKS_NAME, GroupingsFile, NetworksFile
from .results import Results

SOLVER_TIME_LIMIT = 4.0  # seconds for the solver
MAX_EXACT_TASKS = 24  # with more tasks, local search does as well in a fraction of the time
MAX_TASKS_FOR_ALL_BUDGETS = 60  # with more tasks, only the run's own budgets are shown
DEFAULT_BUDGETS = (2, 3, 4)  # shown for so many tasks if the run has no budgets
# (maximum number of tasks, resamples); with more tasks, only the run's own budgets are resampled
RESAMPLES_BY_TASKS = ((9, 100), (12, 20))
SELECT_OPTIONS = ("allow_single", "max_size", "must_link", "cannot_link", "solver")


@dataclass(frozen=True)
class Run:
    """The files of a finished run.

    Attributes:
        folder: the folder of the run.
        results: all records and the verdict.
        affinities: the measured affinities, keyed by estimator. Groups were selected from the first affinity.
        groupings: the groupings that the run selected from the first affinity, keyed by budget.
    """

    folder: Path
    results: Results
    affinities: Mapping[str, Affinity] = field(default_factory=dict)
    groupings: Mapping[int, Grouping] = field(default_factory=dict)

    @property
    def affinity(self) -> Affinity | None:
        """The affinity from which groups were selected, or None if no affinity was measured."""
        return next(iter(self.affinities.values()), None)

    @cached_property
    def inputs(self) -> Literal["table", "array"] | None:
        """What the saved networks predict from, or None if the run has no networks that can be loaded."""
        file = self.folder / NETWORKS_FOLDER / NETWORKS_NAME
        if not file.exists():
            return None
        try:
            table = NetworksFile.read(file).table
        except (DocumentError, OSError) as error:
            damage_logger.warning("the networks of the run cannot be used: %s", error)
            return None
        return "table" if table is not None and table.get("kind") == "table" else "array"

    def all_budgets(self) -> dict[int, Grouping]:
        """Returns a grouping for each budget from 1 to n or, if there are more than 60 tasks, for the run's budgets.

        Groupings for budgets that were not part of the run are selected in the same way.
        """
        affinity = self.affinity
        if affinity is None or len(affinity.tasks) < 2:
            return {}
        known = {k: grouping for k, grouping in self.groupings.items() if set(grouping.tasks) == set(affinity.tasks)}
        n = len(affinity.tasks)
        wanted = range(1, n + 1) if n <= MAX_TASKS_FOR_ALL_BUDGETS else known or DEFAULT_BUDGETS
        missing = [k for k in wanted if k not in known]
        if missing:
            known |= _select_missing_groupings(self, affinity, missing)
        return dict(sorted(known.items()))

    def shown_budget(self, groupings: dict[int, Grouping]) -> int:
        """Returns the budget to show first: the candidate's if there is one, else the run's largest, else 2."""
        candidate = self.results.verdict().candidate
        wanted = [candidate[1] if candidate else None, max(self.groupings, default=None), 2, 1]
        return next(k for k in (*wanted, *groupings) if k in groupings)


def read_run(folder: str | Path) -> Run:
    """Reads the files of a finished run.

    Raises:
        ValueError: If the folder does not contain a finished run, or a file in it is damaged.
    """
    folder = Path(folder)
    if not (folder / "results.json").exists():
        why = "it contains no results.json" if folder.exists() else "it does not exist"
        raise InvalidInput("", f"{folder} is not the folder of a finished run: {why}")
    results = Results.load(folder)
    affinities = _read_affinities(folder)
    first = next(iter(affinities), None)
    return Run(folder, results, affinities, _read_groupings(folder, "cs" if first == "cosine" else "tag"))


def _read_affinities(folder: Path) -> dict[str, Affinity]:
    main = folder / "affinity.json"
    files = [main, *sorted(folder.glob("affinity-*.json"))] if main.exists() else []
    found: dict[str, Affinity] = {}
    for file in files:
        affinity = Affinity.load(file)
        found.setdefault(str(affinity.settings.get("estimator") or file.stem.removeprefix("affinity-")), affinity)
    return found


def _read_groupings(folder: Path, method: str) -> dict[int, Grouping]:
    file = folder / "groupings.json"
    if not file.exists():
        return {}
    chosen = [entry for entry in GroupingsFile.read(file).groupings if entry.method == method]
    return {entry.budget: entry.grouping for entry in chosen if entry.budget is not None and entry.grouping is not None}


def _select_missing_groupings(run: Run, affinity: Affinity, budgets: list[int]) -> dict[int, Grouping]:
    n = len(affinity.tasks)
    resamples = next((most for tasks, most in RESAMPLES_BY_TASKS if n <= tasks), 0)
    solver = "auto" if n <= MAX_EXACT_TASKS else "search"
    options: dict[str, Any] = {"solver": solver, "time_limit": SOLVER_TIME_LIMIT, **_select_options(run)}
    selected = select_groups(affinity, budgets, resamples=resamples, **options)
    return {int(k): grouping for k, grouping in selected.items()}


def _select_options(run: Run) -> dict[str, Any]:
    options = run.results.settings.get("options") or {}
    given = options.get("tag", {}) if isinstance(options, dict) else {}
    return {name: given[name] for name in SELECT_OPTIONS if name in given}
