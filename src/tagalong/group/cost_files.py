"""Reads files that list costs by group or by number of tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tagalong.errors import InvalidInput, raise_problems
from tagalong.tabular import TableError, as_number, parse_table, read_text

from .score_files import group_names, is_json, parse_json

Costs = dict[frozenset[str] | int, float]


def read_costs(path: str | os.PathLike[str], tasks: Collection[str]) -> Costs:
    """Reads the cost of each group, or of each number of tasks.

    Args:
        path: a table with two columns, or JSON of the form `{group: cost}`. The first column contains groups (such as
            `age+ill`) or numbers of tasks, and the second column contains their costs. A header is optional.
        tasks: the names of all tasks.

    Returns:
        A mapping to pass as `cost` to `select_groups`.

    Raises:
        TableError: If the file is invalid. The message lists every problem.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "costs.csv")
        ...     _ = path.write_text("group,cost\\n1,0.5\\n2,1\\nage+ill,1.5\\n")
        ...     read_costs(path, ["age", "ill"]) == {1: 0.5, 2: 1.0, frozenset({"age", "ill"}): 1.5}
        True
    """
    file = Path(path)
    known = ", ".join(map(repr, tasks))
    problems: list[InvalidInput] = []
    costs: Costs = {}
    for place, group, cell, cost in _read_entries(file):
        key = _read_group(group, tasks)
        if key is None:
            expected = f"must be task names ({known}) joined by +, or a number of tasks"
            problems.append(TableError(place, expected, repr(group)))
            continue
        if key in costs:
            problems.append(TableError(place, f"repeats the cost of {group!r}", hint="list each group only once"))
        if not 0 < cost < math.inf:
            problems.append(TableError(place, "must have a positive cost", repr(cell)))
        costs[key] = cost
    if not costs and not problems:
        problems.append(TableError(file, f"must list costs for groups of {known}", "none"))
    raise_problems(problems, TableError)
    return costs


def _read_entries(path: Path) -> list[tuple[str, str, Any, float]]:
    """Reads the location, group and cost of each entry. The cost is returned both as written and as a number."""
    text = read_text(path)
    if is_json(text):
        document = parse_json(text, path)
        if not isinstance(document, dict):
            raise TableError(path, "must be a mapping {group: cost}", "a list")
        return [(f"{path}, {group!r}", group, cost, _parse_cost(as_number, cost)) for group, cost in document.items()]
    table = parse_table(text, path, default_header=("group", "cost"))
    raise_problems(table.problems, TableError)
    return [
        (table.at(row), row.cells[0], row.cells[1], _parse_cost(table.parse_number, row.cells[1])) for row in table.rows
    ]


def _read_group(group: str, tasks: Collection[str]) -> frozenset[str] | int | None:
    names = group_names(group, tasks)
    if names is None and group.isdecimal():
        return int(group)
    return names


def _parse_cost(parse_number: Callable[[Any], float], cost: Any) -> float:
    try:
        return parse_number(cost)
    except (TypeError, ValueError, OverflowError):
        return math.nan
