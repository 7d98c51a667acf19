"""Creates problems from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import (
    InvalidInput,
    as_names,
    collect,
    raise_problems,
    task_name_problems,
)

from .column_types import group_labels
from .network import Encoder, EncoderName
from .preparation import Scaling, read_inputs
from .recipe import Recipe
from .source import Source
from .splitting import are_fractions, check_fractions, choose_split
from .table_warnings import table_warnings
from .targets import read_target, task_names
from .task import Task

ENCODER_NAMES = get_args(EncoderName)


def fields_from_arrays(
    inputs: Any,
    targets: Any,
    tasks: Sequence[Task | str],
    *,
    split: Sequence[float] | Sequence[Any],
    groups: Any,
    seed: int,
    sample_weight: Any,
    name: str,
    encoder: Encoder | EncoderName | None,
    recipe: Recipe | None,
    notes: Sequence[str],
    unlabelled: Any,
) -> dict[str, Any]:
    """Returns the fields of a problem; see `Problem.from_arrays`."""
    problems = setting_problems(split, encoder)
    tasks = collect(problems, as_names, tasks)
    raise_problems(problems)

    # Read everything that can be read, so that one error lists all problems.
    names = task_names(tasks)
    problems = task_name_problems(names)
    columns = {} if problems else collect(problems, _target_columns, targets, names) or {}
    row_groups = None if groups is None else collect(problems, group_labels, groups)
    raw = collect(problems, read_inputs, inputs, is_custom(encoder))
    weights = None
    if raw is not None:
        rows = len(raw)
        lengths = {f"`targets`: {task!r}": len(column) for task, column in columns.items()}
        if row_groups is not None:
            lengths["groups"] = len(row_groups)
        wrong = {argument: length for argument, length in lengths.items() if length != rows}
        problems += [
            InvalidInput(argument, f"must have {rows} rows to match `inputs`", str(length))
            for argument, length in wrong.items()
        ]
        collect(problems, check_encoder, raw, encoder)
        weights = None if sample_weight is None else collect(problems, _read_weights, sample_weight, rows)
        if are_fractions(split):
            before = len(problems)
            collect(problems, check_fractions, split, rows, None if "groups" in wrong else row_groups)
            if len(problems) > before:  # with too few rows, every task would report the same problem again
                columns = {}
    task_targets = [
        collect(problems, read_target, task, column) for task, column in zip(tasks, columns.values(), strict=False)
    ]
    raise_problems(problems)

    row_split = choose_split(task_targets, len(raw), split, row_groups, seed)
    warnings = []
    if raw.dim() == 2:
        features = list(map(str, getattr(inputs, "columns", range(raw.shape[1]))))
        warnings = table_warnings(features, raw, task_targets, row_split, row_groups)
    source = Source(
        tuple(task_targets),
        raw,
        scaling_of(inputs, raw),
        groups=row_groups,
        row_weights=weights,
        encoder=encoder,
        recipe=recipe,
        unlabelled=unlabelled,
        seed=seed,
        fixed_split=not are_fractions(split),
    )
    return source.named_fields(name, source.fields(row_split), notes, warnings)


def _read_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        expected = f"must have one finite weight for each of {rows} rows, none negative and not all zero"
        raise InvalidInput("sample_weight", expected, f"weights of shape {list(weights.shape)}")
    return weights


def setting_problems(split: Any, encoder: Any) -> list[InvalidInput]:
    """Lists settings of the wrong type; they are checked before the data, which may take long to read."""
    problems = []
    if isinstance(split, (str, bytes)) or not isinstance(split, Sequence | np.ndarray):
        expected = "must be three fractions or three arrays of row numbers (train, validation, test)"
        problems.append(InvalidInput("split", expected, repr(split)))
    if isinstance(encoder, str) and encoder not in ENCODER_NAMES:
        expected = f"must be {' or '.join(map(repr, ENCODER_NAMES))}, a module, or a function that creates one"
        problems.append(InvalidInput("encoder", expected, repr(encoder)))
    return problems


def _target_columns(targets: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the raw labels of every task."""
    if isinstance(targets, Mapping) or (hasattr(targets, "columns") and set(names) <= set(targets.columns)):
        absent = [name for name in names if name not in targets]
        if absent:
            raise InvalidInput("targets", "must include every task", f"no labels for {', '.join(map(repr, absent))}")
        return {name: targets[name] for name in names}
    array = targets if isinstance(targets, Tensor) else np.asarray(targets)
    if array.ndim == 1 and len(names) == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != len(names):
        expected = f"must have the shape [rows, {len(names)}], one column per task"
        raise InvalidInput("targets", expected, str(list(array.shape)))
    return {name: array[:, number] for number, name in enumerate(names)}


def is_custom(encoder: Encoder | EncoderName | None) -> bool:
    """Returns whether an encoder was given that may support any inputs."""
    return not (encoder is None or isinstance(encoder, str))


def check_encoder(raw: Tensor, encoder: Encoder | EncoderName | None) -> None:
    """Raises an error if the inputs are not flat and no encoder of the user's was given."""
    if raw.dim() != 2 and not is_custom(encoder):
        shape = f"[rows, {', '.join(map(str, raw.shape[1:]))}]"
        expected = f"must be a module, or a function that creates one, for inputs of shape {shape}"
        raise InvalidInput("encoder", expected, repr(encoder))


def scaling_of(original: Any, raw: Tensor) -> partial[Scaling]:
    """Returns the function that fits the preparation of arrays, which standardizes flat inputs.

    The inputs of networks are float32, except for float64 tensors and unconverted integers.
    """
    dtype = raw.dtype
    if raw.is_floating_point() and not (isinstance(original, Tensor) and original.dtype == torch.float64):
        dtype = torch.float32
    return partial(Scaling.fitted, standardize=raw.dim() == 2 and raw.is_floating_point(), dtype=dtype)
