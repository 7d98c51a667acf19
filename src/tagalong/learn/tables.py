"""Creates problems from tables, based on the role of each column."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import (
    InvalidInput,
    as_tuple,
    collect,
    did_you_mean,
    first_few,
    raise_problems,
    task_name_problems,
)
from tagalong.tabular import TableSource

from .arrays import Source, check_encoder, check_settings, is_custom
from .column_types import (
    MAX_MAGNITUDE,
    MISSING_HINT,
    as_levels,
    date_format,
    group_labels,
    read_columns,
    typing_errors,
)
from .network import Encoder, EncoderName
from .preparation import NumberColumn, Preparation, Scaling, Table, load_array, read_inputs
from .recipe import Recipe
from .splitting import PARTS, are_fractions, choose_split, default_fractions
from .table_networks import default_encoder
from .targets import read_targets, task_names
from .task import Kind, Task

if TYPE_CHECKING:
    import pandas as pd

SPLIT_ALIASES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
ROWS_PER_LEVEL = 5  # on average, of a text column that is taken for categories
NEARLY_ALL = 0.99
MIN_IDS = 30  # with fewer rows, any integers may be distinct
ROWS_PER_ID = 2  # on average, of an ID that groups rows
SEQUENCE = 1.2  # the range of integer IDs, relative to their number
# Not "bmi_index", which is a measurement.
ID_NAME = re.compile(
    r"(?:(?:^|[^A-Za-z])(?i:id|uuid|guid)|[a-z](?:ID|Id|UUID|Uuid|GUID|Guid)|^(?i:(?:row|record|sample)?[\W_]*index))$"
)
LEFT_OUT = {
    "id": "left out, since they number the rows like IDs",
    "text": "left out, since they contain free text or IDs",
}


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
    split: Sequence[float] | Sequence[Any] | None,
    seed: int,
    unlabelled: TableSource | None,
    clip: bool,
    squash: bool,
) -> dict[str, Any]:
    """Returns the fields of a problem; see `Problem.from_table`."""
    check_settings((1, 1, 1) if split is None else split, encoder)
    problems: list[InvalidInput] = []
    lists = {"targets": targets, "features": features or (), "ignore": ignore, "categorical": categorical}
    uses = {
        argument: collect(problems, as_tuple, names, argument, "names", "['age']") for argument, names in lists.items()
    }
    raise_problems(problems)
    uses["targets"] = task_names(targets)
    uses["split_column"] = () if split_column is None else (split_column,)
    uses["group_column"] = () if group_column is None else (group_column,)

    # Read everything that can be read, so that one error lists all problems.
    columns = read_columns(data, "data")
    problems = task_name_problems(uses["targets"], "targets") + _use_problems(columns, uses)
    task_targets = read_targets(targets, columns, problems, kinds or {}, errors or {})
    groups = None
    if group_column in columns:
        groups = collect(problems, group_labels, columns[group_column], "`group_column`")
    if split_column in columns:
        split = collect(problems, _read_split, columns[split_column])
    elif split is None:
        split = default_fractions(len(columns))
    inputs: Any = columns
    roles: dict[str, str] = {}
    warnings: list[str] = []
    fit: Callable[..., Preparation] = Scaling.fitted
    if features_file is None:
        roles = column_roles(columns, uses, features is None, problems, warnings)
        used = {name: role for name, role in roles.items() if role not in LEFT_OUT}
        fit = partial(Table.fitted, roles=used, squash=squash)
        inputs = columns[list(used)]
    else:
        if uses["features"] or uses["categorical"]:
            conflict = "cannot be used with `features_file`, which contains all inputs"
            problems.append(InvalidInput("`features` and `categorical`", conflict))
        inputs = collect(problems, _read_file, features_file, encoder, len(columns))
    raise_problems(problems)

    source = Source(
        tuple(task_targets),
        inputs,
        fit,
        groups=groups,
        encoder=default_encoder(target.task for target in task_targets) if encoder is None else encoder,
        recipe=recipe,
        unlabelled=unlabelled,
        clip=clip,
        seed=seed if are_fractions(split) else None,
    )
    fields = source.fields(choose_split(task_targets, len(columns), split, groups, seed))
    if name is None:
        name = Path(data).name.split(".")[0] if isinstance(data, (str, os.PathLike)) else "table"
    notes = _preparation_notes(columns, roles, fields["table"]) if roles else []
    if groups is None and are_fractions(split):
        notes += _random_split_notes(columns.drop(columns=list(uses["targets"])), roles)
    return source.named_fields(name, fields, notes, warnings)


def _use_problems(columns: pd.DataFrame, uses: Mapping[str, Sequence[str]]) -> list[InvalidInput]:
    """Lists names that are not columns, and columns with two uses: a feature that is a target would leak the label."""
    problems = []
    for argument, names in uses.items():
        for name in names:
            if name not in columns:
                hint = did_you_mean(name, columns)
                problems.append(InvalidInput(argument, "must name columns of the table", repr(name), hint))
            elif argument != "targets" and name in uses["targets"]:
                problems.append(InvalidInput(argument, "must not name a target", repr(name)))
            elif argument in ("features", "categorical") and name in uses["ignore"]:
                problems.append(InvalidInput(argument, "must not name an ignored column", repr(name)))
    return problems


def _read_split(column: pd.Series) -> list[NDArray[np.int64]]:
    parts = column.astype(str).str.strip().str.lower().map(SPLIT_ALIASES)
    if parts.isna().any():
        found = ", ".join(map(repr, column[parts.isna()].unique()[:5]))
        raise InvalidInput("split_column", "must contain train, val or test in every row", found)
    if absent := [part for part in PARTS if part not in set(parts)]:
        raise InvalidInput("split_column", f"must have rows for {' and '.join(absent)}", "none")
    return [np.flatnonzero(parts == part) for part in PARTS]


def _read_file(path: str | Path, encoder: Encoder | EncoderName | None, rows: int) -> Tensor:
    raw = read_inputs(load_array(path, "features_file"), is_custom(encoder), "features_file")
    if len(raw) != rows:
        raise InvalidInput("features_file", f"must have {rows} rows to match the table", str(len(raw)))
    check_encoder(raw, encoder)
    return raw


def column_roles(
    columns: pd.DataFrame,
    uses: Mapping[str, Sequence[str]],
    is_automatic: bool,
    problems: list[InvalidInput],
    warnings: list[str],
) -> dict[str, str]:
    """Returns the role of each feature: "number", "category", a format of dates, or "id" or "text" if it is left out.

    Args:
        columns: the columns of the table.
        uses: the columns that each argument names.
        is_automatic: whether all columns without another use are features, unless they look like IDs or free text.
        problems: receives what is wrong with columns.
        warnings: receives what is suspicious about features.
    """
    taken = {name for argument, names in uses.items() if argument not in ("features", "categorical") for name in names}
    candidates = [name for name in columns if name not in taken] if is_automatic else uses["features"]
    distinct = columns.drop_duplicates()  # since IDs of repeated rows are repeated
    roles = {}
    for name in dict.fromkeys([*candidates, *uses["categorical"]]):
        if name not in columns:
            continue
        column, is_id = columns[name], _looks_like_id(distinct[name])
        where = f"{columns.attrs['place']}: column {name!r}"
        if name in uses["categorical"]:
            role = "category"
        elif column.dtype != object:
            role = "id" if is_id and is_automatic else "number"
            if (largest := column.abs().max()) > MAX_MAGNITUDE:
                problems.append(InvalidInput(where, f"must be finite and at most {MAX_MAGNITUDE:g}", f"{largest:g}"))
        else:
            role = date_format(column) or "category"
            if cells := typing_errors(column):
                hint = f"{MISSING_HINT}; if the column is not numeric, add it to `categorical` or to `ignore`"
                problems.append(InvalidInput(where, "must be numeric", cells, hint))
            elif role == "category" and is_automatic and as_levels(column).nunique() * ROWS_PER_LEVEL > column.count():
                role = "text"
        if is_id and role in ("number", "category"):
            warnings.append(f"feature {name!r} has a different value in almost every row, like an ID")
        roles[name] = role
    if LEFT_OUT.keys() >= set(roles.values()):
        found = f"only columns that look like IDs or free text: {first_few(list(roles), 20)}" if roles else "none"
        problems.append(
            InvalidInput("features", "must name at least one column that is not a target or ignored", found)
        )
    return roles


def _looks_like_id(column: pd.Series) -> bool:
    """Returns whether rows have texts of their own, or distinct integers that are consecutive or named like an ID."""
    present = column.dropna()
    if present.nunique() < max(MIN_IDS, NEARLY_ALL * len(column)):
        return False
    if column.dtype == object:
        return True
    if (present % 1 != 0).any() or not present.is_unique:
        return False
    return bool(np.ptp(present) + 1 <= SEQUENCE * len(present)) or ID_NAME.search(str(column.name)) is not None


def _random_split_notes(columns: pd.DataFrame, roles: Mapping[str, str]) -> list[str]:
    """Names dates and shared IDs, since rows that are close or belong together make a random split too optimistic."""
    notes = []
    dates = [name for name, role in roles.items() if role not in ("number", "category", *LEFT_OUT)]
    if dates:
        notes.append(f"split at random; if later rows are to be predicted, split by time ({first_few(dates, 5)})")
    ids = [name for name in columns if ID_NAME.search(str(name))]
    shared = [name for name in ids if columns[name].nunique() * ROWS_PER_ID <= columns[name].count()]
    if shared:
        notes.append(f"split at random; if rows with the same ID are alike, use a group column: {first_few(shared, 5)}")
    return notes


def _preparation_notes(columns: pd.DataFrame, roles: Mapping[str, str], table: Table) -> list[str]:
    kept = {column.name: column for column in table.columns}
    named: dict[str, list[str]] = {}
    for name, role in roles.items():
        column = kept.get(name)
        if role in LEFT_OUT:
            named.setdefault(LEFT_OUT[role], []).append(name)
        elif column is None:
            named.setdefault("dropped, since they do not vary in train", []).append(name)
        elif role == "category":
            named.setdefault("read as categories", []).append(name)
        elif role != "number":
            named.setdefault("read as dates, counted in days", []).append(f"{name} ({role})")
        if isinstance(column, NumberColumn) and column.indicator:
            named.setdefault("missing values imputed with the median, and marked", []).append(name)
    notes = [f"{len(table.columns)} feature columns became {len(table.names)} inputs"]
    notes += [f"{what}: {first_few(names, 20)}" for what, names in named.items()]
    if columns.attrs["unnamed"]:
        notes.append(f"unnamed columns that were dropped: {columns.attrs['unnamed']}")
    return notes
