"""A finished run as its files tell it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tagalong.affinity import Affinity

if TYPE_CHECKING:
    from tagalong.group import Grouping
    from tagalong.study import Results


@dataclass(frozen=True)
class Run:
    """What a run left behind.

    Attributes:
        folder: of the run.
        results: every record, and the verdict.
        affinities: what was measured, by estimator; the one that decided first.
        groupings: chosen from the first affinity, by budget, as far as the run asked for them.
    """

    folder: Path
    results: Results
    affinities: Mapping[str, Affinity] = field(default_factory=dict)
    groupings: Mapping[int, Grouping] = field(default_factory=dict)

    @property
    def affinity(self) -> Affinity | None:
        """The one that decided; None if nothing was measured."""
        return next(iter(self.affinities.values()), None)


def read_run(folder: str | Path) -> Run:
    """Reads the files of a finished run.

    Raises:
        ValueError: the folder is not one of a finished run, or a file in it is damaged.
    """
    from tagalong.study import Results

    folder = Path(folder)
    if not (folder / "results.json").exists():
        raise ValueError(f"{folder} is not the folder of a finished run: there is no results.json in it")
    results = Results.load(folder)
    affinities = _affinities(folder)
    first = next(iter(affinities), None)
    return Run(folder, results, affinities, _groupings(folder, "cs" if first == "cosine" else "tag"))


def _affinities(folder: Path) -> dict[str, Affinity]:
    main = folder / "affinity.json"
    files = [main, *sorted(folder.glob("affinity-*.json"))] if main.exists() else []
    found: dict[str, Affinity] = {}
    for file in files:
        affinity = Affinity.load(file)
        found.setdefault(str(affinity.settings.get("estimator") or file.stem.removeprefix("affinity-")), affinity)
    return found


def _groupings(folder: Path, method: str) -> dict[int, Grouping]:
    from tagalong.group._grouping_file import from_document

    file = folder / "groupings.json"
    if not file.exists():
        return {}
    try:
        entries = json.loads(file.read_bytes())["groupings"]
        return {
            int(entry["budget"]): from_document(entry["grouping"])
            for entry in entries
            if entry["method"] == method and entry["grouping"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error!r}; run the study again") from error
