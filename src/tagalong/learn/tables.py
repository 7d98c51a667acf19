"""Problems from tables: what each column is for, and the fields of the problem that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import closest, name_problems, noted, refuse

from .arrays import Prepare, assemble, check_encoder, input_dtype, scaled
from .network import Encoder
from .preparation import NumberColumn, Table, load_array, read_inputs
from .recipe import Recipe
from .splitting import PARTS, RowNumbers, are_shares, check_shares, choose_parts, group_labels
from .table_reading import LARGEST, Column, Columns, read_columns
from .targets import Target, by_name, coded_classes, read_target, with_error
from .task import Kind, Task

PART_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


def fields_from_table(
    path: Any,
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
    encoder: Encoder | None,
    split: Sequence[float] | Sequence[Any],
    seed: int,
) -> dict[str, Any]:
    """The fields of a problem; see `Problem.from_csv`."""
    columns = read_columns(path)
    wanted = Wanted(
        by_name(_several(targets, "targets")),
        None if features is None else _several(features, "features"),
        _several(ignore, "ignore"),
        _several(categorical, "categorical"),
        split_column,
        group_column,
    )
    known, problems = _labels(columns, targets, kinds or {}, errors or {})
    groups = noted(problems, _groups, columns, group_column)
    split = noted(problems, _split, columns, split_column, split)
    few = _too_few(columns, split, groups)
    if features_file is None:
        roles, more = find_roles(columns, wanted)
        prepare = _tabled(columns, roles, known)
    else:
        prepare, more = _from_file(Path(features_file), columns, wanted, known, encoder)
    refuse((few or problems) + more)
    parts = choose_parts(known, columns.rows, split, groups, seed)
    title = name or (Path(path).name.split(".")[0] if isinstance(path, (str, Path)) else "table")
    return assemble(title, known, prepare, parts, groups=groups, encoder=encoder, recipe=recipe)


def _several(names: Sequence[Any], argument: str) -> tuple[Any, ...]:
    if isinstance(names, str):
        raise ValueError(f"`{argument}` must be a list of names, found the string {names!r}; write [{names!r}]")
    return tuple(names)


def _labels(
    columns: Columns, targets: Sequence[Task | str], kinds: Mapping[str, Kind], errors: Mapping[str, str]
) -> tuple[list[Target], list[str]]:
    """The labels of every task whose column is there, and what is wrong with them."""
    known, problems = [], []
    for argument, settings in (("kinds", kinds), ("errors", errors)):
        unknown = [name for name in settings if name not in by_name(targets)]
        problems += [f"`{argument}` must name targets, found {n!r}; {closest(n, by_name(targets))}" for n in unknown]
    for task, name in zip(targets, by_name(targets), strict=True):
        read = read_target(task, columns[name], kinds.get(name)) if name in columns else []
        if isinstance(read, list):
            problems += read
            continue
        if name in errors:
            read = noted(problems, with_error, read, errors[name])
        known += [] if read is None else [read]
    return known, problems


def _groups(columns: Columns, name: str | None) -> NDArray[Any] | None:
    return None if name is None or name not in columns else group_labels(columns[name], "`group_column`")


def _split(columns: Columns, name: str | None, split: Sequence[Any]) -> Sequence[Any]:
    """Row numbers from a column that names the parts, or what was given."""
    if name is None or name not in columns:
        return split
    parts = [PART_NAMES.get(str(value).strip().lower()) for value in columns[name].tolist()]
    unknown = {repr(value) for value, part in zip(columns[name].tolist(), parts, strict=True) if part is None}
    if unknown:
        found = ", ".join(sorted(unknown)[:5])
        raise ValueError(f"`split_column` must hold train, val or test in every row, found {found}")
    rows = [np.flatnonzero([part == wanted for part in parts]) for wanted in PARTS]
    refuse(
        [f"`split_column` must have rows for {p}, found none" for p, r in zip(PARTS, rows, strict=True) if not len(r)]
    )
    return rows


def _too_few(columns: Columns, split: Sequence[Any] | None, groups: NDArray[Any] | None) -> list[str]:
    if split is None or not are_shares(split):
        return []
    problems: list[str] = []
    noted(problems, check_shares, split, columns.rows, groups, ("`path`", "`group_column`"))
    return problems


@dataclass(frozen=True)
class Wanted:
    """What was asked for, by the argument's name: see `Problem.from_csv`."""

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
        numbers: columns that are numbers.
        categories: columns that are one-hot.
    """

    numbers: tuple[str, ...]
    categories: tuple[str, ...]


def find_roles(columns: Columns, wanted: Wanted) -> tuple[Roles, list[str]]:
    """Sorts the columns into numbers and categories; with what is wrong.

    Wrong are columns that are not there, that have two roles, or are text that nothing settles.
    """
    absent = absent_problems(columns, wanted)
    apart = {*wanted.targets, *wanted.ignore, wanted.split_column, wanted.group_column}
    chosen = wanted.features if wanted.features is not None else [name for name in columns if name not in apart]
    chosen = [*chosen, *(name for name in wanted.categorical if name not in apart)]
    features = tuple(name for name in dict.fromkeys(chosen) if name in columns)
    roles = Roles(
        tuple(name for name in features if name not in wanted.categorical),
        tuple(name for name in features if name in wanted.categorical),
    )
    problems = name_problems(wanted.targets, "`targets`") + absent + _doubled(wanted)
    if not features and not absent:
        problems.append("`features` must name a column, found none left beside `targets` and `ignore`")
    return roles, problems + _not_numbers(columns, roles.numbers)


def absent_problems(columns: Columns, wanted: Wanted) -> list[str]:
    """Names that the table lacks, with what may have been meant."""
    singles = {"split_column": wanted.split_column, "group_column": wanted.group_column}
    asked: dict[str, Sequence[str]] = {
        "targets": wanted.targets,
        "features": wanted.features or (),
        "ignore": wanted.ignore,
        "categorical": wanted.categorical,
        **{argument: [name] for argument, name in singles.items() if name is not None},
    }
    return [
        f"`{argument}` must name columns of the table, found {name!r}; {closest(name, columns)}"
        for argument, names in asked.items()
        for name in names
        if name not in columns
    ]


def _doubled(wanted: Wanted) -> list[str]:
    """Targets among the features would be given away; the others make no sense."""
    uses = {
        "features": wanted.features or (),
        "categorical": wanted.categorical,
        "ignore": wanted.ignore,
        "split_column": (wanted.split_column,),
        "group_column": (wanted.group_column,),
    }
    problems = [
        f"`{argument}` must not name a target, found {name!r}"
        for argument, names in uses.items()
        for name in names
        if name in wanted.targets
    ]
    return problems + [
        f"`ignore` must not name what `{argument}` names, found {name!r}"
        for argument in ("features", "categorical")
        for name in uses[argument]
        if name in wanted.ignore
    ]


def _not_numbers(columns: Columns, numbers: Sequence[str]) -> list[str]:
    problems = [_unsettled(name, columns[name]) for name in numbers if columns[name].dtype == object]
    sizes = {name: np.abs(columns[name]) for name in numbers if columns[name].dtype != object}
    problems += [
        f"`features`: column {name!r} must be finite, found inf in {int(np.isinf(size).sum())} rows"
        for name, size in sizes.items()
        if np.isinf(size).any()
    ]
    return problems + [
        f"`features`: column {name!r} must be at most {LARGEST:g} in size, found {np.nanmax(size):g}"
        for name, size in sizes.items()
        if LARGEST < np.nanmax(size, initial=0.0) < np.inf
    ]


def _unsettled(name: str, column: Column) -> str:
    levels = sorted({value for value in column if value is not None})
    found = f"{len(levels)} different texts such as {levels[0]!r}"
    return f"column {name!r} must be numbers, found {found}; add it to `categorical` or to `ignore`"


def _tabled(columns: Columns, roles: Roles, targets: Sequence[Target]) -> Prepare:
    def prepare(train: RowNumbers) -> tuple[Table, Tensor, Sequence[str]]:
        table = Table.fitted(columns, roles.numbers, roles.categories, train, coded_classes(targets))
        found = ", ".join(map(repr, (*roles.numbers, *roles.categories)))
        refuse([] if table.columns else [f"`features` must vary in train, found one value in each of {found}"])
        return table, table.inputs(columns), _notes(columns, roles, table)

    return prepare


def _from_file(
    path: Path, columns: Columns, wanted: Wanted, targets: Sequence[Target], encoder: Encoder | None
) -> tuple[Prepare, list[str]]:
    """Inputs from an array beside the table; its other columns do not matter."""
    problems = name_problems(wanted.targets, "`targets`") + absent_problems(columns, wanted)
    if wanted.features or wanted.categorical:
        problems.append("`features` and `categorical` must not be given with `features_file`, which holds all inputs")
    array = noted(problems, load_array, path, "`features_file`")
    raw = None if array is None else noted(problems, read_inputs, array, encoder is not None, "`features_file`")
    if raw is None:
        return scaled(torch.zeros(0, 1), targets), problems
    if len(raw) != columns.rows:
        problems.append(f"`features_file` must have {columns.rows} rows as the table has, found {len(raw)}")
    noted(problems, check_encoder, raw, encoder)
    return scaled(raw, targets, input_dtype(array, raw)), problems


def _notes(columns: Columns, roles: Roles, table: Table) -> list[str]:
    """What was done to the columns, for the report."""
    filled = [column.name for column in table.columns if isinstance(column, NumberColumn) and column.indicator]
    kept = {column.name for column in table.columns}
    dropped = [name for name in (*roles.numbers, *roles.categories) if name not in kept]
    counted = [name for name in roles.numbers if _counts_rows(columns[name])]
    notes = [f"{len(table.columns)} feature columns became {len(table.names)} inputs"]
    if filled:
        notes.append(f"missing values filled with the median, and marked, in {len(filled)}: {', '.join(filled)}")
    if dropped:
        notes.append(f"left out, since they do not vary in train: {', '.join(dropped)}")
    if counted:
        notes.append(f"these features seem to number the rows; consider `ignore`: {', '.join(counted)}")
    if columns.nameless:
        notes.append(f"left out {columns.nameless} columns without a name")
    return notes


def _counts_rows(column: NDArray[np.float64]) -> bool:
    return bool((np.abs(np.diff(column)) == 1).all()) and len(column) > 2
