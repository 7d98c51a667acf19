"""`tagalong group`: reads a table of scores, and chooses the best networks for them."""

from __future__ import annotations

import math
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from tagalong.affinity import CAUTION, Affinity, square_matrix
from tagalong.errors import InvalidInput, raise_problems
from tagalong.files import write_atomic, write_document
from tagalong.rendering import TextTable
from tagalong.tabular import TableError, parse_numbers, read_table, read_text

from .options import (
    COST,
    OUTPUT,
    SCORES,
    AxisOption,
    JsonOption,
    OutFile,
    QuietOption,
    SelectionOptions,
    TasksOption,
    given,
    option,
    parse_budgets,
)
from .terminal import print_error, print_line, print_table, spinner

if TYPE_CHECKING:
    import pandas as pd

    from tagalong.group import Candidate, Grouping, GroupingsByBudget


MAX_TASK_ROWS = 60  # with more tasks, the scores of single tasks are only shown by --json


def group(
    scores: Annotated[
        Path, typer.Argument(metavar="FILE", help="A table of scores, as CSV or JSON (see above).", show_default=False)
    ],
    *,
    budget: Annotated[
        Sequence[int] | None,
        option(
            COST,
            "Maximum number of networks; by default, every number.",
            "2 | 1,2,3 | 1-5",
            *("--budget", "--budgets", "-b"),
            parser=parse_budgets,
        ),
    ] = None,
    selection: SelectionOptions,
    axis: AxisOption = "source",
    tasks: TasksOption = None,
    average: Annotated[
        Literal["mean", "trimmed", "median"] | None, option(SCORES, "How to average the history of a saved affinity.")
    ] = None,
    explain: Annotated[
        list[str] | None,
        option(OUTPUT, "Explain why a task is assigned to its network; may be repeated.", "TASK|all"),
    ] = None,
    out: OutFile = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Chooses which networks to train within a budget, and which of them serves each task.

    Without `--budget`, shows the best networks for every number of networks, what each further one gains, and where
    this stops paying.

    FILE may contain any of the following; the format is detected from the content:

    - a square table with task names in the first row and the first column; values say how much **the row helps the
      column**
    - an affinity saved by tagalong
    - a table of results with a `group` column (e.g. `age+ill`), one column per task, and an optional `cost` column

    Ctrl-C during a long search shows the best grouping found so far; press it again to quit.

    Examples:
    - `tagalong group affinity.csv`: what each number of networks brings
    - `tagalong group affinity.csv --budget 3`: at most three networks
    - `tagalong group losses.csv --objective min --budget 2`: the two networks with the lowest losses
    """
    from tagalong.group import select_groups  # imports scipy, which is slow

    # The scores of some tasks, averaged in some way.
    table = read_scores(scores, axis)
    if tasks is not None:
        if table.kind not in ("affinity", "square"):
            raise InvalidInput("tasks", "requires pairwise scores", table.kind)
        table = replace(table, tasks=tuple(tasks), scores=table.scores.only(tasks))
    if average is not None:
        if table.kind != "affinity" or not len(table.scores.steps):
            raise InvalidInput("average", "requires an affinity that was saved with its history")
        table = replace(table, scores=table.scores.averaged(average))

    options = given(selection)
    if selection.complete is not None and table.kind in ("affinity", "square"):
        # Larger groups have the mean over their pairs in any case.
        del options["complete"]
        options.setdefault("allow_single", bool(np.isfinite(np.diag(table.scores.mean)).any()))
    if budget is None and selection.max_total_cost is not None:
        budget = [len(table.tasks)]
    if explain and (budget is None or len(budget) > 1):
        raise InvalidInput("explain", "requires a single grouping", hint="pass `budget=3`")

    networks = budget[0] if budget is not None and len(budget) == 1 else budget
    working = spinner(f"choosing networks for {len(table.tasks)} tasks", quiet or json)
    with warnings.catch_warnings(record=True) as noted, stop_on_interrupt() as stopped, working:
        warnings.simplefilter("always", UserWarning)
        chosen: Any = select_groups(table.scores, networks, stop=stopped, **options)
    for warning in noted:
        print_error(f"warning: {str(warning.message).partition(';')[0]}")  # the rest is about Python

    # The answer.
    names = [task for task in table.tasks if task in chosen.per_task] if explain and "all" in explain else explain
    explained = {} if names is None else {task: chosen.explain(task) for task in names}
    if out is not None and isinstance(chosen, dict):
        documents = [grouping.to_document() for grouping in chosen.values()]
        write_document(out, "tagalong-grouping-list", 1, {"caution": CAUTION, "groupings": documents})
    elif out is not None:
        write_atomic(out, chosen.to_json() + "\n")
    if json:
        about = {"file": str(scores), "kind": table.kind, "axis": table.axis, "tasks": list(table.tasks)}
        document = {**_document(chosen, explained), "caution": CAUTION, "interrupted": stopped(), "input": about}
        print(dumps(document, indent=1, allow_nan=False))
        return
    if not quiet:
        print_line(f"{scores}: {table.kind}, {len(table.tasks)} tasks")
    if stopped():
        print_line("interrupted: showing the best grouping found so far")
    _show(chosen, explained, quiet)
    if out is not None and not quiet:
        print_line(f"saved to {out}")


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


def read_scores(path: Path, axis: Literal["source", "target"] = "source") -> ScoreTable:
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
        >>> table.kind, table.tasks
        ('results', ('age', 'ill'))
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
    from tagalong.group import Candidate

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


def parse_group(cell: str, tasks: Collection[str]) -> frozenset[str] | None:
    """Returns the task names in a cell, or None if there are other names or one occurs twice.

    Example:
        >>> sorted(parse_group("age + ill", ["age", "ill"]))
        ['age', 'ill']
    """
    names = [cell] if cell in tasks else [name.strip() for name in cell.split("+")]
    is_group = set(names) <= set(tasks) and len(set(names)) == len(names)
    return frozenset(names) if is_group else None


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed. The second Ctrl-C interrupts as usual.

    Example:
        >>> with stop_on_interrupt() as stopped:
        ...     signal.raise_signal(signal.SIGINT)
        ...     stopped()
        True
    """
    pressed = threading.Event()

    def request_stop(number: int, frame: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("stopping with the best result so far; press Ctrl-C again to quit immediately", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, request_stop)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def _document(chosen: Grouping | GroupingsByBudget, explained: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(chosen, dict):
        documents = [_document(grouping, {}) for grouping in chosen.values()]
        gains = {"gains": dict(chosen.gains), "errors": dict(chosen.errors), "enough": chosen.enough}
        return {"groupings": documents} | gains
    document = chosen.to_document()
    document["gap"] = chosen.gap if chosen.gap < float("inf") else None
    document["cost"] = chosen.cost
    if chosen.resampled is not None:
        document["resampled"]["unsettled"] = list(chosen.resampled.unsettled)
    if explained:
        document["explanations"] = explained
    return document


def _show(chosen: Grouping | GroupingsByBudget, explained: Mapping[str, str], quiet: bool) -> None:
    parts: list[str | TextTable] = [chosen.table(), chosen.summary]
    if not isinstance(chosen, dict):
        parts = [chosen.summary, chosen.table()]
        if not quiet and len(chosen.tasks) > MAX_TASK_ROWS:
            parts.append(f"use --json to see the scores of all {len(chosen.tasks)} tasks")
        elif not quiet:
            parts.append(_task_table(chosen))
        if not quiet:
            parts += chosen.remarks
        parts += explained.values()
    for part in parts:
        if isinstance(part, TextTable):
            print_table(part)
            print()
        else:
            print_line(part)


def _task_table(grouping: Grouping) -> TextTable:
    """Returns a table with each task's score in its network and in the best other one."""
    columns = {"task": list(grouping.tasks), "network": [], "score": [], "elsewhere": []}
    for task in grouping.tasks:
        network = grouping.served_by(task)
        others = [f"{other.score:.4g}" for other in grouping.options.get(task, ()) if other.trains != network.trains]
        columns["network"].append(str(grouping.groups.index(network) + 1))
        columns["score"].append(f"{grouping.per_task[task]:.4g}")
        columns["elsewhere"].append(others[0] if others else "-")
    if grouping.resampled is not None:
        same = dict(zip(grouping.resampled.tasks, grouping.resampled.same, strict=True))
        columns["settled"] = [f"{same[task]:.0%}" for task in grouping.tasks]
    table = TextTable(*columns, numbers=[*columns][1:], names=("task",))
    table.rows = list(zip(*columns.values(), strict=True))
    return table
