"""Defines `Affinity`: how much each task helps the others, with error bars and a history of measurements."""

from __future__ import annotations

import base64
import html
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tagalong.errors import as_names, pluralize, raise_problems, task_name_problems
from tagalong.files import (
    DocumentError,
    pack_arrays,
    read_document,
    report_damage,
    unpack_arrays,
    write_atomic,
    write_document,
)
from tagalong.rendering import terminal_width
from tagalong.tabular import read_table

from .averaging import DEFAULT_TRIM, Floats, Ints, LevelHistory, Mask
from .bootstrap import STDERR_RESAMPLES, averages, bootstrap_averages, draw_within_errors, standard_errors
from .display import extent, text_table
from .io import square_matrix
from .reliability import Settled, Spread, check_settled, compute_spread

PathLike = str | os.PathLike[str]
CAUTION = (
    "Affinity describes how one network trained on one data set. It implies neither similarity nor causation, and says "
    "nothing about people."
)
FORMAT, VERSION, DIRECTION = "tagalong-affinity", 1, "[source][target]"
SAVE_AGAIN_HINT = "save the affinity again"
PER_STEP_FIELDS = ("steps", "history", "null")
# Settings that define the measured quantity: affinities that differ in one of them cannot be merged.
IDENTITY_SETTINGS = ("estimator", "update", "held_out", "per_lr", "average", "trim")


