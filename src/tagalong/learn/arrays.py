"""Creates problems from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, as_tuple, collect, raise_problems, task_name_problems

from .column_types import group_labels
from .network import Encoder, EncoderName
from .preparation import Scaling, read_inputs
from .recipe import Recipe
from .source import Source
from .splitting import are_fractions, choose_split
from .targets import read_targets, task_names
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
    check_settings(split, encoder)
    names = task_names(as_tuple(tasks, "tasks", "names", "['age']"))
    raise_problems(task_name_problems(names))

    # Read everything that can be read, so that one error lists all problems.
    problems: list[InvalidInput] = []
    raw = collect(problems, read_inputs, inputs, is_custom(encoder))
    columns = collect(problems, _target_columns, targets, names) or {}
    row_groups = None if groups is None else collect(problems, group_labels, groups)
    weights = None
    if raw is not None:
        collect(problems, check_encoder, raw, encoder)
        if sample_weight is not None:
            weights = collect(problems, _read_weights, sample_weight, len(raw))
        lengths = {f"`targets`: {task!r}": column for task, column in columns.items()} | {"groups": row_groups}
        for argument, column in lengths.items():
            if column is not None and len(column) != len(raw):
                expected = f"must have {len(raw)} rows to match `inputs`"
                problems.append(InvalidInput(argument, expected, str(len(column))))
    task_targets = read_targets(tasks, columns, problems)
    raise_problems(problems)

    source = Source(
        tuple(task_targets),
        raw,
        partial(Scaling.fitted, keep_float64=isinstance(inputs, Tensor)),
        groups=row_groups,
        row_weights=weights,
        encoder=encoder,
        recipe=recipe,
        unlabelled=unlabelled,
        seed=seed,
        fixed_split=not are_fractions(split),
    )
    row_split = choose_split(task_targets, len(raw), split, row_groups, seed)
    features = list(map(str, getattr(inputs, "columns", range(raw.shape[1])))) if raw.dim() == 2 else []
    return source.named_fields(name, source.fields(row_split), features, notes)


def _read_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        expected = f"must have one finite weight for each of {rows} rows, none negative and not all zero"
        raise InvalidInput("sample_weight", expected, f"weights of shape {list(weights.shape)}")
    return weights


def check_settings(split: Any, encoder: Any) -> None:
    """Raises an error for settings of the wrong type, before the data are read, which may take long."""
    if isinstance(split, (str, bytes)) or not isinstance(split, Sequence | np.ndarray):
        expected = "must be three fractions or three arrays of row numbers (train, validation, test)"
        raise InvalidInput("split", expected, repr(split))
    if isinstance(encoder, str) and encoder not in ENCODER_NAMES:
        expected = f"must be {' or '.join(map(repr, ENCODER_NAMES))}, a module, or a function that creates one"
        raise InvalidInput("encoder", expected, repr(encoder))


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
    return dict(zip(names, array.T, strict=True))


def is_custom(encoder: Encoder | EncoderName | None) -> bool:
    """Returns whether an encoder was given that may support any inputs."""
    return not (encoder is None or isinstance(encoder, str))


def check_encoder(raw: Tensor, encoder: Encoder | EncoderName | None) -> None:
    """Raises an error if the inputs are not flat and no encoder of the user's was given."""
    if raw.dim() != 2 and not is_custom(encoder):
        expected = f"must be a module, or a function that creates one, for inputs of shape {list(raw.shape)}"
        raise InvalidInput("encoder", expected, repr(encoder))
