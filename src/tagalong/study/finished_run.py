"""Reads a finished run, selects groups for every budget, and compares two runs."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tagalong.affinity import Affinity, disclaimer
from tagalong.entries import Entry
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, damage_logger, read_document, write_document
from tagalong.group import Grouping, select_groups_by_budget

from .records import (
    GROUPINGS_FORMAT,
    NETWORKS_FILE,
    NETWORKS_FOLDER,
    NETWORKS_FORMAT,
    NETWORKS_VERSION,
    TRAIN_AGAIN,
    Label,
)
from .results import Results, ResultsFileError
from .summary import MethodSummary

FILE, FORMAT, VERSION = "budgets.json", "tagalong-budgets", 1
SOLVER_TIME_LIMIT = 4.0  # seconds for the solver
MAX_EXACT_TASKS = 24  # with more tasks, local search does as well in a fraction of the time
MAX_UNCACHED_TASKS = 12  # with more tasks, groupings are cached in a file
MAX_TASKS_FOR_ALL_BUDGETS = 60  # with more tasks, only the run's own budgets are shown
DEFAULT_BUDGETS = (2, 3, 4)  # shown for so many tasks if the run has no budgets
# (maximum number of tasks, resamples); with more tasks, only the run's own budgets are resampled
RESAMPLES_BY_TASKS = ((9, 100), (MAX_UNCACHED_TASKS, 20))
SELECT_OPTIONS = ("allow_single", "max_size", "must_link", "cannot_link", "solver")
Pair = tuple[MethodSummary | None, MethodSummary | None]
logger = logging.getLogger(__name__)


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
        file = self.folder / NETWORKS_FOLDER / NETWORKS_FILE
        if not file.exists():
            return None
        try:
            return read_document(file, NETWORKS_FORMAT, (NETWORKS_VERSION,), _read_inputs, hint=TRAIN_AGAIN)
        except (DocumentError, OSError) as error:
            damage_logger.warning("the networks of the run cannot be used: %s", error)
            return None

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


def _read_inputs(document: dict[str, Any]) -> Literal["table", "array"]:
    table = document["table"]
    return "table" if isinstance(table, dict) and table.get("kind") == "table" else "array"


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

    def parse(document: dict[str, Any]) -> dict[int, Grouping]:
        found = [entry for entry in Entry(document)["groupings"].entries() if entry["method"].name() == method]
        return dict(_read_grouping(entry) for entry in found if entry["grouping"].value is not None)

    return read_document(file, GROUPINGS_FORMAT, (1,), parse, ResultsFileError, "run the study again")


def _read_grouping(entry: Entry) -> tuple[int, Grouping]:
    return entry["budget"].integer(1), Grouping.from_document(entry["grouping"].value)


def _select_missing_groupings(run: Run, affinity: Affinity, budgets: list[int]) -> dict[int, Grouping]:
    """Selects groupings for these budgets.

    If there are many tasks, the groupings are cached in the run's folder.
    """
    n = len(affinity.tasks)
    resamples = next((most for tasks, most in RESAMPLES_BY_TASKS if n <= tasks), 0)
    solver = "auto" if n <= MAX_EXACT_TASKS else "search"
    options: dict[str, Any] = {"solver": solver, "time_limit": SOLVER_TIME_LIMIT, **_select_options(run)}
    cache = GroupingCache.of(run.folder, affinity, budgets, options) if n > MAX_UNCACHED_TASKS else None
    if cache is not None and (cached := cache.read()):
        return cached
    selected = select_groups_by_budget(affinity, budgets, resamples=resamples, **options)
    groupings = {int(k): grouping for k, grouping in selected.items()}
    if cache is not None:
        cache.write(groupings)
    return groupings


def _select_options(run: Run) -> dict[str, Any]:
    """Returns the options that the study passed to `select_groups`."""
    options = run.results.settings.get("options") or {}
    given = options.get("tag", {}) if isinstance(options, dict) else {}
    return {name: given[name] for name in SELECT_OPTIONS if name in given}


@dataclass(frozen=True)
class GroupingCache:
    """A file that caches the groupings selected from one affinity for all budgets.

    Attributes:
        file: the cache file in the run's folder.
        key: a hash of the affinity, budgets and options. The cache is ignored if its key differs.
        tasks: the names of the tasks.
    """

    file: Path
    key: str
    tasks: tuple[str, ...]

    @staticmethod
    def of(folder: Path, affinity: Affinity, budgets: Sequence[int], options: Mapping[str, Any]) -> GroupingCache:
        """Returns the cache for an affinity, a list of budgets, and options for `select_groups`."""
        inputs = [
            VERSION,
            list(affinity.tasks),
            list(budgets),
            {name: str(options[name]) for name in sorted(options)},
        ]
        digest = hashlib.sha256(json.dumps(inputs).encode())
        digest.update(affinity.mean.astype("<f8").tobytes())
        return GroupingCache(folder / FILE, digest.hexdigest(), tuple(affinity.tasks))

    def read(self) -> dict[int, Grouping]:
        """Returns the cached groupings, or an empty dict if the key differs or the file is missing or damaged."""

        def parse(document: dict[str, Any]) -> dict[int, Grouping]:
            if document["key"] != self.key:
                return {}
            return dict(map(_read_grouping, Entry(document)["groupings"].entries()))

        try:
            return read_document(self.file, FORMAT, (VERSION,), parse)
        except (OSError, DocumentError):
            return {}

    def write(self, groupings: Mapping[int, Grouping]) -> None:
        """Writes groupings to the file if the folder is writable."""
        entries = [{"budget": k, "grouping": grouping.to_document()} for k, grouping in groupings.items()]
        document = {"caution": disclaimer(self.tasks), "key": self.key, "groupings": entries}
        try:
            write_document(self.file, FORMAT, VERSION, document)
        except OSError as error:
            logger.info("could not cache the groups of each budget: %s", error)


@dataclass(frozen=True)
class RunComparison:
    """A comparison of two runs.

    Attributes:
        first: the results of the first run.
        second: the results of the second run.
        lines: the summary of each method and budget in both runs, or None if a run does not include it.
        remarks: reasons why the numbers may not be comparable.
    """

    first: Results
    second: Results
    lines: Mapping[Label, Pair]
    remarks: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Returns the comparison as a JSON document."""
        return {
            "verdicts": [results.verdict().to_document() for results in (self.first, self.second)],
            "remarks": list(self.remarks),
            "lines": [
                {"method": method, "budget": budget, "runs": [_summary_document(line) for line in pair]}
                for (method, budget), pair in self.lines.items()
            ],
        }


