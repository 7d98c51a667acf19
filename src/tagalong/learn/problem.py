"""`Problem`: the tasks, their training, validation and test data, and the settings for training networks."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tagalong.errors import (
    InvalidInput,
    as_names,
    first_few,
    is_integer,
    one_of,
    pluralize,
    raise_problems,
    task_name_problems,
)
from tagalong.tabular import TableSource

from .arrays import Folds, Source, fields_from_arrays
from .base_rate import base_rates, has_constant, output_range
from .classical import FITTED, fitted_network, why_not_fitted
from .network import Encoder, EncoderName
from .recipe import Recipe
from .rows import Rows, Split, require_in_memory
from .splitting import RowSplit, split_folds
from .table_networks import ChosenNetwork
from .tables import fields_from_table
from .tabm import task_problems
from .task import Kind, Task

MAX_SHOWN_TASKS = 6  # by `repr`, to stay readable for problems with hundreds of tasks


@dataclass(frozen=True, eq=False)
class Problem:
    """The tasks to learn, the data to learn them from, and the settings for building and training networks.

    Attributes:
        name: the name of the problem.
        tasks: the tasks to learn.
        train: the rows to train on, either a `Split` in memory or `StreamedRows` from files.
        val: the rows that decide when to stop training and which networks to recommend.
        test: the rows used only to report results.
        encoder: a callable that creates the shared part of a network (with a `width` argument if it can be widened), or
            a module whose weights are used to initialize every network.
        head: a callable that creates a head from a task and the number of features. If None, the task's own head is
            used, which is a linear layer by default.
        recipe: the training recipe.
        scales: the mean and standard deviation used to standardize the targets of each regression task. For tables, the
            smallest and largest answer follow, in original units; other answers are clipped when they are scored and
            served.
        table: the preparation that converts raw rows to inputs, if the problem was created from arrays or a table.
        notes: notes on the data, shown in reports.
        unlabelled: the inputs of rows without labels, or None. Networks learn from them only if others teach them (see
            `tagalong.learn.teach`).
        chosen_network: the network that was chosen for a table because none was given, or None. See `alternatives`.
        row_numbers: which rows of the array or table are in `train`, `val` and `test`; None for other problems.
        source: the array or table, from which `folds` are made.
        weightings: other row weights that networks can be trained and scored with, by name (see `Job.weighting`): the
            weight of each row of "train", "val" or "test". Folds, bootstrap resamples and mixtures of data sets are
            then networks of one problem, which can be trained together.

    Example:
        >>> import numpy as np
        >>> inputs, ages = np.random.default_rng(0).normal(size=(100, 4)), np.arange(100.0)
        >>> Problem.from_arrays(inputs, {"age": ages, "adult": ages >= 18}, ["age", "adult"], name="people")
        Problem 'people'
        2 tasks: age (regression), adult (binary)
        rows: 70 train, 10 val, 20 test; inputs of shape (4,)
    """

    name: str
    tasks: tuple[Task, ...]
    train: Rows
    val: Rows
    test: Rows
    encoder: Encoder
    head: Callable[[Task, int], nn.Module] | None = None
    recipe: Recipe = field(default_factory=Recipe)
    scales: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    table: Any = None
    notes: tuple[str, ...] = ()
    unlabelled: Tensor | None = None
    chosen_network: ChosenNetwork | None = None
    weightings: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    row_numbers: RowSplit | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        raise_problems(task_name_problems(self.names, "tasks"))
        if not isinstance(self.recipe, Recipe):
            raise InvalidInput("recipe", "must be a Recipe", repr(self.recipe), "write Recipe(epochs=10)")
        if not callable(self.encoder):
            raise InvalidInput("encoder", "must be a module, or a function that creates one", repr(self.encoder))
        for part, split in self.splits.items():
            if missing := [name for name in self.names if name not in split.tasks]:
                raise InvalidInput(part, "must have a target for every task", f"none for {', '.join(missing)}")
            for name, target in split.targets.items() if isinstance(split, Split) else ():
                if len(target) != len(split):
                    argument = f"`{part}`: the target of {name!r}"
                    raise InvalidInput(argument, f"must have {len(split)} rows", str(len(target)))
            weights = {f"`weightings[{name!r}][{part!r}]`": own.get(part) for name, own in self.weightings.items()}
            for argument, row_weights in {f"`{part}.weights`": split.weights, **weights}.items():
                if row_weights is not None and not _are_weights(row_weights, len(split)):
                    raise InvalidInput(argument, f"must have {len(split)} finite numbers that are not negative")
        if self.unlabelled is not None:
            inputs = require_in_memory(self.train, "learning from unlabelled rows").inputs
            expected, found = (f"{[*rows.shape[1:]]} per row and {rows.dtype}" for rows in (inputs, self.unlabelled))
            if expected != found:
                raise InvalidInput("unlabelled", f"must be inputs like {expected}", found)

    @staticmethod
    def from_arrays(
        inputs: Any,
        targets: Any,
        tasks: Sequence[Task | str],
        *,
        name: str = "arrays",
        encoder: Encoder | EncoderName | None = None,
        recipe: Recipe | None = None,
        split: Sequence[float] | Sequence[Any] = (0.7, 0.1, 0.2),
        groups: Any = None,
        seed: int = 0,
        notes: Sequence[str] = (),
        unlabelled: Any = None,
        sample_weight: Any = None,
    ) -> Problem:
        """Creates a problem from arrays. NaN in the targets marks a missing label.

        A training row without any label can only help to teach networks, whose teachers answer it.

        Args:
            inputs: an array of numbers [rows, …].
            targets: an array [rows, tasks], or a mapping from task names to arrays [rows, …].
            tasks: a `Task` or a name for each target. If a target is given by name, its kind is inferred.
            name: the name of the problem.
            encoder: see `Problem`. "mlp", the default, is an MLP that depends on the size of the table. "tabm" is a
                network with 16 members, whose answers are averaged; it can be better, but takes much longer (see
                `TabM`). Both support only flat inputs.
            recipe: the training recipe. If None, the default recipe of the encoder is used.
            split: the fractions of training, validation and test rows, or three arrays of row numbers.
            groups: the group label of each row. Rows of the same group stay in the same split.
            seed: the seed for the split.
            notes: notes on the data, shown in reports.
            unlabelled: the inputs [rows, …] of rows without labels, for networks that others teach.
            sample_weight: the weight of each row in the losses and scores of all tasks. Rows of weight 0 count as if
                they had no labels. If None, all rows count the same.

        Flat inputs and regression targets are standardized with the statistics of the training rows. Images are left
        unchanged. If an encoder is given, integers are also left unchanged, since the encoder may embed them. Inputs
        other than float64 tensors are converted to float32.

        Raises:
            InvalidInput: If the data are invalid; the message lists all problems.
        """
        fields = fields_from_arrays(
            inputs,
            targets,
            tasks,
            name=name,
            encoder=encoder,
            recipe=recipe,
            split=split,
            groups=groups,
            seed=seed,
            notes=notes,
            unlabelled=unlabelled,
            sample_weight=sample_weight,
        )
        return Problem(**fields)

    @staticmethod
    def from_table(
        data: TableSource,
        targets: Sequence[Task | str],
        *,
        features: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        categorical: Sequence[str] = (),
        kinds: Mapping[str, Kind] | None = None,
        errors: Mapping[str, str] | None = None,
        split_column: str | None = None,
        group_column: str | None = None,
        features_file: str | Path | None = None,
        name: str | None = None,
        recipe: Recipe | None = None,
        encoder: Encoder | EncoderName | None = None,
        split: Sequence[float] | Sequence[Any] | None = None,
        seed: int = 0,
        unlabelled: TableSource | None = None,
        clip: bool = True,
        squash: bool = True,
    ) -> Problem:
        """Creates a problem from a table: a file, a DataFrame, or columns in memory.

        Empty cells, NA, N/A, #N/A, <NA>, NaN, null, "?" and "." count as missing. A row without a label for a task is
        not used for that task. A training row without any label can only help to teach networks, whose teachers answer
        it.

        Columns find their own role: numbers, dates (as days since 1970), and text with at least five rows per level, on
        average, as categories. Columns of IDs and free text are left out. `notes` name them. Missing numbers are
        replaced with the median of the training rows and marked by an indicator. Numbers are put on a robust scale and
        clipped smoothly, so that a few huge values do no harm. A category becomes one input for each of the 50 most
        frequent levels in the training rows, and one for all other values. Unnamed columns are dropped.

        Suspicious data is reported by warnings, which are logged and added to `notes`: a feature that determines a
        target or looks like an ID, a split with few labels of a target, and rows of the validation or test split that
        also occur in the training split.

        Args:
            data: the path of a CSV or Parquet file, a DataFrame (whose index is ignored), a mapping from names to
                columns, or a list of mappings, one per row. A CSV file needs a header. It can be delimited by commas,
                semicolons, tabs or pipes, encoded in UTF-8, UTF-16 (with a byte order mark) or Latin-1, and compressed
                with gzip or stored as the only file in a zip archive. Parquet files (.parquet) need `pip install
                'tagalong[parquet]'`.
            targets: the columns to predict, as names or `Task` objects. If a target is given by name, its kind is
                inferred (see `kinds`).
            features: the columns to predict from, whatever they contain. If None, all columns without another role are
                used, except for IDs and free text.
            ignore: the columns to ignore.
            categorical: the feature columns to one-hot encode, as text or numbers.
            kinds: the kinds of the targets given by name: "binary", "multiclass" or "regression". By default, targets
                with two distinct values are binary, those with text or few distinct integers are multiclass, and all
                others are regression targets.
            errors: the error measures for targets given by name; see `Task.error`.
            split_column: the column that assigns each row to "train", "val" or "test".
            group_column: the column that contains the group labels. Rows of the same group stay in the same split.
            features_file: an npy or npz file that contains the inputs for each row, used instead of feature columns.
            name: the name of the problem. If None, the file name without its suffixes is used.
            recipe: the training recipe. If None, the default recipe of the encoder is used.
            encoder: see `Problem`. "tabm", the default, is a network with 16 members, whose answers are averaged (see
                `TabM`). "mlp" is an MLP, which is much faster and usually worse; it is the default if a task is
                custom or has a head of its own. Both depend on the size of the table.
            split: the fractions of training, validation and test rows, or three arrays of row numbers. If None, a fifth
                of the rows is for tests, and another fifth for validation: at least 100 rows, if that is at most a
                quarter, and from 5,000 rows on no more than 1,000 or a tenth.
            seed: the seed for the split.
            unlabelled: another table with the same feature columns, whose rows have no labels (with `features_file`,
                another npy or npz file). Networks that others teach learn from these rows too.
            clip: whether to clip answers of regression tasks to the range of the training labels, widened by a tenth on
                either side.
            squash: whether to put numbers on a robust scale and clip them smoothly. Otherwise, they are standardized.

        Raises:
            InvalidInput: If the table or any other argument is invalid; the message lists all problems.
            ImportError: If the file is a Parquet file and no Parquet reader is installed.

        Example:
            >>> table = {"age": [31, 47, 52] * 20, "town": ["Ulm", "Bonn", ""] * 20, "ill": ["yes", "no"] * 30}
            >>> problem = Problem.from_table(table, targets=["ill"])
            >>> problem.tasks[0].kind, problem.table.names
            ('binary', ('age', 'town = Bonn', 'town = Ulm', 'town = other or missing'))
        """
        fields = fields_from_table(
            data,
            targets,
            features=features,
            ignore=ignore,
            categorical=categorical,
            kinds=kinds,
            errors=errors,
            split_column=split_column,
            group_column=group_column,
            features_file=features_file,
            name=name,
            recipe=recipe,
            encoder=encoder,
            split=split,
            seed=seed,
            unlabelled=unlabelled,
            clip=clip,
            squash=squash,
        )
        return Problem(**fields)

    def __repr__(self) -> str:
        tasks = first_few([f"{task.name} ({task.kind})" for task in self.tasks], MAX_SHOWN_TASKS)
        rows = ", ".join(f"{len(split):,} {part}" for part, split in self.splits.items())
        train = self.train
        inputs = f"inputs of shape {tuple(train.inputs.shape[1:])}" if isinstance(train, Split) else "read from files"
        return f"Problem {self.name!r}\n{pluralize(len(self.tasks), 'task')}: {tasks}\nrows: {rows}; {inputs}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(task.name for task in self.tasks)

    @property
    def splits(self) -> dict[str, Rows]:
        """The training, validation and test rows, by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def task(self, name: str) -> Task:
        """Returns the task with this name."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise InvalidInput("task", one_of(self.names), repr(name))

    def only(self, names: Iterable[str]) -> Problem:
        """Returns a problem with only these tasks, in this order."""
        wanted = as_names(names)
        return replace(
            self,
            tasks=tuple(self.task(name) for name in wanted),
            train=self.train.only(wanted),
            val=self.val.only(wanted),
            test=self.test.only(wanted),
            scales={name: scale for name, scale in self.scales.items() if name in wanted},
        )

    def folds(self, folds: int = 5) -> Folds:
        """Returns problems that split the same rows `folds` times, so that each row is tested exactly once.

        Fold i contains the test rows of problem i, fold i + 1 its validation rows, and all other folds its training
        rows, to which inputs and labels are fitted anew. `row_numbers` says where the rows of each problem come from.
        Rows of the same group stay in one fold; rare classes and the labels of sparse tasks are spread evenly. The
        problems have the same tasks, network and recipe as this one, apart from what depends on the training rows. Each
        is created when it is asked for.

        Args:
            folds: the number of folds, at least 3.

        Raises:
            InvalidInput: If the problem was not created from arrays or a table, or with rows assigned to splits by the
                user, or if there are too few rows, groups or labels.

        Example:
            >>> import numpy as np
            >>> problem = Problem.from_arrays(np.random.default_rng(0).normal(size=(100, 4)), np.arange(100.0), ["age"])
            >>> folds = problem.folds()
            >>> len(folds), sorted(row for fold in folds for row in fold.row_numbers.test) == list(range(100))
            (5, True)
        """
        source = self.source
        if source is None or source.seed is None:
            expected = "can only be split into folds if it comes from arrays or a table, without given splits"
            raise InvalidInput("problem", expected)
        if not is_integer(folds, 3):
            raise InvalidInput("folds", "must be an integer of at least 3", repr(folds))
        targets = [target for target in source.targets if target.task.name in self.names]
        if len(targets) < len(self.tasks):
            raise InvalidInput("problem", "can only be split into folds if no tasks were added to it")
        return Folds(self, split_folds(targets, folds, source.groups, source.seed))

    def make_encoder(self, width: float = 1.0) -> nn.Module:
        """Creates an encoder that is `width` times as wide, using torch's global random number generator."""
        is_module = isinstance(self.encoder, nn.Module)
        if width != 1 and (is_module or "width" not in inspect.signature(self.encoder).parameters):
            expected = "must be a function with a `width` argument to support wider networks"
            raise InvalidInput("encoder", expected, hint="define it as def encoder(width=1)")
        if isinstance(self.encoder, nn.Module):
            return copy.deepcopy(self.encoder)
        return self.encoder() if width == 1 else self.encoder(width=width)

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The names of the networks that can be trained instead of the problem's own (see `Job.network`).

        "tabm" is one of them if the network and recipe are those that tables get by default, apart from the recipe's
        batch size, epochs and patience, and a TabM network can learn all tasks. Ridge regression and boosting
        need a vector of numbers per row in memory, and tasks with one label per row and without a loss of their own.
        """
        chosen = self.chosen_network
        is_default = chosen is not None and chosen.is_used(self.encoder, self.head, self.recipe)
        neural = ("tabm",) if is_default and not task_problems(self.tasks) else ()
        return neural if why_not_fitted(self.tasks, self.splits.values()) else (*neural, *FITTED)

    def with_network(self, name: str | None) -> Problem:
        """Returns the same problem with another of its `alternatives` as its network, or itself if the name is None.

        Example:
            >>> import torch
            >>> inputs = torch.rand(100, 3)
            >>> problem = Problem.from_arrays(inputs, inputs.sum(1), ["sum"])
            >>> problem.encoder, problem.with_network("tabm").encoder
            (MLP(3, hidden=(128, 128), dropout=0.1), TabM(3, hidden=(128, 128), dropout=0.1, members=16))
        """
        if name is None:
            return self
        if name not in self.alternatives:
            hint = "only tables have alternatives, and TabM only replaces their default network"
            raise InvalidInput("network", one_of([None, *self.alternatives]), repr(name), hint)
        if ("network", name) not in self._variants:
            if name in FITTED:
                fields = fitted_network(name, self.table)
            else:
                assert self.chosen_network is not None
                fields = self.chosen_network.tabm(self.recipe)
            self._variants["network", name] = replace(self, chosen_network=None, **fields)
        return self._variants["network", name]

    def weighted(self, name: str | None) -> Problem:
        """Returns the same problem with other row weights, see `weightings`, or itself if the name is None."""
        if name is None:
            return self
        if name not in self.weightings:
            raise InvalidInput("weighting", one_of([None, *self.weightings]), repr(name))
        if ("weights", name) not in self._variants:
            splits = dict(self.splits)
            for part, weights in self.weightings[name].items():
                splits[part] = replace(require_in_memory(splits[part], "weighting rows"), weights=weights)
            self._variants["weights", name] = replace(self, **splits)  # type: ignore[arg-type]
        return self._variants["weights", name]

    @cached_property
    def base_rates(self) -> dict[str, Tensor]:
        """The best constant outputs for the training labels of each task, as far as there are any."""
        return base_rates(self)

    @cached_property
    def answer_scales(self) -> dict[str, tuple[float, ...]]:
        """`scales` and, for each task with classes, 0, 1, and the range of outputs that are scored and served.

        No probability is below 1 / (2 · training labels), as no constant's is. Otherwise, a single wrong answer that a
        network was sure of could outweigh all others.
        """
        scales = dict(self.scales)
        for task in self.tasks:
            labels = int(self.train.labelled(task.name).sum())
            if labels and task.kind != "regression" and has_constant(self, task):
                scales[task.name] = (0.0, 1.0, *output_range(task.kind, labels))
        return scales

    @cached_property
    def _variants(self) -> dict[tuple[str, str], Problem]:
        return {}

    @cached_property
    def unlabelled_fingerprint(self) -> str | None:
        """A 16-digit hexadecimal digest of the unlabelled rows, or None if there are none."""
        if self.unlabelled is None:
            return None
        return hashlib.sha256(b"".join(Split(self.unlabelled, {}).contents())).hexdigest()[:16]

    @cached_property
    def fingerprint(self) -> str:
        """A 16-digit hexadecimal digest of the data and tasks."""
        digest = hashlib.sha256(f"[{', '.join(map(_fingerprint_text, self.tasks))}]".encode())
        for part, split in self.splits.items():
            digest.update(part.encode())
            for content in split.contents():
                digest.update(content)
        return digest.hexdigest()[:16]


def _are_weights(weights: Tensor, rows: int) -> bool:
    return weights.shape == (rows,) and bool(weights.isfinite().all() and weights.min() >= 0)


def _fingerprint_text(task: Task) -> str:
    """Returns the text that represents a task in fingerprints.

    This text must never change, because runs and truth tables store fingerprints.
    """
    task_repr = f"Task({task.name!r}, {task.kind}, error {task.error_name!r})"
    return f"({task_repr}, {task.classes!r}, {task.outputs!r}, {task.class_weights!r}, {task.weight!r})"
