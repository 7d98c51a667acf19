"""Scores as people keep them in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tagalong.affinity import Affinity

from .._candidate import Candidate
from ._content import TableError
from ._group_names import group_names
from ._results import table_of
from ._table import ScoreTable

MATRIX = ("matrix", "mean", "affinity", "scores")
EXPECTED = (
    "expected a saved affinity, {tasks, matrix}, {source: {target: value}}, or a list of {trains, values} with "
    "perhaps a cost"
)


def of_document(path: Path, document: Any, axis: str) -> ScoreTable:
    """Tells the forms apart."""
    if isinstance(document, list):
        return _of_list(path, document, axis)
    if not document:
        raise TableError(f"{path}: {EXPECTED}, found nothing")
    form = document.get("format")
    if form == "tagalong-affinity":
        affinity = Affinity.load(path)
        return _square(affinity, axis, "affinity")
    if form == "tagalong-grouping" or "groupings" in document:
        raise TableError(f"{path} holds a grouping, not scores; to compare it with the best, give it to --compare")
    key = next((name for name in MATRIX if isinstance(document.get(name), list)), None)
    if key is not None:
        return _of_matrix(path, document[key], document.get("tasks"), document.get("direction"), axis)
    if isinstance(document.get("groups"), list):
        return _of_list(path, document["groups"], axis)
    if all(isinstance(row, Mapping) for row in document.values()):
        return _of_mappings(path, document, axis)
    raise TableError(f"{path}: {EXPECTED}, found an object with {', '.join(map(repr, list(document)[:6]))}")


def _of_list(path: Path, entries: list[Any], axis: str) -> ScoreTable:
    if entries and all(isinstance(entry, list) for entry in entries):
        return _of_matrix(path, entries, None, None, axis)
    if not entries or not all(isinstance(entry, Mapping) and "trains" in entry for entry in entries):
        raise TableError(f"{path}: {EXPECTED}")
    candidates = [_candidate(path, number, entry) for number, entry in enumerate(entries, 1)]
    return table_of(path, candidates, costs=any("cost" in entry for entry in entries))


def _candidate(path: Path, number: int, entry: Mapping[str, Any]) -> Candidate:
    where, trains, values = f"{path}, entry {number}", entry["trains"], entry.get("values")
    names = group_names(trains) if isinstance(trains, str) else trains
    if not isinstance(names, (list, frozenset)) or not names or not all(isinstance(name, str) for name in names):
        raise TableError(f"{where}: trains must be a list of names, found {trains!r}")
    if len(set(names)) < len(names):
        raise TableError(f"{where}: trains must name each task once, found {trains!r}")
    if not isinstance(values, Mapping):
        raise TableError(f"{where}: values must be the result of each task, found {values!r}")
    known = {task: value for task, value in values.items() if value is not None}
    try:
        return Candidate(names, known, entry.get("cost", 1))
    except ValueError as error:
        raise TableError(f"{where}: {_plain(error)}") from None


def _of_matrix(path: Path, matrix: list[Any], tasks: Any, direction: Any, axis: str) -> ScoreTable:
    said = str(direction or "")
    rows = "target" if 0 <= said.find("target") < said.find("source") else "source"
    if said and rows != axis:
        raise TableError(f"{path} says that its direction is {said!r}, but its rows are read as `axis={axis!r}`")
    lengths = {len(row) if isinstance(row, list) else -1 for row in matrix}
    if lengths != {len(matrix)}:
        found = ", ".join(str(length) for length in sorted(lengths))
        raise TableError(f"{path}: the matrix must be square, found {len(matrix)} rows of {found} values")
    if tasks is not None and (not isinstance(tasks, list) or len(tasks) != len(matrix)):
        raise TableError(f"{path}: tasks must name the {len(matrix)} rows of the matrix, found {tasks!r}")
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            _check_number(path, f"row {i + 1}, column {j + 1}", value)
    filled = [[np.nan if value is None else value for value in row] for row in matrix]
    try:
        return _square(Affinity.from_matrix(filled, tasks), axis, "square")
    except ValueError as error:
        raise TableError(f"{path}: {_plain(error)}") from None


def _of_mappings(path: Path, document: Mapping[str, Mapping[str, Any]], axis: str) -> ScoreTable:
    """Rows by name, or results by group: then the keys join the names inside."""
    inside = {name for row in document.values() for name in row}
    groups = {key: group_names(key, inside) for key in document}
    if not inside >= set(document) and all(set(row) <= (groups[key] or set()) for key, row in document.items()):
        entries = [{"trains": sorted(groups[key] or ()), "values": row} for key, row in document.items()]
        return _of_list(path, entries, axis)
    if not inside <= set(document):
        alone = ", ".join(map(repr, sorted(inside - set(document))))
        raise TableError(
            f"{path}: expected the same tasks inside and outside, or groups such as 'a+b' outside, found {alone} only "
            "inside"
        )
    tasks = list(document)
    matrix = [[document[row].get(column) for column in tasks] for row in tasks]
    return _of_matrix(path, matrix, tasks, None, axis)


def _plain(error: ValueError) -> str:
    """What is wrong, about keys of the file rather than arguments."""
    return str(error).replace("`", "")


def _check_number(path: Path, where: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and bool(np.isfinite(value))
    if value is not None and not number:
        raise TableError(f"{path}, {where}: expected a finite number or null, found {value!r}")


def _square(affinity: Affinity, axis: str, kind: Any) -> ScoreTable:
    if axis not in ("source", "target"):
        raise TableError(f'`axis` must say what the rows are, "source" or "target", found {axis!r}')
    if axis == "target" and kind == "affinity":
        raise TableError("`axis` must be left out: an affinity saved by tagalong knows its direction")
    turned = Affinity.from_matrix(affinity.mean, affinity.tasks, axis="target") if axis == "target" else affinity
    return ScoreTable(kind, affinity.tasks, turned, axis)  # type: ignore[arg-type]
