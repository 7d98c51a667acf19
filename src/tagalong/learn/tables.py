"""Creates problems from tables, based on the role of each column."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

from .arrays import check_encoder, is_custom, scaling_of, setting_problems
from .column_types import (
    MAX_MAGNITUDE,
    MISSING_HINT,
    MOSTLY_NUMBERS,
    as_level,
    date_format,
    group_labels,
    read_columns,
    show_cell,
    typing_errors,
)
from .network import Encoder, EncoderName
from .preparation import NumberColumn, Preparation, Table, load_array, read_inputs
from .recipe import Recipe
from .source import Source
from .splitting import PARTS, are_fractions, check_fractions, choose_split, default_fractions
from .table_networks import default_encoder
from .table_warnings import table_warnings
from .targets import Target, read_target, task_names
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
SEQUENCE = 1.2  # the range of integer IDs, relative to their number
# Not "bmi_index", which is a measurement.
ID_NAME = re.compile(
    r"(?:(?:^|[^A-Za-z])(?i:id|uuid|guid)|[a-z](?:ID|Id|UUID|Uuid|GUID|Guid)|^(?i:(?:row|record|sample)?[\W_]*index))$"
)
AMOUNT = re.compile(r"[$€£¥]?\s*[-+]?\d[\d.,\s]*(?:[$€£¥%]|[A-Za-z]{1,3})?")


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
    # Check the types of arguments before the table is read, which may take long.
    problems = setting_problems((1, 1, 1) if split is None else split, encoder)
    lists = {"targets": targets, "features": features or (), "ignore": ignore, "categorical": categorical}
    tuples = {
        argument: collect(problems, as_tuple, names, argument, "names", "['age']") for argument, names in lists.items()
    }
    raise_problems(problems)

    columns = read_columns(data, "data")
    uses = dict(tuples)
    uses["split_column"] = () if split_column is None else (split_column,)
    uses["group_column"] = () if group_column is None else (group_column,)
    uses["targets"] = task_names(tuples["targets"])
    problems = task_name_problems(uses["targets"], "targets") + _role_problems(columns, uses)
    label_problems: list[InvalidInput] = []
    task_targets = _read_labels(columns, tuples["targets"], kinds or {}, errors or {}, label_problems)
    groups = None
    if group_column in columns:
        groups = collect(problems, group_labels, columns[group_column], "`group_column`")
    if split_column in columns:
        split = collect(problems, _read_split, columns[split_column])
    elif split is None:
        split = default_fractions(len(columns))
    if split is not None and are_fractions(split):
        before, place = len(problems), columns.attrs["place"]
        collect(problems, check_fractions, split, len(columns), groups, (place, "`group_column`"))
        if len(problems) > before:  # with too few rows, every task would report the same problem again
            label_problems = []
    problems += label_problems

    roles, inputs = Features(), columns
    fit: Callable[..., Preparation]
    if features_file is None:
        roles = find_features(columns, uses, features is None)
        problems += roles.problems
        fit = partial(
            Table.fitted, numbers=roles.numbers, dates=roles.dates, categories=roles.categories, squash=squash
        )
    else:
        if uses["features"] or uses["categorical"]:
            conflict = "cannot be used with `features_file`, which contains all inputs"
            problems.append(InvalidInput("`features` and `categorical`", conflict))
        inputs = collect(problems, _read_file, features_file, encoder, len(columns))
    raise_problems(problems)
    if features_file is not None:
        fit = scaling_of(None, inputs)
    row_split = choose_split(task_targets, len(columns), split, groups, seed)

    source = Source(
        tuple(task_targets),
        inputs,
        fit,
        groups=groups,
        encoder=default_encoder(target.task for target in task_targets) if encoder is None else encoder,
        recipe=recipe,
        unlabelled=unlabelled,
        clip=clip,
        seed=seed,
        fixed_split=not are_fractions(split),
    )
    if name is None:
        name = Path(data).name.split(".")[0] if isinstance(data, (str, os.PathLike)) else "table"
    fields = source.fields(row_split)
    raw, notes, names = inputs, [], []
    if isinstance(table := fields["table"], Table):
        raw, names = table.read_columns(columns), [column.name for column in table.columns]
        notes = _preparation_notes(columns, roles, table)
    warnings = [*roles.warnings, *table_warnings(names, raw, task_targets, row_split, groups)]
    return source.named_fields(name, fields, notes, warnings)


def _role_problems(columns: pd.DataFrame, uses: Mapping[str, Sequence[str]]) -> list[InvalidInput]:
    """Lists names that are not columns, and columns with two roles: a feature that is a target would leak the label."""
    problems = []
    for argument, names in uses.items():
        for name in names:
            if name not in columns:
                hint = did_you_mean(name, columns)
                problems.append(InvalidInput(argument, "must name columns of the table", repr(name), hint))
            elif argument != "targets" and name in uses["targets"]:
                problems.append(InvalidInput(argument, "must not name a target", repr(name)))
            elif argument in ("features", "categorical") and name in uses["ignore"]:
                expected = f"must not name a column that is also in `{argument}`"
                problems.append(InvalidInput("ignore", expected, repr(name)))
    return problems


def _read_labels(
    columns: pd.DataFrame,
    tasks: Sequence[Task | str],
    kinds: Mapping[str, Kind],
    errors: Mapping[str, str],
    problems: list[InvalidInput],
) -> list[Target]:
    """Reads the labels of every task that has a column. Appends any problems found to `problems`."""
    names = task_names(tasks)
    for argument, settings in (("kinds", kinds), ("errors", errors)):
        for unknown in set(settings).difference(names):
            hint = did_you_mean(unknown, names)
            problems.append(InvalidInput(argument, "must contain only targets", repr(unknown), hint))
    targets = []
    for task, name in zip(tasks, names, strict=True):
        if name not in columns:
            continue
        target = collect(problems, read_target, task, columns[name], kinds.get(name))
        if target is not None and name in errors:
            target = collect(problems, _with_error, target, errors[name])
        targets.append(target)
    return targets


def _with_error(target: Target, error: str) -> Target:
    return replace(target, task=replace(target.task, error=error))


def _read_split(column: pd.Series) -> list[NDArray[np.int64]]:
    """Returns the row numbers of each split from the split column."""
    parts = column.astype(str).str.strip().str.lower().map(SPLIT_ALIASES)
    if parts.isna().any():
        found = ", ".join(map(repr, column[parts.isna()].unique()[:5]))
        raise InvalidInput("split_column", "must contain train, val or test in every row", found)
    rows = [np.flatnonzero(parts == part) for part in PARTS]
    empty = [part for part, own in zip(PARTS, rows, strict=True) if not len(own)]
    raise_problems([InvalidInput("split_column", f"must have rows for {part}", "none") for part in empty])
    return rows


def _read_file(path: str | Path, encoder: Encoder | EncoderName | None, rows: int) -> Tensor:
    array = load_array(path, "features_file")
    raw = read_inputs(array, is_custom(encoder), "features_file")
    if len(raw) != rows:
        raise InvalidInput("features_file", f"must have {rows} rows to match the table", str(len(raw)))
    check_encoder(raw, encoder)
    return raw


@dataclass
class Features:
    """The feature columns of a table by role, and what is to be said about them.

    Attributes:
        numbers: the names of the columns with numbers or dates.
        dates: the format of each column of dates.
        categories: the names of the columns with categories.
        ids: the names of columns that are left out, since they number the rows.
        texts: the names of columns that are left out, since they have too many different texts.
        warnings: what is suspicious about columns that were not left out.
        problems: what is wrong with columns.
    """

    numbers: list[str] = field(default_factory=list)
    dates: dict[str, str] = field(default_factory=dict)
    categories: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[InvalidInput] = field(default_factory=list)

    def add_number(self, column: pd.Series, distinct: pd.Series, is_automatic: bool) -> None:
        """Adds a column of numbers, given its cells in distinct rows, unless it numbers the rows."""
        name, largest = str(column.name), column.abs().max()
        if largest > MAX_MAGNITUDE:
            expected = f"must be finite and at most {MAX_MAGNITUDE:g}"
            self.problems.append(InvalidInput(f"column {name!r}", expected, f"{largest:g}"))
        is_id = _numbers_the_rows(distinct)
        if is_id and is_automatic:
            self.ids.append(name)
            return
        if is_id:
            self.warnings.append(f"feature {name!r} numbers the rows, like an ID")
        self.numbers.append(name)

    def add_text(self, column: pd.Series, place: str, is_automatic: bool) -> None:
        """Adds a column of text as dates or categories, unless it has too many different texts."""
        name, present = str(column.name), column.dropna()
        if (cells := typing_errors(column)) is not None:
            hint = f"{MISSING_HINT}; if the column is not numeric, add it to `categorical` or to `ignore`"
            self.problems.append(InvalidInput(f"{place}: column {name!r}", "must be numeric", cells, hint))
            return
        if (dates := date_format(column)) is not None:
            self.numbers.append(name)
            self.dates[name] = dates
            return
        if present.map(lambda cell: AMOUNT.fullmatch(cell) is not None).mean() > MOSTLY_NUMBERS:
            advice = "remove signs and units to use it as a number"
            self.warnings.append(f"column {name!r} contains text such as {show_cell(present.iloc[0])}; {advice}")
        if is_automatic and present.map(as_level).nunique() * ROWS_PER_LEVEL > len(present):
            self.texts.append(name)
        else:
            self.categories.append(name)


def find_features(columns: pd.DataFrame, uses: Mapping[str, Sequence[str]], is_automatic: bool) -> Features:
    """Finds the role of each feature: a number, a date or a category.

    If `is_automatic`, columns without another role are features, unless they look like IDs or free text.
    """
    taken = {name for argument, names in uses.items() if argument not in ("features", "categorical") for name in names}
    candidates = [name for name in columns if name not in taken] if is_automatic else uses["features"]
    names = [name for name in dict.fromkeys([*candidates, *uses["categorical"]]) if name in columns]
    distinct = columns.drop_duplicates()  # since IDs of repeated rows are repeated
    features = Features()
    for name in names:
        if name in uses["categorical"]:
            features.categories.append(name)
            if columns[name].dtype == object and distinct[name].nunique() > max(MIN_IDS, NEARLY_ALL * len(distinct)):
                features.warnings.append(f"feature {name!r} has a different value in almost every row, like an ID")
        elif columns[name].dtype == object:
            features.add_text(columns[name], columns.attrs["place"], is_automatic)
        else:
            features.add_number(columns[name], distinct[name], is_automatic)
    if not names:
        hint = "`targets` and `ignore` together name every column"
        features.problems.append(InvalidInput("features", "must name at least one column", "none", hint))
    elif not (features.numbers or features.categories or features.problems):
        found = f"only columns that look like IDs or free text: {first_few(features.ids + features.texts, 20)}"
        features.problems.append(InvalidInput("features", "must name at least one column", found))
    return features


def _numbers_the_rows(column: pd.Series) -> bool:
    """Returns whether a column contains distinct integers that are consecutive or named like an ID."""
    values = column.dropna().to_numpy()
    if len(values) < max(MIN_IDS, NEARLY_ALL * len(column)) or not (values == np.round(values)).all():
        return False
    if len(np.unique(values)) < len(values):
        return False
    return bool(np.ptp(values) + 1 <= SEQUENCE * len(values)) or ID_NAME.search(str(column.name)) is not None


def _preparation_notes(columns: pd.DataFrame, features: Features, table: Table) -> list[str]:
    """Describes how the columns were processed, for use in reports."""
    kept = {column.name for column in table.columns}
    listed = {
        "left out, since they number the rows like IDs": features.ids,
        "left out, since they contain free text or IDs": features.texts,
        "read as dates, counted in days": [f"{name} ({dates})" for name, dates in features.dates.items()],
        "read as categories": features.categories,
        "missing values imputed with the median, and marked": [
            column.name for column in table.columns if isinstance(column, NumberColumn) and column.indicator
        ],
        "dropped, since they do not vary in train": [
            name for name in (*features.numbers, *features.categories) if name not in kept
        ],
    }
    notes = [f"{len(table.columns)} feature columns became {len(table.names)} inputs"]
    notes += [f"{what}: {first_few(names, 20)}" for what, names in listed.items() if names]
    if columns.attrs["unnamed"]:
        notes.append(f"unnamed columns that were dropped: {columns.attrs['unnamed']}")
    return notes
