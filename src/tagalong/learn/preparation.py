"""How raw rows become inputs of a network; kept with the networks, so that new rows are treated like train rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput
from tagalong.tabular import TableSource, as_number

from .column_types import LARGEST, TRUTH, Column, Columns, as_column, read_columns
from .rows import ROWS_AT_ONCE
from .splitting import RowNumbers
from .targets import Label

MOST_LEVELS = 50
OTHER = "other or missing"
Classes = Mapping[str, Sequence[Label]]


class Preparation(Protocol):
    """How raw rows become inputs; what `Problem.table` holds.

    Attributes:
        classes: for tasks whose labels were coded 0, 1, …, the label each number stands for.
    """

    @property
    def classes(self) -> Classes: ...

    def inputs(self, rows: Any) -> Tensor:
        """Inputs of a network from raw rows."""

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON; `read_preparation` reads them back."""


def read_preparation(document: Mapping[str, Any]) -> Preparation:
    """Returns the `Scaling` or the `Table` that a document describes."""
    kinds: dict[str, Any] = {"scaling": Scaling, "table": Table}
    if document.get("kind") not in kinds:
        raise InvalidInput("document", "must be of kind 'scaling' or 'table'", repr(document.get("kind")))
    prepared: Preparation = kinds[document["kind"]].from_document(document)
    return prepared


@dataclass(frozen=True, eq=False)
class Scaling:
    """Inputs that come as arrays: each feature minus its mean, over its deviation, both from the train rows.

    Attributes:
        shape: of one row.
        dtype: of the inputs, as torch names it.
        mean: of each feature; None where inputs are left as they are.
        deviation: of each feature; 1 where it is constant.
        classes: see `Preparation`.

    Example:
        >>> Scaling((1,), "float32", [10.0], [2.0]).inputs([[14.0]])
        tensor([[2.]])
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    mean: Sequence[float] | None = None
    deviation: Sequence[float] | None = None
    classes: Classes = field(default_factory=dict)

    @staticmethod
    def fitted(
        inputs: Tensor, rows: RowNumbers, standardize: bool, classes: Classes, dtype: torch.dtype = torch.float32
    ) -> Scaling:
        """Fits the scaling to some rows of the inputs, which become `dtype`."""
        shape, name = tuple(inputs.shape[1:]), str(dtype).removeprefix("torch.")
        if not standardize:
            return Scaling(shape, name, classes=classes)
        chosen = inputs[torch.as_tensor(rows)].double()
        deviation = chosen.std(0, correction=0)
        # Rounding leaves a constant column with a deviation that is tiny compared with its values, but not zero.
        rounding = 1e-13 if inputs.dtype == torch.float64 else 1e-7
        constant = deviation <= rounding * chosen.abs().amax(0)
        deviation = torch.where(constant, torch.ones_like(deviation), deviation)
        return Scaling(shape, name, chosen.mean(0).tolist(), deviation.tolist(), classes)

    def inputs(self, rows: Any) -> Tensor:
        """Returns the inputs of a network.

        Args:
            rows: [rows, …] numbers: a tensor, an array, a DataFrame, or the path of an npy or npz file.

        Raises:
            InvalidInput: rows of another shape, or values that are not finite.
        """
        raw = read_inputs(load_array(rows) if isinstance(rows, (str, Path)) else rows, argument="rows")
        if tuple(raw.shape[1:]) != self.shape:
            expected = f"must have the shape [rows, {', '.join(map(str, self.shape))}]"
            raise InvalidInput("rows", expected, f"rows of {list(raw.shape[1:])}")
        inputs = self.apply(raw)
        if inputs.is_floating_point() and not inputs.isfinite().all():
            raise InvalidInput("rows", "must be near the rows learned from", f"{float(raw.abs().max()):g}")
        return inputs

    def apply(self, raw: Tensor) -> Tensor:
        """Scales the inputs, and converts them to their dtype."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.mean is None or self.deviation is None:
            return raw.to(dtype)
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation))
        return ((raw.double() - mean) / deviation).to(dtype)

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": "scaling",
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mean": None if self.mean is None else list(self.mean),
            "deviation": None if self.deviation is None else list(self.deviation),
            "classes": {task: list(labels) for task, labels in self.classes.items()},
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Scaling:
        """Returns the scaling that `to_document` described."""
        return Scaling(
            tuple(document["shape"]), document["dtype"], document["mean"], document["deviation"], document["classes"]
        )


