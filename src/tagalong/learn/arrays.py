"""Creates problems from arrays, and what problems from tables have in common with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, as_tuple, collect, pluralize, raise_problems, task_name_problems

from .column_types import group_labels
from .network import Encoder, EncoderName
from .preparation import Preparation, Scaling, read_inputs
from .recipe import Recipe
from .rows import Split, require_in_memory
from .splitting import RowNumbers, RowSplit, are_fractions, choose_split
from .table_networks import default_network, default_recipe
from .table_warnings import log_warnings, table_warnings
from .tabm import TabM, TabMHeads, task_problems
from .targets import Target, encoded_labels, read_targets, task_names
from .task import Task

if TYPE_CHECKING:
    import pandas as pd

    from .problem import Problem

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
        seed=seed if are_fractions(split) else None,
    )
    row_split = choose_split(task_targets, len(raw), split, row_groups, seed)
    return source.named_fields(name, source.fields(row_split), notes)


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


@dataclass(frozen=True, eq=False)
class Source:
    """The rows of a table or of arrays before they are split, and how to make problems of them.

    Attributes:
        targets: the labels of each task.
        data: the inputs: typed columns, or an array. Arrays that are not flat are None in problems, whose splits
            contain them unchanged.
        fit: creates the preparation from the inputs, the training rows and the labels of encoded classes.
        groups: the group label of each row.
        row_weights: the weight of each row, or None if all rows count the same.
        encoder: the encoder or its name. If None, "mlp" is used; see `default_network`.
        recipe: the training recipe. If None, the default recipe of the encoder is used.
        unlabelled: more rows without labels, in the form that the preparation reads, or None.
        clip: whether answers of regression tasks are clipped; see `Problem.scales`.
        seed: the seed for splits, or None if the user assigned rows to them.
        made_encoder: the encoder that the problem was created with.
    """

    targets: tuple[Target, ...]
    data: pd.DataFrame | Tensor | None
    fit: Callable[..., Preparation]
    groups: NDArray[Any] | None = None
    row_weights: NDArray[np.float64] | None = None
    encoder: Encoder | EncoderName | None = None
    recipe: Recipe | None = None
    unlabelled: Any = None
    clip: bool = False
    seed: int | None = None
    made_encoder: Encoder | None = None

    def named_fields(
        self,
        name: str,
        fields: Mapping[str, Any],
        notes: Sequence[str],
        warnings: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Adds the name and the notes of a new problem to its `fields`.

        Args:
            name: the name of the problem.
            fields: see `fields`.
            notes: notes on the data.
            warnings: warnings about the data. They are logged with all others, and added to the notes.
        """
        table, notes = fields["table"], list(notes)
        features = [feature for feature, *_ in table.ranges]
        raw = table.raw(self.data)
        warnings = [*warnings, *table_warnings(features, raw, self.targets, fields["row_numbers"], self.groups)]
        log_warnings(name, warnings)
        if (unlabelled := fields["unlabelled"]) is not None:
            count = pluralize(len(unlabelled), "row")
            notes.append(f"{count} without any label, used only by networks that others teach")
        for target in self.targets:
            if target.classes is not None and target.task.kind == "binary":
                negative, positive = target.classes
                notes.append(f"{target.task.name!r}: {positive!r} is encoded as 1, {negative!r} as 0")
        return {"name": name, **fields, "notes": (*notes, *(WARNING + warning for warning in warnings))}

    def with_data_of(self, problem: Problem) -> Source:
        """Returns the source with its inputs, if only the splits of the problem contain them."""
        if self.data is not None or problem.row_numbers is None:
            return self
        order = torch.as_tensor(np.concatenate(problem.row_numbers)).argsort()
        inputs = [require_in_memory(split, "folds").inputs for split in problem.splits.values()]
        return replace(self, data=torch.cat(inputs)[order])

    def fields(self, row_split: RowSplit) -> dict[str, Any]:
        """Returns the fields of a problem with this split, apart from its name and notes."""
        table = self.fit(self.data, row_split.train, classes=encoded_labels(self.targets))
        inputs = table.prepare(table.raw(self.data))
        dtype = inputs.dtype if inputs.is_floating_point() else torch.float32
        clusters = None if self.groups is None else torch.as_tensor(np.unique(self.groups, return_inverse=True)[1])
        scales, labels = {}, {}
        for target in self.targets:
            values = target.values
            if target.task.kind == "regression":
                scale = scales[target.task.name] = target.scale(row_split.train, self.clip)
                values = (values - scale[0]) / scale[1]
            labels[target.task.name] = values

        def make_split(rows: RowNumbers) -> Split:
            index, weights = torch.as_tensor(rows), self.row_weights
            return Split(
                inputs[index],
                {task: torch.as_tensor(values[rows], dtype=dtype) for task, values in labels.items()},
                None if clusters is None else clusters[index],
                None if weights is None else torch.as_tensor(weights[rows], dtype=dtype),
            )

        train = make_split(row_split.train)
        without_labels = None
        if self.unlabelled is not None:
            try:
                without_labels = table.inputs(self.unlabelled)
            except InvalidInput as error:
                raise InvalidInput("`unlabelled`:", str(error)) from error
        tasks = tuple(target.task for target in self.targets)
        network = _network_fields(self.encoder, train.inputs, tasks)
        if self.recipe is not None:
            network["recipe"] = self.recipe
        kept = self.data if inputs.dim() == 2 else None
        return {
            "tasks": tasks,
            "train": train,
            "val": make_split(row_split.val),
            "test": make_split(row_split.test),
            **network,
            "scales": scales,
            "table": table,
            "unlabelled": without_labels,
            "row_numbers": row_split,
            "source": replace(self, data=kept, made_encoder=network["encoder"]),
        }


class Folds:
    """The problems of `Problem.folds`, each of which is created when it is asked for.

    Attributes:
        problem: the problem whose rows are split.
        splits: the row numbers of each fold.
    """

    def __init__(self, problem: Problem, splits: Sequence[RowSplit]) -> None:
        self.problem, self.splits = problem, splits

    def __len__(self) -> int:
        return len(self.splits)

    def __iter__(self) -> Iterator[Problem]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, fold: int) -> Problem:
        problem, source = self.problem, self.problem.source
        assert source is not None
        fields = source.with_data_of(problem).fields(self.splits[fold])
        # Keep what may have been changed since the problem was created, apart from a network that depends on the rows.
        fields |= {"tasks": problem.tasks, "recipe": problem.recipe, "source": None, "weightings": {}}
        if problem.encoder is not source.made_encoder:
            fields |= {"encoder": problem.encoder, "head": problem.head}
        return replace(problem, **fields).only(problem.names)


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
