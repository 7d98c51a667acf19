"""Renders an affinity as plain text, as an HTML table, or as named values for loggers."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np

from tagalong.errors import pluralize
from tagalong.rendering import TextTable, display_width, join, table, tag, truncate

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

MAX_TABLE_TASKS = 12  # larger affinities are summarized
MAX_SUMMARY_TASKS = 40
SHORT_NAME = 8  # terminal columns, for headings on a narrow terminal
HELPS, HURTS = "33, 102, 172", "178, 24, 43"  # red, green and blue

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def text_table(affinity: Affinity, width: int | None = None) -> str:
    """Returns a table of means and standard errors, or a summary of more than 12 tasks.

    Args:
        affinity: the affinity to show.
        width: the width of the terminal in columns, or None for no limit. If the table does not fit, standard errors
            are omitted and names are truncated; if that is not enough, the affinity is summarized.
    """
    formatter, tables = CellFormatter(affinity), []
    if len(affinity.tasks) <= MAX_TABLE_TASKS:
        tables = [_matrix_lines(affinity, formatter, with_errors) for with_errors in (True, False)]
    fitting = [lines for lines in tables if width is None or max(map(display_width, lines)) <= width]
    if fitting:
        about, lines = "row helps column", fitting[0]
    else:
        about, lines = pluralize(len(affinity.tasks), "task"), _summary_lines(affinity, formatter, width)
    return "\n".join([_heading(affinity, formatter, about), *lines, *formatter.footnotes(lines)])


def extent(affinity: Affinity) -> str:
    """Returns how much was measured.

    Example:
        >>> from tagalong import Affinity
        >>> extent(Affinity.from_history([[[1.0]], [[2.0]]], ["a"]))
        '2 steps'
    """
    if len(affinity.steps):
        return pluralize(len(affinity.steps), "step")
    if str(affinity.settings.get("estimator")).startswith("streaming"):
        return pluralize(int(np.trace(affinity.count)), "gradient")
    return "no history"


class CellFormatter:
    """Formats the values of an affinity in a common unit.

    Attributes:
        power: the power of ten (a multiple of three) that scales the largest affinity between two tasks to [1, 1000).
            Self-affinities are ignored because they would dwarf all other values.
        has_null_step: whether the values include the effect of an optimizer step with zero gradient. Then they cannot
            be compared with zero, so none is marked.
    """

    def __init__(self, affinity: Affinity) -> None:
        self._affinity = affinity
        values = np.abs(affinity.mean[~np.eye(len(affinity.tasks), dtype=bool)])
        self.largest = float(np.nan_to_num(values).max(initial=0.0))
        if self.largest < 1e-300:
            self.largest = 1.0
        self.power = 0 if 0.1 <= self.largest < 1000 else 3 * floor(log10(self.largest) / 3)
        self._digits = min(max(2 - floor(log10(self.largest / 10.0**self.power)), 1), 3)
        self.has_null_step = affinity.settings.get("update") == "optimizer" and bool(np.isnan(affinity.null).any())

    def is_noise(self, i: int, j: int) -> bool:
        """Whether a value is within two standard errors of zero."""
        return bool(abs(self._affinity.mean[i, j]) < 2 * self._affinity.stderr[i, j]) and not self.has_null_step

    def cell(self, i: int, j: int, with_errors: bool = True) -> str:
        """Returns a value, followed by a mark or a space."""
        mean, error = self._affinity.mean[i, j] / 10.0**self.power, self._affinity.stderr[i, j] / 10.0**self.power
        if np.isnan(mean):
            return "- "
        text = f"{mean:.{self._digits}f}"
        if with_errors and np.isfinite(error):
            text += f" ± {error:.{self._digits}f}"
        return text + ("~" if self.is_noise(i, j) else " ")

    def footnotes(self, lines: Sequence[str]) -> list[str]:
        if self.has_null_step:
            step = "an optimizer step with zero gradient (momentum)"
            return [f"every entry includes the effect of {step}: compare within columns, not with zero"]
        return ["~ within two standard errors of zero"] if any("~" in line for line in lines) else []


def _heading(affinity: Affinity, formatter: CellFormatter, about: str = "row helps column") -> str:
    unit = f", values × 10{str(formatter.power).translate(_SUPERSCRIPT)}" if formatter.power else ""
    measured = extent(affinity)
    if measured != "no history":
        measured = f"{affinity.settings.get('average', 'mean')} over {measured}"
    estimator = affinity.settings.get("estimator")
    return f"Affinity ({about}{unit}), {measured}" + (f", {estimator} estimator" if estimator else "")


def _matrix_lines(affinity: Affinity, formatter: CellFormatter, with_errors: bool) -> list[str]:
    names = _names_on_one_line(affinity)
    targets = names if with_errors else [truncate(name, SHORT_NAME) for name in names]
    headings = [f"{target} " for target in targets]  # aligned with the numbers, not with the marks after them
    text = TextTable("", *headings, numbers=headings, gap=1)
    for i, source in enumerate(names):
        text.add_row(source, *(formatter.cell(i, j, with_errors) for j in range(len(names))))
    return text.lines()


def _names_on_one_line(affinity: Affinity) -> list[str]:
    return [" ".join(task.split()) for task in affinity.tasks]


def _summary_lines(affinity: Affinity, formatter: CellFormatter, width: int | None) -> list[str]:
    """Returns a line for each task with the sources that help and hurt it most. Tasks of a group come together."""
    others = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    strength = np.nan_to_num(np.abs(others)).max(axis=0)
    strongest = np.argsort(-strength, kind="stable")[:MAX_SUMMARY_TASKS]
    headings = ("task", "strongest helper", "", "strongest conflict", " ")
    text = TextTable(*headings, numbers=["", " "], names=[heading for heading in headings if heading.strip()])
    names = _names_on_one_line(affinity)
    for j in group_order(others):
        if j not in strongest:
            continue
        cells = []
        for sign in (1, -1):
            i = int(np.nan_to_num(sign * others[:, j], nan=-np.inf).argmax())
            is_shown = formatter.has_null_step or sign * others[i, j] > 0
            cells += [names[i], formatter.cell(i, j)] if is_shown else ["-", ""]
        text.add_row(names[j], *cells)
    shown = f"{len(strongest)} of {len(others)} tasks" if len(strongest) < len(others) else f"{len(others)} tasks"
    return [*text.lines(width), f"{shown}, sorted by groups; all pairs: to_frame()"]


def group_order(matrix: Floats) -> list[int]:
    """Returns the numbers of the tasks in an order in which tasks that help each other come together.

    Example:
        >>> matrix = np.array([[np.nan, 0, 9, 1], [1, np.nan, 0, 9], [9, 1, np.nan, 0], [0, 9, 1, np.nan]])
        >>> group_order(matrix)
        [0, 2, 1, 3]
    """
    from scipy.cluster.hierarchy import leaves_list, linkage  # imported here, so that reading affinities is fast
    from scipy.spatial.distance import squareform

    if len(matrix) < 3:
        return list(range(len(matrix)))
    # Values are compared within columns, since each target has its own scale.
    known = np.ma.masked_invalid(matrix)
    helps = ((known - known.mean(axis=0)) / known.std(axis=0)).filled(0.0)
    similarity = helps + helps.T
    tree = linkage(squareform(similarity.max() - similarity, checks=False), "average")
    return leaves_list(tree).tolist()  # type: ignore[no-any-return]


def html_table(affinity: Affinity) -> str:
    """Returns an HTML table with sources as rows and targets as columns, or the summary of more than 12 tasks.

    Blue means that the source helps, and red means that it hurts. Values within the noise have no color.
    """
    if len(affinity.tasks) > MAX_TABLE_TASKS:
        return tag("pre", text_table(affinity))
    formatter, rows = CellFormatter(affinity), []
    for i, source in enumerate(affinity.tasks):
        cells = [tag("th", source, scope="row")]
        for j, value in enumerate(affinity.mean[i] / formatter.largest):
            style = None
            if i != j and np.isfinite(value) and not formatter.is_noise(i, j):
                # A translucent color is readable in both light and dark notebooks.
                style = f"background: rgba({HELPS if value > 0 else HURTS}, {0.55 * min(abs(value), 1.0):.2f})"
            cells.append(tag("td", formatter.cell(i, j).strip(), style=style))
        rows.append(cells)
    notes = "; ".join(
        [*formatter.footnotes([cell for row in rows for cell in row[1:]]), "the diagonal is self-affinity"]
    )
    head = ["a step on …", *affinity.tasks]
    return join([table(head, rows, caption=_heading(affinity, formatter)), tag("small", notes)])


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
