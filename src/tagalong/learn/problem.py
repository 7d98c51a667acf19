"""A problem: tasks, data split in three, how networks are made and trained, and whether it can be learnt at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tagalong.errors import counted, name_problems, named, refuse

from .arrays import fields_from_arrays
from .network import Encoder, make_encoder
from .recipe import Recipe
from .rows import Rows, Split, held
from .splitting import PARTS
from .tables import fields_from_table
from .task import Kind, Task


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be learnt, from what, and by which kind of network.

    Attributes:
        name: of the problem.
        tasks: the targets.
        train: rows to learn from: a `Split` in memory, or `ReadRows` from files.
        val: rows that decide when to stop and what is recommended.
        test: rows that are only reported.
        encoder: makes the shared part: a callable (with a `width` argument, if it can be widened), or a module whose
            weights are the start of every network.
        head: makes the head of a task from the number of features; None: the task's own, one linear layer by default.
        recipe: how networks are trained.
        scales: for regression tasks the (mean, standard deviation) that targets were standardised with.
        table: how rows of a table become inputs, where the problem came from one.
        notes: what a report should say about the data.
    """

    name: str
    tasks: tuple[Task, ...]
    train: Rows
    val: Rows
    test: Rows
    encoder: Encoder
    head: Callable[[Task, int], nn.Module] | None = None
    recipe: Recipe = field(default_factory=Recipe)
    scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    table: Any = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        problems = name_problems(self.names, "`tasks`")
        for part, split in self.splits.items():
            missing = [name for name in self.names if name not in split.tasks]
            if missing:
                problems.append(f"`{part}` must have a target for every task, found none for {', '.join(missing)}")
            problems += [
                f"`{part}`: the target of {name!r} must have {len(split)} rows, found {len(target)}"
                for name, target in (split.targets.items() if isinstance(split, Split) else ())
                if len(target) != len(split)
            ]
        refuse(problems)

    @staticmethod
    def from_arrays(
        inputs: Any,
        targets: Any,
        tasks: Sequence[Task | str],
        *,
        name: str = "arrays",
        encoder: Encoder | None = None,
        recipe: Recipe | None = None,
        split: Sequence[float] | Sequence[Any] = (0.7, 0.1, 0.2),
        groups: Any = None,
        seed: int = 0,
        notes: Sequence[str] = (),
    ) -> Problem:
        """A problem from arrays; NaN among the targets is a missing label.

        Args:
            inputs: [rows, …] numbers.
            targets: [rows, tasks], or a mapping from task names to [rows, …].
            tasks: one `Task` per target, or names (kinds are then guessed).
            name: of the problem.
            encoder: see `Problem`; None: two hidden layers for flat inputs.
            recipe: how to train; None: the default.
            split: shares of train, validation and test, or three arrays of row numbers.
            groups: one label per row; rows of a group never straddle a split.
            seed: of the split.
            notes: what a report should say about the data.

        Flat inputs are standardised with the statistics of the train rows, as regression targets are; images are left
        alone, and so are whole numbers given together with an encoder (which may embed them). Inputs become float32;
        float64 tensors stay.

        Raises:
            ValueError: lists everything that is wrong with the data.
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
        )
        return Problem(**fields)

    @staticmethod
    def from_csv(
        path: Any,
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
        encoder: Encoder | None = None,
        split: Sequence[float] | Sequence[Any] = (0.7, 0.1, 0.2),
        seed: int = 0,
    ) -> Problem:
        """A problem from a table.

        Missing cells are empty, NA, N/A, NaN, null, "?" or "."; a missing label is left out of its task. A feature
        column of numbers with missing values is filled with the median of the train rows and gets a second input that
        says where; numbers are standardised. A categorical column becomes one input per level (the 50 most frequent of
        the train rows) and one for all else. Columns without a name are left out.

        Args:
            path: of a CSV file (commas, semicolons, tabs or bars), or a DataFrame, or columns by name.
            targets: the columns to be learnt, by name (their kind is guessed, see `kinds`) or as `Task`.
            features: the columns to learn from; None: all that have no other role.
            ignore: columns that are not learnt from.
            categorical: feature columns that are one-hot.
            kinds: of targets given by name: "binary", "multiclass" or "regression".
            errors: of targets given by name: see `Task.error`.
            split_column: holds train, val or test for each row.
            group_column: rows with the same value never straddle a split.
            features_file: an npy or npz file with the inputs of each row, instead of feature columns.
            name: of the problem; None: the file's.
            recipe: how to train.
            encoder: see `Problem`; None: two hidden layers.
            split: shares of train, validation and test, or three arrays of row numbers.
            seed: of the split.

        Raises:
            ValueError: lists everything that is wrong with the table.
        """
        fields = fields_from_table(
            path,
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
        )
        return Problem(**fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(task.name for task in self.tasks)

    @property
    def splits(self) -> dict[str, Rows]:
        """The three parts by name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def task(self, name: str) -> Task:
        """The task of this name."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise ValueError(f"`task` must be one of {', '.join(map(repr, self.names))}, found {name!r}")

    def only(self, names: Iterable[str]) -> Problem:
        """The same rows with these tasks alone."""
        wanted = named(names)
        return replace(
            self,
            tasks=tuple(self.task(name) for name in wanted),
            train=self.train.only(wanted),
            val=self.val.only(wanted),
            test=self.test.only(wanted),
            scales={name: scale for name, scale in self.scales.items() if name in wanted},
        )

    def make_encoder(self, width: float = 1.0) -> nn.Module:
        """A fresh encoder, `width` times as wide; drawn from torch's random numbers as they stand."""
        return make_encoder(self.encoder, width)

    @cached_property
    def fingerprint(self) -> str:
        """What the data and tasks are, in 16 letters: the same for the same data."""
        digest = hashlib.sha256(f"[{', '.join(map(_spelt, self.tasks))}]".encode())
        for part, split in self.splits.items():
            digest.update(part.encode())
            for content in split.contents():
                digest.update(content)
        return digest.hexdigest()[:16]


