"""Reads score files: square tables, group results, candidates and saved affinities, as tables or JSON."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, NoReturn

import numpy as np

from tagalong.affinity import Affinity, square_matrix
from tagalong.errors import InvalidInput, is_number, pluralize, raise_problems, task_name_problems
from tagalong.tabular import (
    DECIMAL_COMMA_HINT,
    ParsedTable,
    TableError,
    TableRow,
    is_missing_word,
    parse_table,
    read_text,
)

from .scores import Candidate

GROUP_COLUMNS = ("group", "groups", "trains", "network", "networks")  # possible names of the column of groups
LONG_COLUMNS = {"task", "value"}  # the other columns of a table with one row per group and task
COST_COLUMN = "cost"
MATRIX_KEYS = ("matrix", "mean", "affinity", "scores")  # possible names of a matrix in JSON
NAME_SEPARATORS = ("+", ";", ",", "|", "&", "/")  # between the task names in a cell


def read_table(path: str | os.PathLike[str], axis: Literal["source", "target"] = "source") -> ScoreTable:
    """Reads a table of scores for `select_groups`. The type of table is detected from its content.

    Args:
        path: a file that contains pairwise scores or group results. Pairwise scores are an affinity saved by tagalong,
            JSON of the form `{tasks, matrix}` or `{source: {target: value}}`, or a square table with task names in the
            first row and the first column. Tables may be in any format supported by `Problem.from_table`. Group results
            are a table or a JSON list of `{trains, values}`. The table has a `group` column, and either one column per
            task or the columns `task` and `value`. If there is a `cost` column or key, the results are read as
            candidates.
        axis: what the rows of a square table represent. Use "target" if each row contains the scores onto one task.

    Raises:
        InvalidInput: If the file is missing, corrupted or in an unknown format. The message lists every problem.

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
        return _read_document(file, parse_json(text, file), axis)
    table = parse_table(text, file)
    if _has_group_column(table):
        return _read_results(table)
    matrix, tasks = square_matrix(table, axis)
    return ScoreTable("square", tasks, Affinity.from_matrix(matrix, tasks, axis), axis)


@dataclass(frozen=True)
class ScoreTable:
    """Scores for `select_groups`, and the type of table from which they were read.

    Attributes:
        kind: "affinity" (saved by tagalong), "square" (a plain square table), "results" (group results) or "candidates"
            (group results with costs).
        tasks: the task names, in the order of the file.
        scores: the scores, in a form that `select_groups` accepts.
        axis: what the rows of a square table represent.
    """

    kind: Literal["affinity", "square", "results", "candidates"]
    tasks: tuple[str, ...]
    scores: Any
    axis: Literal["source", "target"] = "source"

    @property
    def has_singles(self) -> bool:
        """Whether a square table has values on the diagonal, which may be single-task results."""
        return isinstance(self.scores, Affinity) and bool(np.isfinite(np.diag(self.scores.mean)).any())

    def only(self, tasks: Iterable[str]) -> ScoreTable:
        """Returns the part of the table that involves only the given tasks."""
        names = tuple(tasks)
        problems = task_name_problems(names)
        unknown = [repr(task) for task in names if task not in self.tasks]
        if unknown:
            expected = f"must contain only known tasks ({', '.join(map(repr, self.tasks))})"
            problems.append(InvalidInput("tasks", expected, ", ".join(unknown)))
        raise_problems(problems)
        return replace(self, tasks=names, scores=_select_tasks(self.scores, names))

    def __str__(self) -> str:
        tasks = pluralize(len(self.tasks), "task")
        if self.kind == "candidates":
            return f"{pluralize(len(self.scores), 'network')} with their costs for {tasks}"
        if self.kind == "results":
            return f"results of {pluralize(len(self.scores), 'group')} of {tasks}"
        direction = "row helps column" if self.axis == "source" else "column helps row"
        steps = len(self.scores.steps)
        over = f" over {pluralize(steps, 'measured step')}" if steps else ""
        return f"{'affinity' if self.kind == 'affinity' else 'square table'} of {tasks}{over}, {direction}"


def _select_tasks(scores: Any, tasks: tuple[str, ...]) -> Any:
    if isinstance(scores, Affinity):
        return scores.only(tasks)
    inside = set(tasks)
    if isinstance(scores, Mapping):
        kept: Any = {group: values for group, values in scores.items() if group <= inside}
    else:
        kept = [entry for entry in scores if isinstance(entry, Candidate) and entry.trains <= inside]
    if not kept:
        raise InvalidInput(
            "tasks", "must include all tasks of at least one group", f"no group within {', '.join(map(repr, tasks))}"
        )
    return kept


