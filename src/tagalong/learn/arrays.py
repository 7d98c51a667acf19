"""Problems from arrays: labels and inputs are checked, split and scaled before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import name_problems, noted, refuse

from .network import MLP, Encoder
from .randomness import derived
from .recipe import Recipe
from .rows import Split
from .scaling import Preparation, Scaling, read_inputs
from .splitting import PARTS, Parts, Rows, are_shares, given_parts, share_problems, split_rows
from .targets import Target, as_column, by_name, coded_classes, read_target
from .task import Task

ATTEMPTS = 20
Prepare = Callable[[Rows], tuple[Preparation, Tensor, Sequence[str]]]


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
    scales = {target.task.name: _scale(target, parts.train) for target in targets if target.task.kind == "regression"}
    scaled = {target.task.name: _standardised(target, scales) for target in targets}
    clusters = None if groups is None else torch.as_tensor(np.unique(groups, return_inverse=True)[1])

    def part(rows: Rows) -> Split:
        labels = {task: torch.as_tensor(values[rows], dtype=dtype) for task, values in scaled.items()}
        index = torch.as_tensor(rows)
        return Split(inputs[index], labels, None if clusters is None else clusters[index])

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


def choose_parts(
    targets: Sequence[Target], rows: int, split: Sequence[Any], groups: NDArray[Any] | None, seed: int
) -> Parts:
    """The parts as given, or drawn: the first of a few draws in which every part has every task's labels and classes.

    Raises:
        ValueError: what is wrong with the split, or with the labels in it.
    """
    if not are_shares(split):
        parts = given_parts(split, rows, groups)
        refuse(part_problems(targets, parts))
        return parts
    refuse(share_problems(split, rows, groups))
    usable = None
    for attempt in range(ATTEMPTS):
        parts = split_rows(rows, split, groups, derived(seed, "attempt", attempt) if attempt else seed)
        if not part_problems(targets, parts):
            usable = usable or parts
            if not one_class_notes(targets, parts):
                return parts
    if usable is None:
        refuse(part_problems(targets, split_rows(rows, split, groups, seed)))
    assert usable is not None
    return usable


def part_problems(targets: Sequence[Target], parts: Parts) -> list[str]:
    """Tasks without labels in a part, that do not vary in train, or with a class that train lacks."""
    problems = []
    for target in targets:
        name = target.task.name
        found = {part: _labels(target, rows) for part, rows in zip(PARTS, parts, strict=True)}
        empty = [part for part in PARTS if not len(found[part])]
        problems += [f"`split`: {name!r} must have labels in {part}, found none" for part in empty]
        if target.task.kind == "custom" or "train" in empty:
            continue
        if len(found["train"]) == 1 or (target.task.kind == "regression" and not _scale(target, parts.train)[1]):
            problems.append(f"`split`: {name!r} must vary in train, found one value")
        if target.task.kind != "regression":
            problems += [
                f"`split`: {name!r} has the class {_label(target, code)!r} in {part} that train lacks; "
                "leave those rows out or merge the class"
                for part in ("val", "test")
                for code in np.setdiff1d(found[part], found["train"])
            ]
    return problems


def one_class_notes(targets: Sequence[Target], parts: Parts) -> list[str]:
    """Binary tasks with one class only in validation or test."""
    return [
        f"{target.task.name!r} has only one class in {part}"
        for target in targets
        if target.task.kind == "binary"
        for part, rows in (("val", parts.val), ("test", parts.test))
        if len(_labels(target, rows)) < 2
    ]


def _labels(target: Target, rows: Rows) -> NDArray[np.float64]:
    values = target.values[rows]
    return np.unique(values[~np.isnan(values)])


def _label(target: Target, code: float) -> Any:
    return int(code) if target.classes is None else target.classes[int(code)]


def _scale(target: Target, rows: Rows) -> tuple[float, float]:
    values = target.values[rows]
    return float(np.nanmean(values)), float(np.nanstd(values))


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


def fields_from_arrays(
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
) -> dict[str, Any]:
    """The fields of a problem; see `Problem.from_arrays`."""
    raw, known, labels = _read(inputs, targets, tasks, groups, split, encoder)
    parts = choose_parts(known, len(raw), split, labels, seed)
    prepare = scaled(raw, known, input_dtype(inputs, raw))
    return assemble(name, known, prepare, parts, groups=labels, encoder=encoder, recipe=recipe, notes=notes)


def input_dtype(given: Any, raw: Tensor) -> torch.dtype:
    """What networks get: float32, but float64 tensors stay, and whole numbers that were kept."""
    if not raw.is_floating_point():
        return raw.dtype
    return torch.float64 if isinstance(given, Tensor) and given.dtype == torch.float64 else torch.float32


def scaled(raw: Tensor, targets: Sequence[Target], dtype: torch.dtype = torch.float32) -> Prepare:
    """Inputs that are standardised with the statistics of the train rows where they are flat."""
    standardise = raw.dim() == 2 and raw.is_floating_point()

    def prepare(train: Rows) -> tuple[Scaling, Tensor, Sequence[str]]:
        scaling = Scaling.fitted(raw, train, standardise, coded_classes(targets), dtype)
        return scaling, scaling.apply(raw), ()

    return prepare


def _read(
    inputs: Any, targets: Any, tasks: Sequence[Task | str], groups: Any, split: Sequence[Any], encoder: Any
) -> tuple[Tensor, list[Target], NDArray[Any] | None]:
    """Inputs, labels and groups, or one error with all that is wrong with them."""
    problems = name_problems(by_name(tasks))
    columns = {} if problems else noted(problems, _columns, targets, by_name(tasks)) or {}
    labels = None if groups is None else noted(problems, group_labels, groups)
    raw = noted(problems, read_inputs, inputs, encoder is not None)
    few = []
    if raw is not None:
        problems += _row_problems(len(raw), columns, labels) + encoder_problems(raw, encoder)
        fitting = labels if labels is not None and len(labels) == len(raw) else None
        few = share_problems(split, len(raw), fitting) if are_shares(split) else []
    read = [] if few else [read_target(task, column) for task, column in zip(tasks, columns.values(), strict=False)]
    refuse(problems + few + [problem for target in read if isinstance(target, list) for problem in target])
    return raw, [target for target in read if isinstance(target, Target)], labels


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


def encoder_problems(raw: Tensor, encoder: Encoder | None) -> list[str]:
    """Inputs that are not flat need an encoder of their own."""
    if raw.dim() == 2 or encoder is not None:
        return []
    shape = ", ".join(map(str, raw.shape[1:]))
    return [f"`encoder` must be given for inputs [rows, {shape}], found none; only flat ones have a default"]


def _row_problems(rows: int, columns: Mapping[str, Any], labels: NDArray[Any] | None) -> list[str]:
    problems = [
        f"`targets`: {name!r} must have {rows} rows as `inputs` has, found {len(column)}"
        for name, column in columns.items()
        if len(column) != rows
    ]
    if labels is not None and labels.shape != (rows,):
        problems.append(f"`groups` must be one label per row [{rows}], found the shape {list(labels.shape)}")
    return problems


def group_labels(groups: Any, argument: str = "`groups`") -> NDArray[Any]:
    """One label per row, all of one type so that they can be sorted."""
    labels = as_column(groups)
    missing = [label is None or label != label for label in labels.tolist()]
    if any(missing):
        raise ValueError(f"{argument} must have a label for every row, found {sum(missing)} missing")
    return labels.astype(str) if labels.dtype == object else labels
