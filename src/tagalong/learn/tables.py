"""Problems from tables: how columns become inputs, kept for rows that come later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import name_problems, noted, refuse

from .arrays import Prepare, assemble, choose_parts, encoder_problems, group_labels, input_dtype, scaled
from .network import Encoder
from .recipe import Recipe
from .scaling import Classes, Preparation, Scaling, load_array, read_inputs
from .splitting import PARTS, Rows, are_shares, share_problems
from .table_reading import TRUTH, Columns, Roles, Wanted, absent_problems, closest, find_roles, read_columns
from .targets import Column, Target, as_number, by_name, coded_classes, read_target, with_error
from .task import Kind, Task

MOST_LEVELS = 50
OTHER = "other or missing"


@dataclass(frozen=True)
class NumberColumn:
    """Missing values become the median, the whole is standardised; a second input says what was missing.

    Attributes:
        name: of the column.
        median: of the train rows.
        mean: of the train rows, medians filled in.
        deviation: of the same.
        indicator: whether there is the second input: only where train rows lack values.
    """

    name: str
    median: float
    mean: float
    deviation: float
    indicator: bool

    @staticmethod
    def fitted(name: str, column: Column, rows: Rows) -> NumberColumn | None:
        """From the train rows; None where they hold no two different values."""
        train = column[rows].astype(np.float64)
        missing = np.isnan(train)
        if len(np.unique(train[~missing])) < 2:
            return None
        median = float(np.median(train[~missing]))
        filled = np.where(missing, median, train)
        deviation = float(filled.std())  # of numbers too small to be squared it is 0
        return NumberColumn(name, median, float(filled.mean()), deviation, bool(missing.any())) if deviation else None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def values(self, column: Column) -> NDArray[np.float64]:
        """[rows, inputs]."""
        if column.dtype == object:
            found = next(value for value in column if value is not None)
            raise ValueError(f"`rows`: column {self.name!r} must be numbers, found {found!r}")
        if np.isinf(column).any():
            raise ValueError(f"`rows`: column {self.name!r} must be finite, found inf in {np.isinf(column).sum()} rows")
        missing = np.isnan(column)
        scaled = (np.where(missing, self.median, column) - self.mean) / self.deviation
        if np.abs(scaled).max(initial=0.0) > np.finfo(np.float32).max:
            found = float(np.abs(column[~missing]).max())
            raise ValueError(f"`rows`: column {self.name!r} must be near the rows learnt from, found {found:g}")
        return np.stack([scaled, missing], axis=1) if self.indicator else scaled[:, None]

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "number", **asdict(self)}


@dataclass(frozen=True)
class CategoryColumn:
    """One input per level that the train rows have, and one for everything else, missing values included.

    Attributes:
        name: of the column.
        levels: the most frequent ones of the train rows.
    """

    name: str
    levels: tuple[str, ...]

    @staticmethod
    def fitted(name: str, column: Column, rows: Rows) -> CategoryColumn | None:
        """From the train rows; None where they hold no level."""
        counts = Counter(level for level in as_levels(column[rows]) if level is not None)
        most = sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS]
        return CategoryColumn(name, tuple(sorted(most))) if most else None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(f"{self.name} = {level}" for level in (*self.levels, OTHER))

    def values(self, column: Column) -> NDArray[np.float64]:
        """[rows, levels]."""
        place = {_level(level): number for number, level in enumerate(self.levels)}
        chosen = [place.get(level, len(place)) if level is not None else len(place) for level in as_levels(column)]
        return np.eye(len(place) + 1)[chosen]

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "category", "name": self.name, "levels": list(self.levels)}


def as_levels(column: Column) -> list[str | None]:
    """Categories as text: whole numbers without a point, whether a file wrote 1 or 1.0.

    Cell by cell: the same cell is the same level whatever the rest of the column holds.

    Example:
        >>> as_levels(np.array([7.0, np.nan])), as_levels(np.array(["007", "A1", "True"], dtype=object))
        (['7', None], ['7', 'A1', '1'])
    """
    return [None if value is None or value != value else _level(value) for value in column.tolist()]


def _level(value: object) -> str:
    text = str(value)
    try:
        return f"{TRUTH[text.lower()] if text.lower() in TRUTH else as_number(text):.17g}"
    except ValueError:
        return text


def column_from_document(document: dict[str, Any]) -> NumberColumn | CategoryColumn:
    """What `to_document` described."""
    settings = {key: value for key, value in document.items() if key != "kind"}
    if document["kind"] == "number":
        return NumberColumn(**settings)
    return CategoryColumn(settings["name"], tuple(settings["levels"]))


@dataclass(frozen=True, eq=False)
class Table:
    """The feature columns of a table, with what was learnt from the train rows: medians, scales, levels.

    Attributes:
        columns: in the order of the inputs.
        classes: for tasks whose labels were coded 0, 1, …, the label each number stands for.

    Example:
        >>> table = Table((NumberColumn("age", 40, 40, 10, True), CategoryColumn("sex", ("f", "m"))))
        >>> table.inputs([{"age": "60", "sex": "m"}, {"age": "", "sex": "x"}])
        tensor([[2., 0., 0., 1., 0.],
                [0., 1., 0., 0., 1.]])
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        columns: Columns, numbers: Sequence[str], categories: Sequence[str], rows: Rows, classes: Classes
    ) -> Table:
        """From the train rows; columns that say nothing there are left out."""
        made: list[NumberColumn | CategoryColumn | None] = [
            NumberColumn.fitted(name, columns[name], rows) for name in numbers
        ]
        made += [CategoryColumn.fitted(name, columns[name], rows) for name in categories]
        return Table(tuple(column for column in made if column is not None), classes)

    @property
    def names(self) -> tuple[str, ...]:
        """What each input is."""
        return tuple(name for column in self.columns for name in column.names)

    def inputs(self, rows: Any) -> Tensor:
        """Inputs of a network; columns that are not features may be there or not.

        Args:
            rows: the path of a CSV file, a DataFrame, columns by name, or a list of rows by name. Missing numbers
                become the median, unknown categories "other".

        Raises:
            ValueError: feature columns are absent, or hold text where numbers were.
        """
        columns = read_columns(rows, "`rows`", keep_empty=True)
        absent = [column.name for column in self.columns if column.name not in columns]
        if absent:
            raise ValueError(f"`rows` must have the columns {', '.join(map(repr, absent))}, found none of that name")
        return torch.as_tensor(
            np.concatenate([column.values(columns[column.name]) for column in self.columns], axis=1),
            dtype=torch.float32,
        )

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        classes = {task: list(labels) for task, labels in self.classes.items()}
        return {"kind": "table", "columns": [column.to_document() for column in self.columns], "classes": classes}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Table:
        """The table that `to_document` described."""
        return Table(tuple(map(column_from_document, document["columns"])), document["classes"])


def read_preparation(document: Mapping[str, Any]) -> Preparation:
    """A `Scaling` or a `Table` from its document."""
    kinds: dict[str, Any] = {"scaling": Scaling, "table": Table}
    if document.get("kind") not in kinds:
        raise ValueError(f"`document` must be of kind 'scaling' or 'table', found {document.get('kind')!r}")
    prepared: Preparation = kinds[document["kind"]].from_document(document)
    return prepared


PART_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


def fields_from_table(
    path: Any,
    targets: Sequence[Task | str],
    *,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    kinds: Mapping[str, Kind] | None = None,
    errors: Mapping[str, str] | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    features_file: str | Path | None = None,
    name: str | None = None,
    recipe: Recipe | None = None,
    encoder: Encoder | None = None,
    split: Sequence[float] | Sequence[Any] = (0.7, 0.1, 0.2),
    seed: int = 0,
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
    return share_problems(split, columns.rows, groups, ("`path`", "`group_column`"))


def _tabled(columns: Columns, roles: Roles, targets: Sequence[Target]) -> Prepare:
    def prepare(train: Rows) -> tuple[Table, Tensor, Sequence[str]]:
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
    return scaled(raw, targets, input_dtype(array, raw)), problems + encoder_problems(raw, encoder)


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
