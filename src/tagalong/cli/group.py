"""`tagalong group`: chooses the best networks for a table of scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from tagalong.affinity import disclaimer
from tagalong.errors import InvalidInput
from tagalong.files import write_atomic, write_document
from tagalong.rendering import TextTable

from . import arguments
from . import group_options as options
from .messages import InterruptRequest, name_arguments
from .terminal import print_line, print_table, print_text, printable, screen, spinner

if TYPE_CHECKING:
    from tagalong.group import Group, Grouping, ScoreTable, Stability

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
    together: options.TogetherOption = False,
    compare: options.CompareOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Chooses which networks to train within a budget, and which of them serves each task.

    FILE may contain any of the following; the format is detected from the content:

    - a square table with task names in the first row and the first column; values say how much **the row helps the
      column**
    - an affinity saved by tagalong
    - a table of results with a `group` column (e.g. `age+ill`), one column per task, and an optional `cost` column
    - a square table as JSON: `{tasks, matrix}`

    Ctrl-C during a long search shows the best grouping found so far; press it again to quit.

    Examples:
        `tagalong group affinity.csv --budget 3`: at most three networks
        `tagalong group losses.csv --objective min --compare mine.json`: how much worse your own grouping is
    """
    from tagalong.group import read_table  # imports scipy, which would slow down `--help`

    _check_option_conflicts(budget, budgets, max_total_cost, compare, bool(explain or together), out)
    arguments.check_exists(file, "a file with scores: a table, or an affinity saved by tagalong")
    table = read_table(file, axis.value)
    costs = arguments.parse_cost(cost, table.tasks)
    table = _restrict_table(table, arguments.parse_names(tasks), average and average.value)
    rules: dict[str, Any] = {
        "objective": objective.value,
        "allow_single": allow_single,
        "max_size": max_size,
        "cost": costs,
        "max_cost": max_cost,
        "max_total_cost": max_total_cost,
        "must_link": arguments.parse_links(must_link or [], "must_link"),
        "cannot_link": arguments.parse_links(cannot_link or [], "cannot_link"),
        "weights": arguments.parse_weights(weights or []),
        **_completion_arguments(table, complete is not None, allow_single),
    }
    if (resamples or 0) > 0 and not (table.kind == "affinity" and len(table.scores.steps)):
        raise InvalidInput("resamples", "requires a saved affinity with its history", f"a {table}")
    search = {"solver": solver.value, "time_limit": time_limit, "seed": seed, "resamples": resamples}
    own = _own_grouping(compare, table, rules)
    wanted = _selected_budgets(budget, budgets, own, len(table.tasks))
    if own is not None and budget is None and any(group.cost != 1 for group in own.groups):
        rules["max_total_cost"] = max_total_cost or own.budget
    _check_task_names(explain or [], table)
    answer = _select_groups(file, table, wanted, rules | search, quiet or json)
    if own is not None:
        answer = replace(answer, own=own, own_file=compare)
    if out is not None:
        _save_groupings(answer, out, multiple=budgets is not None)
    if json:
        print(_to_json(answer, multiple=budgets is not None, explain=explain or []))
        return
    _Display(answer, quiet=quiet, costs=cost is not None).show(budgets is not None, explain or [], together)
    if out is not None and not quiet:
        print_text(f"saved to {out}")


def _check_option_conflicts(
    budget: float | None,
    budgets: str | None,
    max_total_cost: float | None,
    compare: Path | None,
    detail: bool,
    out: Path | None,
) -> None:
    """Rejects conflicting options before reading any file."""
    if budget is not None and budgets is not None:
        raise InvalidInput("`budget` and `budgets`", "cannot be used together", hint="pass only one of them")
    if budget is None and budgets is None and max_total_cost is None and compare is None:
        raise InvalidInput("`budget` or `budgets`", "is required", hint="for example `budget=3` or `budgets=1-5`")
    if budgets is not None and (compare is not None or detail):
        options = "`compare`, `explain` and `together`"
        raise InvalidInput(options, "require a single grouping", hint="pass `budget` instead of `budgets`")
    if out is not None and out.suffix.lower() != ".json":
        raise InvalidInput("out", "must end in .json", repr(str(out)))


def _restrict_table(table: ScoreTable, tasks: Sequence[str] | None, average: str | None) -> ScoreTable:
    """Restricts the scores to the given tasks, and changes how they are averaged if requested."""
    part = table
    if tasks is not None and table.kind not in ("affinity", "square"):
        raise InvalidInput("tasks", "requires pairwise scores", str(table))
    if tasks is not None:
        part = replace(table, tasks=tuple(tasks), scores=table.scores.only(tasks))
    if average is None:
        return part
    if part.kind != "affinity":
        found = f"a {part}" if part.kind == "square" else str(part)
        raise InvalidInput("average", "requires an affinity that was saved with its history", found)
    return replace(part, scores=part.scores.averaged(average))


def _completion_arguments(table: ScoreTable, pairs: bool, allow_single: bool | None) -> dict[str, Any]:
    """Returns the arguments for extending pair results to larger groups, which square tables do not need."""
    if not pairs:
        return {}
    if table.kind in ("results", "candidates"):
        return {"complete": "pairs"}
    if allow_single is None:
        allow_single = bool(np.isfinite(np.diag(table.scores.mean)).any())
    return {"allow_single": allow_single}


def _own_grouping(path: Path | None, table: ScoreTable, rules: dict[str, Any]) -> Grouping | None:
    """Scores the groups in a file."""
    from tagalong.group import score_grouping

    if path is None:
        return None
    with name_arguments(groups=str(path)):
        groups = _read_groups(path)
        names = ("objective", "allow_single", "cost", "weights", "complete")
        return score_grouping(table.scores, groups, **{name: rules[name] for name in names if name in rules})


def _read_groups(path: Path) -> list[Any]:
    """Reads groups from a JSON file: a saved grouping, a list of lists of tasks, or `{name: [task, …]}`."""
    from tagalong.group import Grouping

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("groups", f"is not valid JSON: {error}") from error
    if isinstance(document, dict) and "format" in document:
        return list(Grouping.from_document(document).groups)
    groups = list(document.values()) if isinstance(document, dict) else document
    is_list = isinstance(groups, list) and all(isinstance(group, list) for group in groups)
    if not is_list or not all(isinstance(task, str) for group in groups for task in group):
        raise InvalidInput("groups", "must be a saved grouping, or a list of lists of task names", repr(groups))
    return groups


def _selected_budgets(budget: float | None, budgets: str | None, own: Grouping | None, n: int) -> Sequence[float]:
    """Returns the budgets to select groups for. The default is the number of networks of the user's own grouping."""
    if budgets is not None:
        return arguments.parse_budgets(budgets, n)
    if budget is not None:
        return [int(budget) if budget == int(budget) else budget] if abs(budget) < 1e300 else [budget]
    return [n if own is None else min(len(own.groups), n)]


def _check_task_names(names: Sequence[str], table: ScoreTable) -> None:
    """Rejects unknown task names in `--explain`."""
    unknown = [name for name in names if name not in (*table.tasks, "all")]
    if unknown:
        known = ", ".join(map(repr, table.tasks))
        raise InvalidInput("explain", f"must be one of {known}, or 'all'", ", ".join(map(repr, unknown)))


@dataclass(frozen=True)
class _GroupingAnswer:
    """The groupings for the requested budgets, the scores they are based on, and the user's own grouping."""

    file: Path
    table: ScoreTable
    groupings: Sequence[Grouping]
    interrupted: bool
    own: Grouping | None = None
    own_file: Path | None = None


def _select_groups(
    file: Path, table: ScoreTable, budgets: Sequence[Any], options: dict[str, Any], quiet: bool
) -> _GroupingAnswer:
    """Selects groups while showing progress. Ctrl-C ends the search and keeps the best groups found so far."""
    from tagalong.group import select_groups

    with InterruptRequest() as interrupt, spinner(f"choosing networks for {len(table.tasks)} tasks", quiet):
        try:
            with name_arguments(scores=str(file)):
                found = select_groups(table.scores, budgets, stop=interrupt.received, **options)
        except TimeoutError:
            if not interrupt.received():
                raise
            message = "stopped before any grouping was found; run the same command to start again"
            raise KeyboardInterrupt(message) from None
    return _GroupingAnswer(file, table, list(found.values()), interrupt.received())


