"""Creates problems from arrays, and provides helpers that are also used for tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import (
    InvalidInput,
    as_names,
    collect,
    is_integer,
    pluralize,
    raise_problems,
    task_name_problems,
)

from .network import Encoder, EncoderName
from .preparation import Preparation, Scaling, read_inputs
from .recipe import Recipe
from .rows import Split
from .splitting import (
    RowNumbers,
    RowSplit,
    are_fractions,
    check_fractions,
    choose_split,
    group_labels,
    one_class_notes,
)
from .table_networks import default_network, default_recipe
from .table_warnings import Feature, log_warnings, table_warnings
from .tabm import TabM, TabMHeads, task_problems
from .targets import Target, encoded_labels, read_target, task_names
from .task import Task

Prepare = Callable[[RowNumbers], tuple[Preparation, Tensor, Sequence[str]]]
ENCODER_NAMES = get_args(EncoderName)
WARNING = "warning: "  # the beginning of notes that are warnings


def fields_from_arrays(
    inputs: Any,
    targets: Any,
    tasks: Sequence[Task | str],
    *,
    name: str,
    encoder: Encoder | EncoderName | None,
    recipe: Recipe | None,
    split: Sequence[float] | Sequence[Any],
    groups: Any,
    seed: int,
    notes: Sequence[str],
    unlabelled: Any = None,
    sample_weight: Any = None,
) -> dict[str, Any]:
    """Returns the fields of a problem; see `Problem.from_arrays`."""
    problems = setting_problems(name, seed, split, encoder, notes)
    tasks = collect(problems, as_names, tasks)
    raise_problems(problems)
    raw, task_targets, row_groups = _read_arrays(inputs, targets, tasks, groups, split, encoder)
    row_split = choose_split(task_targets, len(raw), split, row_groups, seed)
    prepare = prepare_with_scaling(raw, task_targets, input_dtype(inputs, raw))
    warnings = table_warnings(array_features(raw, inputs), task_targets, row_split, row_groups, named=False)
    return make_fields(
        name,
        task_targets,
        prepare,
        row_split,
        groups=row_groups,
        encoder=encoder,
        recipe=recipe,
        notes=notes,
        warnings=warnings,
        unlabelled=unlabelled,
        row_weights=None if sample_weight is None else _read_weights(sample_weight, len(raw)),
    )


def _read_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        expected = f"must have one finite weight for each of {rows} rows, none negative and not all zero"
        raise InvalidInput("sample_weight", expected, f"weights of shape {list(weights.shape)}")
    return weights


def setting_problems(name: Any, seed: Any, split: Any, encoder: Any, notes: Any = ()) -> list[InvalidInput]:
    """Lists settings of the wrong type; they are checked before the data, which may take long to read."""
    problems = []
    if name is not None and not isinstance(name, str):
        problems.append(InvalidInput("name", "must be a string", repr(name)))
    if not is_integer(seed):
        problems.append(InvalidInput("seed", "must be an integer", repr(seed)))
    if isinstance(split, (str, bytes)) or not isinstance(split, Sequence | np.ndarray):
        expected = "must be three fractions or three arrays of row numbers (train, validation, test)"
        problems.append(InvalidInput("split", expected, repr(split)))
    if isinstance(encoder, str) and encoder not in ENCODER_NAMES:
        expected = f"must be {' or '.join(map(repr, ENCODER_NAMES))}, a module, or a function that creates one"
        problems.append(InvalidInput("encoder", expected, repr(encoder)))
    if isinstance(notes, str) or not isinstance(notes, Iterable):
        problems.append(InvalidInput("notes", "must be a list of texts", repr(notes)))
    return problems


def _read_arrays(
    inputs: Any, targets: Any, tasks: Sequence[Task | str], groups: Any, split: Sequence[Any], encoder: Any
) -> tuple[Tensor, list[Target], NDArray[Any] | None]:
    """Returns inputs, labels and groups. Raises one error that lists all problems."""
    problems = task_name_problems(task_names(tasks))
    columns = {} if problems else collect(problems, _target_columns, targets, task_names(tasks)) or {}
    row_groups = None if groups is None else collect(problems, group_labels, groups)
    raw = collect(problems, read_inputs, inputs, is_custom(encoder))
    fraction_problems: list[InvalidInput] = []
    if raw is not None:
        problems += _row_problems(len(raw), columns, row_groups)
        collect(problems, check_encoder, raw, encoder)
        fitting_groups = row_groups if row_groups is not None and len(row_groups) == len(raw) else None
        if are_fractions(split):
            collect(fraction_problems, check_fractions, split, len(raw), fitting_groups)
    # With too few rows, every task would report the same problem again.
    columns = {} if fraction_problems else columns
    task_targets = [
        collect(problems, read_target, task, column) for task, column in zip(tasks, columns.values(), strict=False)
    ]
    raise_problems(problems + fraction_problems)
    return raw, task_targets, row_groups


def _target_columns(targets: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the raw labels of every task."""
    if isinstance(targets, Mapping) or (hasattr(targets, "columns") and set(names) <= set(targets.columns)):
        absent = [name for name in names if name not in targets]
        if absent:
            raise InvalidInput("targets", "must include every task", f"no labels for {', '.join(map(repr, absent))}")
        single = [name for name in names if not hasattr(targets[name], "__len__") or isinstance(targets[name], str)]
        raise_problems(
            [InvalidInput(f"`targets`: {name!r}", "must be an array", repr(targets[name])) for name in single]
        )
        return {name: targets[name] for name in names}
    array = targets if isinstance(targets, Tensor) else np.asarray(targets)
    if array.ndim == 1 and len(names) == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != len(names):
        expected = f"must have the shape [rows, {len(names)}], one column per task"
        raise InvalidInput("targets", expected, str(list(array.shape)))
    return {name: array[:, number] for number, name in enumerate(names)}


