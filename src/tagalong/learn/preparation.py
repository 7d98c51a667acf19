"""Converts raw rows to network inputs, both for training rows and for new rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, first_few, raise_problems
from tagalong.files import READ_ERRORS
from tagalong.free_memory import free_memory
from tagalong.tabular import TableSource

from .column_types import (
    BOOLEAN_WORDS,
    MAX_MAGNITUDE,
    MISSING_HINT,
    Column,
    Columns,
    as_column,
    as_number,
    locate_text,
    read_columns,
    show_cell,
    text_cells,
)
from .rows import MAX_CHUNK_ROWS
from .splitting import RowNumbers
from .targets import Label

MAX_LEVELS = 50
OTHER_LEVEL = "other or missing"
Classes = Mapping[str, Sequence[Label]]


class Preparation(Protocol):
    """Converts raw rows to network inputs. This is the type of `Problem.table`.

    Attributes:
        classes: the original labels of each task whose labels were encoded as 0, 1, ….
    """

    @property
    def classes(self) -> Classes: ...

    def inputs(self, rows: Any) -> Tensor:
        """Returns the network inputs for raw rows."""

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""


def read_preparation(document: Mapping[str, Any]) -> Preparation:
    """Restores a `Scaling` or a `Table` from a JSON document.

    Raises:
        ValueError: the document is invalid; the message names the entry.
    """
    from tagalong.documents import build  # pydantic is loaded only where documents enter

    kinds: dict[str, type[Scaling] | type[Table]] = {"scaling": Scaling, "table": Table}
    if document.get("kind") not in kinds:
        raise InvalidInput("document", "must be of kind 'scaling' or 'table'", repr(document.get("kind")))
    return build(kinds[document["kind"]], document, "table")


@dataclass(frozen=True, eq=False)
class Scaling:
    """Standardizes array inputs with the mean and standard deviation of each feature in the training rows.

    Attributes:
        shape: the shape of one row.
        dtype: the name of the inputs' torch dtype, e.g. "float32".
        mean: the mean of each feature, or None if inputs are not standardized.
        deviation: the standard deviation of each feature, or 1 for constant features.
        classes: see `Preparation`.

    Example:
        >>> Scaling((1,), "float32", [10.0], [2.0]).inputs([[14.0]])
        tensor([[2.]])
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    mean: list[Any] | None = None
    deviation: list[Any] | None = None
    classes: Classes = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"dtype must be a dtype of torch, found {self.dtype!r}")
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if values is not None and np.size(np.asarray(values, dtype=float)) not in (1, math.prod(self.shape)):
                raise ValueError(f"{name} must have {math.prod(self.shape)} values")
        if self.deviation is not None and not np.all(self.deviation):
            raise ValueError("deviation must not contain zeros")

    @staticmethod
    def fitted(
        inputs: Tensor, rows: RowNumbers, standardize: bool, classes: Classes, dtype: torch.dtype = torch.float32
    ) -> Scaling:
        """Fits the scaling to the given input rows and sets the dtype of the scaled inputs."""
        shape, name = tuple(inputs.shape[1:]), str(dtype).removeprefix("torch.")
        if not standardize:
            return Scaling(shape, name, classes=classes)
        chosen = inputs[torch.as_tensor(rows)].double()
        deviation = chosen.std(0, correction=0)
        # Because of rounding, the deviation of a constant column may be tiny relative to its values instead of zero.
        rounding = 1e-13 if inputs.dtype == torch.float64 else 1e-7
        constant = deviation <= rounding * chosen.abs().amax(0)
        deviation = torch.where(constant, torch.ones_like(deviation), deviation)
        return Scaling(shape, name, chosen.mean(0).tolist(), deviation.tolist(), classes)

    def inputs(self, rows: Any) -> Tensor:
        """Returns the network inputs for raw rows.

        Args:
            rows: the numbers [rows, …] as a tensor, an array or a DataFrame, or the path to an npy or npz file.

        Raises:
            InvalidInput: If the rows have the wrong shape or contain non-finite values.
        """
        raw = read_inputs(load_array(rows) if isinstance(rows, (str, Path)) else rows, argument="rows")
        if tuple(raw.shape[1:]) != self.shape:
            expected = f"must have the shape [rows, {', '.join(map(str, self.shape))}]"
            raise InvalidInput("rows", expected, f"[rows, {', '.join(map(str, raw.shape[1:]))}]")
        inputs = self.apply(raw)
        if inputs.is_floating_point() and not inputs.isfinite().all():
            raise InvalidInput(
                "rows",
                "must have a scale similar to that of the training rows",
                f"values up to {float(raw.abs().max()):g}",
            )
        return inputs

    def apply(self, raw: Tensor) -> Tensor:
        """Scales the inputs and converts them to `dtype`."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.mean is None or self.deviation is None:
            return raw.to(dtype)
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.deviation))
        return ((raw.double() - mean) / deviation).to(dtype)

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""
        return {
            "kind": "scaling",
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mean": None if self.mean is None else list(self.mean),
            "deviation": None if self.deviation is None else list(self.deviation),
            "classes": {task: list(labels) for task, labels in self.classes.items()},
        }


def load_array(path: str | Path, argument: str = "rows") -> NDArray[Any]:
    """Loads the array in an npy file, or the only array in an npz file."""
    expected = "must be an npy or npz file"
    if not isinstance(path, (str, PathLike)):
        raise InvalidInput(argument, expected, repr(path))
    if not Path(path).is_file():
        raise InvalidInput(argument, expected, f"no file at {path}")
    with Path(path).open("rb") as file:  # NumPy would leave it open after some errors
        try:
            return _load_only_array(file, argument)
        except InvalidInput:
            raise
        except MemoryError as error:
            raise InvalidInput(argument, "must fit into memory", str(error)) from error
        except READ_ERRORS as error:
            raise InvalidInput(
                argument, "must be a numeric npy or npz file", f"a different format in {path}"
            ) from error


def _load_only_array(file: IO[bytes], argument: str) -> NDArray[Any]:
    loaded: Any = np.load(file, allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        if len(loaded.files) != 1:
            found = f"{len(loaded.files)}: {first_few(loaded.files)}" if loaded.files else "none"
            raise InvalidInput(argument, "must contain exactly one array", found)
        size, free = loaded.zip.infolist()[0].file_size, free_memory()
        if size > free // 2:
            expected = f"must fit into memory, of which {free / 1e6:,.0f} MB are free"
            raise InvalidInput(argument, expected, f"{size / 1e6:,.0f} MB")
        loaded = loaded[loaded.files[0]]
    if not isinstance(loaded, np.ndarray):
        raise InvalidInput(argument, "must contain exactly one array", "another file")
    return loaded


def read_inputs(inputs: Any, keep_integers: bool = False, argument: str = "inputs") -> Tensor:
    """Returns the inputs as a tensor of finite numbers.

    Flat inputs keep their full precision, since they are standardized later.

    Args:
        inputs: the inputs [rows, …] as a tensor, an array, a DataFrame or nested lists.
        keep_integers: whether to keep integers instead of converting them to floats.
        argument: the name of the argument, for error messages.

    Raises:
        InvalidInput: If the inputs contain text or non-finite values, or have the wrong shape.
    """
    columns = list(inputs.columns) if hasattr(inputs, "columns") else None
    tensor = inputs.detach() if isinstance(inputs, Tensor) else _as_tensor(inputs, columns, argument)
    if tensor.dim() < 2:
        shape = str(list(tensor.shape))
        raise InvalidInput(argument, "must have at least two dimensions", f"shape {shape}", "try reshape(-1, 1)")
    if not tensor.numel():
        raise InvalidInput(argument, "must not be empty", f"shape {list(tensor.shape)}")
    if tensor.is_complex():
        raise InvalidInput(argument, "must be real numbers", "complex numbers")
    if tensor.is_floating_point():
        _check_finite(tensor, columns, argument)
        kept = tensor.dtype == torch.float64 and (isinstance(inputs, Tensor) or tensor.dim() == 2)
        return tensor if kept else tensor.float()
    return tensor if (keep_integers or tensor.dim() > 2) and tensor.dtype != torch.bool else tensor.double()


def _as_tensor(inputs: Any, columns: list[Any] | None, argument: str) -> Tensor:
    try:
        array = np.asarray(inputs)
    except ValueError as error:
        raise InvalidInput(argument, "must be an array of numbers", "rows of different lengths") from error
    if array.dtype.kind in "fiub":
        array = _as_torch_dtype(array)
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    if array.ndim == 2 and array.dtype.kind in "OSTU":
        # A DataFrame with columns of different types is converted to objects.
        read = [as_column(column) for column in array.T]
        text = [_column_name(number, columns) for number, column in enumerate(read) if column.dtype == object]
        if not text:
            return torch.as_tensor(np.stack(read, axis=1))
        first = next(column for column in read if column.dtype == object)
        cells = locate_text(first)
        found = f"text in column {', '.join(text)}" + (f": {cells}" if cells and len(text) == 1 else "")
        raise InvalidInput(argument, "must be numeric", found, "try Problem.from_table")
    raise InvalidInput(argument, "must be an array of numbers", f"{type(inputs).__name__} with dtype {array.dtype}")


def _as_torch_dtype(array: NDArray[Any]) -> NDArray[Any]:
    """Converts numbers to a type that torch supports."""
    if array.dtype.kind == "f":
        return array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind == "b" or array.dtype == np.uint8:
        return array
    too_large = array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max
    return array.astype(np.float64 if too_large else np.int64)


def _check_finite(tensor: Tensor, columns: list[Any] | None, argument: str) -> None:
    if tensor.dim() > 2:
        finite = torch.cat([torch.isfinite(part).flatten(1).all(1) for part in tensor.split(MAX_CHUNK_ROWS)])
        rows = (~finite).nonzero().flatten().tolist()
        if rows:
            raise InvalidInput(argument, "must be finite", f"NaN or inf in {len(rows)} rows (first: {rows[0]})")
        return
    counts = (~torch.isfinite(tensor)).sum(0).tolist()
    named = [f"{_column_name(number, columns)} ({count} rows)" for number, count in enumerate(counts) if count]
    if named:
        found = f"NaN or inf in column {first_few(named, 10)}"
        raise InvalidInput(argument, "must be finite", found, "impute or remove these values")
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if largest > MAX_MAGNITUDE:
        raise InvalidInput(argument, f"must be at most {MAX_MAGNITUDE:g} in magnitude", f"{largest:g}")


def _column_name(number: int, columns: list[Any] | None) -> str:
    return str(number) if columns is None else repr(columns[number])


@dataclass(frozen=True, eq=False)
class Table:
    """The feature columns of a table, with medians, scales and levels computed from the training rows.

    Attributes:
        columns: the feature columns, in the order of the inputs.
        classes: the original labels of each task whose labels were encoded as 0, 1, ….

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
        """Fits the columns to the training rows. Columns that are constant in these rows are dropped."""
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
        """Returns the network inputs for raw rows. Columns that are not features are ignored.

        Args:
            rows: a file, a DataFrame, a mapping from names to columns, or a list of mappings, one per row; see
                `Problem.from_table`. Missing numbers are replaced with the median, and unknown categories with "other".

        Raises:
            InvalidInput: If feature columns are missing or contain text instead of numbers.
        """
        if isinstance(rows, (np.ndarray, Tensor)):
            names = first_few([repr(column.name) for column in self.columns])
            raise InvalidInput("rows", f"must be a table with the columns {names}", "an array")
        columns = read_columns(rows, "rows", keep_empty=True)
        missing = [repr(column.name) for column in self.columns if column.name not in columns]
        if missing:
            expected = "must have the same columns as the training table"
            raise InvalidInput(columns.place, expected, f"no {', '.join(missing)}")
        raise_problems([found for column in self.columns for found in _text_problems(column, columns)])
        inputs, start = np.empty((columns.rows, len(self.names)), np.float32), 0
        for column in self.columns:
            end = start + len(column.names)
            inputs[:, start:end] = column.values(columns[column.name], columns.place)
            start = end
        return torch.as_tensor(inputs)

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""
        classes = {task: list(labels) for task, labels in self.classes.items()}
        return {"kind": "table", "columns": [column.to_document() for column in self.columns], "classes": classes}