def _spelt(task: Task) -> str:
    """What a fingerprint takes of a task; not its `repr`, since truth tables and runs keep fingerprints."""
    named = f"Task({task.name!r}, {task.kind}, error {task.error_name!r})"
    return f"({named}, {task.classes!r}, {task.outputs!r}, {task.class_weights!r}, {task.weight!r})"


ROWS_AT_ONCE = 4096
LARGEST = 1e18  # the square of a much larger number is no float32


def data_problems(problem: Problem) -> list[str]:
    """Parts without rows, inputs that are not finite, and labels that a task cannot be learnt from or judged by.

    Of rows that are read from files only the number is looked at: reading all of them would take longer than an epoch.
    """
    found = [wrong for part, split in problem.splits.items() for wrong in _part_problems(part, split)]
    if not all(isinstance(split, Split) for split in problem.splits.values()):
        return found
    return found + [wrong for task in problem.tasks for wrong in _task_problems(problem, task)]


def _part_problems(part: str, split: Rows) -> list[str]:
    if not len(split):
        return [f"`{part}` must have rows, found none"]
    if not isinstance(split, Split) or not split.inputs.is_floating_point():
        return []
    rows = sum(int((~some.isfinite()).flatten(1).any(1).sum()) for some in split.inputs.split(ROWS_AT_ONCE))
    return [f"`{part}`: inputs must be finite, found NaN or inf in {rows} rows"] if rows else []


def _task_problems(problem: Problem, task: Task) -> list[str]:
    targets = {part: held(split, "this").targets[task.name] for part, split in problem.splits.items()}
    whole = [part for part, labels in targets.items() if not labels.is_floating_point()]
    if whole:
        found = str(targets[whole[0]].dtype).removeprefix("torch.")
        return [f"the target of {task.name!r} must be floating point (NaN where a label is missing), found {found}"]
    beyond = [part for part, labels in targets.items() if bool((labels.abs() > LARGEST).any())]
    if beyond and task.kind != "custom" and task.loss is None:
        return [_too_large(task, part, targets[part]) for part in beyond]
    values = {part: torch.unique(labels[labels.isfinite()]) for part, labels in targets.items()}
    unlabelled = [part for part in PARTS if not len(values[part]) and len(problem.splits[part])]
    if unlabelled:
        return [f"`{part}`: {task.name!r} must have labels, found none; leave the task out" for part in unlabelled]
    if task.kind == "custom" or not len(values["train"]):
        return []
    if len(values["train"]) == 1:
        return [f"`train`: {task.name!r} must vary, found {float(values['train'][0]):g} wherever it is known"]
    return [] if task.kind == "regression" or task.loss is not None else _class_problems(task, values)


def _too_large(task: Task, part: str, labels: Tensor) -> str:
    rows = int((labels.abs() > LARGEST).reshape(len(labels), -1).any(1).sum())
    return (
        f"`{part}`: labels of {task.name!r} must be at most {LARGEST:g} in size (standardised, if they are), found "
        f"{counted(rows, 'row')} beyond; if that stands for a missing label, leave it empty"
    )


