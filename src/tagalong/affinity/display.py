"""Renders an affinity as plain text, as an HTML table, or as named values for loggers."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import TYPE_CHECKING

import numpy as np

from tagalong.rendering import Html, TextTable, display_width, join, table, tag, truncate

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

MAX_NAME_LENGTHS = (16, 12, 8)  # tried in this order until the table fits into the terminal
MIN_TASKS = 3  # shown even if the terminal is too narrow for them
MIN_CELL_WIDTH = 4  # terminal columns
MAX_TASKS = 100  # shown in a file; the text of 1,000 tasks would have 14 million characters

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def text_table(affinity: Affinity, width: int | None = None) -> str:
    """Returns a table of means and standard errors. Rows are sources and columns are targets.

    Args:
        affinity: the affinity to show.
        width: the width of the terminal in columns. If the table does not fit, standard errors are omitted first. If
            that is not enough, long names are truncated, and then tasks are omitted. If None, nothing is omitted for up
            to 100 tasks.
    """
    scale, n = _scale_exponent(_max_abs_affinity(affinity)), len(affinity.tasks)
    rows, shown = _all_rows(affinity, scale) if width is None else _fitted_rows(affinity, scale, width)
    lines = [_table_heading(affinity, scale), *rows]
    if (np.abs(affinity.mean) < 2 * affinity.stderr)[:shown, :shown].any():
        lines.append("~ within two standard errors of zero")
    if affinity.settings.get("update") == "optimizer" and np.isnan(affinity.null).any():
        lines.append(
            "every entry includes the effect of an optimizer step with zero gradient (momentum): "
            "compare within columns, not with zero"
        )
    if shown < n:
        lines.append(f"{shown} of {n} tasks shown; choose others with only(), or export all with to_csv()")
    return "\n".join(lines)


def _all_rows(affinity: Affinity, scale: int) -> tuple[list[str], int]:
    names = [_collapse_whitespace(task) for task in affinity.tasks[:MAX_TASKS]]
    return _format_rows(names, names, _format_cells(affinity, scale, True, len(names))), len(names)


def _fitted_rows(affinity: Affinity, scale: int, width: int) -> tuple[list[str], int]:
    """Returns the most complete table that fits, and the number of tasks shown."""
    most = min(len(affinity.tasks), max(width // MIN_CELL_WIDTH, MIN_TASKS))
    names = [_collapse_whitespace(task) for task in affinity.tasks[:most]]
    cells = {errors: _format_cells(affinity, scale, errors, most) for errors in (True, False)}
    forms = [(True, MAX_NAME_LENGTHS[0], most), *((False, longest, most) for longest in MAX_NAME_LENGTHS)]
    forms += [(False, MAX_NAME_LENGTHS[-1], shown) for shown in range(most - 1, MIN_TASKS - 1, -1)]
    for errors, longest, shown in forms:
        sources = [truncate(name, MAX_NAME_LENGTHS[0]) for name in names[:shown]]
        rows = _format_rows(sources, [truncate(name, longest) for name in names[:shown]], cells[errors])
        if max(map(display_width, rows)) <= width:
            break
    return rows, shown


def _table_heading(affinity: Affinity, scale: int) -> str:
    unit = f", values × 10{str(scale).translate(_SUPERSCRIPT)}" if scale else ""
    steps = len(affinity.steps)
    source = (
        f"{affinity.settings.get('average', 'mean')} over {steps} measured step{'s' * (steps != 1)}"
        if steps
        else "no history"
    )
    estimator = affinity.settings.get("estimator")
    return f"Affinity (row helps column{unit}), {source}" + (f", {estimator} estimator" if estimator else "")


def _max_abs_affinity(affinity: Affinity) -> float:
    """Returns the largest absolute affinity between two different tasks.

    Self-affinities are ignored because they would dwarf all other values.
    """
    off_diagonal = ~np.eye(len(affinity.tasks), dtype=bool)
    values = np.abs(affinity.mean[off_diagonal & np.isfinite(affinity.mean)])
    return float(values.max()) if values.size and values.max() > 1e-300 else 1.0


def _scale_exponent(largest: float) -> int:
    """Returns the power-of-ten exponent (a multiple of three) that scales the largest value to [1, 1000)."""
    return 0 if 0.1 <= largest < 1000 else 3 * floor(log10(largest) / 3)


def _format_cells(affinity: Affinity, scale: int, show_errors: bool, max_tasks: int) -> list[list[str]]:
    unit = 10.0**scale
    digits = min(max(2 - floor(log10(_max_abs_affinity(affinity) / unit)), 1), 3)
    rows = zip(
        affinity.mean[:max_tasks, :max_tasks].tolist(), affinity.stderr[:max_tasks, :max_tasks].tolist(), strict=True
    )
    return [
        [_format_cell(mean / unit, error / unit, digits, show_errors) for mean, error in zip(*row, strict=True)]
        for row in rows
    ]


def _format_cell(mean: float, error: float, digits: int, show_errors: bool) -> str:
    if not isfinite(mean):
        return "- "
    mark = "~" if abs(mean) < 2 * error else " "
    return f"{mean:.{digits}f}" + (f" ± {error:.{digits}f}" if show_errors and isfinite(error) else "") + mark


def _format_rows(sources: Sequence[str], targets: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    headings = [f"{target} " for target in targets]  # aligned with the numbers, not with the marks after them
    text = TextTable("", *headings, numbers=headings, gap=1)
    for source, row in zip(sources, cells[: len(sources)], strict=True):
        text.add_row(source, *row[: len(targets)])
    return text.lines()


def _collapse_whitespace(name: str) -> str:
    return " ".join(name.split())


HELPS, HURTS = (33, 102, 172), (178, 24, 43)
MAX_COLUMNS = 40  # in a notebook


def html_table(affinity: Affinity) -> str:
    """Returns an HTML table with sources as rows and targets as columns.

    Blue means that the source helps, and red means that it hurts. Values within the noise have no color.
    """
    shown, largest = min(len(affinity.tasks), MAX_COLUMNS), _max_abs_affinity(affinity)
    names = affinity.tasks[:shown]
    rows = [[name, *(_colored_cell(affinity, i, j, largest) for j in range(shown))] for i, name in enumerate(names)]
    notes = ["~ within two standard errors of zero; the diagonal is self-affinity"]
    if shown < len(affinity.tasks):
        notes.append(f"; {shown} of {len(affinity.tasks)} tasks shown")
    head = _table_heading(affinity, _scale_exponent(largest))
    return join([table(["a step on …", *names], rows, caption=head), tag("small", *notes)])


def _colored_cell(affinity: Affinity, i: int, j: int, largest: float) -> Html:
    mean, error = float(affinity.mean[i, j]), float(affinity.stderr[i, j])
    unit = 10.0 ** _scale_exponent(largest)
    shown = _format_cell(mean / unit, error / unit, 2, show_errors=True).strip()
    significant = i != j and np.isfinite(mean) and not abs(mean) < 2 * error
    return tag("td", shown, style=_background_style(mean / largest) if significant else None)


def _background_style(relative_value: float) -> str:
    """Returns a translucent color that is readable in both light and dark notebooks."""
    color = ", ".join(map(str, HELPS if relative_value > 0 else HURTS))
    return f"background: rgba({color}, {0.55 * min(abs(relative_value), 1.0):.2f})"


def named_values(name: str, tasks: Sequence[str], values: Floats) -> dict[str, float]:
    """Returns the value of each pair of different tasks.

    The keys are chosen so that loggers show all sources of a target together.

    Example:
        >>> named_values("lookahead", ["age", "ill"], np.array([[9.0, 0.5], [np.nan, 9.0]]))
        {'lookahead onto ill/age': 0.5}
    """
    return {
        f"{name} onto {target}/{source}": float(values[i, j])
        for j, target in enumerate(tasks)
        for i, source in enumerate(tasks)
        if i != j and np.isfinite(values[i, j])
    }