def compare_runs(first: Results, second: Results) -> RunComparison:
    """Compares the methods and budgets of two runs side by side, in the order of the first run."""
    tables = [{line.label: line for line in results.table()} for results in (first, second)]
    labels = dict.fromkeys([*tables[0], *tables[1]])
    lines: dict[Label, Pair] = {label: (tables[0].get(label), tables[1].get(label)) for label in labels}
    return RunComparison(first, second, lines, tuple(_comparison_remarks(first, second)))


def _comparison_remarks(first: Results, second: Results) -> list[str]:
    remarks = []
    if set(first.problem.tasks) != set(second.problem.tasks):
        remarks.append("the runs have different tasks, so their changes are means over different tasks")
    elif first.problem.fingerprint != second.problem.fingerprint:
        remarks.append("the runs have different data")
    differing = [name for name in ("recipe", "architecture") if first.settings.get(name) != second.settings.get(name)]
    if differing:
        remarks.append(f"the runs differ in their {' and '.join(differing)}, so their mtl networks are not the same")
    return remarks


def _summary_document(summary: MethodSummary | None) -> dict[str, Any] | None:
    names = ("change", "change_stderr", "total", "total_stderr", "deciding_cost", "training_cost")
    if summary is None:
        return None
    found = {name: getattr(summary, name) for name in names}
    return found | {"total": None} if summary.diverged else found
