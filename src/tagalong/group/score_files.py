"""Reads files of scores (square tables, group results, candidates and saved affinities) and of costs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tagalong import tabular
from tagalong.affinity import Affinity, square_matrix
from tagalong.errors import InvalidInput, is_positive, pluralize, raise_problems
from tagalong.tabular import TableError, parse_numbers, read_text

from .scores import Candidate

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("group", "groups", "trains", "network", "networks")  # possible names of the column of groups
COST_COLUMN = "cost"
NAME_SEPARATORS = ("+", ";", ",", "|", "&", "/")  # between the task names in a cell
Axis = Literal["source", "target"]


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
    axis: Axis = "source"

    @property
    def has_singles(self) -> bool:
        """Whether a square table has values on the diagonal, which may be single-task results."""
        return isinstance(self.scores, Affinity) and bool(np.isfinite(np.diag(self.scores.mean)).any())

    def only(self, tasks: Iterable[str]) -> ScoreTable:
        """Returns the part of the table that involves only the given tasks."""
        names = tuple(tasks)
        unknown = [repr(task) for task in names if task not in self.tasks]
        if unknown or len(set(names)) < len(names):
            expected = f"must contain known tasks, each once ({', '.join(map(repr, self.tasks))})"
            raise InvalidInput("tasks", expected, ", ".join(unknown or names))
        if isinstance(self.scores, Affinity):
            return replace(self, tasks=names, scores=self.scores.only(names))
        scores: Any = [entry for entry in self.scores if isinstance(entry, Candidate) and entry.trains <= set(names)]
        if isinstance(self.scores, Mapping):
            scores = {group: values for group, values in self.scores.items() if group <= set(names)}
        if not scores:
            raise InvalidInput("tasks", "must include all tasks of at least one group", ", ".join(map(repr, names)))
        return replace(self, tasks=names, scores=scores)

    def __str__(self) -> str:
        tasks = pluralize(len(self.tasks), "task")
        if self.kind == "candidates":
            return f"{pluralize(len(self.scores), 'network')} with their costs for {tasks}"
        if self.kind == "results":
            return f"results of {pluralize(len(self.scores), 'group')} of {tasks}"
        name = "affinity" if self.kind == "affinity" else "square table"
        steps = f" over {pluralize(len(self.scores.steps), 'measured step')}" if len(self.scores.steps) else ""
        direction = "row helps column" if self.axis == "source" else "column helps row"
        return f"{name} of {tasks}{steps}, {direction}"


def read_table(path: str | os.PathLike[str], axis: Axis = "source") -> ScoreTable:
    """Reads a table of scores for `select_groups`. The type of table is detected from its content.

    Args:
        path: a file that contains pairwise scores or group results. Pairwise scores are an affinity saved by tagalong,
            JSON of the form `{tasks, matrix}` or `{source: {target: value}}`, or a square table with task names in the
            first row and the first column. Tables may be in any format supported by `Problem.from_table`. Group results
            are a table with a column `group` and one column per task, or JSON of the form `{group: {task: value}}`. If
            the table has a column `cost`, its rows are read as candidates.
        axis: what the rows of a square table represent. Use "target" if each row contains the scores onto one task.

    Raises:
        InvalidInput: If the file is missing, corrupted or in an unknown format.

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
    if axis not in ("source", "target"):
        raise InvalidInput("axis", 'must be "source" or "target"', repr(axis))
    path = Path(path)
    text = "" if path.suffix.lower() == ".parquet" else read_text(path)
    if not text.lstrip().startswith(("{", "[")):
        return _from_table(tabular.read_table(path, as_text=True), axis)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(path, f"is not valid JSON: {error}") from None
    return _from_document(document, path, axis)


def _from_document(document: Any, path: Path, axis: Axis) -> ScoreTable:
    if isinstance(document, dict) and document.get("format") == "tagalong-affinity":
        if axis == "target":
            raise InvalidInput("axis", "must be omitted for a saved affinity, since its direction is known")
        affinity = Affinity.load(path)
        return ScoreTable("affinity", affinity.tasks, affinity)
    if isinstance(document, dict) and "matrix" in document:
        if not str(document.get("direction", f"[{axis}]")).startswith(f"[{axis}]"):
            raise TableError(path, f"must match `axis={axis!r}`", repr(document["direction"]), "pass the other `axis`")
        try:
            matrix = [[np.nan if value is None else value for value in row] for row in document["matrix"]]
            affinity = Affinity.from_matrix(matrix, document.get("tasks"), axis)
        except (TypeError, ValueError) as error:
            raise TableError(f"{path}:", str(error).replace("`", "")) from None
        return ScoreTable("square", affinity.tasks, affinity, axis)
    if not document or not isinstance(document, dict) or not all(isinstance(row, dict) for row in document.values()):
        expected = "must be a saved affinity, {tasks, matrix}, {source: {target: value}}, or {group: {task: value}}"
        raise TableError(path, expected, "something else")
    columns: dict[str, list[str]] = {"group": list(document)}
    for name in dict.fromkeys(name for row in document.values() for name in row):
        columns[name] = ["" if row.get(name) is None else str(row[name]) for row in document.values()]
    return _from_table(tabular.read_table(columns, str(path), as_text=True), axis)


