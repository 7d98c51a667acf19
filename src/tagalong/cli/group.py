"""`tagalong group`: chooses the best networks for a table of scores."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.affinity import CAUTION
from tagalong.errors import InvalidInput
from tagalong.files import write_atomic, write_document
from tagalong.rendering import TextTable

from . import arguments, group_options as options
from .messages import InterruptRequest, name_arguments, print_error
from .terminal import print_line, print_table, print_text, screen, spinner

if TYPE_CHECKING:
    from tagalong.group import Grouping, GroupingsByBudget

    from .score_files import ScoreTable

MAX_TASK_ROWS = 60  # with more tasks, the scores of single tasks are only shown by --json


def group(
    file: options.File,
    budget: options.BudgetOption = None,
    budgets: options.BudgetsOption = None,
    cost: options.CostOption = None,
    max_cost: options.MaxCostOption = None,
    max_total_cost: options.MaxTotalCostOption = None,
    axis: options.AxisOption = options.AxisChoice.source,
    objective: options.ObjectiveOption = options.ObjectiveChoice.max,
    tasks: options.TasksOption = None,
    average: options.AverageOption = None,
    complete: options.CompleteOption = None,
    place_unmeasured: options.PlaceOption = False,
    weights: options.WeightsOption = None,
    allow_single: options.SingleOption = None,
    max_size: options.MaxSizeOption = None,
    must_link: options.MustOption = None,
    cannot_link: options.CannotOption = None,
    solver: options.SolverOption = options.SolverChoice.auto,
    time_limit: options.TimeOption = None,
    seed: options.SeedOption = 0,
    resamples: options.ResamplesOption = None,
    explain: options.ExplainOption = None,
    compare: options.CompareOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
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
        `tagalong group affinity.csv`: what each number of networks brings
        `tagalong group affinity.csv --budget 3`: at most three networks
        `tagalong group losses.csv --objective min --compare mine.json`: how much worse your own grouping is
    """
    from tagalong.group import GroupingsByBudget, score_grouping  # imports scipy, which is slow

    from .score_files import read_table

    # Reject conflicting options before reading any file.
    if budget is not None and budgets is not None:
        raise InvalidInput("`budget` and `budgets`", "cannot be used together", hint="pass only one of them")
    is_single = budgets is None and (budget or compare or max_total_cost) is not None
    if (compare or explain) and not is_single:
        raise InvalidInput("`compare` and `explain`", "require a single grouping", hint="pass `budget`")
    if out is not None and out.suffix.lower() != ".json":
        raise InvalidInput("out", "must end in .json", repr(str(out)))

    # The scores, and what tasks and networks count.
    arguments.check_exists(file, "a file with scores: a table, or an affinity saved by tagalong")
    table = _restrict(read_table(file, axis.value), arguments.parse_names(tasks), average and average.value)
    explained = arguments.parse_explained(explain or [], table.tasks)
    counting: dict[str, Any] = {
        "objective": objective.value,
        "allow_single": allow_single,
        "cost": arguments.parse_cost(cost, table.tasks),
        "weights": arguments.parse_weights(weights or []),
    }
    if complete is not None and table.kind in ("results", "candidates"):
        counting["complete"] = "pairs"
    elif complete is not None and allow_single is None:
        # In a square table, larger groups have the mean over their pairs in any case.
        counting["allow_single"] = bool(np.isfinite(np.diag(table.scores.mean)).any())

    # Without a budget, the best grouping may have as many networks or the same total cost as the user's own.
    own = None
    if compare is not None:
        with name_arguments(groups=str(compare)):
            own = score_grouping(table.scores, _read_groups(compare), **counting)
        budget = budget or min(len(own.groups), len(table.tasks))
        if max_total_cost is None and own.cost != len(own.groups):
            max_total_cost = own.cost
    constraints = {
        "place_unmeasured": place_unmeasured,
        "max_size": max_size,
        "max_cost": max_cost,
        "max_total_cost": max_total_cost,
        "must_link": arguments.parse_links(must_link or [], "must_link"),
        "cannot_link": arguments.parse_links(cannot_link or [], "cannot_link"),
        "solver": solver.value,
        "time_limit": time_limit,
        "seed": seed,
        "resamples": resamples,
    }
    networks: int | list[int] | None = budget
    if budgets is not None:
        networks = arguments.parse_budgets(budgets, len(table.tasks))
    elif max_total_cost is not None:
        networks = budget or len(table.tasks)
    with name_arguments(scores=str(file)):
        chosen, interrupted = _select(table, networks, counting | constraints, quiet or json)

    # The answer.
    if isinstance(chosen, GroupingsByBudget):
        documents = [grouping.to_document() for grouping in chosen.values()]
        if out is not None:
            write_document(out, "tagalong-grouping-list", 1, {"caution": CAUTION, "groupings": documents})
    elif out is not None:
        write_atomic(out, chosen.to_json() + "\n")
    if json:
        document = _document(chosen, own, explained)
        document |= {"caution": CAUTION, "interrupted": interrupted}
        document["input"] = {"file": str(file), "kind": table.kind, "axis": table.axis, "tasks": list(table.tasks)}
        print(dumps(document, indent=1, allow_nan=False))
        return
    if not quiet:
        print_text(f"{file}: {table}")
    if interrupted:
        print_text("interrupted: showing the best grouping found so far")
    _show(chosen, own, explained, quiet)
    if out is not None and not quiet:
        print_text(f"saved to {out}")