def _to_json(answer: _GroupingAnswer, multiple: bool, explain: Sequence[str]) -> str:
    """Returns JSON that describes the input and the grouping (as in `Grouping.to_json`) or a list of groupings."""
    documents = [_grouping_document(grouping) for grouping in answer.groupings]
    whole: dict[str, Any] = {"groupings": documents} if multiple else documents[0]
    table = answer.table
    whole["caution"] = disclaimer(table.tasks)
    whole["input"] = {"file": str(answer.file), "kind": table.kind, "axis": table.axis, "tasks": list(table.tasks)}
    whole["interrupted"] = answer.interrupted
    if explain:
        grouping = answer.groupings[0]
        names = grouping.tasks if "all" in explain else explain
        whole["explanations"] = {task: grouping.explain(task) for task in names}
    if answer.own is not None:
        best = answer.groupings[0]
        loss, per_task = _losses(answer.own, best)
        spent = {"mine": _total_cost(answer.own), "best": _total_cost(best)}
        whole["comparison"] = {"mine": answer.own.to_document(), "loss": loss, "per_task": per_task, "spent": spent}
    return json.dumps(whole, indent=1, allow_nan=False)


def _grouping_document(grouping: Grouping) -> dict[str, Any]:
    """Returns the grouping with derived values that are useful in scripts."""
    known = grouping.to_document()
    known["gap"] = grouping.gap if grouping.gap < float("inf") else None
    known["cost"] = _total_cost(grouping)
    if grouping.resampled is not None:
        known["resampled"]["unsettled"] = list(grouping.resampled.unsettled)
    return known


def _save_groupings(answer: _GroupingAnswer, path: Path, multiple: bool) -> None:
    """Writes one or more groupings."""
    if not multiple:
        write_atomic(path, answer.groupings[0].to_json() + "\n")
        return
    documents = [grouping.to_document() for grouping in answer.groupings]
    content = {"caution": disclaimer(answer.table.tasks), "groupings": documents}
    write_document(path, "tagalong-grouping-list", 1, content)


def _losses(own: Grouping, best: Grouping) -> tuple[float, dict[str, float]]:
    """Returns how much worse the user's own grouping is in total, and for each task without its weight."""
    sign = 1 if best.objective == "max" else -1
    per_task = {task: sign * (score - own.per_task[task]) for task, score in best.per_task.items()}
    return sign * (best.value - own.value), per_task


def _total_cost(grouping: Grouping) -> float:
    return sum(group.cost for group in grouping.groups)