def _has_group_column(table: ParsedTable) -> bool:
    """Returns whether the table has a group column.

    If a square table has a task called "group", there is also a row with that name.
    """
    header = table.header.cells
    names = {row.cells[0] for row in table.rows}
    return any(cell.lower() in GROUP_COLUMNS for cell in header) and names != set(header[1:])


def _read_results(table: ParsedTable) -> ScoreTable:
    """Reads a table with a group column. If there is also a cost column, the rows are read as candidates."""
    header = table.header.cells
    lower = [cell.lower() for cell in header]
    problems = list(table.problems)
    if not all(header):
        problems.append(TableError(table.at(table.header), "must contain a name for every column", "an empty cell"))
    raise_problems(problems, TableError)
    group = next(at for at, name in enumerate(lower) if name in GROUP_COLUMNS)
    cost = lower.index(COST_COLUMN) if COST_COLUMN in lower else None
    reader = _ResultReader(table, group, cost)
    candidates = (
        reader.read_long_table()
        if set(lower) - {lower[group], COST_COLUMN} == LONG_COLUMNS
        else reader.read_wide_table()
    )
    raise_problems(reader.problems, TableError)
    return _make_results_table(table.place, candidates, has_costs=cost is not None)


class _ResultReader:
    """Reads the rows of a table of results and collects all problems found."""

    def __init__(self, table: ParsedTable, group: int, cost: int | None) -> None:
        self.table, self.group, self.cost = table, group, cost
        self.header = table.header.cells
        self.problems: list[InvalidInput] = []

    def read_wide_table(self) -> list[Candidate]:
        """Reads a table with one column per task. If a group has no result for a task, the cell is empty."""
        columns = [at for at in range(len(self.header)) if at not in (self.group, self.cost)]
        known = {self.header[at] for at in columns}
        candidates = []
        for row in self.table.rows:
            trains = self._read_group(row, known)
            given = [at for at in columns if not is_missing_word(row.cells[at])]
            values = {self.header[at]: self._read_number(row, at) for at in given}
            others = sorted(set(values) - trains)
            if others and trains:
                expected = f"must have results only for the tasks in {row.cells[self.group]!r}"
                self._report_problem(row, expected, f"one for {', '.join(map(repr, others))}")
            elif trains:
                candidates.append(Candidate(trains, values, self._read_cost(row)))
        return candidates

    def read_long_table(self) -> list[Candidate]:
        """Reads a table with one row per group and task, and with the columns `task` and `value`."""
        lower = [cell.lower() for cell in self.header]
        task_at, value_at = lower.index("task"), lower.index("value")
        known = {row.cells[task_at] for row in self.table.rows}
        results: dict[tuple[frozenset[str], float], dict[str, float]] = {}
        for row in self.table.rows:
            task, group = row.cells[task_at], row.cells[self.group]
            trains = self._read_group(row, known)
            values = results.setdefault((trains, self._read_cost(row)), {})
            if trains and task not in trains:
                self._report_problem(row, f"must have a result for a task in {group!r}", f"one for {task!r}")
            elif task in values:
                self._report_problem(
                    row, f"repeats the result for {task!r} in {group!r}", hint="average repeated results"
                )
            values[task] = self._read_number(row, value_at)
        if self.problems:
            return []
        return [Candidate(trains, values, cost) for (trains, cost), values in results.items()]

    def _read_group(self, row: TableRow, known_tasks: set[str]) -> frozenset[str]:
        cell = row.cells[self.group]
        names = group_names(cell, known_tasks)
        if names is None:
            self._report_problem(
                row, f"must contain task names ({', '.join(map(repr, sorted(known_tasks)))}) joined by +", repr(cell)
            )
        return names or frozenset()

    def _read_cost(self, row: TableRow) -> float:
        return 1.0 if self.cost is None else self._read_number(row, self.cost)

    def _read_number(self, row: TableRow, column: int) -> float:
        cell = row.cells[column]
        try:
            number = self.table.parse_number(cell)
        except ValueError:
            number = np.nan
        if not np.isfinite(number):
            place = self.table.at(row, self.header[column])
            hint = DECIMAL_COMMA_HINT if "," in cell else ""
            self.problems.append(TableError(place, "must be a finite number", repr(cell), hint))
            return 1.0
        return number

    def _report_problem(self, row: TableRow, expected: str, found: str = "", hint: str = "") -> None:
        self.problems.append(TableError(self.table.at(row), expected, found, hint))


