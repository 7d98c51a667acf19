"""Reads and writes affinities as CSV, or as JSON with a separate archive for long histories."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.disclaimer import disclaimer
from tagalong.errors import InvalidInput, pluralize, raise_problems
from tagalong.files import (
    DocumentError,
    pack_arrays,
    read_document,
    unpack_arrays,
    write_atomic,
    write_document,
)
from tagalong.tabular import DECIMAL_COMMA_HINT, ParsedTable, TableError, TableRow, is_number, read_table

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

ROW_MEANINGS = {"source": "source", "target": "target", "onto": "target"}  # keyed by the table's first cell
NEEDS_QUOTES = set('",;\t|\r\n')  # names with one of these are quoted, as readers may mistake it for a delimiter


class AffinityFileError(DocumentError):
    """Raised if a file is corrupted or does not contain an affinity."""


def csv_text(affinity: Affinity) -> str:
    """Returns the matrix as CSV, with numbers in full precision and empty cells for pairs that were never measured."""
    lines = [["source", *map(_quote_csv_cell, affinity.tasks)]]
    for task, row in zip(affinity.tasks, affinity.mean.tolist(), strict=True):
        lines.append([_quote_csv_cell(task), *("" if np.isnan(value) else repr(value) for value in row)])
    return "".join(",".join(line) + "\n" for line in lines)


def _quote_csv_cell(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"' if NEEDS_QUOTES & set(name) else name


def read_csv(path: Path, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Reads a square table and returns its matrix and task names, both in row order."""
    path.stat()  # raises FileNotFoundError
    try:
        return square_matrix(read_table(path), axis)
    except TableError as error:
        raise AffinityFileError.join(error.problems) from error


