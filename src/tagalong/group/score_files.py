"""A file of scores, whatever its kind: a square table, results of groups, candidates, a saved affinity; CSV or JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tagalong.affinity import DECIMALS_HINT, Affinity, CsvLine, square_matrix
from tagalong.errors import counted, name_problems, refuse

from .scores import Candidate
from .text_files import TableError, group_names, is_json, read_json, read_lines, read_text_file

GROUP = ("group", "groups", "trains", "network", "networks")  # names of the column of groups
LONG = {"task", "value"}  # the other columns of a table with one line per group and task
COST = "cost"
MATRIX = ("matrix", "mean", "affinity", "scores")  # names of a matrix in JSON
EXPECTED = (
    "expected a saved affinity, {tasks, matrix}, {source: {target: value}}, or a list of {trains, values} with "
    "perhaps a cost"
)


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
    text = read_text_file(file)
    if is_json(text):
        return _of_document(file, read_json(file, text), axis)
    lines = read_lines(file, text)
    if _is_results(lines):
        return _of_results(file, lines)
    matrix, tasks = square_matrix(file, lines, axis)
    return ScoreTable("square", tasks, Affinity.from_matrix(matrix, tasks, axis), axis)


@dataclass(frozen=True)
class ScoreTable:
    """What `select_groups` takes, with the kind of table it came from.

    Attributes:
        kind: "affinity" (saved by tagalong), "square" (a plain square table), "results" (of groups) or
            "candidates" (results with costs).
        tasks: names, as the file orders them.
        scores: for `select_groups`.
        axis: what the rows of a square table were.
    """

    kind: Literal["affinity", "square", "results", "candidates"]
    tasks: tuple[str, ...]
    scores: Any
    axis: Literal["source", "target"] = "source"

    @property
    def has_singles(self) -> bool:
        """Whether the diagonal of a square table holds anything: single-task results, if the rest are pairs."""
        return isinstance(self.scores, Affinity) and bool(np.isfinite(np.diag(self.scores.mean)).any())

    def only(self, tasks: Iterable[str]) -> ScoreTable:
        """These tasks alone: their part of a square table, or the groups among them."""
        names = tuple(tasks)
        problems = name_problems(names)
        unknown = [task for task in names if task not in self.tasks]
        if unknown:
            known = ", ".join(map(repr, self.tasks))
            problems.append(f"`tasks` must be among {known}, found {', '.join(map(repr, unknown))}")
        refuse(problems)
        return replace(self, tasks=names, scores=_part(self.scores, names))

    def __str__(self) -> str:
        tasks = counted(len(self.tasks), "task")
        if self.kind == "candidates":
            return f"{counted(len(self.scores), 'network')} with their costs for {tasks}"
        if self.kind == "results":
            return f"results of {counted(len(self.scores), 'group')} of {tasks}"
        way = "row helps column" if self.axis == "source" else "column helps row"
        steps = len(self.scores.steps)
        over = f" over {counted(steps, 'measured step')}" if steps else ""
        return f"{'affinity' if self.kind == 'affinity' else 'square table'} of {tasks}{over}, {way}"


def _part(scores: Any, tasks: tuple[str, ...]) -> Any:
    if isinstance(scores, Affinity):
        return scores.only(tasks)
    inside = set(tasks)
    if isinstance(scores, Mapping):
        kept: Any = {group: values for group, values in scores.items() if group <= inside}
    else:
        kept = [entry for entry in scores if isinstance(entry, Candidate) and entry.trains <= inside]
    if not kept:
        raise ValueError(f"`tasks` must leave a group, found none among {', '.join(map(repr, tasks))}")
    return kept


def _is_results(lines: list[CsvLine]) -> bool:
    """Whether a column names groups. A square table may have a task of that name: its lines are named alike."""
    header = lines[0][1]
    names = {line[0] for _, line in lines[1:]}
    return any(cell.lower() in GROUP for cell in header) and names != set(header[1:])


def _of_results(path: Path, lines: list[CsvLine]) -> ScoreTable:
    """Reads a table with a column of groups; with a column of costs its lines are candidates."""
    (top, header), body = lines[0], lines[1:]
    refuse(name_problems(tuple(header), f"{path}, line {top}: column names"), TableError)
    at = next(i for i, cell in enumerate(header) if cell.lower() in GROUP)
    lower = [cell.lower() for cell in header]
    cost = lower.index(COST) if COST in lower else None
    if not body:
        raise TableError(f"{path}: expected a line for each group, found only a header")
    problems = [
        f"{path}, line {number}: expected {len(header)} cells, found {len(line)}"
        for number, line in body
        if len(line) != len(header)
    ]
    refuse(problems, TableError)
    reader = _Reader(path, header, at, cost)
    entries = reader.long(body) if set(lower) - {header[at].lower(), COST} == LONG else reader.wide(body)
    refuse(reader.problems, TableError)
    return _table_of(path, entries, costs=cost is not None)


class _Reader:
    """Reads lines, and remembers what was wrong with them."""

    def __init__(self, path: Path, header: list[str], group: int, cost: int | None) -> None:
        self.path, self.header, self.group, self.cost = path, header, group, cost
        self.problems: list[str] = []

    def wide(self, body: list[CsvLine]) -> list[Candidate]:
        """One column per task, empty where the group has no result for it."""
        columns = [i for i in range(len(self.header)) if i not in (self.group, self.cost)]
        known = {self.header[i] for i in columns}
        entries = []
        for number, line in body:
            trains = self._trains(number, line, known)
            values = {self.header[i]: self._number(number, i, line[i]) for i in columns if line[i]}
            foreign = sorted(set(values) - trains)
            if foreign and trains:
                found = ", ".join(map(repr, foreign))
                self.problems.append(f"{self._at(number)}: {line[self.group]!r} has a result of {found}, not trained")
            elif trains:
                entries.append(Candidate(trains, values, self._cost(number, line)))
        return entries

    def long(self, body: list[CsvLine]) -> list[Candidate]:
        """One line per group and task: the columns task and value."""
        lower = [cell.lower() for cell in self.header]
        task, value = lower.index("task"), lower.index("value")
        known = {line[task] for _, line in body}
        found: dict[tuple[frozenset[str], float], dict[str, float]] = {}
        for number, line in body:
            trains = self._trains(number, line, known)
            values = found.setdefault((trains, self._cost(number, line)), {})
            if trains and line[task] not in trains:
                self.problems.append(f"{self._at(number)}: {line[self.group]!r} does not train {line[task]!r}")
            elif line[task] in values:
                where = f"{line[task]!r} in {line[self.group]!r}"
                self.problems.append(f"{self._at(number)}: the result of {where} is given twice; take the mean")
            values[line[task]] = self._number(number, value, line[value])
        return (
            [Candidate(trains, values, cost) for (trains, cost), values in found.items()] if not self.problems else []
        )

    def _trains(self, number: int, line: list[str], known: set[str]) -> frozenset[str]:
        names = group_names(line[self.group], known)
        if names is None:
            tasks = ", ".join(map(repr, sorted(known)))
            self.problems.append(
                f"{self._at(number)}: expected tasks ({tasks}) joined by +, found {line[self.group]!r}"
            )
        return names or frozenset()

    def _cost(self, number: int, line: list[str]) -> float:
        return 1.0 if self.cost is None else self._number(number, self.cost, line[self.cost])

    def _number(self, number: int, column: int, cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            hint = f"; {DECIMALS_HINT}" if "," in cell else ""
            where = f"{self._at(number)}, column {self.header[column]!r}"
            self.problems.append(f"{where}: expected a finite number, found {cell!r}{hint}")
            return 1.0
        return value

    def _at(self, number: int) -> str:
        return f"{self.path}, line {number}"


def _of_document(path: Path, document: Any, axis: str) -> ScoreTable:
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
    return _table_of(path, candidates, costs=any("cost" in entry for entry in entries))


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


def _table_of(path: Path, entries: list[Candidate], costs: bool) -> ScoreTable:
    """A table of results, or of candidates where networks have costs; the same group twice needs them."""
    tasks = tuple(dict.fromkeys(task for entry in entries for task in sorted(entry.trains)))
    if costs:
        return ScoreTable("candidates", tasks, entries)
    groups = [entry.trains for entry in entries]
    twice = [", ".join(sorted(group)) for group in dict.fromkeys(groups) if groups.count(group) > 1]
    if twice:
        raise TableError(
            f"{path}: a group must be given once, found {{{twice[0]}}} again; take the mean over runs, or give each "
            "network a cost"
        )
    return ScoreTable("results", tasks, {entry.trains: dict(entry.values) for entry in entries})
