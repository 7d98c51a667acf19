"""Problems from arrays, and what they share with problems from tables: the fields of a problem are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import name_problems, noted, refuse

from .network import MLP, Encoder
from .preparation import Preparation, Scaling, read_inputs
from .recipe import Recipe
from .rows import Split
from .splitting import Parts, RowNumbers, are_shares, choose_parts, group_labels, one_class_notes, share_problems
from .targets import Target, coded_classes, read_target, task_names
from .task import Task

Prepare = Callable[[RowNumbers], tuple[Preparation, Tensor, Sequence[str]]]


def fields_from_arrays(
    inputs: Any,
    targets: Any,
    tasks: Sequence[Task | str],
    *,
    name: str,
    encoder: Encoder | None,
    recipe: Recipe | None,
    split: Sequence[float] | Sequence[Any],
    groups: Any,
    seed: int,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The fields of a problem; see `Problem.from_arrays`."""
    raw, known, labels = _read(inputs, targets, tasks, groups, split, encoder)
    parts = choose_parts(known, len(raw), split, labels, seed)
    prepare = scaled(raw, known, input_dtype(inputs, raw))
    return assemble(name, known, prepare, parts, groups=labels, encoder=encoder, recipe=recipe, notes=notes)


def _read(
    inputs: Any, targets: Any, tasks: Sequence[Task | str], groups: Any, split: Sequence[Any], encoder: Any
) -> tuple[Tensor, list[Target], NDArray[Any] | None]:
    """Inputs, labels and groups, or one error with all that is wrong with them."""
    problems = name_problems(task_names(tasks))
    columns = {} if problems else noted(problems, _columns, targets, task_names(tasks)) or {}
    labels = None if groups is None else noted(problems, group_labels, groups)
    raw = noted(problems, read_inputs, inputs, encoder is not None)
    few = []
    if raw is not None:
        problems += _row_problems(len(raw), columns, labels) + encoder_problems(raw, encoder)
        fitting = labels if labels is not None and len(labels) == len(raw) else None
        few = share_problems(split, len(raw), fitting) if are_shares(split) else []
    pairs = [] if few else zip(tasks, columns.values(), strict=False)
    known = [noted(problems, read_target, task, column) for task, column in pairs]
    refuse(problems + few)
    return raw, known, labels


def _columns(targets: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The raw labels of every task."""
    if isinstance(targets, Mapping) or (hasattr(targets, "columns") and set(names) <= set(targets.columns)):
        absent = [name for name in names if name not in targets]
        if absent:
            raise ValueError(f"`targets` must have every task, found none for {', '.join(map(repr, absent))}")
        return {name: targets[name] for name in names}
    array = targets if isinstance(targets, Tensor) else np.asarray(targets)
    if array.ndim == 1 and len(names) == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != len(names):
        found = list(array.shape)
        raise ValueError(f"`targets` must be [rows, {len(names)}], a column for each task, found the shape {found}")
    return {name: array[:, number] for number, name in enumerate(names)}


def _row_problems(rows: int, columns: Mapping[str, Any], labels: NDArray[Any] | None) -> list[str]:
    problems = [
        f"`targets`: {name!r} must have {rows} rows as `inputs` has, found {len(column)}"
        for name, column in columns.items()
        if len(column) != rows
    ]
    if labels is not None and labels.shape != (rows,):
        problems.append(f"`groups` must be one label per row [{rows}], found the shape {list(labels.shape)}")
    return problems


def encoder_problems(raw: Tensor, encoder: Encoder | None) -> list[str]:
    """Inputs that are not flat need an encoder of their own."""
    if raw.dim() == 2 or encoder is not None:
        return []
    shape = ", ".join(map(str, raw.shape[1:]))
    return [f"`encoder` must be given for inputs [rows, {shape}], found none; only flat ones have a default"]


def input_dtype(given: Any, raw: Tensor) -> torch.dtype:
    """What networks get: float32, but float64 tensors stay, and whole numbers that were kept."""
    if not raw.is_floating_point():
        return raw.dtype
    return torch.float64 if isinstance(given, Tensor) and given.dtype == torch.float64 else torch.float32


def scaled(raw: Tensor, targets: Sequence[Target], dtype: torch.dtype = torch.float32) -> Prepare:
    """Inputs that are standardised with the statistics of the train rows where they are flat."""
    standardise = raw.dim() == 2 and raw.is_floating_point()

    def prepare(train: RowNumbers) -> tuple[Scaling, Tensor, Sequence[str]]:
        scaling = Scaling.fitted(raw, train, standardise, coded_classes(targets), dtype)
        return scaling, scaling.apply(raw), ()

    return prepare


def assemble(
    name: str,
    targets: Sequence[Target],
    prepare: Prepare,
    parts: Parts,
    *,
    groups: NDArray[Any] | None = None,
    encoder: Encoder | None = None,
    recipe: Recipe | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The fields of a problem from labels and a way to make inputs that looks at train rows only.

    Args:
        name: of the problem.
        targets: the labels of each task.
        prepare: from the train rows: how raw rows become inputs, the inputs of all rows, and notes.
        parts: which rows are in which part.
        groups: one label per row.
        encoder: None for two hidden layers.
        recipe: None for the default.
        notes: on the data.
    """
    table, inputs, more = prepare(parts.train)
    dtype = inputs.dtype if inputs.is_floating_point() else torch.float32
    scales = {target.task.name: target.scale(parts.train) for target in targets if target.task.kind == "regression"}
    labels = {target.task.name: _standardised(target, scales) for target in targets}
    clusters = None if groups is None else torch.as_tensor(np.unique(groups, return_inverse=True)[1])

    def part(rows: RowNumbers) -> Split:
        own = {task: torch.as_tensor(values[rows], dtype=dtype) for task, values in labels.items()}
        index = torch.as_tensor(rows)
        return Split(inputs[index], own, None if clusters is None else clusters[index])

    return {
        "name": name,
        "tasks": tuple(target.task for target in targets),
        "train": part(parts.train),
        "val": part(parts.val),
        "test": part(parts.test),
        "encoder": MLP(inputs.shape[1]) if encoder is None else encoder,
        "recipe": recipe or Recipe(),
        "scales": scales,
        "table": table,
        "notes": (*notes, *more, *_class_notes(targets), *one_class_notes(targets, parts)),
    }


def _standardised(target: Target, scales: Mapping[str, tuple[float, float]]) -> NDArray[np.float64]:
    if target.task.name not in scales:
        return target.values
    mean, deviation = scales[target.task.name]
    return (target.values - mean) / deviation


def _class_notes(targets: Sequence[Target]) -> list[str]:
    return [
        f"{target.task.name!r}: {target.classes[1]!r} counts as 1, {target.classes[0]!r} as 0"
        for target in targets
        if target.classes is not None and target.task.kind == "binary"
    ]