def square_matrix(table: ParsedTable, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Returns the matrix and the task names of a square table, both in row order.

    Raises:
        AffinityFileError: If the table is not square, its rows and columns have different names, or some cells are not
            numbers.
    """
    columns, rows = tuple(table.header.cells[1:]), tuple(row.cells[0] for row in table.rows)
    _check_header(table, columns, rows)
    problems = table.problems + _header_problems(table, columns, axis)
    if rows and len(set(columns)) == len(columns):  # otherwise, every row would be reported because of the header
        problems += _row_problems(table, rows, columns)
    matrix = np.array([_parse_row(table, row, columns, problems) for row in table.rows])
    raise_problems(problems, AffinityFileError)
    return matrix[:, [columns.index(name) for name in rows]], rows


def _check_header(table: ParsedTable, columns: tuple[str, ...], rows: tuple[str, ...]) -> None:
    """Raises an error if the first line is not a header, or not that of a square table."""
    place = table.at(table.header)
    expected = "must be a header row: a label for the first column, then one task name per column"
    if not columns:
        raise AffinityFileError(place, expected, "one cell", "are the columns separated by commas?")
    if all(map(is_number, columns)) and set(columns) != set(rows):
        hint = "put the task names in the first row and the first column"
        raise AffinityFileError(place, expected, "numbers", hint)
    if len(rows) > len(columns) and not set(rows) & set(columns):  # otherwise, every line would be reported
        expected = "must be a square table whose rows and columns have the same names"
        hint = "for a table with one row per example, use tagalong run"
        raise AffinityFileError(table.place, expected, f"{len(rows):,} rows that are not named after columns", hint)


def _header_problems(table: ParsedTable, columns: tuple[str, ...], axis: str) -> list[InvalidInput]:
    place, corner = table.at(table.header), table.header.cells[0]
    problems: list[InvalidInput] = []
    if not all(columns):
        problems.append(AffinityFileError(place, "must contain a name for every column", "an empty cell"))
    if ROW_MEANINGS.get(corner.lower(), axis) != axis:
        expected = f"must match `axis={axis!r}`"
        hint = "pass the other `axis`, or change the cell"
        problems.append(AffinityFileError(f"{place}: the first cell", expected, repr(corner), hint))
    return problems


def _row_problems(table: ParsedTable, rows: tuple[str, ...], columns: tuple[str, ...]) -> list[InvalidInput]:
    problems: list[InvalidInput] = []
    if len(rows) != len(columns):
        count = pluralize(len(columns), "row")
        problems.append(AffinityFileError(table.place, f"must have {count}, one per column", str(len(rows))))
    known = ", ".join(map(repr, columns))
    for row in table.rows:
        if row.cells[0] not in columns:
            expected = f"must start with one of the column names {known}"
            problems.append(AffinityFileError(table.at(row), expected, repr(row.cells[0])))
    repeated = [name for name in columns if rows.count(name) > 1]
    missing = [name for name in columns if name not in rows]
    problems += [
        AffinityFileError(table.place, f"must have exactly one row for {name!r}", "several") for name in repeated
    ]
    problems += [AffinityFileError(table.place, f"must have a row for column {name!r}", "none") for name in missing]
    return problems


def _parse_row(
    table: ParsedTable, row: TableRow, columns: tuple[str, ...], problems: list[InvalidInput]
) -> list[float]:
    numbers = []
    for name, cell in zip(columns, row.cells[1:], strict=True):
        try:
            number = table.parse_number(cell)
        except ValueError:
            number = np.inf
        if np.isinf(number):
            hint = DECIMAL_COMMA_HINT if "," in cell else ""
            place = table.at(row, name)
            problems.append(AffinityFileError(place, "must be a finite number or empty", repr(cell), hint))
        numbers.append(number)
    return numbers


FORMAT = "tagalong-affinity"
VERSION = 1
DIRECTION = "[source][target]"
MAX_INLINE_VALUES = 100_000  # longer histories are archived, because the JSON would exceed about 2 MB
INLINE_FIELDS = ("tasks", "mean", "stderr", "count", "skipped", "settings")
PER_STEP_FIELDS = ("steps", "history", "null")
SAVE_AGAIN_HINT = "save the affinity again"


def write_json(affinity: Affinity, path: Path) -> None:
    """Writes an affinity as JSON. If the history is long, it is first written to a separate archive."""
    document: dict[str, Any] = {"direction": DIRECTION, "caution": disclaimer(affinity.tasks)}
    document |= {name: getattr(affinity, name) for name in INLINE_FIELDS}
    per_step = {name: getattr(affinity, name) for name in PER_STEP_FIELDS}
    if affinity.block_counts is not None:
        per_step["block_counts"] = affinity.block_counts
    archive, content = None, b""
    if affinity.history.size + affinity.null.size > MAX_INLINE_VALUES:
        content = pack_arrays(per_step)
        digest = hashlib.sha256(content).hexdigest()
        archive = f"{path.name}.{digest[:16]}.npz"
        document["archive"] = {"file": archive, "sha256": digest}
    else:
        document |= per_step
    while True:
        if archive is not None:
            write_atomic(path.with_name(archive), content)
        write_document(path, FORMAT, VERSION, document)
        _remove_stale_archives(path, archive)
        if _archive_exists(path):  # otherwise, a concurrent save has removed the archive
            return


def _remove_stale_archives(path: Path, archive: str | None) -> None:
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.npz")
    for other in path.absolute().parent.iterdir():
        if pattern.fullmatch(other.name) and other.name != archive:
            other.unlink(missing_ok=True)


def _archive_exists(path: Path) -> bool:
    """Returns True if the JSON file does not refer to an archive, or if that archive exists."""
    entry = _read_fields(path).get("archive")
    return entry is None or path.with_name(entry["file"]).exists()


def read_json(path: Path) -> dict[str, Any]:
    """Reads the fields of an affinity.

    If another process overwrites the file in the meantime, the new version is read.
    """
    found = _read_fields(path)
    try:
        if "archive" not in found:
            return found
        return {name: found[name] for name in INLINE_FIELDS} | _read_archive(path, found["archive"])
    except AffinityFileError:
        if _read_fields(path) == found:
            raise
    return read_json(path)


def _read_fields(path: Path) -> dict[str, Any]:
    """Reads the fields in the JSON file. If other fields are stored in an archive, "archive" specifies its location."""
    document = read_document(path, FORMAT, VERSION, dict, AffinityFileError, SAVE_AGAIN_HINT)
    direction = document.get("direction", DIRECTION)
    if direction != DIRECTION:
        hint = 'pass its matrix to from_matrix() with axis="target"'
        raise AffinityFileError(path, f"must store affinities in the direction {DIRECTION!r}", repr(direction), hint)
    names = (*INLINE_FIELDS, "archive") if "archive" in document else INLINE_FIELDS + PER_STEP_FIELDS
    missing = [name for name in names if name not in document]
    if missing:
        raise AffinityFileError(path, f"is missing required fields: {', '.join(missing)}", hint=SAVE_AGAIN_HINT)
    optional = ["block_counts"] if "block_counts" in document else []
    return {name: document[name] for name in (*names, *optional)}


def _read_archive(path: Path, entry: Any) -> dict[str, NDArray[Any]]:
    name, digest = (entry.get("file"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or Path(name).name != name:
        problem = f"is damaged: the archive must be a file in the same folder, found {name!r}"
        raise AffinityFileError(path, problem, hint=SAVE_AGAIN_HINT)
    archive = path.with_name(name)
    try:
        content = archive.read_bytes()
    except FileNotFoundError:
        raise AffinityFileError(
            path, f"stores its history in {archive}, which is missing; keep both files together"
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        problem = f"is not the history saved with {path}: the hashes differ"
        raise AffinityFileError(archive, problem, hint=SAVE_AGAIN_HINT)
    try:
        arrays = unpack_arrays(content)
        optional = [name for name in ("block_counts",) if name in arrays]
        return {name: arrays[name] for name in (*PER_STEP_FIELDS, *optional)}
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        problem = f"is not a valid archive with the arrays {', '.join(PER_STEP_FIELDS)}: {error}"
        raise AffinityFileError(archive, problem, hint=SAVE_AGAIN_HINT) from error
