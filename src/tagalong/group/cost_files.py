"""A file of costs, by group or by number of tasks."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tagalong.errors import refuse

from .text_files import TableError, group_names, is_json, read_json, read_lines, read_text_file

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
    text = read_text_file(file)
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
