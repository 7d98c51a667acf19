"""The section about results: the comparison of all methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tagalong.rendering import Html, tag
from tagalong.study import MethodSummary, Results

from ..result_figures import change_error, known_costs
from ..style import percent_text
from .affinity_sections import omitted_tasks, unlearnt_note

# heading, cell text, sort key
Column = tuple[str, Callable[[MethodSummary], str], Callable[[MethodSummary], float | str | None]]


def results_section(results: Results, max_tasks: int) -> Html:
    """Returns the figure and the table of all methods and budgets, and the changes for up to `max_tasks` tasks."""
    tasks = len(results.problem.tasks)
    return tag(
        "section",
        tag("h2", "Was it worth it?", id="worth-title"),
        *(_with_costs(results) if known_costs(results) else _without_costs(results)),
        tag("h3", "Task by task"),
        omitted_tasks(min(tasks, max_tasks), tasks),
        tag("div", tag("label", "Changes with ", tag("select", id="changes-method")), class_="switches"),
        tag("div", id="changes", class_="plot", role="img", aria_label="Change in each task's test loss"),
        unlearnt_note(results, results.problem.tasks),
        id="worth",
        aria_labelledby="worth-title",
    )


def _with_costs(results: Results) -> list[Html]:
    lead = (
        "The cost of every method and budget, and the change in test loss, averaged over tasks, compared with one "
        "network for all tasks. Lower is better, further left is cheaper. Bars are ± one standard error; a change of "
        "less than two standard errors may be due to chance."
    )
    description = "Error against cost; the table next to it has the numbers"
    figure = tag("div", id="cost", class_="plot", role="img", aria_label=description)
    return [
        tag("p", lead, class_="lead"),
        tag("div", id="cost-switches", class_="switches"),
        tag("div", figure, tag("div", methods_table(results), class_="next-to-plot"), class_="pair"),
    ]


def _without_costs(results: Results) -> list[Html]:
    lead = (
        "The change in test loss for every method and budget, averaged over tasks, compared with one network for "
        "all tasks. Costs are unknown. Lower is better; a change of less than two standard errors may be due to "
        "chance."
    )
    return [tag("p", lead, class_="lead"), methods_table(results)]


def methods_table(results: Results) -> Html:
    """Returns a sortable table with one row per method and budget."""
    lines = results.table()
    columns = [column for column in _method_columns(results) if any(column[1](line) for line in lines)]
    best = results.verdict().recommended
    head = [
        tag("th", tag("button", name, type="button"), scope="col", aria_sort="none", class_="" if i else "first")
        for i, (name, _, _) in enumerate(columns)
    ]
    body = [_method_row(line, columns, (line.method, line.budget) == best) for line in lines]
    names = {name for name, _, _ in columns}
    costs = (
        " Costs are optimizer steps, as a multiple of training one network for all tasks; the cost of deciding covers "
        "all budgets."
    )
    size = " Size is the number of parameters, as a multiple of that network's."
    notes = (
        f"± is one standard error over seeds and test rows.{costs if 'training' in names else ''}"
        f"{size if 'size' in names else ''} The shaded row is recommended."
    )
    if any(line.diverged for line in lines):
        notes += " Diverged: with at least one seed, a network had no finite validation loss."
    if not all(line.honest for line in lines):
        notes += " * Chosen on test data: a bound, not a method."
    element = tag(
        "table",
        tag("caption", "All methods", tag("span", "; click a heading to sort", class_="hint")),
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
        class_="sortable",
        id="methods",
    )
    region = tag("div", element, class_="scroll", tabindex="0", role="region", aria_label="Table of all methods")
    return Html(region + tag("p", notes, class_="note"))


def _method_row(line: MethodSummary, columns: Sequence[Column], best: bool) -> Html:
    cells = []
    for number, (_, shown, key) in enumerate(columns):
        value = key(line)
        order = "" if value is None else value
        cells.append(tag("td" if number else "th", shown(line), data_sort=order, scope=None if number else "row"))
    return tag("tr", *cells, class_="best" if best else None)


def _method_columns(results: Results) -> list[Column]:
    def format_change(line: MethodSummary) -> str:
        if line.diverged:
            return "diverged"
        known = line.change is not None and line.method != "mtl"
        return percent_text(line.change or 0.0, change_error(line, results)) if known else ""

    return [
        ("method", lambda line: line.method if line.honest else f"{line.method}*", lambda line: line.method),
        ("budget", lambda line: "" if line.budget is None else str(line.budget), lambda line: line.budget),
        ("networks", lambda line: str(len(line.groups) or ""), lambda line: len(line.groups) or None),
        ("vs. mtl", format_change, lambda line: line.change),
        ("vs. random", lambda line: _format_percent(line.random_change), lambda line: line.random_change),
        ("total loss", lambda line: "" if line.diverged else f"{line.total:.4g}", _total_loss),
        ("deciding", lambda line: _format_multiple(line.deciding_cost), lambda line: line.deciding_cost),
        ("training", lambda line: _format_multiple(line.training_cost), lambda line: line.training_cost),
        ("size", lambda line: _format_multiple(line.relative_parameters), lambda line: line.relative_parameters),
        ("latency", lambda line: _format_milliseconds(line.latency), lambda line: line.latency),
        ("price", lambda line: "" if line.money is None else f"{line.money:.4g}", lambda line: line.money),
    ]


def _total_loss(line: MethodSummary) -> float | None:
    return None if line.diverged else line.total


def _format_percent(value: float | None) -> str:
    return "" if value is None else percent_text(value)


def _format_multiple(value: float | None) -> str:
    return f"{value:.3g}×" if value else ""


def _format_milliseconds(value: float | None) -> str:
    return "" if value is None else f"{1000 * value:.2g} ms"
