"""Formats the results of a study as text: tables of methods and tasks with a legend, and lists of networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tagalong.group import Group
from tagalong.rendering import TextTable, display_width, wrap

from .records import Label, ProblemInfo, averaged_tasks
from .relative_losses import relative_change
from .summary import MethodSummary

WIDTH, NARROWEST = 100, 40  # the line length of prose, and the narrowest terminal that tables are fitted to
HEADINGS = (
    *("method", "budget", "nets", "total loss", "vs mtl", "vs random"),
    *("decide", "train", "size", "latency", "money"),
)
TASK_HEADINGS = ("task", "loss (mtl)", "(groups)", "change", "error (mtl)", "(groups)", "")
TASK_COLUMN_COUNTS = (7, 6, 4)  # numbers of columns: all, without the error measure, losses only
TOTAL_LOSS_ERROR = "± of the total loss"
# The columns that are omitted on a narrow terminal, in this order.
OPTIONAL_COLUMNS = ("latency", TOTAL_LOSS_ERROR, "size", "vs random", "total loss", "decide", "train")
DIVERGED, UNKNOWN, HUGE = "diverged", "unknown", 1e6
SHORTEST_METHOD, SHORTEST_TASK = 14, 16  # other columns are omitted before names get narrower than this
MAX_TASKS = 50  # in a table
REFERENCE_METHODS = ("constant",)  # it has no networks, so it is never recommended
AVERAGED = "The answers of networks that serve the same task are averaged."
Row = Sequence[str]


def methods_table(summaries: Sequence[MethodSummary], width: int | None = None) -> tuple[list[str], list[str]]:
    """Makes a table with one row per method and budget. Empty columns are omitted.

    Args:
        summaries: the summaries to show, one per row.
        width: the width of the terminal in characters, or None to show all columns.

    Returns:
        The lines of the table, and the headings of the columns that were omitted because they did not fit.
    """
    rows = [method_cells(summary) for summary in summaries]
    known = {heading for place, heading in enumerate(HEADINGS) if any(row[place] for row in rows)}
    if any(summary.total_stderr is not None for summary in summaries):
        known.add(TOTAL_LOSS_ERROR)
    optional = [heading for heading in OPTIONAL_COLUMNS if heading in known]
    for number in range(len(optional) + 1):
        left_out = optional[:number]
        rows = [method_cells(summary, with_total_error=TOTAL_LOSS_ERROR not in left_out) for summary in summaries]
        places = [place for place in filled_columns(rows) if HEADINGS[place] not in left_out]
        lines = _table_lines(HEADINGS, rows, places, width, SHORTEST_METHOD)
        if _fits(lines, width):
            break
    return lines, left_out


def filled_columns(rows: Sequence[Row], n_required: int = 2) -> list[int]:
    """Returns the indices of the columns to show: the first `n_required` columns and all columns with text."""
    return [place for place in range(len(rows[0])) if place < n_required or any(row[place] for row in rows)]


def _table_lines(
    headings: Row, rows: Sequence[Row], column_indices: Sequence[int], width: int | None, min_name_width: int
) -> list[str]:
    name, *numbers = (headings[place] for place in column_indices)
    table = TextTable(name, *numbers, numbers=numbers, names=[name], shortest=min_name_width, wrap_headings=False)
    for row in rows:
        table.add_row(*(row[place] for place in column_indices))
    return table.lines(width)


def _fits(lines: Sequence[str], width: int | None) -> bool:
    return width is None or max(map(display_width, lines)) <= width


def legend(summaries: Iterable[MethodSummary], width: int = WIDTH, omitted: Sequence[str] = ()) -> list[str]:
    """Explains the columns that `methods_table` shows."""
    summaries = list(summaries)
    sentences = ["Test losses, mean ± standard error over seeds; changes are means over tasks, negative is better."]
    if any(summary.groups and summary.deciding.networks for summary in summaries):
        sentences.append("Nets: in use + trained to decide.")
    if any(summary.deciding_cost or summary.training_cost for summary in summaries) and "train" not in omitted:
        sentences.append(
            "Decide, train: steps relative to mtl (deciding covers all budgets; a measured step counts as the plain "
            "steps it costs)."
        )
    if any(summary.relative_parameters for summary in summaries) and "size" not in omitted:
        sentences.append("Size: parameters relative to mtl.")
    if any(summary.latency is not None for summary in summaries) and "latency" not in omitted:
        sentences.append("Latency: ms for one row through all networks.")
    if any(summary.money is not None for summary in summaries):
        sentences.append("Money: the price of deciding and training, at the run's price per hour.")
    if any(summary.diverged for summary in summaries):
        sentences.append(
            "Diverged: with at least one seed, a network had no finite validation loss; a lower lr may help."
        )
    if any(summary.change is not None and not math.isfinite(summary.change) for summary in summaries):
        sentences.append(f"{UNKNOWN.capitalize()}: mtl has a loss of zero, so relative changes cannot be computed.")
    references = [summary.method for summary in summaries if summary.method in REFERENCE_METHODS]
    if references:
        sentences.append(f"Without networks, for comparison only: {', '.join(references)}.")
    if not all(summary.honest for summary in summaries):
        sentences.append("* uses test data to choose: an upper bound, not a method.")
    if omitted:
        sentences.append(f"No room for: {', '.join(omitted)}.")
    return wrap(" ".join(sentences), width)


def tasks_table(problem: ProblemInfo, mtl: MethodSummary, other: MethodSummary, width: int | None = None) -> list[str]:
    """Makes a table that compares the test loss and error of up to 50 tasks under `mtl` and another method."""
    rows = [_task_cells(task, problem, mtl, other) for task in problem.tasks[:MAX_TASKS]]
    for number in TASK_COLUMN_COUNTS:
        places = [place for place in filled_columns(rows, n_required=4) if place < number]
        lines = _table_lines(TASK_HEADINGS, rows, places, width, SHORTEST_TASK)
        if _fits(lines, width):
            break
    omitted = len(problem.tasks) - MAX_TASKS
    return lines + [f"… and {omitted:,} more tasks; results.json contains all of them"] * (omitted > 0)


def _task_cells(task: str, problem: ProblemInfo, mtl: MethodSummary, other: MethodSummary) -> Row:
    losses, errors = (mtl.loss[task], other.loss[task]), (mtl.error[task], other.error[task])
    known = all(map(math.isfinite, errors))
    shown = [f"{error:.4g}" if known else "" for error in errors]
    measure = problem.errors.get(task, "") if known else ""
    return task, *(f"{loss:.4g}" for loss in losses), percent(relative_change(*reversed(losses))), *shown, measure


def method_cells(summary: MethodSummary, with_total_error: bool = True) -> Row:
    """Returns the cells of a row in the order of `HEADINGS`. Unknown values are empty."""
    return (
        summary.method if summary.honest else f"{summary.method}*",
        "" if summary.budget is None else str(summary.budget),
        _networks_text(summary),
        "" if summary.diverged else _format_total(summary, with_total_error),
        change_text(summary) if summary.diverged or summary.method != "mtl" else "",
        "" if summary.method == "random" else _format_change(summary.random_change, None),
        _format_multiple(summary.deciding_cost),
        _format_multiple(summary.training_cost),
        _format_multiple(summary.relative_parameters),
        "" if summary.latency is None else f"{1000 * summary.latency:.2g}",
        "" if summary.money is None else f"{summary.money:.3g}",
    )


def _networks_text(summary: MethodSummary) -> str:
    if not summary.groups:
        return ""
    tried = summary.deciding.networks
    return f"{len(summary.groups)} + {tried}" if tried else str(len(summary.groups))


def _format_total(summary: MethodSummary, with_error: bool) -> str:
    known = with_error and summary.total_stderr is not None and math.isfinite(summary.total_stderr)
    return _format_with_error(f"{summary.total:.4g}", f"{summary.total_stderr:.2g}" if known else None)


def _format_with_error(value: str, error: str | None) -> str:
    return value if error is None else f"{value} ± {error}"


def _format_change(value: float | None, error: float | None) -> str:
    if value is None:
        return ""
    known = error is not None and math.isfinite(error) and math.isfinite(value)
    return _format_with_error(percent(value), _format_short(100 * error) if known and error is not None else None)


def change_text(summary: MethodSummary) -> str:
    """Formats the change in loss from `mtl` with its standard error.

    The text is "diverged" if a network diverged, and empty if the change is unknown.
    """
    return DIVERGED if summary.diverged else _format_change(summary.change, summary.change_stderr)


def percent(value: float) -> str:
    """Formats a fraction as a signed percentage; an infinite one is unknown.

    Example:
        >>> percent(-0.0312), percent(0.1), percent(-1e-9), percent(4e20), percent(float("inf"))
        ('-3.1%', '+10.0%', '+0.0%', '+4.0e+22%', 'unknown')
    """
    if not math.isfinite(100 * value):
        return UNKNOWN
    return f"{_format_short(round(100 * value, 1) + 0.0, '+')}%"


def _format_short(value: float, sign: str = "") -> str:
    """Formats a number with one decimal place, or in scientific notation if it is very large."""
    return f"{value:{sign}.1e}" if abs(value) >= HUGE else f"{value:{sign}.1f}"


def _format_multiple(value: float | None) -> str:
    return f"{value:.3g}×" if value else ""


def networks_list(groups: Sequence[Group], width: int) -> list[str]:
    """Lists the networks, with the tasks that each network serves and the tasks that it is trained on."""
    rows = [f"  {number}. {_network_text(group)}" for number, group in enumerate(groups, 1)]
    lines = [line for row in rows for line in wrap(row, width, hang="     ")]
    return [*lines, *wrap(f"  {AVERAGED}", width, hang="  ")] if averaged_tasks(groups) else lines


def label_text(label: Label) -> str:
    """Formats a method and its budget.

    Example:
        >>> label_text(("tag", 2)), label_text(("stl", None))
        ('tag (budget 2)', 'stl')
    """
    return label[0] if label[1] is None else f"{label[0]} (budget {label[1]})"


def _network_text(group: Group) -> str:
    helped = f" (trained with {', '.join(sorted(group.helpers))})" if group.helpers else ""
    copy = f" (copy {group.copy})" if group.copy else ""
    size = f" ({group.size} times the size)" if group.size > 1 else ""
    network = f" ({group.network_text})" if group.network else ""
    taught = f" ({group.taught})" if group.taught else ""
    return ", ".join(sorted(group.serves)) + helped + copy + size + network + taught
