"""`tagalong group`: chooses the best networks for a table of scores."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from tagalong.affinity import CAUTION
from tagalong.errors import InvalidInput
from tagalong.files import write_atomic, write_document
from tagalong.rendering import TextTable

from .options import (
    COST,
    OUTPUT,
    SCORES,
    AxisOption,
    JsonOption,
    NetworkCostOptions,
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
    from tagalong.group import Grouping, GroupingsByBudget

    from .score_files import ScoreTable

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
    costs: NetworkCostOptions,
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
    compare: Annotated[Path | None, option(OUTPUT, "Compare with your own grouping (JSON).", "FILE")] = None,
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
    - `tagalong group losses.csv --objective min --compare mine.json`: how much worse your own grouping is
    """
    from tagalong.group import GroupingsByBudget, score_grouping, select_groups  # imports scipy, which is slow

    from .score_files import read_scores

    # The scores, and what tasks and networks count.
    table = _restrict(read_scores(scores, axis), tasks, average)
    counting: dict[str, Any] = {
        "objective": selection.objective,
        "allow_single": selection.allow_single,
        "weights": selection.weights,
        "cost": None if costs.cost is None else _parse_cost(costs.cost, table.tasks),
        "complete": selection.complete,
    }
    if selection.complete is not None and table.kind in ("affinity", "square"):
        counting["complete"] = None  # larger groups have the mean over their pairs in any case
        if selection.allow_single is None:
            counting["allow_single"] = bool(np.isfinite(np.diag(table.scores.mean)).any())

    # Without a budget, the best grouping may have as many networks or the same total cost as the user's own.
    own = None
    max_total_cost = costs.max_total_cost
    if compare is not None:
        own = score_grouping(table.scores, _read_groups(compare), **counting)
        budget = budget or [min(len(own.groups), len(table.tasks))]
        if max_total_cost is None and own.cost != len(own.groups):
            max_total_cost = own.cost
    elif budget is None and max_total_cost is not None:
        budget = [len(table.tasks)]
    if (explain or compare) and (budget is None or len(budget) > 1):
        raise InvalidInput("`explain` and `compare`", "require a single grouping", hint="pass `budget=3`")

    constraints = given(selection) | counting | {"max_cost": costs.max_cost, "max_total_cost": max_total_cost}
    networks = budget[0] if budget is not None and len(budget) == 1 else budget
    working = spinner(f"choosing networks for {len(table.tasks)} tasks", quiet or json)
    with warnings.catch_warnings(record=True) as noted, stop_on_interrupt() as stopped, working:
        warnings.simplefilter("always", UserWarning)
        chosen: Any = select_groups(table.scores, networks, stop=stopped, **constraints)
    for warning in noted:
        print_error(f"warning: {str(warning.message).partition(';')[0]}")  # the rest is about Python

    # The answer.
    explained = _explained(explain or [], table.tasks)
    if out is not None and isinstance(chosen, GroupingsByBudget):
        documents = [grouping.to_document() for grouping in chosen.values()]
        write_document(out, "tagalong-grouping-list", 1, {"caution": CAUTION, "groupings": documents})
    elif out is not None:
        write_atomic(out, chosen.to_json() + "\n")
    if json:
        document = _document(chosen, own, explained)
        document |= {"caution": CAUTION, "interrupted": stopped()}
        document["input"] = {"file": str(scores), "kind": table.kind, "axis": table.axis, "tasks": list(table.tasks)}
        print(dumps(document, indent=1, allow_nan=False))
        return
    if not quiet:
        print_line(f"{scores}: {table}")
    if stopped():
        print_line("interrupted: showing the best grouping found so far")
    _show(chosen, own, explained, quiet)
    if out is not None and not quiet:
        print_line(f"saved to {out}")


def _restrict(table: ScoreTable, tasks: Sequence[str] | None, average: Any) -> ScoreTable:
    """Restricts the scores to some tasks, and changes how they are averaged."""
    if tasks is not None:
        if table.kind not in ("affinity", "square"):
            raise InvalidInput("tasks", "requires pairwise scores", str(table))
        table = replace(table, tasks=tuple(tasks), scores=table.scores.only(tasks))
    if average is not None:
        if table.kind != "affinity" or not len(table.scores.steps):
            raise InvalidInput("average", "requires an affinity that was saved with its history", str(table))
        table = replace(table, scores=table.scores.averaged(average))
    return table