def _row_problems(rows: int, columns: Mapping[str, Any], row_groups: NDArray[Any] | None) -> list[InvalidInput]:
    problems = [
        InvalidInput(f"`targets`: {name!r}", f"must have {rows} rows to match `inputs`", str(len(column)))
        for name, column in columns.items()
        if len(column) != rows
    ]
    if row_groups is not None and row_groups.shape != (rows,):
        expected = f"must have the shape [{rows}], one label per row"
        problems.append(InvalidInput("groups", expected, str(list(row_groups.shape))))
    return problems


def is_custom(encoder: Encoder | EncoderName | None) -> bool:
    """Returns whether an encoder was given that may support any inputs."""
    return not (encoder is None or isinstance(encoder, str))


def check_encoder(raw: Tensor, encoder: Encoder | EncoderName | None) -> None:
    """Raises an error if the inputs are not flat and no encoder of the user's was given."""
    if raw.dim() == 2 or is_custom(encoder):
        return
    shape = f"inputs of shape [rows, {', '.join(map(str, raw.shape[1:]))}]"
    if encoder is None:
        hint = "the default encoder only supports flat inputs"
        raise InvalidInput("encoder", f"is required for {shape}", hint=hint)
    raise InvalidInput("encoder", f"must be a module, or a function that creates one, for {shape}", repr(encoder))


def input_dtype(original: Any, raw: Tensor) -> torch.dtype:
    """Returns the dtype of a network's inputs: float32, except for float64 tensors and unconverted integers."""
    if not raw.is_floating_point():
        return raw.dtype
    return torch.float64 if isinstance(original, Tensor) and original.dtype == torch.float64 else torch.float32


def prepare_with_scaling(raw: Tensor, targets: Sequence[Target], dtype: torch.dtype = torch.float32) -> Prepare:
    """Returns a function that prepares inputs. Flat inputs are standardized using the training rows."""
    standardize = raw.dim() == 2 and raw.is_floating_point()

    def prepare(train: RowNumbers) -> tuple[Scaling, Tensor, Sequence[str]]:
        scaling = Scaling.fitted(raw, train, standardize, encoded_labels(targets), dtype)
        return scaling, scaling.apply(raw), ()

    return prepare


