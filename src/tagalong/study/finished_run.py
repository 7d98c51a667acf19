"""Reads a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError, damage_logger
from tagalong.group import Grouping

from .documents import NETWORKS_FOLDER, NETWORKS_NAME, GroupingsFile, NetworksFile
from .results import Results


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
