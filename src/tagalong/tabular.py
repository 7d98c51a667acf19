"""Reads tables from CSV files, Parquet files and DataFrames, with the same checks for all of them."""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import io
import lzma
import math
import os
import re
import struct
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from .errors import InvalidInput, is_installed, missing_package, raise_problems
from .free_memory import free_memory

DELIMITERS = ("\t", ";", ",", "|")  # in order of preference
SAMPLE_SIZE = 200_000  # number of characters that are searched for the delimiter
PIECE_CHARACTERS = 2**20  # number of characters that are split into lines at once
PIECE_ROWS = 10_000  # number of rows whose cells are held one by one
SEPARATOR = "\0"  # of joined cells; does not occur in text files
BLANK_CHARACTERS = " " + "".join(DELIMITERS)
QUOTED_CELL = re.compile(r'(?:^|(?<=[\r\n,;\t|])) *"(?:[^"]|"")*"(?= *(?:[\r\n,;\t|]|\Z))')
MAX_SHOWN = 5  # maximum number of invalid rows, or of files in an archive, that are listed individually
MISSING_WORDS = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", "."})
DECIMAL_COMMA_HINT = "if commas are decimal separators, use points instead or separate columns with semicolons"
UNCLOSED_HINT = "is there an unclosed quotation mark?"
GZIP_SIGNATURE, PARQUET_SIGNATURE = b"\x1f\x8b", b"PAR1"
ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")  # the latter is an archive without files
ZIP_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(RuntimeError, EOFError, OSError, ValueError),
)
PIECE = 2**20  # number of bytes that are read at once
COPIES = 4  # of the content of a file that have to fit into memory while it is parsed
CELL_BYTES = 80  # memory for a short cell and its place in a row
OLD_WORKBOOK_SIGNATURE = b"\xd0\xcf\x11\xe0"


class TableError(InvalidInput):
    """Raised when a file does not contain the expected table, scores, costs or groups."""


