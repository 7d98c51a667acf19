"""Sections of the page on results: was it worth it, method by method, and how `auto` searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tagalong.rendering import Html, tag
from tagalong.study import Lesson, MethodSummary, Results, Run, SearchLog

from ..result_figures import change_error, known_costs
from ..style import signed

# heading, what is shown, what is sorted by
Column = tuple[str, Callable[[MethodSummary], str], Callable[[MethodSummary], float | str | None]]


def was_it_worth_it(results: Results) -> Html:
    """Figure and table of all methods and budgets, then the tasks one by one."""
    return tag(
        "section",
        tag("h2", "Was it worth it?", id="worth-title"),
        *(_with_costs(results) if known_costs(results) else _without_costs(results)),
        tag("h3", "Task by task"),
        tag("div", tag("label", "What changes with ", tag("select", id="changes-method")), class_="switches"),
        tag("div", id="changes", class_="plot", role="img", aria_label="Change of each task's test loss"),
        id="worth",
        aria_labelledby="worth-title",
    )


def _with_costs(results: Results) -> list[Html]:
    lead = (
        "Every method and budget: what it cost, and what it changed on average over tasks against one network for all "
        "of them. Lower is better, further left is cheaper; bars are one standard error, and what lies within two of "
        "them may be luck."
    )
    said = "Cost against error; the table beside it has the numbers"
    figure = tag("div", id="cost", class_="plot", role="img", aria_label=said)
    return [
        tag("p", lead, class_="lead"),
        tag("div", id="cost-switches", class_="switches"),
        tag("div", figure, tag("div", methods_table(results), class_="beside"), class_="pair"),
    ]


def _without_costs(results: Results) -> list[Html]:
    lead = (
        "Every method and budget: what it changed on average over tasks against one network for all of them. What they "
        "cost is not known. Lower is better; what lies within two standard errors of zero may be luck."
    )
    return [tag("p", lead, class_="lead"), methods_table(results)]


def methods_table(results: Results) -> Html:
    """One row per method and budget; headings sort."""
    lines = results.table()
    columns = [column for column in _columns(results) if any(column[1](line) for line in lines)]
    best = results.verdict().recommended
    head = [
        tag("th", tag("button", name, type="button"), scope="col", aria_sort="none", class_="" if i else "first")
        for i, (name, _, _) in enumerate(columns)
    ]
    body = [_method_row(line, columns, (line.method, line.budget) == best) for line in lines]
    there = {name for name, _, _ in columns}
    costs = (
        " Costs count steps of the optimiser in units of training all tasks together once; deciding is counted once "
        "for all budgets."
    )
    notes = (
        f"± one standard error over seeds and test rows.{costs if 'training' in there else ''}"
        f"{' Size: parameters, likewise.' if 'size' in there else ''} The shaded row is the one to use."
    )
    if any(line.diverged for line in lines):
        notes += " Diverged: a network had no finite validation loss, with one seed or more."
    starred = " * looked at test data: a bound, not a method." if not all(line.honest for line in lines) else ""
    made = tag(
        "table",
        tag("caption", "All methods", tag("span", "; choose a heading to sort", class_="hint")),
        tag("thead", tag("tr", *head)),
        tag("tbody", *body),
        class_="sortable",
        id="methods",
    )
    region = tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="Table of all methods")
    return Html(region + tag("p", notes + starred, class_="note"))


def _method_row(line: MethodSummary, columns: Sequence[Column], best: bool) -> Html:
    cells = []
    for number, (_, shown, key) in enumerate(columns):
        value = key(line)
        order = "" if value is None else value
        cells.append(tag("td" if number else "th", shown(line), data_sort=order, scope=None if number else "row"))
    return tag("tr", *cells, class_="best" if best else None)


def _columns(results: Results) -> list[Column]:
    def change(line: MethodSummary) -> str:
        error = change_error(line, results)
        either = "" if error is None else f" ± {100 * error:.1f}"
        known = line.change is not None and line.method != "mtl"
        return "diverged" if line.diverged else f"{signed(line.change or 0.0)}{either} %" if known else ""

    return [
        ("method", lambda line: line.method if line.honest else f"{line.method}*", lambda line: line.method),
        ("budget", lambda line: "" if line.budget is None else str(line.budget), lambda line: line.budget),
        ("networks", lambda line: str(len(line.groups) or ""), lambda line: len(line.groups) or None),
        ("against mtl", change, lambda line: line.change),
        ("against random", lambda line: _percent(line.random_change), lambda line: line.random_change),
        ("total loss", lambda line: "" if line.diverged else f"{line.total:.4g}", _total),
        ("deciding", lambda line: _times(line.deciding_cost), lambda line: line.deciding_cost),
        ("training", lambda line: _times(line.training_cost), lambda line: line.training_cost),
        ("size", lambda line: _times(line.relative_parameters), lambda line: line.relative_parameters),
        ("latency", lambda line: _milliseconds(line.latency), lambda line: line.latency),
        ("money", lambda line: "" if line.money is None else f"{line.money:.4g}", lambda line: line.money),
    ]


def _total(line: MethodSummary) -> float | None:
    return None if line.diverged else line.total


def _percent(value: float | None) -> str:
    return "" if value is None else f"{signed(value)} %"


def _times(value: float | None) -> str:
    return f"{value:.3g}×" if value else ""


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{1000 * value:.2g} ms"


def auto_told(run: Run) -> Mapping[str, Any] | None:
    """What `auto` told of its decision; None where it was not asked, or had nothing to decide."""
    told: Mapping[str, Any] | None = run.results.settings.get("decisions", {}).get("auto")
    return told if told and told.get("steps") else None


def how_it_searched(told: Mapping[str, Any]) -> Html:
    """The curve, then every training."""
    return tag(
        "section",
        tag("h2", "How auto searched", id="search-title"),
        tag(
            "p",
            SearchLog(told).sentence + " The curve shows what it expected, on validation data, of the best networks it "
            "had trained by then. Expectations are shrunk by how much luck there is, and count only once they stand "
            "out from their doubt: zero means one network for all tasks.",
            class_="lead",
        ),
        tag("div", id="search-curve", class_="plot", role="img", aria_label="Expected change against effort"),
        tag("details", tag("summary", "What each training taught"), _table(told)),
        id="search",
        aria_labelledby="search-title",
    )


def _table(told: Mapping[str, Any]) -> Html:
    budgets = [int(budget) for budget in told["chosen"]]
    names = ["effort", "tasks", "seed", "against all together", *(f"best after, budget {k}" for k in budgets)]
    made = tag(
        "table",
        tag("caption", "Changes are of validation losses, a mean over the network's tasks", class_="quiet"),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names))),
        tag("tbody", *(_lesson_row(one, budgets) for one in SearchLog(told).lessons)),
        id="lessons",
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="Table of all trainings")


def _lesson_row(one: Lesson, budgets: list[int]) -> Html:
    part = "" if one.fraction == 1 else f" (the first {one.fraction:.3g} of a training)"
    change = "diverged" if one.diverged else "" if one.change is None else f"{signed(one.change)} %"
    best = [f"{signed(one.best[budget])} %" for budget in budgets]
    cells = (one.spent_text, ", ".join(one.tasks) + part, str(one.seed), change, *best)
    return tag("tr", *(tag("td", cell) for cell in cells))
