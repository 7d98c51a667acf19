"""Creates problems from tables, based on the role of each column."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, collect, did_you_mean, pluralize, raise_problems, task_name_problems
from tagalong.tabular import TableSource

from .arrays import Prepare, check_encoder, input_dtype, is_custom, make_fields, prepare_with_scaling, setting_problems
from .column_types import MAX_MAGNITUDE, MISSING_HINT, Columns, read_columns, show_cell, text_cells
from .network import Encoder, EncoderName
from .preparation import NumberColumn, Table, load_array, read_inputs
from .recipe import Recipe
from .splitting import (
    PARTS,
    RowNumbers,
    are_fractions,
    check_fractions,
    choose_split,
    group_labels,
)
from .table_warnings import Feature, category_feature, table_warnings
from .targets import Target, encoded_labels, read_target, task_names, with_error_measure
from .task import Kind, Task

SPLIT_ALIASES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


def fields_from_table(
    data: TableSource,
    targets: Sequence[Task | str],
    *,
    features: Sequence[str] | None,
    ignore: Sequence[str],
    categorical: Sequence[str],
    kinds: Mapping[str, Kind] | None,
    errors: Mapping[str, str] | None,
    split_column: str | None,
    group_column: str | None,
    features_file: str | Path | None,
    name: str | None,
    recipe: Recipe | None,
    encoder: Encoder | EncoderName | None,
    split: Sequence[float] | Sequence[Any],
    seed: int,
    unlabelled: TableSource | None = None,
) -> dict[str, Any]:
    """Returns the fields of a problem; see `Problem.from_table`."""
    problems = _argument_problems(kinds, errors, split_column=split_column, group_column=group_column)
    problems += setting_problems(name, seed, split, encoder)
    lists = {
        "targets": targets,
        "features": () if features is None else features,
        "ignore": ignore,
        "categorical": categorical,
    }
    names = {argument: collect(problems, _as_names, given, argument) for argument, given in lists.items()}
    raise_problems(problems)
    columns, targets = read_columns(data, "data"), names["targets"]
    request = ColumnRequest(
        task_names(targets),
        None if features is None else names["features"],
        names["ignore"],
        names["categorical"],
        split_column,
        group_column,
    )
    problems = []
    known = _read_labels(columns, targets, kinds or {}, errors or {}, problems)
    groups = collect(problems, _read_groups, columns, group_column)
    split = collect(problems, _read_split, columns, split_column, split)
    few = _too_few_rows_problems(columns, split, groups)
    if features_file is None:
        roles, more = find_roles(columns, request)
        prepare = _prepare_columns(columns, roles, known)
        read_features = partial(_features, columns, roles)
    else:
        prepare, more = _prepare_file(features_file, columns, request, known, encoder)
        read_features = partial(_features, columns, Roles((), ()))
    raise_problems((few or problems) + more)
    row_split = choose_split(known, columns.rows, split, groups, seed)
    warnings = table_warnings(read_features(), known, row_split, groups)
    title = name or (Path(data).name.split(".")[0] if isinstance(data, (str, os.PathLike)) else "table")
    return make_fields(
        *(title, known, prepare, row_split),
        groups=groups,
        encoder=encoder,
        recipe=recipe,
        warnings=warnings,
        unlabelled=unlabelled,
    )


def _features(columns: Columns, roles: Roles) -> list[Feature]:
    numbers = [Feature(name, columns[name]) for name in roles.numbers]
    return numbers + [category_feature(name, columns[name]) for name in roles.categories]


def _as_names(names: Any, argument: str) -> tuple[Any, ...]:
    expected = "must be a list of names"
    if isinstance(names, str):
        raise InvalidInput(argument, expected, f"the string {names!r}", f"write [{names!r}]")
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise InvalidInput(argument, expected, repr(names))
    found = tuple(names)
    if not all(isinstance(name, Hashable) for name in found):
        raise InvalidInput(argument, expected, repr(list(found)))
    return found


def _argument_problems(kinds: Any, errors: Any, **columns: Any) -> list[InvalidInput]:
    """Lists arguments of the wrong type."""
    expected, hint = "must map names of targets to {}", "write {{'age': {!r}}}"
    problems = [
        InvalidInput(argument, expected.format(argument), repr(value), hint.format(example))
        for argument, value, example in (("kinds", kinds, "regression"), ("errors", errors, "mae"))
        if value is not None and not isinstance(value, Mapping)
    ]
    return problems + [
        InvalidInput(argument, "must be the name of a column", repr(name))
        for argument, name in columns.items()
        if name is not None and not isinstance(name, str)
    ]


def _read_labels(
    columns: Columns,
    targets: Sequence[Task | str],
    kinds: Mapping[str, Kind],
    errors: Mapping[str, str],
    problems: list[InvalidInput],
) -> list[Target]:
    """Reads the labels of every task that has a column. Appends any problems found to `problems`."""
    names = task_names(targets)
    for argument, settings in (("kinds", kinds), ("errors", errors)):
        unknown = [name for name in settings if name not in names]
        problems += [
            InvalidInput(argument, "must contain only targets", repr(name), did_you_mean(name, names))
            for name in unknown
        ]
    known = []
    for task, name in zip(targets, names, strict=True):
        if name in columns:
            locate = partial(columns.locate_text, name)
            target = collect(problems, read_target, task, columns[name], kinds.get(name), locate)
            if target is not None and name in errors:
                target = collect(problems, with_error_measure, target, errors[name])
            known += [] if target is None else [target]
    return known


def _read_groups(columns: Columns, name: str | None) -> NDArray[Any] | None:
    return None if name is None or name not in columns else group_labels(columns[name], "`group_column`")


def _read_split(columns: Columns, name: str | None, split: Sequence[Any]) -> Sequence[Any]:
    """Returns the row numbers of each split from the split column, or the given split if there is no such column."""
    if name is None or name not in columns:
        return split
    values = columns[name].tolist()
    split_names = [SPLIT_ALIASES.get(str(value).strip().lower()) for value in values]
    unknown = {repr(value) for value, part in zip(values, split_names, strict=True) if part is None}
    if unknown:
        found = ", ".join(sorted(unknown)[:5])
        raise InvalidInput("split_column", "must contain train, val or test in every row", found)
    rows = {wanted: np.flatnonzero([part == wanted for part in split_names]) for wanted in PARTS}
    empty = [part for part, numbers in rows.items() if not len(numbers)]
    raise_problems([InvalidInput("split_column", f"must have rows for {part}", "none") for part in empty])
    return list(rows.values())


def _too_few_rows_problems(
    columns: Columns, split: Sequence[Any] | None, groups: NDArray[Any] | None
) -> list[InvalidInput]:
    if split is None or not are_fractions(split):
        return []
    problems: list[InvalidInput] = []
    collect(problems, check_fractions, split, columns.rows, groups, (columns.place, "`group_column`"))
    return problems


@dataclass(frozen=True)
class ColumnRequest:
    """The column names that were passed to each argument of `Problem.from_table`."""

    targets: tuple[str, ...]
    features: tuple[str, ...] | None
    ignore: tuple[str, ...]
    categorical: tuple[str, ...]
    split_column: str | None
    group_column: str | None


@dataclass(frozen=True)
class Roles:
    """The feature columns of a table.

    Attributes:
        numbers: the names of the numeric columns.
        categories: the names of the one-hot encoded columns.
    """

    numbers: tuple[str, ...]
    categories: tuple[str, ...]


def find_roles(columns: Columns, request: ColumnRequest) -> tuple[Roles, list[InvalidInput]]:
    """Divides the feature columns into numeric and categorical ones, and lists all problems.

    Problems include nonexistent columns, columns with two roles, and numeric columns that contain text.
    """
    missing = missing_column_problems(columns, request)
    others = {*request.targets, *request.ignore, request.split_column, request.group_column}
    chosen = request.features if request.features is not None else [name for name in columns if name not in others]
    chosen = [*chosen, *(name for name in request.categorical if name not in others)]
    features = tuple(name for name in dict.fromkeys(chosen) if name in columns)
    roles = Roles(
        tuple(name for name in features if name not in request.categorical),
        tuple(name for name in features if name in request.categorical),
    )
    problems = task_name_problems(request.targets, "targets") + missing + _two_role_problems(request)
    if not features and not missing:
        hint = "`targets` and `ignore` together name every column"
        problems.append(InvalidInput("features", "must name at least one column", "none", hint))
    return roles, problems + _number_problems(columns, roles.numbers)


def missing_column_problems(columns: Columns, request: ColumnRequest) -> list[InvalidInput]:
    """Lists names that are not columns of the table, each with the most similar column name."""
    singles = {"split_column": request.split_column, "group_column": request.group_column}
    requested: dict[str, Sequence[str]] = {
        "targets": request.targets,
        "features": request.features or (),
        "ignore": request.ignore,
        "categorical": request.categorical,
        **{argument: [name] for argument, name in singles.items() if name is not None},
    }
    return [
        InvalidInput(argument, "must name columns of the table", repr(name), did_you_mean(name, columns))
        for argument, names in requested.items()
        for name in names
        if name not in columns
    ]


def _two_role_problems(request: ColumnRequest) -> list[InvalidInput]:
    """Lists columns with two roles. For example, a feature that is also a target would leak the label."""
    uses = {
        "features": request.features or (),
        "categorical": request.categorical,
        "ignore": request.ignore,
        "split_column": (request.split_column,),
        "group_column": (request.group_column,),
    }
    problems = [
        InvalidInput(argument, "must not name a target", repr(name))
        for argument, names in uses.items()
        for name in names
        if name in request.targets
    ]
    return problems + [
        InvalidInput("ignore", f"must not name a column that is also in `{argument}`", repr(name))
        for argument in ("features", "categorical")
        for name in uses[argument]
        if name in request.ignore
    ]


def _number_problems(columns: Columns, numbers: Sequence[str]) -> list[InvalidInput]:
    problems = [_text_problem(name, columns) for name in numbers if columns[name].dtype == object]
    for name in numbers:
        if columns[name].dtype == object:
            continue
        if columns[name].ndim != 1:
            found = f"an array of shape {list(columns[name].shape)}"
            problems.append(InvalidInput(f"`features`: column {name!r}", "must have one number per row", found))
            continue
        magnitudes, place = np.abs(columns[name]), f"`features`: column {name!r}"
        largest = np.nanmax(magnitudes, initial=0.0)
        if np.isinf(largest):
            problems.append(InvalidInput(place, "must be finite", f"inf in {int(np.isinf(magnitudes).sum())} rows"))
        elif largest > MAX_MAGNITUDE:
            problems.append(InvalidInput(place, f"must be at most {MAX_MAGNITUDE:g} in magnitude", f"{largest:g}"))
    return problems


def _text_problem(name: str, columns: Columns) -> InvalidInput:
    hint = "add it to `categorical` or to `ignore`"
    if (cells := columns.locate_text(name)) is not None:
        place = f"{columns.place}: column {name!r}"
        return InvalidInput(place, "must be numeric", cells, f"{MISSING_HINT}; if the column is not numeric, {hint}")
    texts = sorted(set(columns[name][text_cells(columns[name])].tolist()))
    found = f"text with {len(texts)} distinct values, e.g. {show_cell(texts[0])}"
    return InvalidInput(f"column {name!r}", "must be numeric", found, hint)


def _prepare_columns(columns: Columns, roles: Roles, targets: Sequence[Target]) -> Prepare:
    def prepare(train: RowNumbers) -> tuple[Table, Tensor, Sequence[str]]:
        table = Table.fitted(columns, roles.numbers, roles.categories, train, encoded_labels(targets))
        if not table.columns:
            names = ", ".join(map(repr, (*roles.numbers, *roles.categories)))
            raise InvalidInput("features", "must vary in the training rows", f"only constant columns: {names}")
        return table, table.inputs(columns), _preparation_notes(columns, roles, table)

    return prepare


def _prepare_file(
    path: str | Path,
    columns: Columns,
    request: ColumnRequest,
    targets: Sequence[Target],
    encoder: Encoder | EncoderName | None,
) -> tuple[Prepare, list[InvalidInput]]:
    """Reads the inputs from an array in another file rather than from the table's columns."""
    problems = task_name_problems(request.targets, "targets") + missing_column_problems(columns, request)
    if request.features or request.categorical:
        conflict = "cannot be used with `features_file`, which contains all inputs"
        problems.append(InvalidInput("`features` and `categorical`", conflict))
    array = collect(problems, load_array, path, "features_file")
    raw = None if array is None else collect(problems, read_inputs, array, is_custom(encoder), "features_file")
    if raw is None:
        return prepare_with_scaling(torch.zeros(0, 1), targets), problems
    if len(raw) != columns.rows:
        expected = f"must have {columns.rows} rows to match the table"
        problems.append(InvalidInput("features_file", expected, str(len(raw))))
    collect(problems, check_encoder, raw, encoder)
    return prepare_with_scaling(raw, targets, input_dtype(array, raw)), problems


def _preparation_notes(columns: Columns, roles: Roles, table: Table) -> list[str]:
    """Describes how the columns were processed, for use in reports."""
    filled = [column.name for column in table.columns if isinstance(column, NumberColumn) and column.indicator]
    kept = {column.name for column in table.columns}
    dropped = [name for name in (*roles.numbers, *roles.categories) if name not in kept]
    notes = [f"{len(table.columns)} feature columns became {len(table.names)} inputs"]
    if filled:
        count = pluralize(len(filled), "column")
        notes.append(f"missing values imputed with the median, and marked, in {count}: {', '.join(filled)}")
    if dropped:
        notes.append(f"dropped because they do not vary in train: {', '.join(dropped)}")
    if columns.unnamed:
        notes.append(f"dropped {pluralize(columns.unnamed, 'unnamed column')}")
    return notes