def _class_problems(task: Task, values: dict[str, Tensor]) -> list[str]:
    """Labels that are no class, or that train lacks."""
    classes = torch.arange(task.classes or 2, device=values["train"].device)
    problems = []
    for part in PARTS:
        odd = values[part][~torch.isin(values[part], classes.to(values[part]))]
        if len(odd):
            last, other = len(classes) - 1, float(odd[0])
            problems.append(f"`{part}`: labels of {task.name!r} must be whole numbers 0 to {last}, found {other:g}")
    lacking = [
        f"`{part}`: {task.name!r} has the class {float(label):g} that train lacks; leave those rows out"
        for part in ("val", "test")
        for label in values[part][~torch.isin(values[part], values["train"])]
    ]
    return problems or lacking


FEWEST_SHARED = 50
FEWEST_SHARED_PART = 0.02


@dataclass(frozen=True)
class TaskLabels:
    """The labels of one task.

    Attributes:
        task: its name.
        kind: its kind.
        labels: rows with a label, by part.
        positives: of a binary task, by part; None for other kinds.
    """

    task: str
    kind: str
    labels: Mapping[str, int]
    positives: Mapping[str, int] | None


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """The labels of a problem; `str` gives a table.

    Attributes:
        rows: of each part.
        tasks: one line per task.
        overlap: train rows that have both labels, [task, task]; the diagonal is the number of labels.
        warnings: pairs that share too few train rows to learn from each other, and parts with one class only.
    """

    rows: Mapping[str, int]
    tasks: tuple[TaskLabels, ...]
    overlap: NDArray[np.int64]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        width = max(len("task"), *(len(line.task) for line in self.tasks))
        heads = [f"{part} ({self.rows[part]})" for part in PARTS]
        lines = [f"{'task':<{width}}  {'kind':<10}  " + "  ".join(f"{head:>20}" for head in heads)]
        for line in self.tasks:
            cells = "  ".join(f"{_cell(line, part):>20}" for part in PARTS)
            lines.append(f"{line.task:<{width}}  {line.kind:<10}  {cells}")
        return "\n".join([*lines, self.pairs, *(f"warning: {warning}" for warning in self.warnings)])

    @property
    def pairs(self) -> str:
        """How many train rows pairs of tasks share, in a line."""
        names = [line.task for line in self.tasks]
        if len(names) < 2:
            return "one task, no pairs"
        above = np.triu_indices(len(names), 1)
        shared = self.overlap[above]
        if shared.min() == shared.max():
            return f"pairs share {shared.min()} train rows"
        least = int(shared.argmin())
        first, second = names[above[0][least]], names[above[1][least]]
        return f"pairs share {shared.min()} to {shared.max()} train rows (fewest: {first} and {second})"


def _cell(line: TaskLabels, part: str) -> str:
    if line.positives is None:
        return f"{line.labels[part]}"
    return f"{line.labels[part]} ({line.positives[part]} pos)"


def label_summary(problem: Problem) -> LabelSummary:
    """Counts the labels of a problem.

    A pair of tasks is warned about when it shares fewer train rows than 50 or 2 % of them, whichever is more.
    """
    present = {part: _present(split, problem.names) for part, split in problem.splits.items()}
    lines = tuple(
        TaskLabels(
            task.name,
            task.kind,
            {part: int(present[part][number].sum()) for part in PARTS},
            _positives(problem, task.name) if task.kind == "binary" else None,
        )
        for number, task in enumerate(problem.tasks)
    )
    train = present["train"].astype(np.int64)
    overlap = train @ train.T
    rows = {part: len(split) for part, split in problem.splits.items()}
    return LabelSummary(rows, lines, overlap, (*_few_shared(problem.names, overlap, rows["train"]), *_one_class(lines)))


def _present(split: Rows, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """[task, row]: whether a row has a label, in a dense target any."""
    return np.stack([split.labelled(name).cpu().numpy() for name in names])


def _positives(problem: Problem, name: str) -> dict[str, int]:
    targets = {part: held(split, "counting positives").targets[name] for part, split in problem.splits.items()}
    return {part: int((labels == 1).sum()) for part, labels in targets.items()}


def _few_shared(names: tuple[str, ...], overlap: NDArray[np.int64], rows: int) -> list[str]:
    fewest = max(FEWEST_SHARED, FEWEST_SHARED_PART * rows)
    return [
        f"{first!r} and {second!r} share only {overlap[i, j]} train rows with both labels; "
        "what one does for the other is hardly measured"
        for i, first in enumerate(names)
        for j, second in enumerate(names)
        if i < j and overlap[i, j] < fewest
    ]


def _one_class(lines: tuple[TaskLabels, ...]) -> list[str]:
    return [
        f"{line.task!r} has only one class in {part}"
        for line in lines
        if line.positives is not None
        for part in PARTS
        if line.positives[part] in (0, line.labels[part])
    ]
