"""Reads tables from CSV and Parquet files, DataFrames, and columns in memory."""

from __future__ import annotations

import codecs
import gzip
import io
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
QUOTED = re.compile('"[^"]*"')
MISSING_WORDS = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", "."})  # in lower case
DECIMAL_COMMA_HINT = "if commas are decimal separators, use points instead or separate columns with semicolons"


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
                    raise ValueError(f"{len(files)} files in an archive; save workbooks as CSV")
                content = archive.read(files[0])
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise TableError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # often used by Western spreadsheets; decodes any bytes
    if "\0" in text or not text.strip():
        raise TableError(path, "must be a text file that is not empty", hint="save the table as a UTF-8 CSV file")
    return text


def _parse_text(path: Path, keep_empty: bool) -> pd.DataFrame:
    """Returns the cells as text. The first row is read like the others, since pandas would rename repeated columns."""
    import pandas as pd

    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    body = text.lstrip(" \n")
    header = QUOTED.sub("", body.partition("\n")[0])
    delimiter = max(DELIMITERS, key=header.count)
    try:
        cells = pd.read_csv(
            io.StringIO(body.rstrip("\n")),
            sep=delimiter,
            header=None,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            skip_blank_lines=False,
            engine="python",  # which tells cells that are empty from cells that a row lacks
        )
    except pd.errors.ParserError as error:
        hint = "are there decimal commas, or an unclosed quotation mark?"
        raise TableError(path, f"is not a table: {error}", hint=hint) from error
    cells.index += text.count("\n", 0, len(text) - len(body)) + 1  # lines, if no cell spans several
    cells.index.name = "line"
    cells = cells.apply(lambda column: column.str.strip())
    is_short = cells.isna().any(axis=1)
    is_empty = (cells.isna() | (cells == "")).all(axis=1)
    raise_problems(
        [
            TableError(f"{path}, line {line}", f"must have {cells.shape[1]} cells", str(count))
            for line, count in cells[is_short & ~is_empty].count(axis=1).items()
        ],
        TableError,
    )
    cells = cells[~is_short] if keep_empty else cells[~is_empty]
    if len(cells) < 2:
        raise TableError(path, "must have columns and at least one row", "none")
    frame = cells[1:].set_axis(cells.iloc[0].tolist(), axis=1)
    frame.attrs["decimal_comma"] = delimiter != ","
    return frame


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
    numbers = table[columns].apply(as_numbers, decimal_comma=table.attrs["decimal_comma"])
    for row, column in np.argwhere(np.isinf(numbers.to_numpy())):
        cell = table[columns].iat[row, column]
        place = f"{table.attrs['place']}, line {table.index[row]}, column {columns[column]!r}"
        hint = DECIMAL_COMMA_HINT if "," in cell else ""
        problems.append(TableError(place, "must be a finite number or empty", repr(cell), hint))
    return numbers


def as_numbers(cells: pd.Series, decimal_comma: bool = False) -> pd.Series:
    """Parses text as numbers: NaN where the value is missing, and infinity where a cell is not a number.

    Example:
        >>> import pandas as pd
        >>> as_numbers(pd.Series(["-2e-3", "NA", "1,5", "12_3"]), decimal_comma=True).tolist()
        [-0.002, nan, 1.5, inf]
    """
    import pandas as pd

    text = cells.str.replace(",", ".") if decimal_comma else cells
    is_number = pd.to_numeric(text, errors="coerce").notna()
    is_missing = cells.isna() | cells.str.lower().isin(MISSING_WORDS)
    # Python's numbers are exact, unlike those of `to_numeric`.
    return text.where(is_number).astype(np.float64).mask(~is_number & ~is_missing, np.inf)
