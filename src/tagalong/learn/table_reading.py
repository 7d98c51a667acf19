"""Tables as people have them, read into columns: separators, encodings, missing cells, numbers and text."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import refuse

DELIMITERS = ",;\t|"
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", "."})
OTHERS = {b"PK\x03\x04": "a workbook or archive", b"\xd0\xcf\x11\xe0": "an old workbook", b"PAR1": "Parquet"}
TRUTH = {"true": 1.0, "false": 0.0}
LARGEST = 1e150  # the square of a larger number overflows
Column = NDArray[Any]


class Columns(Mapping[str, Column]):
    """Columns by name: numbers as float64 with NaN, all else as text with None. Each is read when first asked for.

    Attributes:
        rows: how many.
        nameless: how many columns without a name were left out, as an index written to a file is.
    """

    def __init__(self, raw: Mapping[str, Any], rows: int, decimal_comma: bool = False, nameless: int = 0) -> None:
        self._raw, self.rows, self._decimal_comma, self.nameless = raw, rows, decimal_comma, nameless
        self._read: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._read:
            self._read[name] = _column(self._raw[name], self._decimal_comma)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def read_columns(source: Any, argument: str = "`path`", keep_empty: bool = False) -> Columns:
    """The columns of a table.

    Args:
        source: the path of a CSV file (commas, semicolons, tabs or bars; a header; perhaps gzipped), a DataFrame,
            a mapping from names to columns, or a list of mappings, one per row.
        argument: what to call the source in errors.
        keep_empty: keep the rows of a file whose cells are all empty, as long as they have the right number of cells.

    Raises:
        ValueError: no such file, no rows, rows of different lengths, names that occur twice.
    """
    if isinstance(source, Columns):
        return source
    if isinstance(source, (str, Path)):
        return _read_file(Path(source), argument, keep_empty)
    if hasattr(source, "columns"):
        refuse(_twice(map(str, source.columns), argument))
        return _checked({str(name): source[name] for name in source.columns}, argument)
    if isinstance(source, Mapping):
        return _checked(dict(source), argument)
    rows = list(source)
    if not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"{argument} must be a CSV file, a DataFrame, columns by name or a list of rows by name")
    names = dict.fromkeys(name for row in rows for name in row)
    return _checked({name: [row.get(name) for row in rows] for name in names}, argument)


def _checked(raw: dict[str, Any], argument: str) -> Columns:
    lengths = {len(column) for column in raw.values()}
    if len(lengths) != 1:
        raise ValueError(f"{argument} must have columns of one length, found {sorted(lengths) or 'no columns'}")
    if lengths == {0}:
        raise ValueError(f"{argument} must have rows, found none")
    return Columns(raw, lengths.pop())


def _read_file(path: Path, argument: str, keep_empty: bool) -> Columns:
    text = read_text(path, argument)
    delimiter = find_delimiter(text)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        header = [name.strip() for name in next((line for line in lines if line), [])]
        numbered = [(lines.line_num, line) for line in lines if _holds_a_row(line, len(header), keep_empty)]
    except csv.Error as error:
        advice = "is a quotation mark left open?"
        raise ValueError(f"{argument} must be a table, found {error} at line {lines.line_num}; {advice}") from error
    problems = _twice(header, argument)
    ragged = [number for number, line in numbered if len(line) != len(header)]
    if not numbered:
        problems.append(
            f"{argument} must have a header and rows, found {'a header only' if any(header) else 'nothing'}"
        )
    if ragged:
        shown = ", ".join(map(str, ragged[:5]))
        problems.append(f"{argument} must have {len(header)} cells in each row, found another number in line {shown}")
    refuse(problems)
    cells = zip(*(line for _, line in numbered), strict=True)
    raw = {name: column for name, column in zip(header, cells, strict=True) if name}
    return Columns(raw, len(numbered), delimiter != ",", header.count(""))


def _holds_a_row(line: list[str], cells: int, keep_empty: bool) -> bool:
    return any(cell.strip() for cell in line) or (keep_empty and len(line) == cells)


def _twice(names: Iterable[str], argument: str) -> list[str]:
    twice = [name for name, times in Counter(names).items() if times > 1 and name]
    return [f"{argument}: the column {name!r} must occur once, found it again; rename it" for name in twice]


def read_text(path: Path, argument: str) -> str:
    """The text of a file, in the encodings that spreadsheets write."""
    if not path.is_file():
        raise ValueError(f"{argument} must be a CSV file, found none at {path}")
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for start, kind in OTHERS.items():
        if data.startswith(start):
            raise ValueError(f"{argument} must be a CSV file, found {kind} at {path}; save it as CSV")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # what spreadsheets of western countries write


def find_delimiter(text: str) -> str:
    """The one that cuts the header into most names; a comma for a single column."""
    first = next((line for line in re.split(r"[\r\n]+", text) if line), "")
    return max(DELIMITERS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))


def _column(raw: Any, decimal_comma: bool) -> Column:
    """Numbers where every cell that is not missing is one; true and false count as 1 and 0."""
    values = np.asarray(raw) if hasattr(raw, "dtype") else raw
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return as_column(values)
    cells = [_cell(value) for value in values]
    known = [cell for cell in cells if isinstance(cell, str)]
    if known and all(cell.lower() in TRUTH for cell in known):
        cells = [TRUTH[cell.lower()] if isinstance(cell, str) else cell for cell in cells]
    column = as_column(_objects(cells))
    if column.dtype == object and decimal_comma:
        swapped = as_column(_objects(cell.replace(",", ".") if isinstance(cell, str) else cell for cell in cells))
        return swapped if swapped.dtype != object else column
    return column


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    stripped = value.strip()
    return None if stripped.lower() in MISSING else stripped


def _objects(cells: Iterable[Any]) -> Column:
    listed = list(cells)
    made = np.empty(len(listed), dtype=object)
    made[:] = listed
    return made


def as_column(raw: Any) -> Column:
    """Numbers as float64 with NaN where missing; anything else as objects (text) with None where missing.

    Example:
        >>> as_column(["1", None, "2.5"]), as_column(["a", "", None])
        (array([1. , nan, 2.5]), array(['a', None, None], dtype=object))
    """
    values = raw.detach().cpu().numpy() if isinstance(raw, Tensor) else np.asarray(raw)
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind in "mM":  # as numbers they would count nanoseconds, NaT included
        values = np.where(np.isnat(values), "", values.astype(str))
    flat = [None if is_missing(value) else value for value in values.ravel().tolist()]
    try:
        return np.array([np.nan if value is None else as_number(value) for value in flat]).reshape(values.shape)
    except (TypeError, ValueError):
        texts = np.empty(len(flat), dtype=object)
        texts[:] = [None if value is None else str(value) for value in flat]
        return texts.reshape(values.shape)


def as_number(value: Any) -> float:
    """A number from what a cell holds; ValueError or TypeError if it holds none."""
    if isinstance(value, str) and "_" in value:  # Python would read the code 12_3 as 123
        raise ValueError(value)
    return float(value)


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, NaT, pandas' NA or blank text."""
    # pandas' NA is neither true nor false when compared, so it is known by name.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return not value.strip() if isinstance(value, str) else bool(value != value)