def _restrict(table: ScoreTable, tasks: list[str] | None, average: Any) -> ScoreTable:
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


def _select(
    table: ScoreTable, budget: int | list[int] | None, selection: dict[str, Any], quiet: bool
) -> tuple[Grouping | GroupingsByBudget, bool]:
    """Selects groups while showing progress. Ctrl-C ends the search and keeps the best groups found so far.

    Returns:
        The groups, and whether the search was interrupted.
    """
    from tagalong.group import select_groups

    working = spinner(f"choosing networks for {len(table.tasks)} tasks", quiet)
    with warnings.catch_warnings(record=True) as noted, InterruptRequest() as interrupt, working:
        warnings.simplefilter("always", UserWarning)
        chosen: Any = select_groups(table.scores, budget, stop=interrupt.received, **selection)
    for warning in noted:
        print_error(f"warning: {str(warning.message).partition(';')[0]}")  # the rest is about Python
    return chosen, interrupt.received()


def _read_groups(path: Path) -> list[Any]:
    """Reads groups from a JSON file: a saved grouping, a list of lists of tasks, or `{name: [task, …]}`."""
    from tagalong.group import Grouping

    try:
        document = loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("groups", f"is not valid JSON: {error}") from error
    if isinstance(document, dict) and "format" in document:
        return list(Grouping.from_document(document).groups)
    groups = list(document.values()) if isinstance(document, dict) else document
    is_list = isinstance(groups, list) and all(isinstance(group, list) for group in groups)
    if not is_list or not all(isinstance(task, str) for group in groups for task in group):
        raise InvalidInput("groups", "must be a saved grouping, or a list of lists of task names", repr(groups))
    return groups


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
        if not quiet:
            if len(chosen.tasks) > MAX_TASK_ROWS:
                parts.append(f"use --json to see the scores of all {len(chosen.tasks)} tasks")
            else:
                parts.append(_task_table(chosen, own))
            parts += chosen.remarks
        parts += [chosen.explain(task) for task in explained if task in chosen.per_task]
        if own is not None:
            totals = f"yours: total {own.value:.6g}, cost {own.cost:g}"
            parts += [f"{totals}; best: total {chosen.value:.6g}, cost {chosen.cost:g}", own.table()]

    console = screen()
    for part in parts:
        if isinstance(part, TextTable):
            print_table(console, part)
            console.print()
        else:
            print_line(console, part)


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
