"""Reads square tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagalong.errors import InvalidInput, first_few, raise_problems
from tagalong.tabular import TableError, parse_numbers

from .averaging import Floats

if TYPE_CHECKING:
    import pandas as pd

ROW_MEANINGS = {"source": "source", "target": "target", "onto": "target"}  # keyed by the table's first cell


def square_matrix(table: pd.DataFrame, axis: str) -> tuple[Floats, tuple[str, ...]]:
    """Returns the matrix and the task names of a square table of text, both in row order.

    Raises:
        TableError: If the table is not square, rows and columns have different names, or some cells are not numbers.
    """
    corner, *columns = table.columns
    rows = table.iloc[:, 0].tolist()
    place = table.attrs["place"]
    if not all(columns) or sorted(columns) != sorted(rows):
        unpaired = (set(columns) ^ set(rows)) | {name for name in rows if rows.count(name) > 1}
        expected = "must have the same task names in its first row and its first column"
        hint = "for a table with one row per example, use tagalong run"
        raise TableError(place, expected, f"a difference for {first_few(sorted(map(repr, unpaired)))}", hint)
    if ROW_MEANINGS.get(corner.lower(), axis) != axis:
        hint = "pass the other `axis`, or change the cell"
        raise TableError(f"{place}: the first cell", f"must match `axis={axis!r}`", repr(corner), hint)
    problems: list[InvalidInput] = []
    numbers = parse_numbers(table, columns, problems)
    raise_problems(problems, TableError)
    return numbers[rows].to_numpy(), tuple(rows)
