"""Reads and writes affinities as CSV, or as JSON with a separate archive for long histories."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.errors import InvalidInput, first_few, raise_problems
from tagalong.files import (
    DocumentError,
    pack_arrays,
    read_document,
    report_damage,
    unpack_arrays,
    write_atomic,
    write_document,
)
from tagalong.tabular import TableError, parse_numbers

from .averaging import Floats

if TYPE_CHECKING:
    import pandas as pd

    from .affinity import Affinity

ROW_MEANINGS = {"source": "source", "target": "target", "onto": "target"}  # keyed by the table's first cell
FORMAT = "tagalong-affinity"
VERSION = 1
DIRECTION = "[source][target]"
MAX_INLINE_VALUES = 100_000  # longer histories are archived, because the JSON would exceed about 2 MB
SAVE_AGAIN_HINT = "save the affinity again"
FIELDS = ("tasks", "mean", "stderr", "count", "skipped", "settings")
PER_STEP_FIELDS = ("steps", "history", "null")
# Words in task names that suggest a personal trait, and how other such words begin.
PERSONAL_WORDS = (
    "sex male female man woman men women boy girl trans race racial skin nationality asian black white caste faith "
    "church muslim christian jewish hindu age ages young old elderly ill illness cancer hiv bmi blood cholesterol "
    "glucose hba1c systolic diastolic hdl ldl triglycerides creatinine insulin alcohol mental gay lesbian orientation "
    "attractive chubby beard makeup bald face facial party union income poverty wealth crime criminal gender"
)
PERSONAL_STEMS = (
    "ethnic citizen immigra migra hispanic religi health disease diagnos disab pregnan diabet depress smok drug sexual "
    "politic vote convict transgender"
)


def square_matrix(table: pd.DataFrame, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Returns the matrix and the task names of a square table of text, both in row order.

    Raises:
        TableError: If the table is not square, rows and columns have different names, or some cells are not numbers.
    """
    corner, *columns = table.columns
    rows = table.iloc[:, 0].tolist()
    place = table.attrs["place"]
    if not all(columns) or sorted(columns) != sorted(rows):
        unpaired = (set(columns) ^ set(rows)) | {name for name in rows if rows.count(name) > 1}
        expected = "must have the same task names in its first row and its first column"
        hint = "for a table with one row per example, use tagalong run"
        raise TableError(place, expected, f"a difference for {first_few(sorted(map(repr, unpaired)))}", hint)
    problems: list[InvalidInput] = []
    if ROW_MEANINGS.get(corner.lower(), axis) != axis:
        hint = "pass the other `axis`, or change the cell"
        problems.append(InvalidInput(f"{place}: the first cell", f"must match `axis={axis!r}`", repr(corner), hint))
    numbers = parse_numbers(table, columns, problems)
    raise_problems(problems, TableError)
    return numbers[rows].to_numpy(), tuple(rows)


def write_json(affinity: Affinity, path: Path) -> None:
    """Writes an affinity as JSON. If the history is long, it is first written to a separate archive."""
    arrays = {name: getattr(affinity, name) for name in PER_STEP_FIELDS}
    archive = None
    if affinity.history.size > MAX_INLINE_VALUES:
        content = pack_arrays(arrays)
        # A name of its own, so that the archive of an earlier save stays intact until its JSON file is replaced.
        archive = f"{path.name}.{hashlib.sha256(content).hexdigest()[:16]}.npz"
        write_atomic(path.with_name(archive), content)
        arrays = {"archive": archive}
    fields = {name: getattr(affinity, name) for name in FIELDS}
    write_document(
        path, FORMAT, VERSION, {"direction": DIRECTION, "caution": disclaimer(affinity.tasks)} | fields | arrays
    )
    for other in path.parent.glob(f"{escape(path.name)}.{'[0-9a-f]' * 16}.npz"):
        if other.name != archive:
            other.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Reads the document that `write_json` wrote, together with its archive."""
    document = read_document(path, FORMAT, VERSION, dict, hint=SAVE_AGAIN_HINT)
    if document.get("direction") != DIRECTION:
        raise DocumentError(path, f"must store affinities in the direction {DIRECTION!r}")
    if "archive" in document:
        archive = path.with_name(document["archive"])
        with report_damage(archive, hint="keep both files of the affinity together"):
            document |= unpack_arrays(archive.read_bytes())
    return document


def disclaimer(tasks: Iterable[str]) -> str:
    """Returns the disclaimer for these tasks, listing those that seem to be about people.

    Example:
        >>> disclaimer(["depth", "normals"])
        'Affinity describes how one network trained on one data set. It implies neither similarity nor causation.'
        >>> "(is_male, Young)" in disclaimer(["is_male", "Young", "depth"])
        True
    """
    text = "Affinity describes how one network trained on one data set. It implies neither similarity nor causation."
    personal, stems = [], tuple(PERSONAL_STEMS.split())
    for task in tasks:
        words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", task).lower())
        if any(word in PERSONAL_WORDS.split() or word.startswith(stems) for word in words):
            personal.append(task)
    if not personal:
        return text
    return (
        f"{text} Some of these tasks seem to be about people ({', '.join(personal)}). That such tasks train well "
        "together says nothing about people and must not be interpreted as a link between these traits."
    )