def _read_document(path: Path, document: Any, axis: str) -> ScoreTable:
    """Reads a JSON document in any of the supported forms."""
    if isinstance(document, list):
        return _read_entries(path, document, axis)
    if not document:
        raise _unknown_format(path, "nothing")
    form = document.get("format")
    if form == "tagalong-affinity":
        return _make_square_table(Affinity.load(path), axis, "affinity")
    if form == "tagalong-grouping" or "groupings" in document:
        hint = "to compare it with the best grouping, pass it with --compare"
        raise TableError(path, "must contain scores", "a grouping", hint)
    key = next((name for name in MATRIX_KEYS if isinstance(document.get(name), list)), None)
    if key is not None:
        return _read_matrix(path, document[key], document.get("tasks"), document.get("direction"), axis)
    if isinstance(document.get("groups"), list):
        return _read_entries(path, document["groups"], axis)
    if all(isinstance(row, Mapping) for row in document.values()):
        return _read_mappings(path, document, axis)
    raise _unknown_format(path, f"an object with {', '.join(map(repr, list(document)[:6]))}")


def _unknown_format(path: Path, found: str) -> TableError:
    expected = (
        "must be a saved affinity, {tasks, matrix}, {source: {target: value}}, or a list of {trains, values} with "
        "an optional cost"
    )
    return TableError(path, expected, found)


