"""Typed columns of a table: numbers or text, with missing values marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.tabular import MISSING_WORDS, TableSource, read_table

if TYPE_CHECKING:
    import pandas as pd

BOOLEAN_WORDS = {"true": 1.0, "false": 0.0}
MAX_MAGNITUDE = 1e150  # the square of a larger number overflows
MOSTLY_NUMBERS = 0.9  # the fraction of numbers above which the other cells of a column are taken for typing errors
SHOWN_CELLS = 3
SHOWN_CHARACTERS = 40
MISSING_HINT = "write NA where a value is missing"
Column = NDArray[Any]


class Columns(Mapping[str, Column]):
    """The columns of a table by name, converted to numbers or text on first use.

    Numbers are float64, with NaN for missing values. Text columns contain None for missing values.

    Attributes:
        place: the file or argument that contains the table, as named in messages.
        rows: the number of rows.
        unnamed: the number of unnamed columns that were dropped, such as a saved index.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self._table = table[[name for name in table.columns if name]]
        self.rows, self.place = len(table), table.attrs["place"]
        self.unnamed = len(table.columns) - len(self._table.columns)
        self._converted: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._converted:
            self._converted[name] = _convert(self._table[name], self._table.attrs["decimal_comma"])
        return self._converted[name]

    def locate_text(self, name: str) -> str | None:
        """Locates the few cells of a column that are not numbers. Returns None if more than a few are not.

        Example:
            >>> read_columns({"age": ["31", "37", "oops", *("40",) * 20]}).locate_text("age")
            "'oops' in row 2 (counted from 0)"
        """
        lines = self._table.index
        where = (lambda row: f"line {lines[row]}") if lines.name == "line" else None
        return locate_text(self[name], self._table.attrs["decimal_comma"], where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.columns)

    def __len__(self) -> int:
        return len(self._table.columns)


def read_columns(source: TableSource | Columns, argument: str = "data", keep_empty: bool = False) -> Columns:
    """Reads the columns of a table and detects which are numeric.

    Args:
        source: a file, a DataFrame, a mapping from names to columns, or a list with a mapping for each row; see
            `Problem.from_table`.
        argument: the name of the argument, used in messages if the source is not a file.
        keep_empty: whether to keep rows of a file in which every cell is empty.

    Raises:
        TableError: If the file does not exist or does not contain a table, there are no rows, columns differ in length,
            or a column name is repeated.

    Example:
        >>> columns = read_columns({"age": ["31", "NA"], "town": ["Ulm", ""]})
        >>> columns["age"], columns["town"]
        (array([31., nan]), array(['Ulm', None], dtype=object))
    """
    return source if isinstance(source, Columns) else Columns(read_table(source, argument, keep_empty=keep_empty))


def _convert(raw: pd.Series, decimal_comma: bool) -> Column:
    """Converts a column to numbers if every cell is a number or missing. True and false count as 1 and 0."""
    values = np.asarray(raw)
    if values.dtype != object:
        return as_column(values)
    cells = [value.strip() if isinstance(value, str) else value for value in values]
    cells = [math.nan if isinstance(cell, str) and cell.lower() in MISSING_WORDS else cell for cell in cells]
    texts = {cell for cell in cells if isinstance(cell, str)}
    if texts and {text.lower() for text in texts} <= set(BOOLEAN_WORDS):
        cells = [BOOLEAN_WORDS[cell.lower()] if isinstance(cell, str) else cell for cell in cells]
    column = as_column(_as_objects(cells))
    if column.dtype == object and decimal_comma:
        with_points = [cell.replace(",", ".") if isinstance(cell, str) else cell for cell in cells]
        numbers = as_column(_as_objects(with_points))
        return column if numbers.dtype == object else numbers
    return column


def _as_objects(cells: Sequence[Any]) -> Column:
    objects = np.empty(len(cells), dtype=object)
    objects[:] = cells
    return objects


def as_column(raw: Any) -> Column:
    """Converts numeric columns to float64 and all others to text. Missing values become NaN or None.

    Example:
        >>> as_column(["1", None, "2.5"]), as_column(["a", "", None])
        (array([1. , nan, 2.5]), array(['a', None, None], dtype=object))
    """
    values = raw.detach().cpu().numpy() if isinstance(raw, Tensor) else np.asarray(raw)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind in "mM":  # conversion to numbers would give nanoseconds, even for NaT
        values = np.where(np.isnat(values), "", values.astype(str))
    flat = values.ravel().tolist()
    if not any(isinstance(value, str) and "_" in value for value in flat):
        with suppress(TypeError, ValueError, OverflowError):
            return values.astype(np.float64)  # much faster, if there are only numbers and NaN
    flat = [None if is_missing(value) else value for value in flat]
    try:
        return np.array([np.nan if value is None else as_number(value) for value in flat]).reshape(values.shape)
    except (TypeError, ValueError):
        return _as_objects([None if value is None else str(value) for value in flat]).reshape(values.shape)


def text_cells(column: Column, decimal_comma: bool = False) -> NDArray[np.int64]:
    """Returns the rows of a text column whose cells are neither numbers nor missing.

    Example:
        >>> text_cells(np.array(["1", None, "x"], dtype=object))
        array([2])
    """
    cells = [cell if cell is None or not decimal_comma else cell.replace(",", ".") for cell in column.tolist()]
    rows = []
    for row, cell in enumerate(cells):
        try:
            as_number(cell or 0)
        except ValueError:  # noqa: PERF203
            rows.append(row)
    return np.array(rows, np.int64)


def locate_text(column: Column, decimal_comma: bool = False, where: Callable[[int], str] | None = None) -> str | None:
    """Locates the few cells of a text column that are not numbers. Returns None if more than a few are not.

    Args:
        column: the column, as text.
        decimal_comma: whether a comma may be a decimal separator.
        where: returns the location of a row. If None, its number is used.
    """
    text = text_cells(column, decimal_comma)
    known = sum(cell is not None for cell in column.tolist())
    if not len(text) or known - len(text) < MOSTLY_NUMBERS * known:
        return None
    locate = where or (lambda row: f"row {row}")
    shown = [f"{show_cell(column[row])} in {locate(int(row))}" for row in text[:SHOWN_CELLS]]
    more = f" and {len(text) - SHOWN_CELLS:,} more" if len(text) > SHOWN_CELLS else ""
    return ", ".join(shown) + more + ("" if where else " (counted from 0)")


def show_cell(cell: str) -> str:
    """Returns the text of a cell for messages, shortened if it is long."""
    return repr(cell if len(cell) <= SHOWN_CHARACTERS else f"{cell[:SHOWN_CHARACTERS]}…")


def is_missing(value: Any) -> bool:
    """Returns whether a cell is missing: None, NaN, NaT, pandas' NA or blank text."""
    # Comparisons with pandas' NA are neither true nor false, so it is recognized by its type's name.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return not value.strip() if isinstance(value, str) else bool(value != value)


def as_number(value: Any) -> float:
    """Converts a cell to a number. Raises ValueError or TypeError if the cell does not contain a number."""
    if isinstance(value, str) and "_" in value:  # Python would read the code 12_3 as 123
        raise ValueError(value)
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits; as text, float reads it as infinite
        return math.inf if value > 0 else -math.inf