def _from_table(table: pd.DataFrame, axis: Axis) -> ScoreTable:
    header, place = list(table.columns), table.attrs["place"]
    group_column = next((name for name in header if name.lower() in GROUP_COLUMNS), None)
    # If a square table has a task called "group", there is also a row with that name.
    if group_column is None or set(table.iloc[:, 0]) == set(header[1:]):
        matrix, tasks = square_matrix(table, axis)
        return ScoreTable("square", tasks, Affinity.from_matrix(matrix, tasks, axis), axis)

    # Each row has the results of one network.
    cost_column = next((name for name in header if name.lower() == COST_COLUMN), None)
    columns = [name for name in header if name not in (group_column, cost_column)]
    if "" in columns:
        raise TableError(place, "must contain a name for every column", "an empty cell")
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, columns if cost_column is None else [*columns, cost_column], problems)
    raise_problems(problems, TableError)
    candidates: list[Candidate] = []
    groups: set[frozenset[str]] = set()
    for (line, cell), row in zip(table[group_column].items(), numbers.to_dict("records"), strict=True):
        where = f"{place}, line {line}"
        trains = group_names(cell, columns)
        if trains is None:
            expected = f"must contain task names ({', '.join(map(repr, columns))}) joined by +"
            raise TableError(where, expected, repr(cell))
        if cost_column is None and trains in groups:
            raise TableError(where, "repeats a group", repr(cell), "average its results, or add a column of costs")
        groups.add(trains)
        values = {task: row[task] for task in columns if not math.isnan(row[task])}
        cost = 1.0 if cost_column is None else row[cost_column]
        if not is_positive(cost):
            raise TableError(where, "must have a positive cost", str(cost))
        try:
            candidates.append(Candidate(trains, values, cost))
        except InvalidInput as error:
            raise TableError(where, str(error)) from None
    tasks = tuple(name for name in columns if name in frozenset().union(*groups))
    if cost_column is not None:
        return ScoreTable("candidates", tasks, candidates)
    return ScoreTable("results", tasks, {entry.trains: dict(entry.values) for entry in candidates})


def read_costs(path: str | os.PathLike[str], tasks: Collection[str]) -> dict[frozenset[str] | int, float]:
    """Reads the cost of each group, or of each number of tasks.

    Args:
        path: a table with the columns `group` and `cost`. Groups are task names such as `age+ill`, or numbers of tasks.
        tasks: the names of all tasks.

    Returns:
        A mapping to pass as `cost` to `select_groups`.

    Raises:
        TableError: If the file is invalid.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "costs.csv")
        ...     _ = path.write_text("group,cost\\n1,0.5\\n2,1\\nage+ill,1.5\\n")
        ...     read_costs(path, ["age", "ill"]) == {1: 0.5, 2: 1.0, frozenset({"age", "ill"}): 1.5}
        True
    """
    table = tabular.read_table(path, as_text=True)
    if list(table.columns) != ["group", COST_COLUMN]:
        raise TableError(path, "must have the columns 'group' and 'cost'", ", ".join(map(repr, table.columns)))
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, [COST_COLUMN], problems)[COST_COLUMN]
    raise_problems(problems, TableError)
    costs: dict[frozenset[str] | int, float] = {}
    for group, cost in zip(table["group"], numbers.tolist(), strict=True):
        key = group_names(group, tasks) or (int(group) if group.isdecimal() else None)
        if key is None or key in costs or not is_positive(cost):
            expected = "must list each group (task names joined by +, or a number of tasks) once, with a positive cost"
            raise TableError(path, expected, f"{cost:g} for {group!r}")
        costs[key] = cost
    return costs


def group_names(cell: str, tasks: Collection[str]) -> frozenset[str] | None:
    """Returns the task names in a cell, or None if there are other names or one occurs twice.

    Example:
        >>> sorted(group_names("age+ill", ["age", "ill"])), sorted(group_names("{age, ill}", ["age", "ill"]))
        (['age', 'ill'], ['age', 'ill'])
    """
    for text in (cell.strip(), cell.strip(" []{}()")):
        for separator in ("\n", *NAME_SEPARATORS):  # no name contains a line break
            names = [name.strip(" '\"") for name in text.split(separator)]
            if set(names) <= set(tasks) and len(set(names)) == len(names):
                return frozenset(names)
    return None
