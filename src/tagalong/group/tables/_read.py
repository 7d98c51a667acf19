"""One file of scores, whatever its kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tagalong.affinity import Affinity
from tagalong.affinity._csv import square

from ._content import is_json, read_json, read_lines, read_text
from ._documents import of_document
from ._results import is_results, results
from ._table import ScoreTable


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
    matrix, tasks = square(file, lines, axis)
    return ScoreTable("square", tasks, Affinity.from_matrix(matrix, tasks, axis), axis)
