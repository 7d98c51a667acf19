"""Problems from arrays: inputs and targets are checked, guessed at and scaled before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong._names import name_problems, noted, refuse

from ._assemble import Prepare, assemble, choose_parts
from ._problem import Encoder, Problem
from ._recipe import Recipe
from ._scaling import Scaling
from ._split import Rows, are_shares, share_problems
from ._targets import LARGEST, Target, as_column, by_name, coded_classes, read_target
from ._task import Task

ROWS_AT_ONCE = 4096


def problem_from_arrays(
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
    """See `Problem.from_arrays`.

    Flat inputs are standardised with the statistics of the train rows, as regression targets are; images are left
    alone, and so are whole numbers given together with an encoder (which may embed them). Inputs become float32;
    float64 tensors stay.

    Raises:
        ValueError: lists everything that is wrong with the data.
    """
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


def read_inputs(inputs: Any, whole: bool = False, argument: str = "`inputs`") -> Tensor:
    """Inputs as a tensor of finite numbers; flat ones keep every digit, since they are yet to be standardised.

    Args:
        inputs: [rows, …]: a tensor, an array, a DataFrame, nested lists.
        whole: keep whole numbers as they are.
        argument: what to call the inputs in errors.

    Raises:
        ValueError: text, values that are not finite (the columns are named), a wrong shape.
    """
    columns = list(inputs.columns) if hasattr(inputs, "columns") else None
    tensor = inputs.detach() if isinstance(inputs, Tensor) else _as_tensor(inputs, columns, argument)
    if tensor.dim() < 2:
        found = f"the shape {list(tensor.shape)}"
        raise ValueError(f"{argument} must be [rows, features] or [rows, …], found {found}; try reshape(-1, 1)")
    if tensor.is_complex():
        raise ValueError(f"{argument} must be real numbers, found complex ones")
    if tensor.is_floating_point():
        refuse(_not_finite(tensor, columns, argument))
        kept = tensor.dtype == torch.float64 and (isinstance(inputs, Tensor) or tensor.dim() == 2)
        return tensor if kept else tensor.float()
    return tensor if (whole or tensor.dim() > 2) and tensor.dtype != torch.bool else tensor.double()


def _as_tensor(inputs: Any, columns: list[Any] | None, argument: str) -> Tensor:
    array = np.asarray(inputs)
    if array.dtype.kind in "fiub":
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64)
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    if array.ndim == 2:
        # A DataFrame with some columns of another kind comes as objects.
        read = [as_column(column) for column in array.T]
        text = [_column_name(number, columns) for number, column in enumerate(read) if column.dtype == object]
        if not text:
            return torch.as_tensor(np.stack(read, axis=1))
        raise ValueError(f"{argument} must be numbers, found text in column {', '.join(text)}; try `Problem.from_csv`")
    raise ValueError(f"{argument} must be an array of numbers, found {type(inputs).__name__} of {array.dtype}")


def _not_finite(tensor: Tensor, columns: list[Any] | None, argument: str) -> list[str]:
    if tensor.dim() > 2:
        whole = torch.cat([torch.isfinite(part).flatten(1).all(1) for part in tensor.split(ROWS_AT_ONCE)])
        rows = (~whole).nonzero().flatten().tolist()
        return (
            [f"{argument} must be finite, found NaN or inf in {len(rows)} rows, the first is {rows[0]}"] if rows else []
        )
    counts = (~torch.isfinite(tensor)).sum(0).tolist()
    named = [f"{_column_name(number, columns)} ({count} rows)" for number, count in enumerate(counts) if count]
    if not named:
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        return [f"{argument} must be at most {LARGEST:g} in size, found {largest:g}"] if largest > LARGEST else []
    shown = ", ".join(named[:10]) + (f" and {len(named) - 10} more" if len(named) > 10 else "")
    return [f"{argument} must be finite, found NaN or inf in column {shown}; fill them in or leave them out"]


def _column_name(number: int, columns: list[Any] | None) -> str:
    return str(number) if columns is None else repr(columns[number])


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