def _read_entries(path: Path, entries: list[Any], axis: str) -> ScoreTable:
    if entries and all(isinstance(entry, list) for entry in entries):
        return _read_matrix(path, entries, None, None, axis)
    if not entries or not all(isinstance(entry, Mapping) and "trains" in entry for entry in entries):
        raise _unknown_format(path, "something else" if entries else "an empty list")
    candidates = [_read_candidate(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]
    return _make_results_table(str(path), candidates, has_costs=any("cost" in entry for entry in entries))


def _read_candidate(location: str, entry: Mapping[str, Any]) -> Candidate:
    trains, values = entry["trains"], entry.get("values")
    names = group_names(trains) if isinstance(trains, str) else trains
    if not isinstance(names, (list, frozenset)) or not names or not all(isinstance(name, str) for name in names):
        raise TableError(f"{location}: 'trains'", "must be a list of names", repr(trains))
    if len(set(names)) < len(names):
        raise TableError(f"{location}: 'trains'", "must list each task only once", repr(trains))
    if not isinstance(values, Mapping):
        raise TableError(f"{location}: 'values'", "must map each task to its result", repr(values))
    known = {task: value for task, value in values.items() if value is not None}
    try:
        return Candidate(names, known, entry.get("cost", 1))
    except ValueError as error:
        raise TableError(f"{location}:", _without_backticks(error)) from None


def _read_matrix(path: Path, matrix: list[Any], tasks: Any, direction: Any, axis: str) -> ScoreTable:
    place, named = str(path), str(direction or "")
    rows = "target" if 0 <= named.find("target") < named.find("source") else "source"
    if named and rows != axis:
        expected = f"must match `axis={axis!r}`"
        raise TableError(f"{place}: 'direction'", expected, repr(named), "pass the other `axis`")
    lengths = {len(row) if isinstance(row, list) else -1 for row in matrix}
    if lengths != {len(matrix)}:
        found = f"{len(matrix)} rows of {', '.join(map(str, sorted(lengths)))} values"
        raise TableError(f"{place}: the matrix", "must be square", found)
    if tasks is not None and (not isinstance(tasks, list) or len(tasks) != len(matrix)):
        raise TableError(
            f"{place}: 'tasks'", f"must contain {len(matrix)} names, one per row of the matrix", repr(tasks)
        )
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            _check_number(f"{place}, row {i + 1}, column {j + 1}", value)
    filled = [[np.nan if value is None else value for value in row] for row in matrix]
    try:
        return _make_square_table(Affinity.from_matrix(filled, tasks), axis, "square")
    except ValueError as error:
        raise TableError(f"{place}:", _without_backticks(error)) from None


def _read_mappings(path: Path, document: Mapping[str, Mapping[str, Any]], axis: str) -> ScoreTable:
    """Reads a mapping from tasks to rows, or from groups to results."""
    inside = {name for row in document.values() for name in row}
    groups = {key: group_names(key, inside) for key in document}
    if not inside >= set(document) and all(set(row) <= (groups[key] or set()) for key, row in document.items()):
        entries = [{"trains": sorted(groups[key] or ()), "values": row} for key, row in document.items()]
        return _read_entries(path, entries, axis)
    if not inside <= set(document):
        alone = ", ".join(map(repr, sorted(inside - set(document))))
        expected = "must have the same tasks as inner and outer keys, or groups like 'a+b' as outer keys"
        raise TableError(path, expected, f"{alone} only among the inner keys")
    tasks = list(document)
    matrix = [[document[row].get(column) for column in tasks] for row in tasks]
    return _read_matrix(path, matrix, tasks, None, axis)


def _without_backticks(error: ValueError) -> str:
    """Returns the message without backticks, because it refers to keys in the file rather than to arguments."""
    return str(error).replace("`", "")


def _check_number(location: str, value: Any) -> None:
    if value is not None and not is_number(value):
        raise TableError(location, "must be a finite number or null", short(value))


def _make_square_table(affinity: Affinity, axis: str, kind: Any) -> ScoreTable:
    if axis not in ("source", "target"):
        raise InvalidInput("axis", 'must be "source" or "target"', repr(axis))
    if axis == "target" and kind == "affinity":
        raise InvalidInput("axis", "must be omitted for a saved affinity, since its direction is known")
    oriented = Affinity.from_matrix(affinity.mean, affinity.tasks, axis="target") if axis == "target" else affinity
    return ScoreTable(kind, affinity.tasks, oriented, axis)  # type: ignore[arg-type]


def _make_results_table(location: str, candidates: list[Candidate], has_costs: bool) -> ScoreTable:
    """Creates a table of results or, if networks have costs, of candidates. Only candidates may repeat a group."""
    tasks = tuple(dict.fromkeys(task for candidate in candidates for task in sorted(candidate.trains)))
    if has_costs:
        return ScoreTable("candidates", tasks, candidates)
    repeated = [group for group, times in Counter(one.trains for one in candidates).items() if times > 1]
    if repeated:
        found = f"{{{', '.join(sorted(repeated[0]))}}} more than once"
        hint = "average the results over runs, or specify a cost for each network"
        raise TableError(location, "must list each group only once", found, hint)
    return ScoreTable("results", tasks, {candidate.trains: dict(candidate.values) for candidate in candidates})


def is_json(text: str) -> bool:
    """Returns whether text appears to be JSON rather than a table."""
    return text.lstrip().startswith(("{", "["))


def parse_json(text: str, path: Path) -> Any:
    """Parses a JSON document and rejects repeated keys, which Python's parser would silently overwrite."""

    def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = [repr(key) for key, times in Counter(key for key, _ in pairs).items() if times > 1]
        if repeated:
            raise TableError(path, "must contain each name only once", f"{', '.join(repeated)} more than once")
        return dict(pairs)

    def reject_constant(name: str) -> NoReturn:
        raise TableError(path, "must contain only finite numbers or null", name)

    try:
        return json.loads(text, object_pairs_hook=reject_repeated_keys, parse_constant=reject_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TableError(path, f"is not valid JSON: {error}", hint="is the file truncated?") from None
    except TableError:
        raise
    except ValueError:  # Python advises to raise its limit on the digits of an integer
        raise TableError(path, "must not contain integers with thousands of digits") from None


def group_names(cell: str, known_tasks: Collection[str] | None = None) -> frozenset[str] | None:
    """Returns the task names in a cell, or None if the cell cannot be split into names.

    Args:
        cell: task names joined by a separator, e.g. "age+ill". Enclosing brackets are ignored.
        known_tasks: the names of all tasks, which may contain separators. If omitted, the first separator found is
            used to split the cell.

    Example:
        >>> sorted(group_names("age+ill", {"age", "ill"})), sorted(group_names("{age, ill}"))
        (['age', 'ill'], ['age', 'ill'])
    """
    bare = re.sub(r"^[\[({]|[\])}]$", "", cell.strip())
    for text in (cell.strip(), bare):
        if known_tasks is not None and text in known_tasks:
            return frozenset({text})
    for separator in NAME_SEPARATORS:
        names = [name.strip().strip("'\"") for name in bare.split(separator)]
        if len(names) > 1 and (known_tasks is None or all(name in known_tasks for name in names)):
            return frozenset(names) if len(set(names)) == len(names) and all(names) else None
    return frozenset({bare}) if known_tasks is None and bare else None
