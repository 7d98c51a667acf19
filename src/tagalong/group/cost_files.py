"""Reads files that list costs by group or by number of tasks."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from tagalong.errors import InvalidInput, is_positive, raise_problems
from tagalong.tabular import TableError, parse_numbers, read_table

from .score_files import group_names, read_json

Costs = dict[frozenset[str] | int, float]


def read_costs(path: str | os.PathLike[str], tasks: Collection[str]) -> Costs:
    """Reads the cost of each group, or of each number of tasks.

    Args:
        path: a table with the columns `group` and `cost`, or JSON of the form `{group: cost}`. Groups are task names
            such as `age+ill`, or numbers of tasks.
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
    problems: list[InvalidInput] = []
    document = read_json(Path(path))
    if document is None:
        table = read_table(path, as_text=True)
        if list(table.columns) != ["group", "cost"]:
            raise TableError(path, "must have the columns 'group' and 'cost'", ", ".join(map(repr, table.columns)))
        entries = list(zip(table["group"], parse_numbers(table, ["cost"], problems)["cost"].tolist(), strict=True))
    elif isinstance(document, dict):
        entries = list(document.items())
    else:
        raise TableError(path, "must be a mapping {group: cost}", "a list")
    costs: Costs = {}
    for group, cost in entries:
        key = group_names(group, tasks) or (int(group) if group.isdecimal() else None)
        if key is None:
            expected = f"must contain task names ({', '.join(map(repr, tasks))}) joined by +, or numbers of tasks"
            problems.append(TableError(path, expected, repr(group)))
        elif key in costs:
            problems.append(TableError(path, f"must list the cost of {group!r} only once"))
        elif not is_positive(cost):
            problems.append(TableError(path, f"must have a positive cost for {group!r}", repr(cost)))
        else:
            costs[key] = float(cost)
    raise_problems(problems, TableError)
    return costs