class _Display:
    """Prints the result to the terminal."""

    def __init__(self, answer: _GroupingAnswer, quiet: bool = False, costs: bool = False) -> None:
        self.answer, self.quiet = answer, quiet
        self.costs = costs or answer.table.kind == "candidates"
        self.console: Console = screen()

    def show(self, multiple: bool, explain: Sequence[str], together: bool) -> None:
        """Shows all budgets in one table, or a single grouping in detail."""
        if not self.quiet:
            self._line(f"{self.answer.file}: {self.answer.table}")
        if self.answer.interrupted:
            self._line("interrupted: showing the best grouping found so far")
        if multiple:
            self._show_budgets()
            return
        grouping = self.answer.groupings[0]
        self._show_networks(grouping)
        if not self.quiet:
            self._show_tasks(grouping)
            self._show_remarks(grouping)
        self._show_explanations(grouping, explain)
        if together:
            self._show_together(grouping.resampled)
        if self.answer.own is not None:
            self._show_comparison(self.answer.own, grouping)

    def _show_networks(self, grouping: Grouping) -> None:
        self._line(grouping.summary, blank_before=not self.quiet)
        self._print_table(_network_table(grouping, self.costs))

    def _show_budgets(self) -> None:
        resampled = any(grouping.resampled for grouping in self.answer.groupings)
        columns = ["budget", "networks", *(["cost"] if self.costs else []), "total", "proof"]
        columns += [*(["stable"] if resampled else []), "{served} + helpers" + ": cost" * self.costs]
        text_table = TextTable(*columns, numbers=("budget", "networks", "cost", "total"))
        for grouping in self.answer.groupings:
            spent, stable = _total_cost(grouping), grouping.stability
            row = [f"{grouping.budget:g}", str(len(grouping.groups)), *([f"{spent:g}"] if self.costs else [])]
            row += [f"{grouping.value:.6g}", _format_proof(grouping)]
            row += [] if not resampled else ["-" if stable is None else f"{stable:.0%}"]
            text_table.add_row(*row, "\n".join(_format_group(group, self.costs) for group in grouping.groups))
        self._print_table(text_table)

    def _show_tasks(self, grouping: Grouping) -> None:
        if len(grouping.tasks) > MAX_TASK_ROWS:
            self._line(f"use --json to see the scores of all {len(grouping.tasks)} tasks", blank_before=True)
            return
        same = dict(zip(grouping.resampled.tasks, grouping.resampled.same, strict=True)) if grouping.resampled else {}
        columns = ["task", "network", "score", "elsewhere", *(["settled"] if same else [])]
        text_table = TextTable(*columns, numbers=("network", "score", "elsewhere", "settled"), names=("task",))
        for task in self.answer.table.tasks:
            group = grouping.served_by(task)
            others = [option for option in grouping.options.get(task, ()) if option.trains != group.trains]
            elsewhere = f"{others[0].score:.4g}" if others else "-"
            row = [printable(task), str(grouping.groups.index(group) + 1), f"{grouping.per_task[task]:.4g}", elsewhere]
            text_table.add_row(*row, *([f"{same[task]:.0%}"] if same else []))
        self._print_table(text_table)

    def _show_remarks(self, grouping: Grouping) -> None:
        remarks = grouping.remarks
        if not self.costs and grouping.status == "optimal" and len(grouping.groups) < grouping.budget:
            remarks = [
                f"the budget allows {grouping.budget:g} networks, but more would not improve the total",
                *remarks,
            ]
        for number, remark in enumerate(remarks):
            self._line(remark, blank_before=number == 0)

    def _show_explanations(self, grouping: Grouping, explain: Sequence[str]) -> None:
        names = self.answer.table.tasks if "all" in explain else explain
        for number, task in enumerate(names):
            self._line(grouping.explain(task), blank_before=number == 0)

    def _show_together(self, stability: Stability | None) -> None:
        if stability is None:
            self._line("--together requires a history to resample, found none", blank_before=True)
            return
        n = len(stability.tasks)
        pairs = [
            (stability.together[i][j], i, j) for i in range(n) for j in range(i + 1, n) if stability.together[i][j]
        ]
        text_table = TextTable("tasks", "served together", numbers=("served together",), names=("tasks",))
        for fraction, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1:])):
            text_table.add_row(f"{printable(stability.tasks[i])}, {printable(stability.tasks[j])}", f"{fraction:.0%}")
        self._print_table(text_table)

    def _show_comparison(self, own: Grouping, best: Grouping) -> None:
        spent = "total cost {:g}" if self.costs else "networks {:g}"
        totals = [f"total {grouping.value:.6g}, {spent.format(_total_cost(grouping))}" for grouping in (own, best)]
        self._line(f"{self.answer.own_file}: {totals[0]}; best: {totals[1]}", blank_before=True)
        if self.quiet:
            return
        self._print_table(_network_table(own, self.costs))
        text_table = TextTable("task", "yours", "best", "loses", numbers=("yours", "best", "loses"), names=("task",))
        _, losses = _losses(own, best)
        for task in self.answer.table.tasks:
            scores = own.per_task[task], best.per_task[task], losses[task]
            text_table.add_row(printable(task), *(f"{score:.4g}" for score in scores))
        self._print_table(text_table)

    def _line(self, text: str, blank_before: bool = False) -> None:
        if blank_before:
            self.console.print()
        print_line(self.console, text)

    def _print_table(self, text_table: TextTable) -> None:
        if not self.quiet:
            self.console.print()
        print_table(self.console, text_table)


def _format_proof(grouping: Grouping) -> str:
    """Returns "proven" for an optimal grouping, otherwise its optimality gap."""
    return "proven" if grouping.status == "optimal" else f"gap {grouping.gap:.1%}"


def _network_table(grouping: Grouping, costs: bool) -> TextTable:
    """Returns a table with one row per network."""
    helped = any(group.helpers for group in grouping.groups)
    columns = ["network", "serves", *(["helped by"] if helped else []), "score", *(["cost"] if costs else [])]
    text_table = TextTable(*columns, numbers=("network", "score", "cost"))
    for number, group in enumerate(grouping.groups, 1):
        row = [str(number), _join_names(group.serves)]
        row += [_join_names(group.helpers)] if helped else []
        row += [f"{sum(grouping.per_task[task] for task in sorted(group.serves)):.6g}"]
        text_table.add_row(*row, *([f"{group.cost:g}"] if costs else []))
    return text_table


def _format_group(group: Group, costs: bool) -> str:
    helped = f" + {_join_names(group.helpers)}" if group.helpers else ""
    return f"{{{_join_names(group.serves)}}}{helped}" + (f": {group.cost:g}" if costs else "")


def _join_names(tasks: frozenset[str]) -> str:
    return ", ".join(map(printable, sorted(tasks))) or "-"