class DataFrameLike(Protocol):
    """A DataFrame, from pandas or another package, whose columns can be selected by name."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    def __getitem__(self, name: Any, /) -> Any: ...


TableSource = str | os.PathLike[str] | DataFrameLike | Mapping[str, Any] | Iterable[Mapping[str, Any]]


class TableRow(NamedTuple):
    """The cells of a row.

    Attributes:
        line: the line of the file on which the row starts, counted from 1.
        cells: the text of each cell.
    """

    line: int
    cells: list[str]


@dataclass(frozen=True)
class ParsedTable:
    """A table of text cells. Surrounding whitespace and blank rows have been removed.

    Attributes:
        place: the file, as named in messages.
        header: the first row.
        rows: all other rows. Rows that are too short are padded, rows that are too long are truncated, and both are
            reported in `problems`.
        decimal_comma: whether commas may be decimal separators, which requires that they are not the delimiter.
        problems: problems with the table, such as repeated column names or rows of the wrong length. Readers append any
            other problems, so that all problems are reported at once.
    """

    place: str
    header: TableRow
    rows: list[TableRow]
    decimal_comma: bool
    problems: list[InvalidInput]

    def at(self, row: TableRow, column: str | None = None) -> str:
        """Returns the location of a row, or of one of its cells, for messages."""
        return f"{self.place}, line {row.line}" + ("" if column is None else f", column {column!r}")

    def parse_number(self, cell: str) -> float:
        """Parses a number like the function `parse_number`, but accepts decimal commas if the file may contain them."""
        try:
            return parse_number(cell)
        except ValueError:
            if not self.decimal_comma or "," not in cell:
                raise
            return parse_number(cell.replace(",", "."))


@dataclass(frozen=True)
class TextCells:
    """The text cells of a column, joined in pieces, since millions of short strings would take much more memory.

    Attributes:
        pieces: the joined cells of consecutive rows.
        rows: the number of cells.

    Example:
        >>> list(TextCells(("a\\0b", "c"), 3))
        ['a', 'b', 'c']
    """

    pieces: Sequence[str]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            yield from piece.split(SEPARATOR)


@dataclass(frozen=True)
class RawColumns:
    """The unconverted columns of a table.

    Attributes:
        place: the file or argument that contains the table, as named in messages.
        columns: the columns by name, as `TextCells` from a file or as the values of a DataFrame or mapping.
        rows: the number of rows.
        unnamed: the number of unnamed columns that were dropped, such as a saved index.
        decimal_comma: see `ParsedTable`.
        lines: the line of the file on which each row starts; empty if the table is not a text file.
    """

    place: str
    columns: Mapping[str, Any]
    rows: int
    unnamed: int = 0
    decimal_comma: bool = False
    lines: Sequence[int] = ()


def read_table(path: str | os.PathLike[str]) -> ParsedTable:
    """Reads a table as text.

    Args:
        path: a file with a header, delimited by commas, semicolons, tabs or pipes. It can be encoded in UTF-8, UTF-16
            (with a byte order mark) or Latin-1, and compressed with gzip or stored as the only file in a zip archive.
            Parquet files are supported as well.

    Raises:
        TableError: If the file does not exist or does not contain a table.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "table.csv")
        ...     _ = path.write_text("name; size\\nx; 1,5\\n")
        ...     table = read_table(path)
        >>> table.header.cells, table.rows, table.parse_number("1,5")
        (['name', 'size'], [TableRow(line=2, cells=['x', '1,5'])], 1.5)
    """
    return parse_table(read_text(path), path)


def parse_table(text: str, path: str | os.PathLike[str], default_header: Sequence[str] = ()) -> ParsedTable:
    """Parses the text of a file as a table; see `read_table`.

    Args:
        text: the text that `read_text` returned.
        path: the file that contains the text.
        default_header: the column names of a table whose header is optional. The first row is treated as a header only
            if its last cell is the last of these names.
    """
    place = _display_name(path)
    delimiter, parsed = _parse_rows(text, place)
    header, *rows = [TableRow(row.line, [cell.strip() for cell in row.cells]) for row in parsed if _has_content(row)]
    if default_header and header.cells[-1].lower() != default_header[-1]:
        header, rows = TableRow(0, list(default_header)), [header, *rows]
    width = len(default_header or header.cells)
    problems = _header_problems(f"{place}, line {header.line}", header.cells)
    wrong = [row for row in rows if len(row.cells) != width]
    problems += _row_problems(place, len(rows), wrong, width, delimiter)
    rows = [TableRow(line, (cells + [""] * width)[:width]) for line, cells in rows]
    return ParsedTable(place, header, rows, delimiter != ",", problems)


def read_columns(source: TableSource, argument: str = "data", keep_empty: bool = False) -> RawColumns:
    """Reads the columns of a table.

    Args:
        source: a file (see `read_table`), a DataFrame, a mapping from names to columns, or a list of mappings, one per
            row.
        argument: the name of the argument, used in messages if the source is not a file.
        keep_empty: whether to keep rows of a file in which every cell is empty.

    Raises:
        TableError: If the file does not exist or does not contain a table, there are no rows, columns differ in length,
            or a column name is repeated.
    """
    if isinstance(source, (str, os.PathLike)):
        return _read_file_columns(Path(source), keep_empty)
    place = f"`{argument}`" if argument.isidentifier() else argument
    if _is_frame(source):
        return _read_frame_columns(source, place)
    if isinstance(source, Mapping):
        return _make_columns(source, place)
    is_list = isinstance(source, Iterable) and getattr(source, "ndim", 1) > 0
    rows: list[Any] = list(cast("Iterable[Any]", source)) if is_list else [source]
    if not all(isinstance(row, Mapping) for row in rows):
        expected = "must be a file, a DataFrame, a mapping from names to columns, or a list of mappings, one per row"
        raise TableError(place, expected, type(source).__name__)
    names = dict.fromkeys(name for row in rows for name in row)
    return _make_columns({name: [row.get(name) for row in rows] for name in names}, place)


def _is_frame(source: Any) -> bool:
    return hasattr(source, "columns") and hasattr(source, "__getitem__")


def _read_file_columns(path: Path, keep_empty: bool) -> RawColumns:
    place, content = _display_name(path), _read_content(path)
    if content.startswith(PARQUET_SIGNATURE):
        return _read_frame_columns(_with_index(_read_parquet(content, place)), place)
    text = _decode(content, place)
    del content
    delimiter, parsed = _parse_rows(text, place)
    first = next(parsed)
    header = first if _has_content(first) else next(filter(_has_content, parsed), first)
    names = [name.strip() for name in header.cells]
    rows = (row for row in parsed if _has_content(row) or (keep_empty and len(row.cells) == len(names)))
    columns, lines, wrong = _join_cells(rows, len(names))
    problems = _header_problems(f"{place}, line {header.line}", names)
    problems += _row_problems(place, len(lines), wrong, len(names), delimiter)
    raise_problems(problems, TableError)
    named = {name: TextCells(pieces, len(lines)) for name, pieces in zip(names, columns, strict=True) if name}
    return RawColumns(place, named, len(lines), names.count(""), delimiter != ",", lines)


def _join_cells(rows: Iterator[TableRow], width: int) -> tuple[list[list[str]], Sequence[int], list[TableRow]]:
    """Returns the joined cells of each column (see `TextCells`), the line of each row, and rows of another width."""
    columns: list[list[str]] = [[] for _ in range(width)]
    lines, wrong = array("q"), []
    while some := list(islice(rows, PIECE_ROWS)):
        lines.extend(row.line for row in some)
        wrong += [row for row in some if len(row.cells) != width]
        if not wrong:
            for pieces, cells in zip(columns, zip(*(row.cells for row in some), strict=True), strict=True):
                pieces.append(SEPARATOR.join(cells))
    return columns, lines, wrong


def _read_frame_columns(frame: Any, place: str) -> RawColumns:
    names = [str(name) for name in frame.columns]
    raise_problems(_header_problems(place, names), TableError)
    named = {name: frame[own] for name, own in zip(names, frame.columns, strict=True) if name}
    return _make_columns(named, place, names.count(""))


def _make_columns(columns: Mapping[str, Any], place: str, unnamed: int = 0) -> RawColumns:
    single = [name for name, column in columns.items() if _is_single_value(column)]
    raise_problems(
        [TableError(f"{place}: column {name!r}", "must be a list or an array", repr(columns[name])) for name in single],
        TableError,
    )
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "no columns"
        raise TableError(place, "must have columns of the same length", found)
    if lengths == {0}:
        raise TableError(place, "must have at least one row", "none")
    return RawColumns(place, columns, lengths.pop(), unnamed)


def _is_single_value(column: Any) -> bool:
    return isinstance(column, (str, bytes)) or not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0


def _header_problems(place: str, names: Iterable[str]) -> list[InvalidInput]:
    repeated = [repr(name) for name, times in Counter(names).items() if times > 1 and name]
    if not repeated:
        return []
    return [
        TableError(
            place, "must have unique column names", f"{', '.join(repeated)} more than once", "rename the duplicates"
        )
    ]


def _row_problems(place: str, rows: int, wrong: Sequence[TableRow], width: int, delimiter: str) -> list[InvalidInput]:
    if not rows:
        return [TableError(place, "must have rows below its header", "none")]
    problems: list[InvalidInput] = []
    for line, cells in wrong[:MAX_SHOWN]:
        hint = DECIMAL_COMMA_HINT if delimiter == "," and len(cells) > width else ""
        hint = UNCLOSED_HINT if any("\n" in cell for cell in cells) else hint
        problems.append(TableError(f"{place}, line {line}", f"must have {width} cells", str(len(cells)), hint))
    if len(wrong) > MAX_SHOWN:
        more = f"{len(wrong) - MAX_SHOWN:,} more rows of a different length"
        problems.append(TableError(place, f"must have {width} cells in each row", more))
    return problems


def _parse_rows(text: str, place: str) -> tuple[str, Iterator[TableRow]]:
    """Returns the delimiter and all rows, including blank ones, with unmodified cells."""
    if not text.strip(BLANK_CHARACTERS + "\r\n"):
        raise TableError(place, "must contain a table", "only delimiters")
    delimiter = _find_delimiter(text)
    _check_memory(text.count(delimiter) + text.count("\n"), place)
    return delimiter, _iterate_rows(text, delimiter, place)


def _check_memory(cells: int, place: str) -> None:
    if CELL_BYTES * cells > free_memory():
        raise _too_large(f"about {cells:,} cells", place)


def _iterate_rows(text: str, delimiter: str, place: str) -> Iterator[TableRow]:
    reader = csv.reader(_iterate_lines(text), delimiter=delimiter, skipinitialspace=True)
    line = 1
    try:
        for cells in reader:
            yield TableRow(line, cells)
            line = reader.line_num + 1
    except csv.Error as error:
        place = f"{place}, line {line}"
        if "field limit" in str(error):
            expected = f"must have cells of at most {csv.field_size_limit():,} characters"
            raise TableError(place, expected, "a longer one", UNCLOSED_HINT) from error
        raise TableError(place, f"is not a valid table row: {error}", hint=UNCLOSED_HINT) from error


def _iterate_lines(text: str) -> Iterator[str]:
    """Yields the lines piece by piece, since StringIO needs four bytes for each character."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE_CHARACTERS) + 1 or len(text)
        yield from io.StringIO(text[start:end], newline="")
        start = end


