"""What a method changes for each task, against one network for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._colours import BETTER, BLANK, INK, WORSE
from ._labels import heading, label, literal, signed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from tagalong.study import Record, Results

ROW = 24  # pixels


@dataclass(frozen=True)
class TaskChange:
    """The relative change of a task's test loss, its standard error over seeds, that loss, and errors then and now."""

    task: str
    change: float
    stderr: float | None
    loss: float
    before: float
    after: float

    @property
    def sure(self) -> bool:
        """Whether it lies beyond two standard errors; never with one seed."""
        return self.stderr is not None and abs(self.change) > 2 * self.stderr


def task_changes(
    results: Results, method: str, budget: int | None = None, *, tasks: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """One row per task: the relative change of its test loss against `mtl`, with one standard error over seeds.

    Left of zero is better. Full dots lie beyond two standard errors, rings do not.

    Args:
        results: of a study, with `mtl` among its methods.
        method: its name.
        budget: how many networks it was allowed; None for methods without a budget.
        tasks: which, in which order; by default all, in the order of the problem.
        title: the heading, as plain text.

    Returns:
        A plotly figure; `write_html` makes a file of it.
    """
    from plotly.graph_objects import Figure, Scatter

    found = changes_by_task(results, method, budget)
    order = [task for task in tasks or results.problem.tasks if task in found]
    rows = [found[task] for task in order]
    colours = [BETTER if row.change < 0 else WORSE for row in rows]
    dots = Scatter(
        x=[100 * row.change for row in rows],
        y=list(range(len(rows))),
        error_x={
            "array": [100 * (row.stderr or 0.0) for row in rows],
            "thickness": 1.5,
            "width": 4,
            "color": "#888888",
        },
        hovertext=[_note(row, results.problem.errors.get(row.task, "error")) for row in rows],
        hoverinfo="text",
        mode="markers",
        marker={
            "size": 10,
            "color": [colour if row.sure else BLANK for row, colour in zip(rows, colours, strict=True)],
            "line": {"width": 2, "color": colours},
        },
    )
    name = method if budget is None else f"{method} (budget {budget})"
    return Figure([dots], _layout(order, title or f"What {name} changes for each task"))


def changes_by_task(results: Results, method: str, budget: int | None = None) -> dict[str, TaskChange]:
    """The change of each task, from pairs of the same seed."""
    mine = results.records_of((method, budget))
    together = {record.seed: record for record in results.records_of(("mtl", None))}
    pairs = [(record, together[record.seed]) for record in mine if record.seed in together]
    if not pairs:
        known = ", ".join(sorted({record.method for record in results.records}))
        raise ValueError(
            f"`method` and `budget` must be in the results, beside mtl, found {method!r}, {budget!r}; methods: {known}"
        )
    return {task: _change(task, pairs) for task in results.problem.tasks}


def _change(task: str, pairs: Sequence[tuple[Record, Record]]) -> TaskChange:
    from tagalong.study._change import mean, stderr
    from tagalong.study._record import relative

    changes = [relative(mine.test[task].loss, theirs.test[task].loss) for mine, theirs in pairs]
    return TaskChange(
        task,
        mean(changes),
        stderr(changes) if len(changes) > 1 else None,
        loss=mean([mine.test[task].loss for mine, _ in pairs]),
        before=mean([theirs.test[task].error for _, theirs in pairs]),
        after=mean([mine.test[task].error for mine, _ in pairs]),
    )


def _note(row: TaskChange, error: str) -> str:
    either = "" if row.stderr is None else f" ± {100 * row.stderr:.2f}"
    lines = [f"{literal(row.task)}: {signed(row.change, 2)}{either} % test loss"]
    if row.before == row.before and row.after == row.after:
        lines.append(f"{literal(error)}: {row.before:.4g} together, {row.after:.4g} here")
    return "<br>".join(lines)


def _layout(tasks: Sequence[str], title: str) -> dict[str, Any]:
    n = len(tasks)
    return {
        "title": heading(title, "left of zero is better; bars: one standard error over seeds; full: beyond two"),
        "xaxis": {
            "title": {"text": "change of the test loss, %"},
            "gridcolor": "#eeeeee",
            "zerolinecolor": "#999999",
            "zerolinewidth": 2,
        },
        "yaxis": {
            "tickvals": list(range(n)),
            "ticktext": [label(task) for task in tasks],
            "range": [n - 0.4, -0.6],
            "gridcolor": "#eeeeee",
            "zeroline": False,
            "automargin": True,
        },
        "width": 640,
        "height": n * ROW + 180,
        "margin": {"l": 60, "r": 40, "t": 90, "b": 60},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }
