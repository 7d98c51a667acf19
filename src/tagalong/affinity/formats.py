"""An affinity as files: CSV for people, a JSON document with an archive for long histories."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.disclaimer import disclaimer
from tagalong.errors import InvalidInput, name_problems, raise_problems
from tagalong.files import DocumentError, pack_arrays, read_document, unpack_arrays, write_atomic, write_document

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

CsvLine = tuple[int, list[str]]
"""The number of a line in its file, and its cells."""

DECIMALS_HINT = "if decimals are written with a comma, write them with a point"
"""Ends messages about tables whose numbers look as if they had decimal commas."""

OTHER_WAY = {"source": ("target", "onto"), "target": ("source",)}  # first cells that contradict the axis


class AffinityFileError(DocumentError):
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
        raise AffinityFileError(f"{path}:", "expected a header line of task names", "an empty file")
    (top, header), body = lines[0], lines[1:]
    columns, rows = tuple(header[1:]), tuple(line[0] for _, line in body)
    problems = _header_problems(path, top, columns, rows)
    if header[0].lower() in OTHER_WAY.get(axis, ()):
        problems.append(
            f"{path}, line {top}: the first cell, {header[0]!r}, says what the lines are, but they are read as "
            f"`axis={axis!r}`; pass the other axis or change the cell"
        )
    raise_problems([InvalidInput("", problem) for problem in problems], AffinityFileError)
    problems = _row_problems(path, body, rows, columns)
    matrix = np.array([_numbers(path, line, columns, problems) for line in body])
    raise_problems([InvalidInput("", problem) for problem in problems], AffinityFileError)
    return matrix[:, [columns.index(name) for name in rows]], rows


def _lines(path: Path) -> list[CsvLine]:
    try:
        # utf-8-sig: spreadsheet programs put a mark before the first name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            return csv_lines(file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise AffinityFileError(f"{path}:", "expected a text file of comma-separated values", str(error)) from error


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
SAVE_AGAIN = "save the affinity again"


def write_json(affinity: Affinity, path: Path) -> None:
    """Writes an affinity as JSON; a long history goes into an archive, which is written first."""
    document: dict[str, Any] = {"direction": DIRECTION, "caution": disclaimer(affinity.tasks)}
    document |= {name: getattr(affinity, name) for name in ALWAYS}
    timed = {name: getattr(affinity, name) for name in TIMED}
    archive, content = None, b""
    if affinity.history.size + affinity.null.size > INLINE:
        content = pack_arrays(timed)
        digest = hashlib.sha256(content).hexdigest()
        archive = f"{path.name}.{digest[:16]}.npz"
        document["archive"] = {"file": archive, "sha256": digest}
    else:
        document |= timed
    while True:
        if archive is not None:
            write_atomic(path.with_name(archive), content)
        write_document(path, FORMAT, VERSION, document)
        _remove_stale_archives(path, archive)
        if _has_archive(path):  # else two processes saved at once, and one removed the archive of the other
            return


def _remove_stale_archives(path: Path, archive: str | None) -> None:
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.npz")
    for other in path.absolute().parent.iterdir():
        if pattern.fullmatch(other.name) and other.name != archive:
            other.unlink(missing_ok=True)


def _has_archive(path: Path) -> bool:
    """Whether the archive that the JSON names exists; True if it names none."""
    entry = _read(path).get("archive")
    return entry is None or path.with_name(entry["file"]).exists()


def read_json(path: Path) -> dict[str, Any]:
    """Reads the fields of an affinity; if another process saves one there meanwhile, those of the later one."""
    found = _read(path)
    try:
        if "archive" not in found:
            return found
        return {name: found[name] for name in ALWAYS} | _read_archive(path, found["archive"])
    except AffinityFileError:
        if _read(path) == found:
            raise
    return read_json(path)


def _read(path: Path) -> dict[str, Any]:
    """Reads the JSON: the fields in it, and under "archive" where the others are."""
    document = read_document(path, FORMAT, (VERSION,), dict, AffinityFileError, SAVE_AGAIN)
    direction = document.get("direction", DIRECTION)
    if direction != DIRECTION:
        hint = 'read its matrix with from_matrix(..., axis="target")'
        raise AffinityFileError(str(path), f"must have the direction {DIRECTION!r}", repr(direction), hint)
    names = (*ALWAYS, "archive") if "archive" in document else ALWAYS + TIMED
    missing = [name for name in names if name not in document]
    if missing:
        raise AffinityFileError(str(path), f"is damaged: it lacks {', '.join(missing)}", hint=SAVE_AGAIN)
    return {name: document[name] for name in names}


def _read_archive(path: Path, entry: Any) -> dict[str, NDArray[Any]]:
    name, digest = (entry.get("file"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not isinstance(name, str) or Path(name).name != name:
        problem = f"is damaged: its archive must be a file in the same folder, found {name!r}"
        raise AffinityFileError(str(path), problem, hint=SAVE_AGAIN)
    archive = path.with_name(name)
    try:
        content = archive.read_bytes()
    except FileNotFoundError:
        raise AffinityFileError(str(path), f"needs its history in {archive}, which is missing; copy both") from None
    if hashlib.sha256(content).hexdigest() != digest:
        problem = f"is not the history that {path} was saved with: its hash differs"
        raise AffinityFileError(str(archive), problem, hint=SAVE_AGAIN)
    try:
        return unpack_arrays(content, TIMED)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        problem = f"is not an archive of {', '.join(TIMED)}: {error}"
        raise AffinityFileError(str(archive), problem, hint=SAVE_AGAIN) from error