def _find_delimiter(text: str) -> str:
    """Returns the delimiter that yields the most names in the header and, if possible, equally long rows."""
    lines = [
        line for line in re.split(r"[\r\n]+", QUOTED_CELL.sub("x", text[:SAMPLE_SIZE])) if line.strip(BLANK_CHARACTERS)
    ]
    complete = lines[:-1] if len(text) > SAMPLE_SIZE and len(lines) > 1 else lines

    def rank(delimiter: str) -> tuple[bool, int]:
        header, *others = [line.count(delimiter) for line in complete] or [0]
        return header > 0 and all(count == header for count in others), header

    return max(DELIMITERS, key=rank) if any(sign in text for sign in DELIMITERS) else ","


def _has_content(row: TableRow) -> bool:
    return any(cell.strip() for cell in row.cells)


def read_text(path: str | os.PathLike[str]) -> str:
    """Reads a text file in any encoding and compression that `read_table` supports. Parquet files are converted to CSV.

    Raises:
        TableError: If the file does not exist, is empty, or is not a text file.
    """
    place, content = _display_name(path), _read_content(Path(path))
    if content.startswith(PARQUET_SIGNATURE):
        text: str = _with_index(_read_parquet(content, place)).to_csv(index=False)
        return text
    return _decode(content, place)