def load_array(path: str | Path, argument: str = "rows") -> NDArray[Any]:
    """Loads the array of an npy file, or the only array of an npz file."""
    if not Path(path).is_file():
        raise InvalidInput(argument, "must be an npy or npz file", f"none at {path}")
    with Path(path).open("rb") as file:  # numpy would leave it open after some errors
        try:
            loaded = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, BadZipFile) as error:
            found = f"something else at {path}"
            raise InvalidInput(argument, "must be an npy or npz file of numbers", found) from error
        if isinstance(loaded, np.ndarray):
            return loaded
        if len(loaded.files) != 1:
            raise InvalidInput(argument, "must hold one array", f"{len(loaded.files)}: {', '.join(loaded.files)}")
        only: NDArray[Any] = loaded[loaded.files[0]]
        return only


def read_inputs(inputs: Any, whole: bool = False, argument: str = "inputs") -> Tensor:
    """Returns inputs as a tensor of finite numbers; flat ones keep every digit, since they are yet to be standardized.

    Args:
        inputs: [rows, …]: a tensor, an array, a DataFrame, nested lists.
        whole: whether to keep integers as they are.
        argument: what to call the inputs in errors.

    Raises:
        InvalidInput: text, values that are not finite (the columns are named), a wrong shape.
    """
    columns = list(inputs.columns) if hasattr(inputs, "columns") else None
    tensor = inputs.detach() if isinstance(inputs, Tensor) else _as_tensor(inputs, columns, argument)
    if tensor.dim() < 2:
        found = f"the shape {list(tensor.shape)}"
        raise InvalidInput(argument, "must be [rows, features] or [rows, …]", found, "try reshape(-1, 1)")
    if tensor.is_complex():
        raise InvalidInput(argument, "must be real numbers", "complex ones")
    if tensor.is_floating_point():
        _check_finite(tensor, columns, argument)
        kept = tensor.dtype == torch.float64 and (isinstance(inputs, Tensor) or tensor.dim() == 2)
        return tensor if kept else tensor.float()
    return tensor if (whole or tensor.dim() > 2) and tensor.dtype != torch.bool else tensor.double()


def _as_tensor(inputs: Any, columns: list[Any] | None, argument: str) -> Tensor:
    array = np.asarray(inputs)
    if array.dtype.kind in "fiub":
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64)
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    if array.ndim == 2:
        # A DataFrame with some columns of another kind comes as objects.
        read = [as_column(column) for column in array.T]
        text = [_column_name(number, columns) for number, column in enumerate(read) if column.dtype == object]
        if not text:
            return torch.as_tensor(np.stack(read, axis=1))
        found = f"text in column {', '.join(text)}"
        raise InvalidInput(argument, "must be numbers", found, "try Problem.from_table")
    raise InvalidInput(argument, "must be an array of numbers", f"{type(inputs).__name__} of {array.dtype}")


def _check_finite(tensor: Tensor, columns: list[Any] | None, argument: str) -> None:
    if tensor.dim() > 2:
        finite = torch.cat([torch.isfinite(part).flatten(1).all(1) for part in tensor.split(ROWS_AT_ONCE)])
        rows = (~finite).nonzero().flatten().tolist()
        if rows:
            raise InvalidInput(argument, "must be finite", f"NaN or inf in {len(rows)} rows, the first is {rows[0]}")
        return
    counts = (~torch.isfinite(tensor)).sum(0).tolist()
    named = [f"{_column_name(number, columns)} ({count} rows)" for number, count in enumerate(counts) if count]
    if named:
        shown = ", ".join(named[:10]) + (f" and {len(named) - 10} more" if len(named) > 10 else "")
        raise InvalidInput(
            argument, "must be finite", f"NaN or inf in column {shown}", "fill them in or leave them out"
        )
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest > LARGEST:
        raise InvalidInput(argument, f"must be at most {LARGEST:g} in size", f"{largest:g}")


def _column_name(number: int, columns: list[Any] | None) -> str:
    return str(number) if columns is None else repr(columns[number])


