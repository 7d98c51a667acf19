"""An affinity as files: CSV for people, versioned JSON with an archive for long histories."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tagalong.caution import caution
from tagalong.errors import name_problems, refuse
from tagalong.files import write_atomic

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

CsvLine = tuple[int, list[str]]
"""The number of a line in its file, and its cells."""

DECIMALS_HINT = "if decimals are written with a comma, write them with a point"
"""Ends messages about tables whose numbers look as if they had decimal commas."""

OTHER_WAY = {"source": ("target", "onto"), "target": ("source",)}  # first cells that contradict the axis


class AffinityFileError(ValueError):
    """A file that should hold an affinity does not, or holds a damaged one."""


def csv_text(affinity: Affinity) -> str:
    """The matrix with names; numbers in full, an empty cell where nothing was measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["source", *affinity.tasks])
    for task, row in zip(affinity.tasks, affinity.mean.tolist(), strict=True):
        writer.writerow([task, *("" if np.isnan(value) else repr(value) for value in row)])
    return text.getvalue()


def read_csv(path: Path, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Matrix and names, both in the order of the rows; columns in another order are put right."""
    return square_matrix(path, _lines(path), axis)


def square_matrix(path: Path, lines: list[CsvLine], axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Matrix and names of a square table from lines that have been read; `path` is where from."""
    if not lines:
        raise AffinityFileError(f"{path}: expected a header line of task names, found an empty file")
    (top, header), body = lines[0], lines[1:]
    columns, rows = tuple(header[1:]), tuple(line[0] for _, line in body)
    problems = _header_problems(path, top, columns, rows)
    if header[0].lower() in OTHER_WAY.get(axis, ()):
        problems.append(
            f"{path}, line {top}: the first cell, {header[0]!r}, says what the lines are, but they are read as "
            f"`axis={axis!r}`; pass the other axis or change the cell"
        )
    refuse(problems, AffinityFileError)
    problems = _row_problems(path, body, rows, columns)
    matrix = np.array([_numbers(path, line, columns, problems) for line in body])
    refuse(problems, AffinityFileError)
    return matrix[:, [columns.index(name) for name in rows]], rows


def _lines(path: Path) -> list[CsvLine]:
    try:
        # utf-8-sig: spreadsheet programs put a mark before the first name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            return csv_lines(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise AffinityFileError(f"{path}: expected a text file of comma-separated values, found {error}") from error


def csv_lines(text: Iterable[str], delimiter: str = ",") -> list[CsvLine]:
    """Lines that are not blank, with their numbers, cells without the space around them."""
    reader = csv.reader(text, delimiter=delimiter)
    lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader]
    return [(number, line) for number, line in lines if any(line)]


def _header_problems(path: Path, top: int, columns: tuple[str, ...], rows: tuple[str, ...]) -> list[str]:
    where = f"{path}, line {top}"
    expected = f"{where}: expected a header line: a first cell, then one task name per column, found"
    if not columns:
        return [f"{expected} one cell; are the columns separated by commas?"]
    if all(_is_number(name) for name in columns) and set(columns) != set(rows):
        return [f"{expected} numbers; put the task names in the first line and the first column"]
    return name_problems(columns, f"{where}: column names")


def _row_problems(path: Path, body: list[CsvLine], rows: tuple[str, ...], columns: tuple[str, ...]) -> list[str]:
    problems = name_problems(rows, f"{path}: row names") if rows else []
    if len(rows) != len(columns):
        problems.append(f"{path}: expected as many rows as columns, found {len(rows)} and {len(columns)}")
    for number, line in body:
        if line[0] and line[0] not in columns:
            expected = f"one of the column names {', '.join(map(repr, columns))}"
            problems.append(f"{path}, line {number}: expected as row name {expected}, found {line[0]!r}")
    for name in columns:
        if name not in rows:
            problems.append(f"{path}: expected a row for the column {name!r}, found none")
    return problems


def _numbers(path: Path, line: CsvLine, columns: tuple[str, ...], problems: list[str]) -> list[float]:
    number, (_, *values) = line
    where = f"{path}, line {number}"
    if len(values) != len(columns):
        hint = f"; {DECIMALS_HINT}" if len(values) == 2 * len(columns) else ""
        problems.append(f"{where}: expected {len(columns)} values, found {len(values)}{hint}")
        return [np.nan] * len(columns)
    for name, cell in zip(columns, values, strict=True):
        if cell and not (_is_number(cell) and not np.isinf(float(cell))):
            hint = f"; {DECIMALS_HINT}" if _is_number(cell.replace(",", ".")) and "," in cell else ""
            problems.append(f"{where}, column {name!r}: expected a finite number or nothing, found {cell!r}{hint}")
            return [np.nan] * len(columns)
    return [float(cell) if cell else np.nan for cell in values]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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
        raise AffinityFileError(f"{path} is damaged: it lacks {', '.join(missing)}; save the affinity again")
    fields = {name: document[name] for name in names}
    return fields | (_archived(path, document["archive"]) if "archive" in document else {})


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        hint = "is it cut short, or not an affinity file?"
        raise AffinityFileError(f"{path} is not valid JSON ({error}); {hint}") from error
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise AffinityFileError(f"{path} is not an affinity file: expected the format {FORMAT!r}, found {found!r}")
    direction = document.get("direction", DIRECTION)
    if direction != DIRECTION:
        raise AffinityFileError(
            f"{path} has the direction {direction!r}, expected {DIRECTION!r}; read its matrix with "
            'from_matrix(..., axis="target")'
        )
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise AffinityFileError(f"{path} is damaged: expected a version number, found {version!r}")
    if version > VERSION:
        raise AffinityFileError(
            f"{path} has version {version} and this tagalong reads up to {VERSION}; update tagalong"
        )
    return dict(document)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _archived(path: Path, entry: Any) -> dict[str, NDArray[Any]]:
    name, digest = (entry.get("file"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or Path(name).name != name:
        raise AffinityFileError(f"{path} is damaged: expected the name of an archive beside it, found {name!r}")
    archive = path.with_name(name)
    try:
        content = archive.read_bytes()
    except FileNotFoundError:
        raise AffinityFileError(f"{path} needs its history in {archive}, which is missing; copy both") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise AffinityFileError(f"{archive} is not the history that {path} was saved with: its hash differs")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {field: arrays[field] for field in TIMED}
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise AffinityFileError(f"{archive} is not an archive of {', '.join(TIMED)}: {error}") from error