def _display_name(path: str | os.PathLike[str]) -> str:
    """Returns the name of a file for messages, with "the file" in front if it looks like the name of an argument."""
    name = os.fspath(path)
    return f"the file {name}" if name.isidentifier() else name


def _read_content(path: Path) -> bytes:
    """Reads the bytes of a file and decompresses them."""
    place = _display_name(path)
    try:
        if path.is_dir():
            raise TableError(place, "must be a file", "a folder", "specify a file in it")
        with path.open("rb") as file:
            content = _read_pieces(file, place)
    except FileNotFoundError:
        raise TableError(place, "does not exist") from None
    except OSError as error:
        raise TableError(place, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, TableError):
            raise
        raise TableError(repr(place), f"cannot be the path of a file: {error}") from None
    if content.startswith(GZIP_SIGNATURE):
        return _gunzip(content, place)
    return _unzip(content, place) if content.startswith(ZIP_SIGNATURES) else content


def _read_pieces(file: IO[bytes] | gzip.GzipFile, place: str) -> bytes:
    """Reads a whole file, as long as it fits into memory; compressed files may be far larger than they look."""
    limit = free_memory() // COPIES
    pieces, size = [], 0
    while piece := file.read(PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise _too_large(f"more than {size / 1e6:,.0f} MB", place)
    return b"".join(pieces)


def _too_large(found: str, place: str) -> TableError:
    expected = f"must fit into memory, of which {free_memory() / 1e6:,.0f} MB are free"
    return TableError(place, expected, found, "use fewer rows or columns")


def _gunzip(content: bytes, place: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return _read_pieces(file, place)
    except EOFError as error:
        raise TableError(place, f"is not a valid gzip file: {error}", hint="is it truncated?") from error
    except (OSError, zlib.error, struct.error) as error:
        hint = "it is damaged; create or download it again"
        raise TableError(place, f"is not a valid gzip file: {error}", hint=hint) from error


def _unzip(content: bytes, place: str) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if any(name in names for name in ("[Content_Types].xml", "mimetype")):
                raise TableError(place, "must be a CSV or Parquet file", "a workbook", "save it as CSV")
            tables = [name for name in names if not name.startswith(("__MACOSX/", "."))]
            if len(tables) != 1:
                found = f"{len(tables)}" + (f": {', '.join(tables[:MAX_SHOWN])}" if tables else "")
                raise TableError(place, "must be a zip archive with one file", found, "extract the one you need")
            with archive.open(tables[0]) as file:
                return _read_pieces(file, place)
    except TableError:
        raise
    except ZIP_DAMAGE as error:
        found = f"a workbook or archive that cannot be opened ({error})"
        raise TableError(place, "must be a CSV or Parquet file", found, "save it as CSV") from error


def _decode(content: bytes, place: str) -> str:
    if content.startswith(OLD_WORKBOOK_SIGNATURE):
        raise TableError(place, "must be a CSV or Parquet file", "an old Excel workbook", "save it as CSV")
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        # Western spreadsheets are often in Latin-1, which decodes any bytes.
        text = "\0" if encoding == "utf-16" else content.decode("latin-1")
    if "\0" in text:
        raise TableError(place, "is not a text file", hint="save the table as a UTF-8 CSV file")
    if not text or text.isspace():
        raise TableError(place, "is empty")
    return text


def _read_parquet(content: bytes, place: str) -> Any:
    if not is_installed("pandas") or not any(map(is_installed, ("pyarrow", "fastparquet"))):
        raise missing_package(f"the Parquet file {place}", "pyarrow", "tagalong[parquet]")
    try:
        return importlib.import_module("pandas").read_parquet(io.BytesIO(content))
    except (ValueError, OSError, EOFError, LookupError) as error:
        message = (str(error).splitlines() or [""])[0]
        raise TableError(place, f"is not a valid Parquet file: {message}", hint="is it truncated?") from error


def _with_index(frame: Any) -> Any:
    """Returns a frame with its index as the first column, as in a CSV file, unless the index only numbers the rows."""
    if type(frame.index).__name__ == "RangeIndex" and frame.index.name is None:
        return frame
    return frame.rename_axis(index=[name or "" for name in frame.index.names]).reset_index()


def is_missing_word(cell: str) -> bool:
    """Returns whether a cell is empty or contains a marker for a missing value.

    Example:
        >>> is_missing_word(" N/A "), is_missing_word("none")
        (True, False)
    """
    return cell.strip().lower() in MISSING_WORDS


def parse_number(cell: str) -> float:
    """Parses a number. Returns NaN if the value is missing.

    Raises:
        ValueError: If the cell is not a number.

    Example:
        >>> parse_number("-2e-3"), parse_number("NA")
        (-0.002, nan)
    """
    return float("nan") if is_missing_word(cell) else as_number(cell)


def is_number(cell: str) -> bool:
    """Returns whether a cell contains a number, including NaN and infinity.

    Example:
        >>> is_number("-2e-3"), is_number("12_3")
        (True, False)
    """
    try:
        as_number(cell)
    except ValueError:
        return False
    return True


def as_number(value: Any) -> float:
    """Converts a cell to a number. Raises ValueError or TypeError if the cell does not contain a number."""
    if isinstance(value, str) and "_" in value:  # Python would read the code 12_3 as 123
        raise ValueError(value)
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits; as text, float reads it as infinite
        return math.inf if value > 0 else -math.inf
