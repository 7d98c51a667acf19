"""An affinity as files: CSV for people, versioned JSON with an archive for long histories."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tagalong.caution import caution
from tagalong.errors import InvalidInput, counted, raise_problems
from tagalong.files import write_atomic
from tagalong.tabular import DECIMAL_COMMA_HINT, TableError, TableRow, TextTable, is_number, read_table

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

ROW_MEANINGS = {"source": "source", "target": "target", "onto": "target"}  # first cells that say what the rows are
QUOTED = set('",;\t|\r\n')  # a name with one of these is quoted, so that no reader takes it for a delimiter


class AffinityFileError(InvalidInput):
    """A file that should hold an affinity does not, or holds a damaged one."""


def csv_text(affinity: Affinity) -> str:
    """Returns the matrix with names; numbers in full, an empty cell where nothing was measured."""
    lines = [["source", *map(_quote, affinity.tasks)]]
    for task, row in zip(affinity.tasks, affinity.mean.tolist(), strict=True):
        lines.append([_quote(task), *("" if np.isnan(value) else repr(value) for value in row)])
    return "".join(",".join(line) + "\n" for line in lines)


def _quote(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"' if QUOTED & set(name) else name


def read_csv(path: Path, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Reads a square table; returns its matrix and names, both in the order of the rows."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
    try:
        return square_matrix(read_table(path), axis)
    except TableError as error:
        raise AffinityFileError.join(error.problems) from error


def square_matrix(table: TextTable, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Returns matrix and names of a square table, both in the order of the rows.

    Raises:
        AffinityFileError: the table is not square, rows and columns have different names, or cells are not numbers.
    """
    columns, rows = tuple(table.header.cells[1:]), tuple(row.cells[0] for row in table.rows)
    raise_problems(_header_problems(table, columns, rows, axis), AffinityFileError)
    if not rows:
        raise_problems(table.problems, AffinityFileError)
    problems = table.problems + _row_problems(table, rows, columns)
    matrix = np.array([_parse_row(table, row, columns, problems) for row in table.rows])
    raise_problems(problems, AffinityFileError)
    return matrix[:, [columns.index(name) for name in rows]], rows


def _header_problems(
    table: TextTable, columns: tuple[str, ...], rows: tuple[str, ...], axis: str
) -> list[InvalidInput]:
    place, corner = table.at(table.header), table.header.cells[0]
    expected = "must be a header: a first cell, then one task name per column"
    if not columns:
        return [AffinityFileError(place, expected, "one cell", "are the columns separated by commas?")]
    if all(map(is_number, columns)) and set(columns) != set(rows):
        hint = "put the task names in the first line and the first column"
        return [AffinityFileError(place, expected, "numbers", hint)]
    problems = [problem for problem in table.problems if problem.argument == place]
    if not all(columns):
        problems.append(AffinityFileError(place, "must name each column", "an empty cell"))
    if ROW_MEANINGS.get(corner.lower(), axis) != axis:
        expected, hint = f"must not contradict `axis={axis!r}`", "pass the other `axis` or change the cell"
        problems.append(AffinityFileError(f"{place}: the first cell", expected, repr(corner), hint))
    return problems


def _row_problems(table: TextTable, rows: tuple[str, ...], columns: tuple[str, ...]) -> list[InvalidInput]:
    problems: list[InvalidInput] = []
    if len(rows) != len(columns):
        expected = f"must have {counted(len(columns), 'row')}, one per column"
        problems.append(AffinityFileError(table.place, expected, str(len(rows))))
    known = ", ".join(map(repr, columns))
    for row in table.rows:
        if row.cells[0] not in columns:
            expected = f"must start with one of the column names {known}"
            problems.append(AffinityFileError(table.at(row), expected, repr(row.cells[0])))
    repeated = [name for name in columns if rows.count(name) > 1]
    missing = [name for name in columns if name not in rows]
    problems += [AffinityFileError(table.place, f"must have one row for {name!r}", "several") for name in repeated]
    problems += [AffinityFileError(table.place, f"must have a row for the column {name!r}", "none") for name in missing]
    return problems


