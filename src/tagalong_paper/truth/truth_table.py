"""Truth tables, which contain the results of every subset of tasks and give the true gain of any grouping."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, did_you_mean
from tagalong.files import json_safe, open_atomic, report_damage, unpack_arrays
from tagalong.learn import Job, Trained
from tagalong.study import Cost, Elsewhere, Runner, Score, without_rows

Array = NDArray[np.float64]
TABLES = files(__package__).joinpath("tables")  # the tables that are included in the package
FULL_TRAINING_STEPS = 1000  # nominal number of steps in a full training run
ESTIMATORS = {"lookahead": "lookahead sgd train mean", "cosine": "cosine train trimmed"}
LOG_RESOLUTION = 1 / 20_000  # resolution of logarithms in the file: 0.005% of a loss


@dataclass(frozen=True, eq=False)
class TruthTable:
    """The losses of a network for every subset of tasks.

    A subset is encoded as a number whose bit i is set if it contains task i. The index of a subset in the table is that
    number minus one. Losses are relative to the network for all tasks (averaged over seeds) and stored as natural
    logarithms, so a difference of 0.01 is about one percent. Losses are NaN for tasks that are not in the subset.

    Attributes:
        tasks: the names of the tasks.
        val: the losses on each half of the validation rows [seeds, 2, subsets, tasks].
        test: the losses on the test rows [seeds, subsets, tasks].
        early: the validation losses after each fraction of training [seeds, fractions, subsets, tasks].
        fractions: the fractions of training for `early`, relative to the epochs of the network for all tasks.
        epochs: the number of epochs [seeds, subsets].
        affinities: the affinities by estimator [seeds, source, target].
        errors: the standard errors of the affinities, by estimator.
        predictions: the losses predicted for each network, by estimator [seeds, subsets, tasks].
        costs: the measurement cost by estimator, relative to training the network for all tasks.
        about: the command that created the table, and its inputs.
        copies: the losses of averaged networks for all tasks, by the number k of networks [2, sets, tasks], on the
            validation rows and on the test rows. The sets are those of `itertools.combinations(range(seeds), k)`.
    """

    tasks: tuple[str, ...]
    val: Array
    test: Array
    early: Array
    fractions: tuple[float, ...]
    epochs: NDArray[np.int64]
    affinities: Mapping[str, Array] = field(default_factory=dict)
    errors: Mapping[str, Array] = field(default_factory=dict)
    predictions: Mapping[str, Array] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    copies: Mapping[int, Array] = field(default_factory=dict)

    @property
    def seeds(self) -> int:
        """The number of seeds that each subset was trained with."""
        return len(self.test)

    @property
    def subsets(self) -> NDArray[np.bool_]:
        """Whether each subset contains each task, as an array [subsets, tasks]."""
        return subset_members(len(self.tasks))

    def place(self, subset: Iterable[str]) -> int:
        """Returns the index of a subset in the table.

        Example:
            >>> table = TruthTable(("a", "b"), *[np.zeros(0)] * 3, (), np.zeros(0))
            >>> table.place("b"), table.place("ab")
            (1, 2)
        """
        return sum(1 << self.tasks.index(task) for task in set(subset)) - 1

    def change(self, served: Mapping[str, Iterable[str]], seeds: Iterable[int] | None = None) -> float:
        """Returns the true change in test loss relative to one network for all tasks, averaged over tasks and seeds.

        Args:
            served: for each task, the tasks of the network that serves it.
            seeds: the seeds of the networks. Defaults to all.
        """
        logs = self.test if seeds is None else self.test[list(seeds)]
        columns = [self.tasks.index(task) for task in served]
        places = [self.place(tasks) for tasks in served.values()]
        return float(np.exp(logs[:, places, columns] - logs[:, -1, columns]).mean() - 1)

    def save(self, path: str | Path) -> None:
        """Writes the table to a compressed npz file, with rounded numbers."""
        members = self.subsets
        document = {"tasks": self.tasks, "fractions": self.fractions, "costs": self.costs, "about": self.about}
        arrays: dict[str, Any] = {"document": json.dumps(json_safe(document)), "epochs": self.epochs.astype(np.uint16)}
        for name in ("val", "test", "early"):
            arrays[name] = _pack(getattr(self, name)[..., members])
        for name, affinity in self.affinities.items():
            arrays[f"affinity {name}"] = affinity.astype(np.float32)
            arrays[f"stderr {name}"] = self.errors[name].astype(np.float16)
        for name, logs in self.predictions.items():
            arrays[f"predicted {name}"] = _pack(logs[..., members])
        for number, logs in self.copies.items():
            arrays[f"copies {number}"] = _pack(logs)
        with open_atomic(Path(path)) as file:
            np.savez_compressed(file, **arrays)

    @staticmethod
    def load(path: str | Path) -> TruthTable:
        """Reads a file written by `save`."""
        with report_damage(path, hint="recreate it with benchmarks/truth.py"):
            arrays = unpack_arrays(Path(path).read_bytes())
            return TruthTable._from_arrays(json.loads(str(arrays.pop("document"))), arrays)

    @staticmethod
    def _from_arrays(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TruthTable:
        members = subset_members(len(document["tasks"]))

        def named(kind: str) -> dict[str, Array]:
            return {
                name.removeprefix(kind): array.astype(np.float64)
                for name, array in arrays.items()
                if name.startswith(kind)
            }

        def unpack(packed: NDArray[Any]) -> Array:
            logs = np.full((*packed.shape[:-1], *members.shape), np.nan)
            logs[..., members] = packed * LOG_RESOLUTION
            return logs

        return TruthTable(
            tasks=tuple(document["tasks"]),
            val=unpack(arrays["val"]),
            test=unpack(arrays["test"]),
            early=unpack(arrays["early"]),
            fractions=tuple(document["fractions"]),
            epochs=arrays["epochs"].astype(np.int64),
            affinities=named("affinity "),
            errors=named("stderr "),
            predictions={name: unpack(packed) for name, packed in named("predicted ").items()},
            costs=document["costs"],
            about=document["about"],
            copies={int(number): packed * LOG_RESOLUTION for number, packed in named("copies ").items()},
        )


def subset_members(tasks: int) -> NDArray[np.bool_]:
    """Returns whether each subset contains each task, as an array [subsets, tasks].

    Example:
        >>> subset_members(2).tolist()
        [[True, False], [False, True], [True, True]]
    """
    return (np.arange(1, 2**tasks)[:, None] >> np.arange(tasks) & 1).astype(bool)


def _pack(log_losses: Array) -> NDArray[np.int16]:
    return np.clip(np.round(log_losses / LOG_RESOLUTION), -32_767, 32_767).astype(np.int16)


@cache
def truth_names() -> tuple[str, ...]:
    """Returns the names of the tables that are included in the package."""
    return tuple(sorted(file.name.removesuffix(".npz") for file in TABLES.iterdir()))


def load_truth(name: str) -> TruthTable:
    """Loads a table that is included in the package.

    Raises:
        ValueError: If no table has this name.

    Example:
        >>> load_truth("nhanes").tasks[:2]
        ('systolic', 'diastolic')
    """
    if name not in truth_names():
        raise InvalidInput("name", "must be the name of a truth table", repr(name), did_you_mean(name, truth_names()))
    with as_file(TABLES.joinpath(f"{name}.npz")) as path:
        return TruthTable.load(path)


class TruthRunner(Runner):
    """A runner that looks up networks in a truth table instead of training them.

    Losses are relative to the network for all tasks, and seeds are indices into the table. A full training run counts
    as `FULL_TRAINING_STEPS` steps.

    Args:
        table: the truth table.
        estimators: the name of the affinity in the table for each meter estimator.

    Example:
        >>> table = load_truth("nhanes")
        >>> runner = TruthRunner(table)
        >>> alone = runner.job(["systolic"], seed=0)
        >>> runner.networks([alone])[alone].val["systolic"].loss > 0
        True
    """

    def __init__(self, table: TruthTable, estimators: Mapping[str, str] = ESTIMATORS) -> None:
        super().__init__(without_rows(table.tasks), executor=Elsewhere())
        self.table, self._estimators = table, estimators

    def find_results(self, jobs: Sequence[Job], what: str) -> dict[Job, Trained]:
        return {job: self._result(job) for job in jobs}

    def _result(self, job: Job) -> Trained:
        table, place = self.table, self.table.place(job.tasks)
        halves = np.exp(table.val[job.seed, :, place])
        losses = dict(zip(table.tasks, halves.T.tolist(), strict=True))  # of each half of the validation rows
        test = dict(zip(table.tasks, np.exp(table.test[job.seed, place]).tolist(), strict=True))
        return Trained(
            job,
            val={task: Score(sum(losses[task]) / 2, math.nan) for task in job.tasks},
            test={task: Score(test[task], math.nan) for task in job.tasks},
            steps=FULL_TRAINING_STEPS,
            seconds=0.0,
            parameters=0,
            halves={task: (losses[task][0], losses[task][1]) for task in job.tasks},
        )

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        name = self._estimators.get(settings.get("estimator", "lookahead"), "")
        if name not in self.table.affinities:
            raise InvalidInput("estimator", "must be one that was measured for the table", repr(name))
        mean = self.table.affinities[name][list(seeds)].mean(0)
        steps = round(FULL_TRAINING_STEPS * (1 + self.table.costs[name]))
        return Affinity.from_matrix(mean, self.tasks), {seed: Cost(1, steps) for seed in seeds}
