"""Text files with scores, costs or groups: their text, their lines or JSON, and the names in a cell."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from tagalong.affinity import CsvLine, csv_lines

SEPARATORS = ("\t", ";", ",", "|")  # of columns
JOINTS = ("+", ";", ",", "|", "&", "/")  # of the names in a cell


class TableError(ValueError):
    """A file that should hold scores, costs or groups does not."""


def read_text_file(path: Path) -> str:
    """The text, without the mark that spreadsheet programs put before it.

    Raises:
        TableError: the file is missing, empty or not a text.
    """
    if path.is_dir():
        raise TableError(f"{path} is a folder; give the name of a file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such file") from None
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}") from None
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise _not_text(path) from None
    if "\0" in text:
        raise _not_text(path)
    if not text.strip():
        raise TableError(f"{path} is empty; expected a table (CSV) or JSON")
    return text


def _not_text(path: Path) -> TableError:
    return TableError(f"{path} is not a text file; expected a table (CSV, UTF-8) or JSON")


def is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def read_lines(path: Path, text: str) -> list[CsvLine]:
    """Cells by line; what separates columns is what the header has most of: tab, semicolon, comma or bar."""
    header = next(line for line in text.splitlines() if line.strip())
    separator = max(SEPARATORS, key=lambda sign: len(next(csv.reader([header], delimiter=sign))))
    try:
        lines = csv_lines(io.StringIO(text, newline=""), separator)
    except csv.Error as error:
        raise TableError(f"{path}: expected a table of separated values, found {error}") from None
    if not lines:
        raise TableError(f"{path} holds only separators; expected a table (CSV) or JSON")
    return lines


def read_json(path: Path, text: str) -> Any:
    """The document; a key given twice is refused rather than lost."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        if twice:
            raise TableError(f"{path}: names must be distinct, found more than once: {', '.join(map(repr, twice))}")
        return dict(pairs)

    def constant(name: str) -> NoReturn:
        raise TableError(f"{path}: values must be finite numbers or null, found {name}")

    try:
        return json.loads(text, object_pairs_hook=distinct, parse_constant=constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TableError(f"{path} starts like JSON and is not: {error}; is it cut short?") from None


def group_names(cell: str, known: Collection[str] | None = None) -> frozenset[str] | None:
    """The names in a cell, None if they make no sense; names that hold a joint are recognised if known.

    Args:
        cell: the text.
        known: the names there are; without them the first joint found splits the cell.

    Example:
        >>> sorted(group_names("age+ill", {"age", "ill"})), sorted(group_names("{age, ill}"))
        (['age', 'ill'], ['age', 'ill'])
    """
    bare = re.sub(r"^[\[({]|[\])}]$", "", cell.strip())
    for text in (cell.strip(), bare):
        if known is not None and text in known:
            return frozenset({text})
    for joint in JOINTS:
        names = [name.strip().strip("'\"") for name in bare.split(joint)]
        if len(names) > 1 and (known is None or all(name in known for name in names)):
            return frozenset(names) if len(set(names)) == len(names) and all(names) else None
    return frozenset({bare}) if known is None and bare else None