@dataclass(frozen=True, eq=False)
class Table:
    """The feature columns of a table, with what was learned from the train rows: medians, scales, levels.

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
        columns: Columns, numbers: Sequence[str], categories: Sequence[str], rows: RowNumbers, classes: Classes
    ) -> Table:
        """Fits the columns to the train rows; columns that do not vary there are left out."""
        made: list[NumberColumn | CategoryColumn | None] = [
            NumberColumn.fitted(name, columns[name], rows) for name in numbers
        ]
        made += [CategoryColumn.fitted(name, columns[name], rows) for name in categories]
        return Table(tuple(column for column in made if column is not None), classes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(name for column in self.columns for name in column.names)

    def inputs(self, rows: TableSource | Columns) -> Tensor:
        """Returns the inputs of a network; columns that are not features are not looked at.

        Args:
            rows: a file, a DataFrame, a mapping from names to columns, or a list of mappings, one for each row; see
                `Problem.from_table`. Missing numbers become the median, unknown categories "other".

        Raises:
            InvalidInput: feature columns are missing, or hold text where numbers were.
        """
        columns = read_columns(rows, "rows", keep_empty=True)
        missing = [repr(column.name) for column in self.columns if column.name not in columns]
        if missing:
            expected = f"must have the columns {', '.join(missing)}"
            raise InvalidInput(columns.place, expected, "none of that name")
        values = [column.values(columns[column.name], columns.place) for column in self.columns]
        return torch.as_tensor(np.concatenate(values, axis=1), dtype=torch.float32)

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        classes = {task: list(labels) for task, labels in self.classes.items()}
        return {"kind": "table", "columns": [column.to_document() for column in self.columns], "classes": classes}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Table:
        """Returns the table that `to_document` described."""
        return Table(tuple(map(column_from_document, document["columns"])), document["classes"])


@dataclass(frozen=True)
class NumberColumn:
    """Missing values become the median, the whole is standardized; a second input says what was missing.

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
    def fitted(name: str, column: Column, rows: RowNumbers) -> NumberColumn | None:
        """Fits the column to the train rows; None if it does not vary there."""
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
        """The names of its inputs."""
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def values(self, column: Column, place: str = "`rows`") -> NDArray[np.float64]:
        """Returns the inputs [rows, inputs] of a column; errors name the place that it comes from."""
        where = f"{place}: column {self.name!r}"
        if column.dtype == object:
            found = next(value for value in column if value is not None)
            raise InvalidInput(where, "must be numbers", repr(found))
        if np.isinf(column).any():
            raise InvalidInput(where, "must be finite", f"inf in {np.isinf(column).sum()} rows")
        missing = np.isnan(column)
        scaled = (np.where(missing, self.median, column) - self.mean) / self.deviation
        if np.abs(scaled).max(initial=0.0) > np.finfo(np.float32).max:
            found = float(np.abs(column[~missing]).max())
            raise InvalidInput(where, "must be near the rows learned from", f"{found:g}")
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
    def fitted(name: str, column: Column, rows: RowNumbers) -> CategoryColumn | None:
        """Fits the column to the train rows; None if all of them are missing."""
        counts = Counter(level for level in as_levels(column[rows]) if level is not None)
        most = sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS]
        return CategoryColumn(name, tuple(sorted(most))) if most else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(f"{self.name} = {level}" for level in (*self.levels, OTHER))

    def values(self, column: Column, place: str = "`rows`") -> NDArray[np.float64]:
        """Returns the inputs [rows, levels + 1] of a column."""
        numbers = {_level(level): number for number, level in enumerate(self.levels)}
        other = len(numbers)
        chosen = [other if level is None else numbers.get(level, other) for level in as_levels(column)]
        return np.eye(other + 1)[chosen]

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "category", "name": self.name, "levels": list(self.levels)}


def as_levels(column: Column) -> list[str | None]:
    """Returns categories as text: integers without a decimal point, whether a file wrote 1 or 1.0.

    Each cell is read by itself: it is the same level whatever the rest of the column holds.

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
    """Returns the column that `to_document` described."""
    settings = {key: value for key, value in document.items() if key != "kind"}
    if document["kind"] == "number":
        return NumberColumn(**settings)
    return CategoryColumn(settings["name"], tuple(settings["levels"]))
