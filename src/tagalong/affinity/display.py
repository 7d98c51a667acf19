"""Renders an affinity as plain text or as an HTML table."""

from __future__ import annotations

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

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def text_table(affinity: Affinity, width: int | None = None) -> str:
    """Returns a table of means and standard errors, or a summary of more than 12 tasks.

    Args:
        affinity: the affinity to show.
        width: the width of the terminal in columns, or None for no limit. If the table does not fit, standard errors
            are omitted and names are truncated; if that is not enough, the affinity is summarized.
    """
    formatter, names = CellFormatter(affinity), [" ".join(task.split()) for task in affinity.tasks]
    tables = []
    if len(names) <= MAX_TABLE_TASKS:
        tables = [_matrix_lines(names, formatter, with_errors) for with_errors in (True, False)]
    fitting = [lines for lines in tables if width is None or max(map(display_width, lines)) <= width]
    if fitting:
        heading, lines = formatter.heading(), fitting[0]
    else:
        heading = formatter.heading(pluralize(len(names), "task"))
        lines = _summary_lines(affinity, names, formatter, width)
    return "\n".join([heading, *lines, *formatter.footnotes("".join(lines))])


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
        largest = float(np.nan_to_num(values).max(initial=0.0))
        if largest < 1e-300:
            largest = 1.0
        self.power = 0 if 0.1 <= largest < 1000 else 3 * floor(log10(largest) / 3)
        self._digits = min(max(2 - floor(log10(largest / 10.0**self.power)), 1), 3)
        self.has_null_step = affinity.settings.get("update") == "optimizer" and bool(np.isnan(affinity.null).any())

    def heading(self, about: str = "row helps column") -> str:
        settings, measured = self._affinity.settings, extent(self._affinity)
        if self.power:
            about += f", values × 10{str(self.power).translate(_SUPERSCRIPT)}"
        if measured != "no history":
            measured = f"{settings.get('average', 'mean')} over {measured}"
        if settings.get("estimator"):
            measured += f", {settings['estimator']} estimator"
        return f"Affinity ({about}), {measured}"

    def cell(self, i: int, j: int, with_errors: bool = True) -> str:
        """Returns a value, followed by a space, or by a mark if it is within two standard errors of zero."""
        mean, error = self._affinity.mean[i, j] / 10.0**self.power, self._affinity.stderr[i, j] / 10.0**self.power
        if np.isnan(mean):
            return "- "
        text = f"{mean:.{self._digits}f}"
        if with_errors and np.isfinite(error):
            text += f" ± {error:.{self._digits}f}"
        return text + ("~" if abs(mean) < 2 * error and not self.has_null_step else " ")

    def footnotes(self, text: str) -> list[str]:
        if self.has_null_step:
            step = "an optimizer step with zero gradient (momentum)"
            return [f"every entry includes the effect of {step}: compare within columns, not with zero"]
        return ["~ within two standard errors of zero"] if "~" in text else []


def _matrix_lines(names: list[str], formatter: CellFormatter, with_errors: bool) -> list[str]:
    targets = names if with_errors else [truncate(name, SHORT_NAME) for name in names]
    headings = [f"{target} " for target in targets]  # aligned with the numbers, not with the marks after them
    text = TextTable("", *headings, numbers=headings, gap=1)
    for i, source in enumerate(names):
        text.add_row(source, *(formatter.cell(i, j, with_errors) for j in range(len(names))))
    return text.lines()


def _summary_lines(affinity: Affinity, names: list[str], formatter: CellFormatter, width: int | None) -> list[str]:
    """Returns a line for each task with the sources that help and hurt it most. Tasks of a group come together."""
    others = np.where(np.eye(len(names), dtype=bool), np.nan, affinity.mean)
    strength = np.nan_to_num(np.abs(others)).max(axis=0)
    strongest = np.argsort(-strength, kind="stable")[:MAX_SUMMARY_TASKS]
    headings = ("task", "strongest helper", "", "strongest conflict", " ")
    text = TextTable(*headings, numbers=["", " "], names=[heading for heading in headings if heading.strip()])
    for j in group_order(others):
        if j not in strongest:
            continue
        cells = []
        for sign in (1, -1):
            i = int(np.nan_to_num(sign * others[:, j], nan=-np.inf).argmax())
            is_shown = formatter.has_null_step or sign * others[i, j] > 0
            cells += [names[i], formatter.cell(i, j)] if is_shown else ["-", ""]
        text.add_row(names[j], *cells)
    return [*text.lines(width), f"{len(strongest)} of {len(names)} tasks, sorted by groups; all pairs: to_frame()"]


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
    """Returns an HTML table with sources as rows and targets as columns, or the summary of more than 12 tasks."""
    if len(affinity.tasks) > MAX_TABLE_TASKS:
        return tag("pre", text_table(affinity))
    formatter, targets = CellFormatter(affinity), range(len(affinity.tasks))
    rows = [[source, *(formatter.cell(i, j) for j in targets)] for i, source in enumerate(affinity.tasks)]
    notes = "; ".join([*formatter.footnotes(str(rows)), "the diagonal is self-affinity"])
    return join([table(["a step on …", *affinity.tasks], rows, caption=formatter.heading()), tag("small", notes)])
