"""Labels and inputs put together: the rows are split so that every task can be learnt, chosen and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong._names import refuse

from ._network import MLP, Encoder
from ._recipe import Recipe
from ._rows import Split
from ._scaling import Preparation
from ._seeds import derived
from ._split import PARTS, Parts, Rows, are_shares, given_parts, share_problems, split_rows
from ._targets import Target

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