def _text_problems(column: NumberColumn | CategoryColumn, columns: Columns) -> list[InvalidInput]:
    if isinstance(column, CategoryColumn) or columns[column.name].dtype != object:
        return []
    place, text = f"{columns.place}: column {column.name!r}", columns[column.name]
    cells = columns.locate_text(column.name) or f"{show_cell(text[text_cells(text)[0]])} and other texts"
    return [InvalidInput(place, "must be numeric", cells, MISSING_HINT)]


@dataclass(frozen=True)
class NumberColumn:
    """A standardized numeric column. Missing values are imputed with the median and marked by an indicator input.

    Attributes:
        name: the name of the column.
        median: the column's median in the training rows.
        mean: the column's mean in the training rows, after imputation.
        deviation: the column's standard deviation in the training rows, after imputation.
        indicator: whether the column has an indicator input, which it does if values are missing in the training rows.
    """

    name: str
    median: float
    mean: float
    deviation: float
    indicator: bool

    def __post_init__(self) -> None:
        if self.deviation <= 0:
            raise ValueError(f"deviation must be positive, found {self.deviation:g}")

    @staticmethod
    def fitted(name: str, column: Column, rows: RowNumbers) -> NumberColumn | None:
        """Fits the column to the training rows. Returns None if the column is constant in these rows."""
        train = column[rows].astype(np.float64)
        missing = np.isnan(train)
        if len(np.unique(train[~missing])) < 2:
            return None
        median = float(np.median(train[~missing]))
        filled = np.where(missing, median, train)
        deviation = float(filled.std())  # 0 if squares underflow
        return NumberColumn(name, median, float(filled.mean()), deviation, bool(missing.any())) if deviation else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the column's inputs."""
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def values(self, column: Column, place: str = "`rows`") -> NDArray[np.float64]:
        """Returns the network inputs [rows, inputs] for a column.

        Error messages name `place` as the source of the column.
        """
        where = f"{place}: column {self.name!r}"
        if column.dtype == object:
            raise InvalidInput(where, "must be numeric", repr(column[text_cells(column)[0]]))
        if np.isinf(column).any():
            raise InvalidInput(where, "must be finite", f"inf in {np.isinf(column).sum()} rows")
        missing = np.isnan(column)
        scaled = (np.where(missing, self.median, column) - self.mean) / self.deviation
        if np.abs(scaled).max(initial=0.0) > np.finfo(np.float32).max:
            found = float(np.abs(column[~missing]).max())
            raise InvalidInput(
                where, "must have a scale similar to that of the training rows", f"values up to {found:g}"
            )
        return np.stack([scaled, missing], axis=1) if self.indicator else scaled[:, None]

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""
        return {"kind": "number", **asdict(self)}


