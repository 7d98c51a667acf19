"""Groupings on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tagalong.group import Comparison, Group, Grouping, Stability
from tagalong.group._grouping_text import remarks, summary

from ._group_answer import Answer
from ._terminal import clean, put, say, screen, table

MOST_ROWS = 60  # tasks listed one by one; more are for --json


class Page:
    """Writes an answer from top to bottom."""

    def __init__(self, answer: Answer, quiet: bool = False, costs: bool = False) -> None:
        self.answer, self.quiet = answer, quiet
        self.costs = costs or answer.table.kind == "candidates"
        self.console: Console = screen()

    def show(self, several: bool, explain: Sequence[str], together: bool) -> None:
        """The budgets in one table, or one grouping in full."""
        if not self.quiet:
            self._line(f"{self.answer.file}: {self.answer.table}")
        if self.answer.interrupted:
            self._line("interrupted: the best found so far")
        if several:
            self._budgets()
            return
        grouping = self.answer.groupings[0]
        self._networks(grouping)
        if not self.quiet:
            self._tasks(grouping)
            self._remarks(grouping)
        self._explanations(grouping, explain)
        if together:
            self._together(grouping.resampled)
        if self.answer.comparison is not None:
            self._comparison(self.answer.comparison)

    def _networks(self, grouping: Grouping) -> None:
        self._line(summary(grouping), blank=not self.quiet)
        self._put(networks(grouping, self.costs))

    def _budgets(self) -> None:
        resampled = any(grouping.resampled for grouping in self.answer.groupings)
        columns = ["budget", "networks", *(["cost"] if self.costs else []), "total", "proof"]
        columns += [*(["stable"] if resampled else []), "{served} + helpers" + ": cost" * self.costs]
        made = table(*columns, numbers=("budget", "networks", "cost", "total"))
        for grouping in self.answer.groupings:
            spent, stable = sum(group.cost for group in grouping.groups), grouping.stability
            row = [f"{grouping.budget:g}", str(len(grouping.groups)), *([f"{spent:g}"] if self.costs else [])]
            row += [f"{grouping.value:.6g}", proof(grouping)]
            row += [] if not resampled else ["-" if stable is None else f"{stable:.0%}"]
            made.add_row(*row, "\n".join(_short(group, self.costs) for group in grouping.groups))
        self._put(made)

    def _tasks(self, grouping: Grouping) -> None:
        if len(grouping.tasks) > MOST_ROWS:
            self._line(f"scores of the {len(grouping.tasks)} tasks: --json", blank=True)
            return
        same = dict(zip(grouping.resampled.tasks, grouping.resampled.same, strict=True)) if grouping.resampled else {}
        columns = ["task", "network", "score", "elsewhere", *(["settled"] if same else [])]
        made = table(*columns, numbers=("network", "score", "elsewhere", "settled"), names=("task",))
        for task in self.answer.table.tasks:
            group = grouping.served_by(task)
            others = [option for option in grouping.options.get(task, ()) if option.trains != group.trains]
            elsewhere = f"{others[0].score:.4g}" if others else "-"
            row = [clean(task), str(grouping.groups.index(group) + 1), f"{grouping.per_task[task]:.4g}", elsewhere]
            made.add_row(*row, *([f"{same[task]:.0%}"] if same else []))
        self._put(made)

    def _remarks(self, grouping: Grouping) -> None:
        for number, remark in enumerate(remarks(grouping)):
            self._line(remark, blank=number == 0)

    def _explanations(self, grouping: Grouping, explain: Sequence[str]) -> None:
        names = self.answer.table.tasks if "all" in explain else explain
        for number, task in enumerate(names):
            self._line(grouping.explain(task), blank=number == 0)

    def _together(self, found: Stability | None) -> None:
        if found is None:
            self._line("how often tasks are served together needs resamples of a history; there is none", blank=True)
            return
        n = len(found.tasks)
        pairs = [(found.together[i][j], i, j) for i in range(n) for j in range(i + 1, n) if found.together[i][j]]
        made = table("tasks", "served together", numbers=("served together",), names=("tasks",))
        for share, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1:])):
            made.add_row(f"{clean(found.tasks[i])}, {clean(found.tasks[j])}", f"{share:.0%}")
        self._put(made)

    def _comparison(self, found: Comparison) -> None:
        mine, best = found.spent
        units = "cost" if self.costs else "networks"
        over = f", more than the budget of {found.best.budget:g}" if mine > found.best.budget * (1 + 1e-9) else ""
        self._line(f"{self.answer.compared} {found}; {units}: {mine:g}{over}, the best: {best:g}", blank=True)
        if self.quiet:
            return
        self._put(networks(found.mine, self.costs))
        made = table("task", "yours", "best", "loses", numbers=("yours", "best", "loses"), names=("task",))
        for task in self.answer.table.tasks:
            scores = found.mine.per_task[task], found.best.per_task[task], found.per_task[task]
            made.add_row(clean(task), *(f"{score:.4g}" for score in scores))
        self._put(made)

    def _line(self, text: str, blank: bool = False) -> None:
        if blank:
            self.console.print()
        say(self.console, text)

    def _put(self, made: Table) -> None:
        if not self.quiet:
            self.console.print()
        put(self.console, made)


def proof(grouping: Grouping) -> str:
    """Whether the grouping is proven, in a word."""
    return "proven" if grouping.status == "optimal" else f"gap {grouping.gap:.1%}"


def networks(grouping: Grouping, costs: bool) -> Table:
    """One line per network."""
    helped = any(group.helpers for group in grouping.groups)
    columns = ["network", "serves", *(["helped by"] if helped else []), "score", *(["cost"] if costs else [])]
    made = table(*columns, numbers=("network", "score", "cost"))
    for number, group in enumerate(grouping.groups, 1):
        row = [str(number), _names(group.serves)]
        row += [_names(group.helpers)] if helped else []
        row += [f"{sum(grouping.per_task[task] for task in group.serves):.6g}"]
        made.add_row(*row, *([f"{group.cost:g}"] if costs else []))
    return made


def _short(group: Group, costs: bool) -> str:
    helped = f" + {_names(group.helpers)}" if group.helpers else ""
    return f"{{{_names(group.serves)}}}{helped}" + (f": {group.cost:g}" if costs else "")


def _names(tasks: frozenset[str]) -> str:
    return ", ".join(map(clean, sorted(tasks))) or "-"
