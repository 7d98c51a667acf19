"""Reads score files: square tables, group results, candidates and saved affinities, as tables or JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tagalong import tabular
from tagalong.affinity import Affinity, square_matrix
from tagalong.errors import InvalidInput, pluralize, raise_problems, task_name_problems
from tagalong.tabular import TableError, parse_numbers, read_text

from .scores import Candidate

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("group", "groups", "trains", "network", "networks")  # possible names of the column of groups
LONG_COLUMNS = {"task", "value"}  # the other columns of a table with one row per group and task
COST_COLUMN = "cost"
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
    if axis not in ("source", "target"):
        raise InvalidInput("axis", 'must be "source" or "target"', repr(axis))
    document = read_json(Path(path))
    if document is not None:
        return _read_document(Path(path), document, axis)
    table = tabular.read_table(path, as_text=True)
    header = list(table.columns)
    # If a square table has a task called "group", there is also a row with that name.
    if any(name.lower() in GROUP_COLUMNS for name in header) and set(table.iloc[:, 0]) != set(header[1:]):
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


def _read_results(table: pd.DataFrame) -> ScoreTable:
    """Reads a table with a column of groups, and either a column for each task or the columns `task` and `value`.

    If there is also a column of costs, the rows are read as candidates.
    """
    place, columns = table.attrs["place"], {name.lower(): name for name in table.columns}
    group = next(name for name in table.columns if name.lower() in GROUP_COLUMNS)
    cost = columns.get(COST_COLUMN)
    results = [name for name in table.columns if name not in (group, cost)]
    if "" in results:
        raise TableError(place, "must contain a name for every column", "an empty cell")
    is_long = {name.lower() for name in results} == LONG_COLUMNS
    tasks = set(table[columns["task"]]) if is_long else set(results)
    numeric = [columns["value"]] if is_long else results
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, numeric if cost is None else [*numeric, cost], problems)

    # The rows of a long table with the same group and cost are one network.
    networks: dict[tuple[frozenset[str], float, int | None], dict[str, float]] = {}
    for (line, cell), row in zip(table[group].items(), numbers.to_dict("records"), strict=True):
        where = f"{place}, line {line}"
        trains = group_names(cell, tasks) or frozenset()
        names = [table.at[line, columns["task"]]] if is_long else results
        values = {name: row[column] for name, column in zip(names, numeric, strict=True) if not math.isnan(row[column])}
        spent = 1.0 if cost is None else row[cost]
        network = networks.setdefault((trains, spent, None if is_long else line), {})
        if not trains:
            expected = f"must contain task names ({', '.join(map(repr, sorted(tasks)))}) joined by +"
            problems.append(TableError(where, expected, repr(cell)))
        elif not set(values) <= trains:
            others = ", ".join(map(repr, sorted(set(values) - trains)))
            problems.append(TableError(where, f"must have results only for the tasks in {cell!r}", f"one for {others}"))
        elif set(values) & set(network):
            problems.append(TableError(where, f"repeats a result of {cell!r}", hint="average repeated results"))
        network |= values
    raise_problems(problems, TableError)
    candidates = [Candidate(trains, values, spent) for (trains, spent, _), values in networks.items()]
    return _make_results_table(place, candidates, has_costs=cost is not None)


def _read_document(path: Path, document: Any, axis: Literal["source", "target"]) -> ScoreTable:
    """Reads a JSON document in any of the supported forms."""
    fields = document if isinstance(document, dict) else {}
    if fields.get("format") == "tagalong-affinity":
        if axis == "target":
            raise InvalidInput("axis", "must be omitted for a saved affinity, since its direction is known")
        affinity = Affinity.load(path)
        return ScoreTable("affinity", affinity.tasks, affinity)
    if fields.get("format") == "tagalong-grouping":
        hint = "to compare it with the best grouping, pass it with --compare"
        raise TableError(path, "must contain scores", "a grouping", hint)
    entries = fields.get("groups", document)
    if isinstance(entries, list) and entries and all(isinstance(row, dict) and "trains" in row for row in entries):
        candidates = [_read_candidate(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]
        return _make_results_table(str(path), candidates, has_costs=any("cost" in entry for entry in entries))
    if "matrix" in fields:
        direction = str(document.get("direction", axis))
        rows = "target" if 0 <= direction.find("target") < direction.find("source") else "source"
        if "direction" in document and rows != axis:
            expected = f"must match `axis={axis!r}`"
            raise TableError(f"{path}: 'direction'", expected, repr(direction), "pass the other `axis`")
        return _read_matrix(path, document["matrix"], document.get("tasks"), axis)
    if not fields or not all(isinstance(row, dict) for row in fields.values()):
        raise _unknown_format(path)
    inside = {name for row in document.values() for name in row}
    groups = {cell: group_names(cell, inside) or frozenset() for cell in document}
    if not inside >= set(document) and all(set(row) <= groups[cell] for cell, row in document.items()):
        entries = [{"trains": sorted(groups[cell]), "values": row} for cell, row in document.items()]
        return _read_document(path, entries, axis)
    if not inside <= set(document):
        alone = ", ".join(map(repr, sorted(inside - set(document))))
        expected = "must have the same tasks as inner and outer keys, or groups like 'a+b' as outer keys"
        raise TableError(path, expected, f"{alone} only among the inner keys")
    matrix = [[row.get(column) for column in document] for row in document.values()]
    return _read_matrix(path, matrix, list(document), axis)


def _unknown_format(path: Path) -> TableError:
    expected = "must be a saved affinity, {tasks, matrix}, {source: {target: value}}, or a list of {trains, values}"
    return TableError(path, expected, "something else")


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
        raise TableError(f"{location}:", str(error).replace("`", "")) from None


def _read_matrix(path: Path, matrix: Any, tasks: Any, axis: Literal["source", "target"]) -> ScoreTable:
    try:
        filled = [[np.nan if value is None else value for value in row] for row in matrix]
        affinity = Affinity.from_matrix(filled, tasks, axis)
    except (TypeError, ValueError) as error:
        raise TableError(f"{path}:", str(error).replace("`", "")) from None
    return ScoreTable("square", affinity.tasks, affinity, axis)


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


def read_json(path: Path) -> Any:
    """Returns the JSON document in a file, or None if the file contains a table.

    Repeated keys are rejected, which Python's parser would silently overwrite.
    """
    text = "" if path.suffix.lower() == ".parquet" else read_text(path)
    if not text.lstrip().startswith(("{", "[")):
        return None

    def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = [repr(key) for key, times in Counter(key for key, _ in pairs).items() if times > 1]
        if repeated:
            raise ValueError(f"{', '.join(repeated)} more than once")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=reject_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise TableError(path, f"is not valid JSON: {error}") from None


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
