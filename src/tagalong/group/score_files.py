"""One file of scores or costs, whatever its kind."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tagalong.affinity import Affinity, square_matrix
from tagalong.errors import refuse

from .score_tables import (
    ScoreTable,
    TableError,
    group_names,
    is_json,
    is_results,
    read_json,
    read_lines,
    read_text,
    results,
    table_of,
)
from .scores import Candidate

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


def read_table(path: str | os.PathLike[str], axis: Literal["source", "target"] = "source") -> ScoreTable:
    """Reads a table of scores for `select_groups`; what it is shows in its content, not in its name.

    Args:
        path: a square table with names in the first line and the first column (separated by commas, semicolons,
            tabs or bars), an affinity saved by tagalong, JSON as `{tasks, matrix}` or `{source: {target: value}}`;
            or results of groups: a table with a column `group` and one column per task (or the columns `task` and
            `value`), JSON as a list of `{trains, values}`. A column or key `cost` makes them candidates.
        axis: what the rows of a square table are; "target" if each holds what is good for one task.

    Raises:
        ValueError: the file is missing, damaged or of another kind; with every problem found.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "results.csv")
        ...     _ = path.write_text("group,age,ill\\nage,0.9,\\nill,,0.8\\nage+ill,0.95,0.7\\n")
        ...     table = read_table(path)
        >>> print(table)
        results of 3 groups of 2 tasks
        >>> table.scores[frozenset({"age", "ill"})]
        {'age': 0.95, 'ill': 0.7}
    """
    file = Path(path)
    text = read_text(file)
    if is_json(text):
        return of_document(file, read_json(file, text), axis)
    lines = read_lines(file, text)
    if is_results(lines):
        return results(file, lines)
    matrix, tasks = square_matrix(file, lines, axis)
    return ScoreTable("square", tasks, Affinity.from_matrix(matrix, tasks, axis), axis)


Costs = dict[frozenset[str] | int, float]


def read_costs(path: str | os.PathLike[str], tasks: Collection[str]) -> Costs:
    """Reads the cost of each group, or of each number of tasks.

    Args:
        path: a table of two columns, the group (`age+ill`, or a number of tasks) and its cost, with or without a
            header; or JSON `{group: cost}`.
        tasks: the names there are.

    Returns:
        A mapping for the `cost` of `select_groups`.

    Raises:
        TableError: with every problem found.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "costs.csv")
        ...     _ = path.write_text("group,cost\\n1,0.5\\n2,1\\nage+ill,1.5\\n")
        ...     read_costs(path, ["age", "ill"]) == {1: 0.5, 2: 1.0, frozenset({"age", "ill"}): 1.5}
        True
    """
    file = Path(path)
    text = read_text(file)
    problems: list[str] = []
    costs: Costs = {}
    known = ", ".join(map(repr, tasks))
    for where, group, cost in _pairs(file, text):
        key = _key(group, tasks)
        if key is None:
            problems.append(f"{where}: expected tasks ({known}) joined by +, or their number, found {group!r}")
            continue
        if key in costs:
            problems.append(f"{where}: the cost of {group!r} is given twice")
        costs[key] = _number(where, cost, problems)
    if not costs and not problems:
        problems.append(f"{file}: expected the cost of groups of {known}, found none")
    refuse(problems, TableError)
    return costs


def _pairs(path: Path, text: str) -> list[tuple[str, str, Any]]:
    if is_json(text):
        document = read_json(path, text)
        if not isinstance(document, dict):
            raise TableError(f"{path}: expected {{group: cost}}, found a list")
        return [(f"{path}, {group!r}", group, cost) for group, cost in document.items()]
    lines = read_lines(path, text)
    for number, line in lines:
        if len(line) != 2:
            raise TableError(f"{path}, line {number}: expected two cells, a group and its cost, found {len(line)}")
    if lines and lines[0][1][1].lower() == "cost":
        lines = lines[1:]
    return [(f"{path}, line {number}", line[0], line[1]) for number, line in lines]


def _key(group: str, tasks: Collection[str]) -> frozenset[str] | int | None:
    names = group_names(group, tasks)
    if names is None and group.isdecimal():
        return int(group)
    return names


def _number(where: str, cost: Any, problems: list[str]) -> float:
    try:
        number = float(cost)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 < number < float("inf"):
        problems.append(f"{where}: a cost must be a positive number, found {cost!r}")
    return number
