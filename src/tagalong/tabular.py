"""Reads tables from CSV and Parquet files, DataFrames, and columns in memory."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .errors import InvalidInput, is_installed, missing_package, raise_problems

if TYPE_CHECKING:
    import pandas as pd

TableSource: TypeAlias = "str | PathLike[str] | pd.DataFrame | Mapping[str, Any] | Iterable[Mapping[str, Any]]"
DELIMITERS = ("\t", ";", ",", "|")  # in order of preference
BLANK = " \r\n" + "".join(DELIMITERS)
SAMPLE_SIZE = 200_000  # characters that are searched for the delimiter
QUOTED_CELL = re.compile(r'(?:^|(?<=[\r\n,;\t|])) *"(?:[^"]|"")*"(?= *(?:[\r\n,;\t|]|\Z))')
MISSING_WORDS = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", "."})  # in lower case
DECIMAL_COMMA_HINT = "if commas are decimal separators, use points instead or separate columns with semicolons"
UNCLOSED_HINT = "is there an unclosed quotation mark?"


class TableError(InvalidInput):
    """Raised when a file does not contain the expected table, scores, costs or groups."""


def read_table(
    source: TableSource, argument: str = "data", *, as_text: bool = False, keep_empty: bool = False
) -> pd.DataFrame:
    """Reads a table whose columns have distinct names, apart from unnamed ones, such as a saved index.

    Args:
        source: a DataFrame (whose index is ignored), a mapping from names to columns, a list of mappings, one per row,
            or a file. A text file has a header, is delimited by commas, semicolons, tabs or pipes, encoded in UTF-8,
            UTF-16 (with a byte order mark) or Latin-1, and may be compressed with gzip or stored as the only file in a
            zip archive. The name of a Parquet file ends in .parquet.
        argument: the name of the argument, used in messages if the source is not a file.
        as_text: whether to convert all cells to text, as those of a text file always are.
        keep_empty: whether to keep rows of a text file in which every cell is empty.

    Returns:
        The table. Its index is the line of the file on which each row starts, or else the number of the row. `attrs`
        contains the `place` of the table for messages, and whether commas may be decimal separators (`decimal_comma`).

    Raises:
        TableError: If the source is not a table, or has no rows, rows of different lengths or repeated names.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "table.csv")
        ...     _ = path.write_text("name; size\\nx; 1,5\\n")
        ...     table = read_table(path)
        >>> table.to_dict("list"), list(table.index), table.attrs["decimal_comma"]
        ({'name': ['x'], 'size': ['1,5']}, [2], True)
    """
    import pandas as pd

    place: str | Path = f"`{argument}`" if argument.isidentifier() else argument
    if isinstance(source, (str, PathLike)):
        place = Path(source)
        frame = _read_parquet(place) if place.suffix.lower() == ".parquet" else _parse_text(place, keep_empty)
    elif hasattr(source, "columns"):
        own: Any = source
        frame = (own.to_pandas() if hasattr(own, "to_pandas") else own).reset_index(drop=True)  # polars and others
    else:
        try:
            if isinstance(source, Mapping):  # columns without an index, which pandas would align
                frame = pd.DataFrame({name: getattr(column, "array", column) for name, column in source.items()})
            else:
                frame = pd.DataFrame([dict(row) for row in source])
        except (TypeError, ValueError) as error:
            expected = "must be a file, a DataFrame, columns of equal length by name, or a list with a mapping per row"
            raise TableError(place, expected, str(error)) from error

    names = [str(name).strip() for name in frame.columns]
    repeated = [repr(name) for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        found = f"{', '.join(repeated)} more than once"
        raise TableError(place, "must have unique column names", found, "rename the duplicates")
    if frame.empty:
        raise TableError(place, "must have columns and at least one row", "none")
    table = frame.map(lambda cell: "" if pd.isna(cell) else str(cell)) if as_text else frame
    table = table.set_axis(names, axis=1)
    table.attrs = {"place": str(place), "decimal_comma": frame.attrs.get("decimal_comma", False)}
    return table


def read_text(path: Path) -> str:
    """Reads a text file in any encoding and compression that `read_table` supports."""
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        elif content.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                files = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX/" not in name]
                if len(files) != 1:
                    raise ValueError(f"must be the only file in an archive, found {len(files)}; save workbooks as CSV")
                content = archive.read(files[0])
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise TableError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # often used by Western spreadsheets; decodes any bytes
    if "\0" in text:
        raise TableError(path, "is not a text file", hint="save the table as a UTF-8 CSV file")
    if not text.strip(BLANK):
        raise TableError(path, "is empty")
    return text


def _parse_text(path: Path, keep_empty: bool) -> pd.DataFrame:
    """Returns the cells as text. `pandas.read_csv` would silently fill short rows and rename repeated columns."""
    import pandas as pd

    text = read_text(path)
    rows: dict[int, list[str]] = {}  # by the line on which they start
    line, width, delimiter = 1, 0, _find_delimiter(text)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) or (keep_empty and 0 < len(cells) == width):
                rows[line], width = cells, width or len(cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise TableError(f"{path}, line {line}", f"is not a row of a table: {error}", hint=UNCLOSED_HINT) from error
    problems: list[InvalidInput] = []
    for line, cells in rows.items():
        if len(cells) != width:
            hint = DECIMAL_COMMA_HINT if delimiter == "," and len(cells) > width else ""
            hint = UNCLOSED_HINT if any("\n" in cell for cell in cells) else hint
            problems.append(TableError(f"{path}, line {line}", f"must have {width} cells", str(len(cells)), hint))
    raise_problems(problems, TableError)
    header, *others = list(rows.values()) or [[]]
    frame = pd.DataFrame(others, pd.Index(list(rows)[1:], name="line"), header, dtype=object)
    frame.attrs["decimal_comma"] = delimiter != ","
    return frame


def _find_delimiter(text: str) -> str:
    """Returns the delimiter that yields the most names in the header and, if possible, equally long rows."""
    lines = re.split(r"[\r\n]+", QUOTED_CELL.sub("x", text[:SAMPLE_SIZE]))
    complete = lines[: max(1, len(lines) - 1)] if len(text) > SAMPLE_SIZE else lines
    counts = [Counter(line) for line in complete if line.strip(BLANK)] or [Counter()]

    def rank(delimiter: str) -> tuple[bool, int]:
        header, *others = [count[delimiter] for count in counts]
        return header > 0 and all(count == header for count in others), header

    return max(DELIMITERS, key=rank)


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not is_installed("pyarrow"):
        raise missing_package(f"the Parquet file {path}", "pyarrow", "tagalong[parquet]")
    try:
        frame = pd.read_parquet(path)
    except (ValueError, OSError, LookupError) as error:
        raise TableError(path, f"is not a valid Parquet file: {error}") from error
    return frame if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None else frame.reset_index()


def parse_numbers(table: pd.DataFrame, columns: Sequence[str], problems: list[InvalidInput]) -> pd.DataFrame:
    """Parses the text in some columns of a table as numbers, with NaN for missing values.

    Adds a problem for every cell that contains something else.
    """
    numbers = table[columns].map(lambda cell: parse_number(cell, table.attrs["decimal_comma"])).astype(np.float64)
    for row, column in np.argwhere(np.isinf(numbers.to_numpy())):
        cell = table[columns].iat[row, column]
        place = f"{table.attrs['place']}, line {table.index[row]}, column {columns[column]!r}"
        hint = DECIMAL_COMMA_HINT if "," in cell else ""
        problems.append(TableError(place, "must be a finite number or empty", repr(cell), hint))
    return numbers


def parse_number(cell: str, decimal_comma: bool = False) -> float:
    """Parses a number. Returns NaN if the value is missing, and infinity if the cell is not a number.

    Example:
        >>> parse_number("-2e-3"), parse_number("NA"), parse_number("1,5", decimal_comma=True), parse_number("x")
        (-0.002, nan, 1.5, inf)
    """
    if cell.strip().lower() in MISSING_WORDS:
        return math.nan
    try:
        # Python would read the code 12_3 as 123.
        return math.inf if "_" in cell else float(cell.replace(",", ".") if decimal_comma else cell)
    except ValueError:
        return math.inf