def _parse_row(table: TextTable, row: TableRow, columns: tuple[str, ...], problems: list[InvalidInput]) -> list[float]:
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
INLINE = 100_000  # numbers of history that stay in the JSON, about two megabytes
ALWAYS = ("tasks", "mean", "stderr", "count", "skipped", "settings")
TIMED = ("steps", "history", "null")


def write_json(affinity: Affinity, path: Path) -> None:
    """Archive first, JSON last: the JSON names an archive that is there."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "direction": DIRECTION}
    document["caution"] = caution(affinity.tasks)
    document |= {name: _plain(getattr(affinity, name)) for name in ALWAYS}
    archive, content = None, b""
    if affinity.history.size + affinity.null.size > INLINE:
        content = _packed({name: getattr(affinity, name) for name in TIMED})
        digest = hashlib.sha256(content).hexdigest()
        archive = f"{path.name}.{digest[:16]}.npz"
        document["archive"] = {"file": archive, "sha256": digest}
    else:
        document |= {name: _plain(getattr(affinity, name)) for name in TIMED}
    text = json.dumps(document, allow_nan=False, indent=1) + "\n"
    while True:
        if archive is not None:
            write_atomic(path.with_name(archive), content)
        write_atomic(path, text.encode())
        _remove_stale(path, archive)
        if _whole(path):  # else another process saved here at once, and one took the other's archive for stale
            return


def _plain(value: Any) -> Any:
    """What JSON can hold: NaN becomes null."""
    if isinstance(value, np.ndarray):
        return np.where(np.isnan(value), np.array(None), value.astype(object)).tolist()
    if isinstance(value, (tuple, list, str)):
        return value
    return {key: _plain(entry) if isinstance(entry, np.ndarray) else entry for key, entry in value.items()}


def _packed(arrays: dict[str, NDArray[Any]]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def _remove_stale(path: Path, archive: str | None) -> None:
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.npz")
    for other in path.absolute().parent.iterdir():
        if pattern.fullmatch(other.name) and other.name != archive:
            other.unlink(missing_ok=True)


def _whole(path: Path) -> bool:
    """Whether the archive that the JSON names is there, if it names one."""
    entry = _document(path).get("archive")
    return entry is None or path.with_name(entry["file"]).exists()


def read_json(path: Path) -> dict[str, Any]:
    """The fields of the affinity saved at `path`; where another process saves there meanwhile, of the later one."""
    document = _document(path)
    try:
        return _fields(path, document)
    except AffinityFileError:
        if _document(path) == document:
            raise
    return read_json(path)


def _fields(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    names = ALWAYS if "archive" in document else ALWAYS + TIMED
    missing = [name for name in names if name not in document]
    if missing:
        raise AffinityFileError("", f"{path} is damaged: it lacks {', '.join(missing)}; save the affinity again")
    fields = {name: document[name] for name in names}
    return fields | (_archived(path, document["archive"]) if "archive" in document else {})


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        hint = "is it cut short, or not an affinity file?"
        raise AffinityFileError("", f"{path} is not valid JSON ({error}); {hint}") from error
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise AffinityFileError("", f"{path} is not an affinity file: expected the format {FORMAT!r}, found {found!r}")
    direction = document.get("direction", DIRECTION)
    if direction != DIRECTION:
        raise AffinityFileError(
            "",
            f"{path} has the direction {direction!r}, expected {DIRECTION!r}; read its matrix with "
            'from_matrix(..., axis="target")',
        )
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise AffinityFileError("", f"{path} is damaged: expected a version number, found {version!r}")
    if version > VERSION:
        raise AffinityFileError(
            "", f"{path} has version {version} and this tagalong reads up to {VERSION}; update tagalong"
        )
    return dict(document)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _archived(path: Path, entry: Any) -> dict[str, NDArray[Any]]:
    name, digest = (entry.get("file"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or Path(name).name != name:
        raise AffinityFileError("", f"{path} is damaged: expected the name of an archive beside it, found {name!r}")
    archive = path.with_name(name)
    try:
        content = archive.read_bytes()
    except FileNotFoundError:
        raise AffinityFileError("", f"{path} needs its history in {archive}, which is missing; copy both") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise AffinityFileError("", f"{archive} is not the history that {path} was saved with: its hash differs")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {field: arrays[field] for field in TIMED}
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise AffinityFileError("", f"{archive} is not an archive of {', '.join(TIMED)}: {error}") from error
