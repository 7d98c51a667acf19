"""Reads and writes affinities as CSV, or as JSON with a separate archive for long histories."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import InvalidInput, first_few, raise_problems
from tagalong.files import (
    DocumentError,
    pack_arrays,
    read_document,
    unpack_arrays,
    write_atomic,
    write_document,
)
from tagalong.tabular import TableError, parse_numbers, read_table

from .averaging import Floats

if TYPE_CHECKING:
    import pandas as pd

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
        return square_matrix(read_table(path, as_text=True), axis)
    except TableError as error:
        raise AffinityFileError.join(error.problems) from error


def square_matrix(table: pd.DataFrame, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Returns the matrix and the task names of a square table of text, both in row order.

    Raises:
        AffinityFileError: If the table is not square, its rows and columns have different names, or some cells are not
            numbers.
    """
    corner, *columns = table.columns
    rows = table.iloc[:, 0].tolist()
    place = table.attrs["place"]
    expected = "must have the same task names in its first row and its first column"
    if not all(columns) or sorted(columns) != sorted(rows):
        unpaired = set(columns) ^ set(rows)
        if not set(columns) & set(rows):
            hint = "for a table with one row per example, use tagalong run"
            raise AffinityFileError(place, expected, "none", hint)
        repeated = {name for name in rows if rows.count(name) > 1}
        found = f"a difference for {first_few(sorted(map(repr, unpaired | repeated)))}"
        raise AffinityFileError(place, expected, found)
    problems: list[InvalidInput] = []
    if ROW_MEANINGS.get(corner.lower(), axis) != axis:
        hint = "pass the other `axis`, or change the cell"
        problems.append(
            AffinityFileError(f"{place}: the first cell", f"must match `axis={axis!r}`", repr(corner), hint)
        )
    numbers = parse_numbers(table, columns, problems)
    raise_problems(problems, AffinityFileError)
    return numbers[rows].to_numpy(), tuple(rows)


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


# Words in task names that suggest a sensitive personal trait; an asterisk matches any ending.
SENSITIVE_TRAITS = {
    "gender": "gender sex male female man woman men women boy girl trans*",
    "race and origin": "race racial ethnic* skin nationality citizen* immigra* migra* hispanic asian black white caste",
    "religion": "religi* faith church muslim christian jewish hindu",
    "age": "age ages young old elderly",
    "health": "health* ill illness disease* diagnos* disab* pregnan* cancer diabet* depress* hiv bmi blood cholesterol "
    "glucose hba1c systolic diastolic hdl ldl triglycerides creatinine insulin smok* alcohol drug* mental",
    "sexuality": "sexual* gay lesbian orientation",
    "appearance": "attractive chubby beard makeup bald face facial",
    "belief and standing": "politic* party vote* union income poverty wealth crime criminal convict*",
}


def disclaimer(tasks: Iterable[str]) -> str:
    """Returns the disclaimer for these tasks, listing those that seem to be about people.

    Example:
        >>> disclaimer(["depth", "normals"])
        'Affinity describes how one network trained on one data set. It implies neither similarity nor causation.'
        >>> "gender: is_male; age: Young" in disclaimer(["is_male", "Young", "depth"])
        True
    """
    sensitive_tasks: dict[str, list[str]] = {}
    for task in tasks:
        words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", task).lower())
        for trait, patterns in SENSITIVE_TRAITS.items():
            if any(fnmatch(word, pattern) for word in words for pattern in patterns.split()):
                sensitive_tasks.setdefault(trait, []).append(task)
                break
    text = "Affinity describes how one network trained on one data set. It implies neither similarity nor causation."
    if not sensitive_tasks:
        return text
    named = "; ".join(f"{trait}: {', '.join(names)}" for trait, names in sensitive_tasks.items())
    return (
        f"{text} Some of these tasks seem to be about people ({named}). That such tasks train well together says "
        "nothing about people and must not be interpreted as a link between these traits."
    )
