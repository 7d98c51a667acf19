"""Reads affinities, results of groups and their costs from tables."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tagalong.affinity import Affinity, square_matrix
from tagalong.errors import InvalidInput, pluralize, raise_problems
from tagalong.group import Candidate
from tagalong.tabular import TableError, parse_numbers, read_table, read_text

if TYPE_CHECKING:
    import pandas as pd

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

    def __str__(self) -> str:
        tasks = pluralize(len(self.tasks), "task")
        if self.kind in ("results", "candidates"):
            return f"results of {pluralize(len(self.scores), 'network')} for {tasks}"
        name = "affinity" if self.kind == "affinity" else "square table"
        return f"{name} of {tasks}, {'row helps column' if self.axis == 'source' else 'column helps row'}"


def read_scores(path: Path, axis: Axis = "source") -> ScoreTable:
    """Reads a table of scores for `select_groups`. The type of table is detected from its content.

    Args:
        path: a file that contains pairwise scores or group results. Pairwise scores are an affinity saved by tagalong,
            or a square table with task names in the first row and the first column.
            Tables may be in any format supported by `Problem.from_table`. Group results are a table with a column
            `group` and one column per task. If there is also a column `cost`, its rows are read as candidates.
        axis: what the rows of a square table represent. Use "target" if each row contains the scores onto one task.

    Raises:
        InvalidInput: If the file is missing, corrupted or in an unknown format.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "results.csv")
        ...     _ = path.write_text("group,age,ill\\nage,0.9,\\nill,,0.8\\nage+ill,0.95,0.7\\n")
        ...     table = read_scores(path)
        >>> print(table)
        results of 3 networks for 2 tasks
        >>> table.scores[frozenset({"age", "ill"})]
        {'age': 0.95, 'ill': 0.7}
    """
    is_json = path.suffix.lower() != ".parquet" and read_text(path).lstrip().startswith(("{", "["))
    if is_json:
        if axis == "target":
            raise InvalidInput("axis", "must be omitted for a saved affinity, since its direction is known")
        affinity = Affinity.load(path)
        return ScoreTable("affinity", affinity.tasks, affinity)
    table = read_table(path, as_text=True)
    header = list(table.columns)
    # If a square table has a task called "group", there is also a row with that name.
    if "group" not in header or set(table.iloc[:, 0]) == set(header[1:]):
        matrix, tasks = square_matrix(table, axis)
        return ScoreTable("square", tasks, Affinity.from_matrix(matrix, tasks, axis), axis)

    candidates = _read_candidates(table)
    tasks = tuple(name for name in header if any(name in candidate.trains for candidate in candidates))
    if "cost" in header:
        return ScoreTable("candidates", tasks, candidates)
    results = {candidate.trains: dict(candidate.values) for candidate in candidates}
    if len(results) < len(candidates):
        hint = "average repeated results, or add a column of costs"
        raise TableError(path, "must list each group only once", f"{len(candidates) - len(results)} repeated", hint)
    return ScoreTable("results", tasks, results)


def _read_candidates(table: pd.DataFrame) -> list[Candidate]:
    """Returns the network of each row."""
    tasks = [name for name in table.columns if name not in ("group", "cost")]
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, [name for name in table.columns if name != "group"], problems)
    raise_problems(problems, TableError)
    candidates = []
    for (line, cell), row in zip(table["group"].items(), numbers.to_dict("records"), strict=True):
        trains, cost = parse_group(cell, tasks), row.get("cost", 1.0)
        if trains is None or math.isnan(cost):
            expected = f"must have a cost and task names ({', '.join(map(repr, tasks))}) joined by +"
            raise TableError(f"{table.attrs['place']}, line {line}", expected, repr(cell))
        values = {task: row[task] for task in tasks if not math.isnan(row[task])}
        candidates.append(Candidate(trains, values, cost))
    return candidates


def read_costs(path: Path, tasks: Collection[str]) -> dict[frozenset[str] | int, float]:
    """Reads the cost of each group, or of each number of tasks.

    Args:
        path: a table with the columns `group` and `cost`. Groups are task names such as `age+ill`, or numbers of tasks.
        tasks: the names of all tasks.

    Returns:
        A mapping to pass as `cost` to `select_groups`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "costs.csv")
        ...     _ = path.write_text("group,cost\\n1,0.5\\n2,1\\nage+ill,1.5\\n")
        ...     read_costs(path, ["age", "ill"]) == {1: 0.5, 2: 1.0, frozenset({"age", "ill"}): 1.5}
        True
    """
    table = read_table(path, as_text=True)
    if list(table.columns) != ["group", "cost"]:
        raise TableError(path, "must have the columns 'group' and 'cost'", ", ".join(map(repr, table.columns)))
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, ["cost"], problems)["cost"]
    raise_problems(problems, TableError)
    costs: dict[frozenset[str] | int, float] = {}
    for group, cost in zip(table["group"], numbers.tolist(), strict=True):
        key = parse_group(group, tasks) or (int(group) if group.isdecimal() else None)
        if key is None or key in costs or not cost > 0:
            expected = "must list each group (task names joined by +, or a number of tasks) once, with a positive cost"
            raise TableError(path, expected, f"{cost:g} for {group!r}")
        costs[key] = cost
    return costs


def parse_group(cell: str, tasks: Collection[str]) -> frozenset[str] | None:
    """Returns the task names in a cell, or None if there are other names or one occurs twice.

    Example:
        >>> sorted(parse_group("age + ill", ["age", "ill"]))
        ['age', 'ill']
    """
    names = [cell] if cell in tasks else [name.strip() for name in cell.split("+")]
    is_group = set(names) <= set(tasks) and len(set(names)) == len(names)
    return frozenset(names) if is_group else None
