"""`tagalong group`: chooses the best networks for a table of scores."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.affinity import CAUTION
from tagalong.errors import InvalidInput
from tagalong.files import write_atomic, write_document
from tagalong.rendering import TextTable

from . import arguments
from . import group_options as options
from .messages import InterruptRequest, name_arguments, print_error
from .terminal import print_line, print_table, print_text, printable, screen, spinner

if TYPE_CHECKING:
    from tagalong.group import Group, Grouping, GroupingsByBudget, ScoreTable

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
    - a square table as JSON: `{tasks, matrix}`

    Ctrl-C during a long search shows the best grouping found so far; press it again to quit.

    Examples:
        `tagalong group affinity.csv`: what each number of networks brings
        `tagalong group affinity.csv --budget 3`: at most three networks
        `tagalong group losses.csv --objective min --compare mine.json`: how much worse your own grouping is
    """
    from tagalong.group import read_table, score_grouping  # imports scipy, which would slow down `--help`

    # Reject conflicting options before reading any file.
    is_single = budget is not None or compare is not None or max_total_cost is not None
    if budget is not None and budgets is not None:
        raise InvalidInput("`budget` and `budgets`", "cannot be used together", hint="pass only one of them")
    if (compare is not None and budgets is not None) or (explain and not is_single):
        raise InvalidInput("`compare` and `explain`", "require a single grouping", hint="pass `budget`")
    if out is not None and out.suffix.lower() != ".json":
        raise InvalidInput("out", "must end in .json", repr(str(out)))

    arguments.check_exists(file, "a file with scores: a table, or an affinity saved by tagalong")
    table = read_table(file, axis.value)
    costs = arguments.parse_cost(cost, table.tasks)
    table = _restrict(table, arguments.parse_names(tasks), average and average.value)
    rules: dict[str, Any] = {
        "objective": objective.value,
        "allow_single": allow_single,
        "cost": costs,
        "weights": arguments.parse_weights(weights or []),
    }
    if complete is not None and table.kind in ("results", "candidates"):
        rules["complete"] = "pairs"
    elif complete is not None and allow_single is None:
        # In a square table, larger groups have the mean over their pairs in any case.
        rules["allow_single"] = bool(np.isfinite(np.diag(table.scores.mean)).any())
    has_noise = table.kind in ("affinity", "square") and (table.scores.has_errors or np.isnan(table.scores.mean).any())
    if resamples and not has_noise:
        raise InvalidInput("resamples", "requires standard errors or unmeasured pairs", str(table))
    unknown = [repr(name) for name in explain or [] if name not in (*table.tasks, "all")]
    if unknown:
        expected = f"must be one of {', '.join(map(repr, table.tasks))}, or 'all'"
        raise InvalidInput("explain", expected, ", ".join(unknown))

    # Without a budget, the best grouping may have as many networks or the same total cost as the user's own.
    own = None
    if compare is not None:
        with name_arguments(groups=str(compare)):
            own = score_grouping(table.scores, _read_groups(compare), **rules)
        budget = budget or min(len(own.groups), len(table.tasks))
        if max_total_cost is None and any(network.cost != 1 for network in own.groups):
            max_total_cost = _total_cost(own)
    if max_total_cost is not None and budgets is None:
        budget = budget or len(table.tasks)
    selection = rules | {
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
    several = None if budgets is None else arguments.parse_budgets(budgets, len(table.tasks))
    with name_arguments(scores=str(file)):
        chosen, interrupted = _select(table, several if budget is None else budget, selection, quiet or json)

    answer = _Answer(file, table, chosen, own, cost is not None or table.kind == "candidates", interrupted)
    if out is not None:
        _save(answer, out)
    if json:
        print(dumps(answer.to_document(explain or []), indent=1, allow_nan=False))
        return
    _show(answer, explain or [], quiet)
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
        try:
            chosen: Any = select_groups(table.scores, budget, stop=interrupt.received, **selection)
        except TimeoutError:
            if not interrupt.received():
                raise
            message = "stopped before any grouping was found; run the same command to start again"
            raise KeyboardInterrupt(message) from None
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


@dataclass(frozen=True)
class _Answer:
    """The chosen grouping, or one for each number of networks, and what it is based on."""

    file: Path
    table: ScoreTable
    chosen: Grouping | GroupingsByBudget
    own: Grouping | None
    has_costs: bool
    interrupted: bool

    def to_document(self, explain: Sequence[str]) -> dict[str, Any]:
        """Returns the grouping, as in `Grouping.to_json`, or a list of groupings, and the input."""
        table, chosen = self.table, self.chosen
        if isinstance(chosen, Mapping):
            document: dict[str, Any] = {"groupings": list(map(_grouping_document, chosen.values()))}
            document |= {"gains": dict(chosen.gains), "errors": dict(chosen.errors), "enough": chosen.enough}
        else:
            document = _grouping_document(chosen)
            if explain:
                document["explanations"] = {task: chosen.explain(task) for task in self.names_in(explain, chosen)}
            if self.own is not None:
                loss, per_task = _losses(self.own, chosen)
                spent = {"mine": _total_cost(self.own), "best": _total_cost(chosen)}
                mine = self.own.to_document()
                document["comparison"] = {"mine": mine, "loss": loss, "per_task": per_task, "spent": spent}
        document["caution"] = CAUTION
        document["input"] = {"file": str(self.file), "kind": table.kind, "axis": table.axis, "tasks": list(table.tasks)}
        document["interrupted"] = self.interrupted
        return document

    def names_in(self, explain: Sequence[str], grouping: Grouping) -> Sequence[str]:
        return [task for task in self.table.tasks if task in grouping.per_task] if "all" in explain else explain


def _grouping_document(grouping: Grouping) -> dict[str, Any]:
    """Returns the grouping with derived values that are useful in scripts."""
    document = grouping.to_document()
    document["gap"] = grouping.gap if grouping.gap < float("inf") else None
    document["cost"] = _total_cost(grouping)
    if grouping.resampled is not None:
        document["resampled"]["unsettled"] = list(grouping.resampled.unsettled)
    return document


def _save(answer: _Answer, path: Path) -> None:
    chosen = answer.chosen
    if isinstance(chosen, Mapping):
        documents = [grouping.to_document() for grouping in chosen.values()]
        content = {"caution": CAUTION, "groupings": documents}
        write_document(path, "tagalong-grouping-list", 1, content)
    else:
        write_atomic(path, chosen.to_json() + "\n")


def _losses(own: Grouping, best: Grouping) -> tuple[float, dict[str, float]]:
    """Returns how much worse the user's own grouping is in total, and for each task without its weight."""
    sign = 1 if best.objective == "max" else -1
    per_task = {task: sign * (score - own.per_task[task]) for task, score in best.per_task.items()}
    return sign * (best.value - own.value), per_task


def _total_cost(grouping: Grouping) -> float:
    return sum(group.cost for group in grouping.groups)


def _show(answer: _Answer, explain: Sequence[str], quiet: bool) -> None:
    """Prints the result to the terminal."""
    console, chosen, own = screen(), answer.chosen, answer.own

    def show(*content: str | TextTable) -> None:
        if content and not quiet:
            console.print()
        for part in content:
            if isinstance(part, TextTable):
                print_table(console, part)
            else:
                print_line(console, part)

    if not quiet:
        print_line(console, f"{answer.file}: {answer.table}")
    if answer.interrupted:
        print_line(console, "interrupted: showing the best grouping found so far")
    if isinstance(chosen, Mapping):
        show(_budget_table(chosen, answer.has_costs))
        if chosen.enough < max(chosen):
            show(f"further networks stop paying after {chosen.enough}")
        return

    placed = [task for task in answer.table.tasks if task in chosen.per_task]
    show(chosen.summary)
    show(_network_table(chosen, answer.has_costs))
    if not quiet:
        if len(chosen.tasks) > MAX_TASK_ROWS:
            show(f"use --json to see the scores of all {len(chosen.tasks)} tasks")
        else:
            show(_task_table(chosen, placed))
        if not answer.has_costs and chosen.status == "optimal" and len(chosen.groups) < chosen.budget:
            show(f"the budget allows {chosen.budget} networks, but more would not improve the total")
        show(*chosen.remarks)
    show(*(chosen.explain(task) for task in answer.names_in(explain, chosen)))
    if own is not None:
        totals = f"yours: total {own.value:.6g}, cost {_total_cost(own):g}"
        show(f"{totals}; best: total {chosen.value:.6g}, cost {_total_cost(chosen):g}")
        if not quiet:
            show(_network_table(own, answer.has_costs))
            show(_comparison_table(own, chosen, placed))


def _budget_table(groupings: GroupingsByBudget, has_costs: bool) -> TextTable:
    """Returns a table with one row per number of networks."""
    numbers = ("budget", "networks", "cost", "total", "gain", "stable")
    resampled = any(grouping.resampled for grouping in groupings.values())
    columns = ["budget", "networks", *["cost"] * has_costs, "total", "gain", "proof", *["stable"] * resampled]
    text_table = TextTable(*columns, "{served} + helpers", numbers=numbers)
    for budget, grouping in groupings.items():
        gain = f"{groupings.gains[budget]:+.4g}" if budget in groupings.gains else ""
        if budget in groupings.errors:
            gain += f" ± {groupings.errors[budget]:.2g}"
        row = [str(budget), str(len(grouping.groups)), *[f"{_total_cost(grouping):g}"] * has_costs]
        row += [f"{grouping.value:.6g}", gain]
        row.append("proven" if grouping.status == "optimal" else f"gap {grouping.gap:.1%}")
        if resampled:
            row.append("-" if grouping.stability is None else f"{grouping.stability:.0%}")
        text_table.add_row(*row, "\n".join(_format_group(group) for group in grouping.groups))
    return text_table


def _network_table(grouping: Grouping, has_costs: bool) -> TextTable:
    """Returns a table with one row per network."""
    helped = any(group.helpers for group in grouping.groups)
    columns = ["network", "serves", *["helped by"] * helped, "score", *["cost"] * has_costs]
    text_table = TextTable(*columns, numbers=("network", "score", "cost"))
    for number, group in enumerate(grouping.groups, 1):
        score = sum(grouping.per_task[task] for task in sorted(group.serves))
        row = [str(number), _join_names(group.serves), *[_join_names(group.helpers)] * helped, f"{score:.6g}"]
        text_table.add_row(*row, *[f"{group.cost:g}"] * has_costs)
    return text_table


def _task_table(grouping: Grouping, tasks: Sequence[str]) -> TextTable:
    """Returns a table with each task's score in its network and in the best other one."""
    resampled = grouping.resampled
    same = {} if resampled is None else dict(zip(resampled.tasks, resampled.same, strict=True))
    columns = ["task", "network", "score", "elsewhere", *["settled"] * bool(same)]
    text_table = TextTable(*columns, numbers=("network", "score", "elsewhere", "settled"), names=("task",))
    for task in tasks:
        network = grouping.served_by(task)
        others = [option for option in grouping.options.get(task, ()) if option.trains != network.trains]
        row = [printable(task), str(grouping.groups.index(network) + 1), f"{grouping.per_task[task]:.4g}"]
        row.append(f"{others[0].score:.4g}" if others else "-")
        if same:
            row.append(f"{same[task]:.0%}")
        text_table.add_row(*row)
    return text_table


def _comparison_table(own: Grouping, best: Grouping, tasks: Sequence[str]) -> TextTable:
    text_table = TextTable("task", "yours", "best", "loses", numbers=("yours", "best", "loses"), names=("task",))
    _, losses = _losses(own, best)
    for task in tasks:
        scores = own.per_task[task], best.per_task[task], losses[task]
        text_table.add_row(printable(task), *(f"{score:.4g}" for score in scores))
    return text_table


def _format_group(group: Group) -> str:
    helped = f" + {_join_names(group.helpers)}" if group.helpers else ""
    return f"{{{_join_names(group.serves)}}}{helped}"


def _join_names(tasks: frozenset[str]) -> str:
    return ", ".join(map(printable, sorted(tasks))) or "-"