@dataclass(frozen=True, eq=False, repr=False)
class Affinity:
    """How much each task helps the others, with error bars. In every matrix, rows are sources and columns are targets.

    Affinities are returned by a meter, or created with `from_history`, `from_matrix`, `from_csv` or `load`. Arrays are
    read-only.

    Attributes:
        tasks: the task names, in the order of the rows and columns.
        mean: the average over steps. The diagonal contains self-affinities. Pairs that were never measured are NaN.
        stderr: the standard error of `mean`, or NaN if a pair has fewer than two values. Consecutive steps are
            correlated, so whole steps are resampled in blocks. The block length is b = (2ρ / (1 − ρ²))^(2/3) · T^(1/3),
            clipped to [1, T/4]. Here, T is the number of steps, and ρ is the median lag-one autocorrelation over pairs,
            clipped to [0, 0.97].
        count: the number of values averaged for each pair.
        steps: the call number of each measured step.
        history: all measured values (steps × n × n). Pairs that were not measured at a step are NaN.
        null: the effect on each target of an optimizer step with zero gradient (steps × n). Finite values have already
            been subtracted from `history`. If a value is NaN, nothing was subtracted for that target and step.
        skipped: the number of skipped values per pair, keyed by reason. Parts of a history and merged ones have none.
        settings: the measurement settings (estimator, update, held_out, per_lr, average, …), as JSON-compatible values.

    Example:
        >>> print(Affinity.from_matrix([[2.0, 0.5], [-0.25, 1.0]], tasks=["age", "ill"]))
        Affinity (row helps column), no history
               age    ill
        age  2.000  0.500
        ill -0.250  1.000
    """

    tasks: tuple[str, ...]
    mean: Floats
    stderr: Floats
    count: Ints
    steps: Ints
    history: Floats
    null: Floats
    skipped: Mapping[str, Ints] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = as_names(self.tasks)
        raise_problems(task_name_problems(tasks))
        n, steps = len(tasks), len(np.asarray(self.history))
        checked: dict[str, Any] = {
            "tasks": tasks,
            "mean": read_only_array("mean", self.mean, (n, n)),
            "stderr": read_only_array("stderr", self.stderr, (n, n)),
            "count": read_only_array("count", self.count, (n, n), np.int64),
            "steps": read_only_array("steps", self.steps, (steps,), np.int64),
            "history": read_only_array("history", self.history, (steps, n, n)),
            "null": read_only_array("null", self.null, (steps, n)),
            "skipped": {
                reason: read_only_array(f"skipped[{reason!r}]", counts, (n, n), np.int64)
                for reason, counts in self.skipped.items()
            },
            # Settings are converted to JSON and back, as a loaded affinity has them.
            "settings": json.loads(json.dumps(dict(self.settings), allow_nan=False)),
        }
        self.__dict__.update(checked)
        if (np.diff(self.steps) <= 0).any():
            raise ValueError("`steps` must be strictly increasing")

    @classmethod
    def from_history(
        cls,
        history: ArrayLike,
        tasks: Iterable[str],
        steps: ArrayLike | None = None,
        *,
        null: ArrayLike | None = None,
        skipped: Mapping[str, ArrayLike] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Affinity:
        """Creates an affinity by averaging a history of measured steps.

        If `null` is known for only some of a target's steps, the target's other steps are raw. They are shifted by a
        constant to the same level, which keeps sources comparable.

        Args:
            history: the measured values (steps × sources × targets), with `null` already subtracted. Use NaN for
                missing values.
            tasks: the task names, in the order of the history's axes.
            steps: the call numbers, in increasing order. Defaults to 0, 1, ….
            null: the effect on each target of a step with zero gradient (steps × tasks). Use NaN for unknown values.
            skipped: the number of skipped values per pair, keyed by reason.
            settings: the measurement settings. `average` and `trim` select the type of average.

        Example:
            >>> affinity = Affinity.from_history([[[1, 2], [3, 4]], [[1, 4], [3, 4]]], ["a", "b"])
            >>> affinity.mean.tolist(), affinity.stderr[0, 1].item()
            ([[1.0, 3.0], [3.0, 4.0]], 1.0)
        """
        names = as_names(tasks)
        n, length = len(names), len(np.asarray(history))
        unaveraged: dict[str, Any] = {
            "mean": np.full((n, n), np.nan),
            "stderr": np.full((n, n), np.nan),
            "count": np.zeros((n, n)),
            "steps": np.arange(length) if steps is None else steps,
            "history": history,
            "null": np.full((length, n), np.nan) if null is None else null,
        }
        return cls(names, **unaveraged, skipped=skipped or {}, settings=settings or {})._average()  # type: ignore[arg-type]

    @classmethod
    def from_matrix(
        cls,
        matrix: ArrayLike,
        tasks: Iterable[str] | None = None,
        axis: Literal["source", "target"] = "source",
        stderr: ArrayLike | None = None,
        count: ArrayLike | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Affinity:
        """Creates an affinity without a history from a matrix of averages.

        Args:
            matrix: a square matrix. Unknown values may be NaN, including those on the diagonal.
            tasks: the task names. Defaults to "0", "1", ….
            axis: what the rows represent. With "target", `matrix`, `stderr` and `count` are transposed.
            stderr: the standard errors. Defaults to NaN (unknown).
            count: the number of values averaged for each pair. Defaults to 1.
            settings: the measurement settings.

        Example:
            >>> Affinity.from_matrix([[1, 2], [3, 4]], axis="target").mean.tolist()
            [[1.0, 3.0], [2.0, 4.0]]
        """
        if axis not in ("source", "target"):
            raise ValueError(f"`axis` must be 'source' or 'target', found {axis!r}")
        names = tuple(map(str, range(len(np.asarray(matrix))))) if tasks is None else as_names(tasks)
        mean = read_only_array("matrix", matrix, (len(names), len(names)))
        errors = np.full_like(mean, np.nan) if stderr is None else np.asarray(stderr)
        counts = np.isfinite(mean) if count is None else np.asarray(count)
        if axis == "target":
            mean, errors, counts = mean.T, errors.T, counts.T
        per_step: dict[str, Any] = dict.fromkeys(("steps", "history", "null"), ())
        return cls(names, mean, errors, counts, **per_step, settings=settings or {})

    @classmethod
    def from_csv(cls, path: PathLike, axis: Literal["source", "target"] = "source") -> Affinity:
        """Reads a square table with task names in the first row and the first column.

        Args:
            path: a CSV or Parquet file in any format supported by `Problem.from_table`. Empty cells are read as NaN.
                Rows and columns may be in different orders.
            axis: what the rows represent. Use "target" if each row contains the affinities onto one task.

        Raises:
            TableError: If the file is missing or invalid. The message lists every problem with its line number.

        Example:
            >>> import tempfile, pathlib
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "table.csv")
            ...     _ = path.write_text("onto,age,ill\\nage,1,2\\nill,3,4\\n")
            ...     Affinity.from_csv(path, axis="target").mean.tolist()
            [[1.0, 3.0], [2.0, 4.0]]
        """
        matrix, names = square_matrix(read_table(path, as_text=True), axis)
        return cls.from_matrix(matrix, names, axis)

    @classmethod
    def load(cls, path: PathLike) -> Affinity:
        """Reads an affinity written by `save`.

        Raises:
            FileNotFoundError: If the file does not exist.
            DocumentError: If the file is damaged, or has an unsupported format or version.
        """
        path = Path(path)
        document = read_document(path, FORMAT, VERSION, dict, hint=SAVE_AGAIN_HINT)
        if document.get("direction") != DIRECTION:
            raise DocumentError(path, f"must store affinities in the direction {DIRECTION!r}")
        with report_damage(path, hint=SAVE_AGAIN_HINT):
            document |= unpack_arrays(base64.b64decode(document["per_step"]), PER_STEP_FIELDS)
            return cls(**{entry.name: document[entry.name] for entry in fields(cls)})

    def save(self, path: PathLike) -> None:
        """Saves the affinity atomically. `load` restores it bit for bit.

        The file is versioned JSON. The values of single steps are an npz archive in base64, since JSON would take twice
        the space.

        Args:
            path: the file to write, usually `affinity.json`.

        Example:
            >>> import tempfile, pathlib
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "affinity.json")
            ...     Affinity.from_matrix([[1, 2], [3, 4]], ["age", "ill"]).save(path)
            ...     Affinity.load(path)
            Affinity(2 tasks, no history)
        """
        document = {"direction": DIRECTION, "caution": CAUTION}
        document |= {entry.name: getattr(self, entry.name) for entry in fields(self)}
        per_step = {name: document.pop(name) for name in PER_STEP_FIELDS}
        document["per_step"] = base64.b64encode(pack_arrays(per_step)).decode()
        write_document(Path(path), FORMAT, VERSION, document)

    def to_csv(self, path: PathLike | None = None) -> str:
        """Returns the matrix as comma-separated values, with a header row of targets and one row per source.

        Args:
            path: an optional file to which the text is also written.

        Returns:
            The CSV text. Numbers have full precision, and the cells of pairs that were never measured are empty.

        Example:
            >>> affinity = Affinity.from_matrix([[1.0, 0.5], [0.0, float("nan")]], ["age", "ill"])
            >>> print(affinity.to_csv(), end="")
            source,age,ill
            age,1.0,0.5
            ill,0.0,
        """
        import pandas as pd  # imported here, so that reading an affinity is fast

        square = pd.DataFrame(self.mean, index=self.tasks, columns=self.tasks)
        corner = "" if "source" in self.tasks else "source"  # names of columns must differ
        text: str = square.to_csv(index_label=corner, lineterminator="\n")
        if path is not None:
            write_atomic(Path(path), text)
        return text

    def to_frame(self) -> Any:
        """Returns a pandas DataFrame with a row for each pair of tasks: source, target, mean, stderr and count.

        Example:
            >>> Affinity.from_matrix([[1, 2], [3, 4]], ["a", "b"]).to_frame()["mean"].tolist()
            [1.0, 2.0, 3.0, 4.0]
        """
        import pandas as pd

        columns = {name: getattr(self, name).ravel() for name in ("mean", "stderr", "count")}
        pairs = pd.MultiIndex.from_product([self.tasks, self.tasks], names=["source", "target"])
        return pd.DataFrame(columns, index=pairs).reset_index()

    def averaged(self, average: Literal["mean", "trimmed", "median"], trim: float = DEFAULT_TRIM) -> Affinity:
        """Returns the affinity with a different type of average over its history.

        The trimmed mean and the median are computed from differences between sources: each value minus the mean of the
        other sources for the same target and step. This cancels effects common to all sources. The target's level is
        then added back.

        Args:
            average: "mean", "trimmed" or "median".
            trim: the fraction of values that "trimmed" drops at each end.

        Example:
            >>> history = [[[0, 1], [2, 0]], [[0, 2], [2, 0]], [[0, 60], [2, 57]]]
            >>> Affinity.from_history(history, ["a", "b"]).averaged("median").mean.tolist()
            [[0.0, 21.0], [2.0, 19.0]]
        """
        self._require_history("averaged")
        return replace(self, settings={**self.settings, "average": average, "trim": trim})._average()

    def leveled(self) -> Affinity:
        """Shifts all steps to a common level, which makes different parts of the history comparable.

        Some steps may be relative to the null step and others raw (see `null`). Before averaging, each target's raw
        steps are shifted by a constant to the level of its relative steps. This method returns the history after that
        shift.

        Example:
            >>> history, null = [[[1, 1], [3, 3]], [[0, 0], [2, 2]]], [[float("nan")] * 2, [5, 5]]
            >>> Affinity.from_history(history, ["a", "b"], null=null).leveled().history[0].tolist()
            [[0.0, 0.0], [2.0, 2.0]]
        """
        level = LevelHistory.align(self.history, self.null, self.settings)
        history = np.where(level.present, level.values, np.nan)
        return replace(self, history=history, null=np.full_like(self.null, np.nan))._average()

    def between(self, first: int, last: int) -> Affinity:
        """Keeps the steps from call number `first` up to, but not including, `last`.

        Example:
            >>> affinity = Affinity.from_history([[[1.0]], [[2.0]], [[6.0]]], ["a"], steps=[0, 10, 20])
            >>> affinity.between(10, 30).mean.item()
            4.0
        """
        self._require_history("between")
        rows = (self.steps >= first) & (self.steps < last)
        if not rows.any():
            measured = f"{self.steps[0]} to {self.steps[-1]}"
            raise ValueError(f"`first` and `last` must span a measured step ({measured}), found {first}, {last}")
        return self._at_steps(rows)

    def every(self, n: int) -> Affinity:
        """Keeps every n-th measured step. This shows the effect of measuring less often.

        Example:
            >>> Affinity.from_history([[[1.0]], [[2.0]], [[6.0]]], ["a"]).every(2).steps.tolist()
            [0, 2]
        """
        self._require_history("every")
        return self._at_steps(slice(None, None, n))

    def only(self, tasks: Iterable[str]) -> Affinity:
        """Keeps the given tasks, in the given order.

        Example:
            >>> Affinity.from_matrix([[1, 2], [3, 4]], ["a", "b"]).only(["b", "a"]).mean.tolist()
            [[4.0, 3.0], [2.0, 1.0]]
        """
        names = as_names(tasks)
        unknown = [task for task in names if task not in self.tasks]
        if unknown:
            raise ValueError(f"`tasks` must be among {', '.join(map(repr, self.tasks))}, found {str(unknown)[1:-1]}")
        part = self._arranged(names)
        return part._average() if len(self.steps) else part

    def merge(self, other: Affinity) -> Affinity:
        """Combines two affinities over the union of their tasks.

        The history of `other` is appended. If necessary, its steps are renumbered to follow the steps of this affinity.
        Pairs that neither affinity measured are NaN with count 0. Levels are not adjusted, so runs with different
        optimizers should be measured relative to the null step.

        Raises:
            ValueError: If either affinity has no history, or if they measure different quantities, i.e. they differ in
                estimator, update, held_out, per_lr or average. Settings present in only one of the affinities are kept.

        Example:
            >>> first = Affinity.from_history([[[1, 2], [3, 4]]], ["a", "b"])
            >>> first.merge(Affinity.from_history([[[6]]], ["b"])).mean.tolist()
            [[1.0, 2.0], [3.0, 5.0]]
        """
        self._require_history("merge")
        other._require_history("merge")
        settings = {**self.settings, **other.settings}
        different = {key for key, value in self.settings.items() if settings[key] != value}
        for key in different.intersection(IDENTITY_SETTINGS):
            found = f"{self.settings[key]!r} and {other.settings[key]!r}"
            raise ValueError(f"`other` must have been measured with the same {key}, found {found}")

        tasks = tuple(dict.fromkeys(self.tasks + other.tasks))
        parts = self._arranged(tasks), other._arranged(tasks)
        # Steps that are already in order, e.g. those of two windows of one run, keep their numbers.
        offset = max(0, int(self.steps[-1]) + 1 - int(other.steps[0]))
        return Affinity.from_history(
            np.concatenate([part.history for part in parts]),
            tasks,
            np.concatenate([self.steps, other.steps + offset]),
            null=np.concatenate([part.null for part in parts]),
            settings={key: value for key, value in settings.items() if key not in different},
        )

    def bootstrap(self, n: int = STDERR_RESAMPLES, seed: int = 0) -> Floats:
        """Returns matrices that could have been measured instead of `mean` (n × tasks × tasks).

        With a history, whole steps are resampled in blocks, and each resample is averaged. Errors that are common to
        all sources of a target remain common.

        Without a history, e.g. for streaming affinities, values are drawn from normal distributions with the standard
        errors. Different pairs are drawn independently, but a symmetric matrix stays symmetric. Errors that are common
        to a target's sources are not known as such, so differences between sources vary more than they should. Pairs
        whose standard error is unknown vary as much as the least certain pair.

        Args:
            n: the number of resamples.
            seed: the random seed.

        Raises:
            ValueError: If there is neither a history nor a standard error.

        Example:
            >>> affinity = Affinity.from_history([[[1, 2], [3, 4]], [[1, 4], [3, 4]]], ["a", "b"])
            >>> affinity.bootstrap(n=50).shape
            (50, 2, 2)
        """
        if len(self.steps):
            return bootstrap_averages(LevelHistory.align(self.history, self.null, self.settings), n, seed)
        if not self.has_errors:
            raise ValueError("bootstrap() requires a history of measured steps, or standard errors")
        return draw_within_errors(self.mean, self.stderr, n, seed)

    @property
    def has_errors(self) -> bool:
        """Whether standard errors are known. They are not for tables, or if each pair was measured once."""
        return bool(np.isfinite(self.stderr[~np.eye(len(self.tasks), dtype=bool)]).any())

    def settled(self, budget: int) -> Settled:
        """Checks whether the groups have stopped changing.

        Groups are selected from increasingly long prefixes of the history, from 50% to 100% of the measured steps.

        Args:
            budget: the number of groups.

        Example:
            >>> affinity = Affinity.from_history([[[9, 1, 0], [1, 9, 0], [0, 0, 9]]] * 10, ["a", "b", "c"])
            >>> bool(affinity.settled(budget=2)), affinity.settled(budget=2).since
            (True, 4)
        """
        self._require_history("settled")
        return check_settled(self, budget)

    def spread(self) -> Spread:
        """Compares the best and worst partner of each task, and flags tasks for which no partner stands out.

        Example:
            >>> affinity = Affinity.from_matrix([[0, 5, 0.1], [9, 0, 0], [2, 1, 0]], ["a", "b", "c"])
            >>> affinity.spread().flagged
            ('c',)
        """
        return compute_spread(self)

    def metrics(self) -> dict[str, float]:
        """Returns the averages as a dictionary for loggers, for example `run.log(affinity.metrics(), step)`.

        Example:
            >>> Affinity.from_matrix([[9, 2], [-1, 9]], ["age", "ill"]).metrics()
            {'affinity onto age/ill': -1.0, 'affinity onto ill/age': 2.0}
        """
        name = self.settings.get("estimator") or "affinity"
        return {
            f"{name} onto {self.tasks[j]}/{self.tasks[i]}": float(self.mean[i, j])
            for j, i in permutations(range(len(self.tasks)), 2)
            if np.isfinite(self.mean[i, j])
        }

    def __str__(self) -> str:
        return text_table(self, terminal_width())

    def __repr__(self) -> str:
        estimator = self.settings.get("estimator")
        about = [pluralize(len(self.tasks), "task"), extent(self), *([f"{estimator=}"] if estimator else [])]
        return f"Affinity({', '.join(about)})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _average(self) -> Affinity:
        """Computes the averages over the history again."""
        level = LevelHistory.align(self.history, self.null, self.settings)
        settings = {**self.settings, "average": level.average, "trim": level.trim}
        if level.average != "trimmed":
            del settings["trim"]
        mean, stderr = averages(level), standard_errors(level)
        return replace(self, mean=mean, stderr=stderr, count=level.counts(), settings=settings)

    def _at_steps(self, rows: slice | Mask) -> Affinity:
        # `skipped` is not known for each step.
        return Affinity.from_history(
            self.history[rows],
            self.tasks,
            self.steps[rows],
            null=self.null[rows],
            settings=self.settings,
        )

    def _arranged(self, tasks: tuple[str, ...]) -> Affinity:
        """Returns the affinity with its tasks in another order. Tasks that it does not have are added without values.

        The standard errors are not computed again.
        """
        n = len(self.tasks)
        at = np.array([self.tasks.index(task) if task in self.tasks else n for task in tasks])

        def arrange(array: NDArray[Any], padding: float = 0) -> NDArray[Any]:
            last_two = [(0, 0)] * (array.ndim - 2) + [(0, 1), (0, 1)]
            return np.pad(array, last_two, constant_values=padding)[..., at[:, None], at]

        return replace(
            self,
            tasks=tasks,
            mean=arrange(self.mean, np.nan),
            stderr=arrange(self.stderr, np.nan),
            count=arrange(self.count),
            history=arrange(self.history, np.nan),
            null=np.pad(self.null, [(0, 0), (0, 1)], constant_values=np.nan)[:, at],
            skipped={reason: arrange(counts) for reason, counts in self.skipped.items()},
        )

    def _require_history(self, method: str) -> None:
        if not len(self.steps):
            raise ValueError(f"{method}() requires a history of measured steps, which this affinity does not have")


def read_only_array(name: str, values: Any, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Returns a read-only array of the given shape, whose values are finite, or NaN where nothing was measured."""
    array = np.asarray(values, dtype=dtype)
    if array.size == 0 and 0 in shape:
        array = array.reshape(shape)  # the shape of an empty list does not show the number of tasks
    if array.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape} for these tasks and steps, found {array.shape}")
    if np.isinf(array).any():
        raise ValueError(f"`{name}` must be finite, or NaN where nothing was measured; did the loss diverge?")
    if array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array