def array_features(raw: Tensor, inputs: Any = None) -> list[Feature]:
    """Returns the columns of flat inputs, named like those of a DataFrame; none for images and the like."""
    if raw.dim() != 2:
        return []
    names = list(inputs.columns) if hasattr(inputs, "columns") else range(raw.shape[1])
    array = raw.cpu().numpy()
    return [Feature(str(name), array[:, at]) for at, name in enumerate(names)]


def make_fields(
    name: str,
    targets: Sequence[Target],
    prepare: Prepare,
    row_split: RowSplit,
    *,
    groups: NDArray[Any] | None = None,
    encoder: Encoder | EncoderName | None = None,
    recipe: Recipe | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    unlabelled: Any = None,
    row_weights: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Returns the fields of a problem.

    Args:
        name: the name of the problem.
        targets: the labels of each task.
        prepare: a function that takes the training rows and returns the fitted preparation, the inputs of all rows, and
            notes.
        row_split: the row numbers of the training, validation and test rows.
        groups: the group label of each row.
        encoder: the encoder or its name. If None, "mlp" is used; see `default_network`.
        recipe: the training recipe. If None, the default recipe of the encoder is used.
        notes: notes on the data.
        warnings: warnings about the data, which are logged and added to the notes.
        unlabelled: more rows without labels, in the form that the fitted preparation reads, or None.
        row_weights: the weight of each row, or None if all rows count the same.
    """
    log_warnings(name, warnings)
    table, inputs, more = prepare(row_split.train)
    dtype = inputs.dtype if inputs.is_floating_point() else torch.float32
    scales = {target.task.name: target.scale(row_split.train) for target in targets if target.task.kind == "regression"}
    labels = {target.task.name: _standardize(target, scales) for target in targets}
    clusters = None if groups is None else torch.as_tensor(np.unique(groups, return_inverse=True)[1])

    def make_split(rows: RowNumbers) -> Split:
        own = {task: torch.as_tensor(values[rows], dtype=dtype) for task, values in labels.items()}
        index = torch.as_tensor(rows)
        weights = None if row_weights is None else torch.as_tensor(row_weights[rows], dtype=dtype)
        return Split(inputs[index], own, None if clusters is None else clusters[index], weights)

    train = make_split(row_split.train)
    without_labels = _read_unlabelled(table, unlabelled)
    if without_labels is not None:
        count = pluralize(len(without_labels), "row")
        more = [*more, f"{count} without any label, used only by networks that others teach"]
    return {
        "name": name,
        "tasks": tuple(target.task for target in targets),
        "train": train,
        "val": make_split(row_split.val),
        "test": make_split(row_split.test),
        **_network_fields(encoder, train.inputs, [target.task for target in targets]),
        **({} if recipe is None else {"recipe": recipe}),
        "scales": scales,
        "table": table,
        "notes": (
            *(*notes, *more, *_class_notes(targets), *one_class_notes(targets, row_split)),
            *(WARNING + warning for warning in warnings),
        ),
        "unlabelled": without_labels,
    }


def _read_unlabelled(table: Preparation, unlabelled: Any) -> Tensor | None:
    """Returns the inputs of the given rows without labels, or None if there are none."""
    if unlabelled is None:
        return None
    try:
        return table.inputs(unlabelled)
    except InvalidInput as error:
        error.show_as({"rows": "`unlabelled`"})
        raise


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
        return default_network(inputs, "mlp" if encoder is None else encoder)
    if isinstance(encoder, TabM):
        return {"encoder": encoder, "head": TabMHeads(encoder.members), "recipe": default_recipe(inputs, "tabm")}
    return {"encoder": encoder}


def _standardize(target: Target, scales: Mapping[str, tuple[float, float]]) -> NDArray[np.float64]:
    if target.task.name not in scales:
        return target.values
    mean, deviation = scales[target.task.name]
    return (target.values - mean) / deviation


def _class_notes(targets: Sequence[Target]) -> list[str]:
    return [
        f"{target.task.name!r}: {target.classes[1]!r} is encoded as 1, {target.classes[0]!r} as 0"
        for target in targets
        if target.classes is not None and target.task.kind == "binary"
    ]
