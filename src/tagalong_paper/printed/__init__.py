"""The numbers printed in the paper (Fifty et al., NeurIPS 2021) or published with its code.

The numbers are stored in JSON files in this folder. Each file says where its numbers appear in the paper. Importing
this module reads the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

DATASETS = {"celeba": "CelebA", "taskonomy": "Taskonomy"}


class PrintedGroup(NamedTuple):
    """A printed network: the test results of its tasks, the tasks in bold, and standard errors where printed."""

    results: Mapping[str, float]
    bold: frozenset[str]
    stderr: Mapping[str, float]


class PrintedGrouping(NamedTuple):
    """A printed grouping, or a single network for all tasks, and its total."""

    total: float
    groups: tuple[PrintedGroup, ...]


def read_json(name: str) -> dict[str, Any]:
    """Returns the contents of a file in this folder, where keys made of digits become integers."""

    def convert(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
        return {int(key) if key.isdigit() else key: value for key, value in pairs}

    text = files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text, object_pairs_hook=convert)
    return content


def _parse_grouping(data: Mapping[str, Any]) -> PrintedGrouping:
    groups = []
    for network in data["networks"]:
        results = network["results"]
        stderr = dict(zip(results, network["stderr"], strict=True)) if "stderr" in network else {}
        groups.append(PrintedGroup(results, frozenset(results) - {*network.get("not bold", ())}, stderr))
    return PrintedGrouping(data["total"], tuple(groups))


_matrices, _ablations = read_json("matrices"), read_json("ablations")
_groupings = {
    key: {budget: _parse_grouping(printed) for budget, printed in by_budget.items()}
    for key, by_budget in read_json("groupings")["groupings"].items()
}

# The full task names by data set and short name.
TASK_NAMES: Mapping[str, Mapping[str, str]] = _matrices["tasks"]
CELEBA = tuple(TASK_NAMES["celeba"])
TASKONOMY = tuple(TASK_NAMES["taskonomy"])
# The published matrices [target, source] by data set and method, such as "celeba_tag".
MATRICES: Mapping[str, NDArray[np.float64]] = {key: np.array(rows) for key, rows in _matrices["matrices"].items()}

# The printed groupings by data set and method, such as "celeba_tag" (or by data set), and number of groups.
PRINTED: Mapping[str, Mapping[int, PrintedGrouping]] = {key: _groupings[key] for key in MATRICES}
OPTIMAL: Mapping[str, Mapping[int, PrintedGrouping]] = {name: _groupings[f"{name}_optimal"] for name in DATASETS}

# The printed rows by data set and method. For larger networks, the key includes the channel multiplier.
BASELINES: Mapping[str, Mapping[str, PrintedGrouping]] = {
    dataset: {line["method"]: _parse_grouping(line) for line in lines}
    for dataset, lines in read_json("baselines")["lines"].items()
}
CAPACITY: Mapping[str, Mapping[tuple[str, int], PrintedGrouping]] = {
    dataset: {(line["method"], line["times"]): _parse_grouping(line) for line in lines}
    for dataset, lines in read_json("capacity")["lines"].items()
}

# The gains of the best, the chosen and the worst partner, by task.
PARTNER: Mapping[str, Mapping[str, float]] = _ablations["partner"]["rows"]
# The gain of each schedule's groups over random groups ("performance"), and the speed-up in finding them.
SPEED: Mapping[str, Mapping[str, float]] = _ablations["speed"]["rows"]
# The losses with the groups of other settings, by setting and number of groups.
HYPERPARAMETERS: Mapping[str, Mapping[int, float]] = _ablations["hyperparameters"]["rows"]
SPREAD: Mapping[str, float] = _ablations["spread"]["rows"]
PCGRAD_GAIN: Mapping[int, float] = _ablations["pcgrad gain"]["rows"]
# Pearson's correlations and average errors that only the text gives.
IN_TEXT: Mapping[str, float] = _ablations["text"]["rows"]


@dataclass(frozen=True)
class PublishedMatrix:
    """One of the six published matrices.

    Attributes:
        key: the data set and method, as in `MATRICES`.

    Example:
        >>> PublishedMatrix("taskonomy_hoa").options
        {'objective': 'min', 'allow_single': True}
    """

    key: str

    @property
    def dataset(self) -> str:
        """The data set: CelebA or Taskonomy."""
        return DATASETS[self.key.partition("_")[0]]

    @property
    def method(self) -> str:
        """The method: TAG, CS or HOA."""
        return self.key.partition("_")[2].upper()

    @property
    def affinity(self) -> Affinity:
        """The matrix as [source, target], which is the transpose of the published one."""
        tasks = TASK_NAMES[self.key.partition("_")[0]]
        return Affinity.from_matrix(MATRICES[self.key], list(tasks), axis="target")

    @property
    def options(self) -> dict[str, Any]:
        """The options for `select_groups`. HOA's matrices contain results of pairs and of single tasks."""
        return {
            "objective": "min" if self.key == "taskonomy_hoa" else "max",
            "allow_single": self.method == "HOA",
        }