@dataclass(frozen=True)
class CategoryColumn:
    """A one-hot encoded column, with one input per level in the training rows and one for all other or missing values.

    Attributes:
        name: the name of the column.
        levels: the most frequent levels in the training rows.
    """

    name: str
    levels: tuple[str, ...]

    @staticmethod
    def fitted(name: str, column: Column, rows: RowNumbers) -> CategoryColumn | None:
        """Fits the column to the training rows. Returns None if all values are missing."""
        counts = Counter(level for level in as_levels(column[rows]) if level is not None)
        most = sorted(counts, key=lambda level: (-counts[level], level))[:MAX_LEVELS]
        return CategoryColumn(name, tuple(sorted(most))) if most else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the column's inputs."""
        return tuple(f"{self.name} = {level}" for level in (*self.levels, OTHER_LEVEL))

    def values(self, column: Column, place: str = "`rows`") -> NDArray[np.float64]:
        """Returns the network inputs [rows, levels + 1] for a column."""
        numbers = {_to_level(level): number for number, level in enumerate(self.levels)}
        other = len(numbers)
        chosen = [other if level is None else numbers.get(level, other) for level in as_levels(column)]
        return np.eye(other + 1)[chosen]

    def to_document(self) -> dict[str, Any]:
        """Returns a JSON document that `read_preparation` can read."""
        return {"kind": "category", "name": self.name, "levels": list(self.levels)}


def as_levels(column: Column) -> list[str | None]:
    """Converts categories to text. Integers are written without a decimal point, so 1 and 1.0 are the same category.

    Each cell is converted independently, so its level does not depend on the rest of the column.

    Example:
        >>> as_levels(np.array([7.0, np.nan])), as_levels(np.array(["007", "A1", "True"], dtype=object))
        (['7', None], ['7', 'A1', '1'])
    """
    return [None if value is None or value != value else _to_level(value) for value in column.tolist()]


def _to_level(value: object) -> str:
    text = str(value)
    try:
        return f"{BOOLEAN_WORDS[text.lower()] if text.lower() in BOOLEAN_WORDS else as_number(text):.17g}"
    except ValueError:
        return text
