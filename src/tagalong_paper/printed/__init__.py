"""The numbers printed in the paper (Fifty et al., NeurIPS 2021) or published with its code.

The numbers are stored in JSON files in this folder. Each file says where its numbers appear in the paper. Importing
this module reads the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

DATASETS = {"celeba": "CelebA", "taskonomy": "Taskonomy"}
Results = dict[str, float]


class PrintedGroup(NamedTuple):
    """A printed network: the test results of its tasks, the tasks in bold, and standard errors if printed."""

    results: Results
    bold: frozenset[str]
    stderr: Results | None = None


class PrintedGrouping(NamedTuple):
    """A printed grouping and its total."""

    total: float
    groups: tuple[PrintedGroup, ...]


class Baseline(NamedTuple):
    """A row in a printed table: the result of each task, the total, and standard errors if printed."""

    results: Mapping[str, float]
    total: float
    stderr: Mapping[str, float] | None = None


class SpeedUp(NamedTuple):
    """The percentage gain of a schedule's groups over random groups, and the speed-up in finding them."""

    performance: float
    speed_up: float


def _read_json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return content


def _parse_grouping(data: Mapping[str, Any]) -> PrintedGrouping:
    return PrintedGrouping(data["total"], tuple(map(_parse_group, data["networks"])))


def _parse_group(data: Mapping[str, Any]) -> PrintedGroup:
    results: Results = data["results"]
    return PrintedGroup(results, frozenset(results) - {*data["not bold"]}, _by_task(results, data.get("stderr")))


def _parse_baseline(dataset: str, data: Mapping[str, Any]) -> Baseline:
    results = dict(zip(TASK_NAMES[dataset], data["results"], strict=True))
    return Baseline(results, data["total"], _by_task(results, data.get("stderr")))


def _by_task(tasks: Iterable[str], values: Sequence[float] | None) -> Results | None:
    return None if values is None else dict(zip(tasks, values, strict=True))


_matrices, _ablations = _read_json("matrices"), _read_json("ablations")
_groupings, _baselines, _capacity = (
    _read_json("groupings")["groupings"],
    _read_json("baselines"),
    _read_json("capacity"),
)

# The full task names by data set and short name.
TASK_NAMES: Mapping[str, Mapping[str, str]] = _matrices["tasks"]
CELEBA = tuple(TASK_NAMES["celeba"])
TASKONOMY = tuple(TASK_NAMES["taskonomy"])
# The published matrices [target, source] by data set and method, such as "celeba_tag".
MATRICES: Mapping[str, NDArray[np.float64]] = {
    key: np.array(rows, dtype=np.float64) for key, rows in _matrices["matrices"].items()
}

# The printed groupings by data set and method, such as "celeba_tag" (or by data set), and number of groups.
PRINTED: Mapping[str, Mapping[int, PrintedGrouping]] = {
    key: {int(budget): _parse_grouping(found) for budget, found in _groupings[key].items()} for key in MATRICES
}
OPTIMAL: Mapping[str, Mapping[int, PrintedGrouping]] = {
    dataset: {int(budget): _parse_grouping(found) for budget, found in _groupings[f"{dataset}_optimal"].items()}
    for dataset in DATASETS
}

# The printed rows by data set and method. For larger networks, the key includes the channel multiplier.
BASELINES: Mapping[str, Mapping[str, Baseline]] = {
    dataset: {line["method"]: _parse_baseline(dataset, line) for line in lines}
    for dataset, lines in _baselines["lines"].items()
}
CAPACITY: Mapping[str, Mapping[tuple[str, int], Baseline]] = {
    dataset: {(line["method"], line["times"]): _parse_baseline(dataset, line) for line in lines}
    for dataset, lines in _capacity["lines"].items()
}

# The gains of the best, the chosen and the worst partner, by task.
PARTNER: Mapping[str, tuple[float, float, float]] = {
    task: tuple(gains) for task, gains in _ablations["partner"]["rows"].items()
}
SPEED: Mapping[str, SpeedUp] = {schedule: SpeedUp(*found) for schedule, found in _ablations["speed"]["rows"].items()}
HYPERPARAMETERS: Mapping[int, Mapping[str, float]] = {
    int(budget): found for budget, found in _ablations["hyperparameters"]["rows"].items()
}
SPREAD: Mapping[str, float] = _ablations["spread"]["rows"]
PCGRAD_GAIN: Mapping[int, float] = {int(budget): gain for budget, gain in _ablations["pcgrad gain"]["rows"].items()}
PARTNER_PEARSON: float = _ablations["text"]["rows"]["partner pearson"]
VALIDATION_PEARSON: float = _ablations["text"]["rows"]["validation pearson"]
EVERY_STEP_ERROR: float = _ablations["text"]["rows"]["every step error"]
VALIDATION_ERROR: float = _ablations["text"]["rows"]["validation error"]


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
        tasks = CELEBA if self.dataset == "CelebA" else TASKONOMY
        return Affinity.from_matrix(MATRICES[self.key], tasks, axis="target")

    @property
    def options(self) -> dict[str, Any]:
        """The options for `select_groups`. HOA's matrices contain results of pairs and of single tasks."""
        return {
            "objective": "min" if self.key == "taskonomy_hoa" else "max",
            "allow_single": self.method == "HOA",
        }


def published_matrices() -> tuple[PublishedMatrix, ...]:
    """Returns all published matrices, in the paper's order."""
    return tuple(map(PublishedMatrix, MATRICES))
