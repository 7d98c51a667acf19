"""Creates problems from arrays, and the fields that problems from arrays and tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import (
    InvalidInput,
    as_names,
    collect,
    pluralize,
    raise_problems,
    task_name_problems,
)

from .column_types import group_labels
from .network import Encoder, EncoderName
from .preparation import Preparation, Scaling, read_inputs
from .recipe import Recipe
from .rows import Split
from .splitting import RowNumbers, RowSplit, are_fractions, check_fractions, choose_split
from .table_networks import default_network, default_recipe
from .table_warnings import log_warnings, table_warnings
from .tabm import TabM, TabMHeads, task_problems
from .targets import Target, encoded_labels, read_target, task_names
from .task import Task

ENCODER_NAMES = get_args(EncoderName)
WARNING = "warning: "  # the beginning of notes that are warnings


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
    table = fitted_scaling(inputs, raw, task_targets, row_split.train)
    warnings = []
    if raw.dim() == 2:
        features = list(map(str, getattr(inputs, "columns", range(raw.shape[1]))))
        warnings = table_warnings(features, raw, task_targets, row_split, row_groups)
    return make_fields(
        *(name, task_targets, table, raw, row_split),
        groups=row_groups,
        row_weights=weights,
        encoder=encoder,
        recipe=recipe,
        notes=notes,
        warnings=warnings,
        unlabelled=unlabelled,
    )


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


def fitted_scaling(original: Any, raw: Tensor, targets: Sequence[Target], train: RowNumbers) -> Scaling:
    """Returns the preparation of arrays, which standardizes flat inputs using the training rows.

    The inputs of networks are float32, except for float64 tensors and unconverted integers.
    """
    dtype = raw.dtype
    if raw.is_floating_point() and not (isinstance(original, Tensor) and original.dtype == torch.float64):
        dtype = torch.float32
    standardize = raw.dim() == 2 and raw.is_floating_point()
    return Scaling.fitted(raw, train, standardize, encoded_labels(targets), dtype)


def make_fields(
    name: str,
    targets: Sequence[Target],
    table: Preparation,
    raw: Tensor,
    row_split: RowSplit,
    *,
    groups: NDArray[Any] | None = None,
    encoder: Encoder | EncoderName | None = None,
    recipe: Recipe | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    unlabelled: Any = None,
    row_weights: NDArray[np.float64] | None = None,
    clip: bool = False,
) -> dict[str, Any]:
    """Returns the fields of a problem.

    Args:
        name: the name of the problem.
        targets: the labels of each task.
        table: the preparation, fitted to the training rows.
        raw: the raw view of all rows.
        row_split: the row numbers of the training, validation and test rows.
        groups: the group label of each row.
        encoder: the encoder or its name. If None, "mlp" is used; see `default_network`.
        recipe: the training recipe. If None, the default recipe of the encoder is used.
        notes: notes on the data.
        warnings: warnings about the data, which are logged and added to the notes.
        unlabelled: more rows without labels, in the form that the preparation reads, or None.
        row_weights: the weight of each row, or None if all rows count the same.
        clip: whether answers of regression tasks are clipped; see `Problem.scales`.
    """
    log_warnings(name, warnings)
    tasks = [target.task for target in targets]
    inputs = table.prepare(raw)
    dtype = inputs.dtype if inputs.is_floating_point() else torch.float32
    clusters = None if groups is None else torch.as_tensor(np.unique(groups, return_inverse=True)[1])
    scales, labels = {}, {}
    for target in targets:
        values = target.values
        if target.task.kind == "regression":
            scale = scales[target.task.name] = target.scale(row_split.train, clip)
            values = (values - scale[0]) / scale[1]
        labels[target.task.name] = values

    def make_split(rows: RowNumbers) -> Split:
        index = torch.as_tensor(rows)
        return Split(
            inputs[index],
            {task: torch.as_tensor(values[rows], dtype=dtype) for task, values in labels.items()},
            None if clusters is None else clusters[index],
            None if row_weights is None else torch.as_tensor(row_weights[rows], dtype=dtype),
        )

    train = make_split(row_split.train)
    notes = list(notes)
    without_labels = None
    if unlabelled is not None:
        try:
            without_labels = table.inputs(unlabelled)
        except InvalidInput as error:
            error.show_as({"rows": "`unlabelled`"})
            raise
        count = pluralize(len(without_labels), "row")
        notes.append(f"{count} without any label, used only by networks that others teach")
    for target in targets:
        if target.classes is not None and target.task.kind == "binary":
            negative, positive = target.classes
            notes.append(f"{target.task.name!r}: {positive!r} is encoded as 1, {negative!r} as 0")
    return {
        "name": name,
        "tasks": tuple(tasks),
        "train": train,
        "val": make_split(row_split.val),
        "test": make_split(row_split.test),
        **_network_fields(encoder, train.inputs, tasks),
        **({} if recipe is None else {"recipe": recipe}),
        "scales": scales,
        "table": table,
        "notes": (*notes, *(WARNING + warning for warning in warnings)),
        "unlabelled": without_labels,
    }


def _network_fields(encoder: Encoder | EncoderName | None, inputs: Tensor, tasks: Sequence[Task]) -> dict[str, Any]:
    """Returns the encoder, with the heads and the recipe that it needs.

    Args:
        encoder: the encoder or its name. If None, "mlp" is used.
        inputs: the inputs of the training rows.
        tasks: the tasks.
    """
    if encoder == "tabm" or isinstance(encoder, TabM):
        raise_problems(task_problems(tasks))
    if encoder is None or isinstance(encoder, str):
        return default_network(inputs, encoder or "mlp")
    if isinstance(encoder, TabM):
        return {"encoder": encoder, "head": TabMHeads(encoder.members), "recipe": default_recipe(inputs, "tabm")}
    return {"encoder": encoder}