def _parse_cost(text: str, tasks: Sequence[str]) -> Any:
    """Parses the cost of a network: a number, half-single, ENCODER+HEAD, or a file of groups and costs."""
    if text == "half-single":
        return lambda group: 0.5 if len(group) == 1 else 1.0
    try:
        parts = [float(part) for part in text.split("+")]
    except ValueError:
        parts = []
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        encoder, head = parts
        return lambda group: encoder + head * len(group)
    if not Path(text).exists():
        expected = "must be a number, 'half-single', ENCODER+HEAD (e.g. 10+0.5), or a file that lists group costs"
        raise InvalidInput("cost", expected, repr(text))
    from .score_files import read_costs

    return read_costs(Path(text), tasks)


def _explained(names: Sequence[str], tasks: Sequence[str]) -> Sequence[str]:
    """Checks the names of tasks to explain; "all" stands for every task."""
    if unknown := [repr(name) for name in names if name not in (*tasks, "all")]:
        raise InvalidInput("explain", f"must be one of {', '.join(map(repr, tasks))}, or 'all'", ", ".join(unknown))
    return tasks if "all" in names else names


def _read_groups(path: Path) -> list[Any]:
    """Reads groups from a JSON file: a saved grouping, a list of lists of tasks, or `{name: [task, …]}`."""
    from tagalong.group import Grouping

    try:
        document = loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(path, f"is not valid JSON: {error}") from error
    if isinstance(document, dict) and "format" in document:
        return list(Grouping.from_document(document).groups)
    groups = list(document.values()) if isinstance(document, dict) else document
    is_list = isinstance(groups, list) and all(isinstance(group, list) for group in groups)
    if not is_list or not all(isinstance(task, str) for group in groups for task in group):
        raise InvalidInput(path, "must contain a saved grouping, or a list of lists of task names", repr(groups))
    return groups


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


def _document(chosen: Grouping | GroupingsByBudget, own: Grouping | None, explained: Sequence[str]) -> dict[str, Any]:
    """Returns the grouping, as in `Grouping.to_json`, or a list of groupings."""
    if isinstance(chosen, dict):
        documents = [_document(grouping, None, []) for grouping in chosen.values()]
        gains = {"gains": dict(chosen.gains), "errors": dict(chosen.errors), "enough": chosen.enough}
        return {"groupings": documents} | gains
    document = chosen.to_document()
    document["gap"] = chosen.gap if chosen.gap < float("inf") else None
    document["cost"] = chosen.cost
    if chosen.resampled is not None:
        document["resampled"]["unsettled"] = list(chosen.resampled.unsettled)
    if explained:
        document["explanations"] = {task: chosen.explain(task) for task in explained if task in chosen.per_task}
    if own is not None:
        sign = 1 if chosen.objective == "max" else -1
        document["comparison"] = {
            "mine": own.to_document(),
            "loss": sign * (chosen.value - own.value),
            "per_task": {task: sign * (score - own.per_task[task]) for task, score in chosen.per_task.items()},
            "spent": {"mine": own.cost, "best": chosen.cost},
        }
    return document


def _show(chosen: Grouping | GroupingsByBudget, own: Grouping | None, explained: Sequence[str], quiet: bool) -> None:
    """Prints the result to the terminal."""
    parts: list[str | TextTable] = [chosen.table(), chosen.summary]
    if not isinstance(chosen, dict):
        parts = [chosen.summary, chosen.table()]
        if not quiet and len(chosen.tasks) > MAX_TASK_ROWS:
            parts.append(f"use --json to see the scores of all {len(chosen.tasks)} tasks")
        elif not quiet:
            parts.append(_task_table(chosen, own))
        if not quiet:
            parts += chosen.remarks
        parts += [chosen.explain(task) for task in explained if task in chosen.per_task]
        if own is not None:
            totals = f"yours: total {own.value:.6g}, cost {own.cost:g}"
            parts += [f"{totals}; best: total {chosen.value:.6g}, cost {chosen.cost:g}", own.table()]
    for part in parts:
        if isinstance(part, TextTable):
            print_table(part)
            print()
        else:
            print_line(part)


def _task_table(grouping: Grouping, own: Grouping | None) -> TextTable:
    """Returns a table with each task's score in its network, in the best other one, and in the user's own grouping."""
    resampled = grouping.resampled
    same = {} if resampled is None else dict(zip(resampled.tasks, resampled.same, strict=True))
    columns = ["task", "network", "score", "elsewhere", *["yours"] * bool(own), *["settled"] * bool(same)]
    table = TextTable(*columns, numbers=columns[1:], names=("task",))
    for task in grouping.tasks:
        network = grouping.served_by(task)
        others = [option.score for option in grouping.options.get(task, ()) if option.trains != network.trains]
        row = [task, str(grouping.groups.index(network) + 1), f"{grouping.per_task[task]:.4g}"]
        row.append(f"{others[0]:.4g}" if others else "-")
        if own is not None:
            row.append(f"{own.per_task[task]:.4g}")
        if same:
            row.append(f"{same[task]:.0%}")
        table.add_row(*row)
    return table
