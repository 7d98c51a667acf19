"""Numbers that the paper prints (Fifty et al., NeurIPS 2021) and publishes with its code. Ours are never among them.

They are in the JSON files beside this one, each with a note on where in the paper they are found, and are read when
this module is first imported.
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
    """One network as printed: the test result of each task it trains, which are in bold, and any standard errors."""

    results: Results
    bold: frozenset[str]
    stderr: Results | None = None


class Printed(NamedTuple):
    """One grouping as printed, with the total of its results."""

    total: float
    groups: tuple[PrintedGroup, ...]


class Baseline(NamedTuple):
    """A line of a table: the result of each task, their standard errors where printed, and the total."""

    results: Mapping[str, float]
    total: float
    stderr: Mapping[str, float] | None = None


class Speed(NamedTuple):
    """How well groups do relative to random ones, in percent, and how much faster they are found."""

    performance: float
    speed_up: float


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return found


def _grouping(found: Mapping[str, Any]) -> Printed:
    return Printed(found["total"], tuple(map(_group, found["networks"])))


def _group(found: Mapping[str, Any]) -> PrintedGroup:
    results: Results = found["results"]
    return PrintedGroup(results, frozenset(results) - {*found["not bold"]}, _by_task(results, found.get("stderr")))


def _baseline(dataset: str, found: Mapping[str, Any]) -> Baseline:
    results = dict(zip(TASK_NAMES[dataset], found["results"], strict=True))
    return Baseline(results, found["total"], _by_task(results, found.get("stderr")))


def _by_task(tasks: Iterable[str], values: Sequence[float] | None) -> Results | None:
    return None if values is None else dict(zip(tasks, values, strict=True))


_matrices, _ablations = _read("matrices"), _read("ablations")
_groupings, _baselines, _capacity = _read("groupings")["groupings"], _read("baselines"), _read("capacity")

# By data set: what the paper's short names of tasks stand for.
TASK_NAMES: Mapping[str, Mapping[str, str]] = _matrices["tasks"]
CELEBA = tuple(TASK_NAMES["celeba"])
TASKONOMY = tuple(TASK_NAMES["taskonomy"])
# By data set and method, "celeba_tag" and so on: [target][source].
MATRICES: Mapping[str, NDArray[np.float64]] = {
    key: np.array(rows, dtype=np.float64) for key, rows in _matrices["matrices"].items()
}

# By data set and method, or by data set, and by the number of groups.
PRINTED: Mapping[str, Mapping[int, Printed]] = {
    key: {int(budget): _grouping(found) for budget, found in _groupings[key].items()} for key in MATRICES
}
OPTIMAL: Mapping[str, Mapping[int, Printed]] = {
    dataset: {int(budget): _grouping(found) for budget, found in _groupings[f"{dataset}_optimal"].items()}
    for dataset in DATASETS
}

# By data set and method; larger networks also by how many times the channels they have.
BASELINES: Mapping[str, Mapping[str, Baseline]] = {
    dataset: {line["method"]: _baseline(dataset, line) for line in lines}
    for dataset, lines in _baselines["lines"].items()
}
CAPACITY: Mapping[str, Mapping[tuple[str, int], Baseline]] = {
    dataset: {(line["method"], line["times"]): _baseline(dataset, line) for line in lines}
    for dataset, lines in _capacity["lines"].items()
}

# By task the best, the chosen and the worst partner; by schedule; by number of groups and setting; and so on.
PARTNER: Mapping[str, tuple[float, float, float]] = {
    task: tuple(gains) for task, gains in _ablations["partner"]["rows"].items()
}
SPEED: Mapping[str, Speed] = {schedule: Speed(*found) for schedule, found in _ablations["speed"]["rows"].items()}
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
class Published:
    """One of the six matrices: data set and method.

    Attributes:
        key: its name in `MATRICES`.

    Example:
        >>> Published("taskonomy_hoa").options
        {'objective': 'min', 'allow_single': True}
    """

    key: str

    @property
    def dataset(self) -> str:
        """CelebA or Taskonomy."""
        return DATASETS[self.key.partition("_")[0]]

    @property
    def method(self) -> str:
        """TAG, CS or HOA."""
        return self.key.partition("_")[2].upper()

    @property
    def affinity(self) -> Affinity:
        """The matrix as [source, target]; it is published the other way round."""
        tasks = CELEBA if self.dataset == "CelebA" else TASKONOMY
        return Affinity.from_matrix(MATRICES[self.key], tasks, axis="target")

    @property
    def options(self) -> dict[str, Any]:
        """For `select_groups`: HOA holds results of pairs and of single tasks, which are losses in Taskonomy."""
        return {
            "objective": "min" if self.key == "taskonomy_hoa" else "max",
            "allow_single": self.method == "HOA",
        }


def published() -> tuple[Published, ...]:
    """All of them, in the paper's order."""
    return tuple(map(Published, MATRICES))
