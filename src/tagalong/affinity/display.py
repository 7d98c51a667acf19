"""Renders an affinity as plain text."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log10
from typing import TYPE_CHECKING

import numpy as np

from tagalong.errors import pluralize
from tagalong.rendering import BLANK, TextTable, display_width, truncate

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

MAX_TABLE_TASKS = 12  # larger affinities are summarized
MAX_SUMMARY_TASKS = 40
SHORT_NAME = 8  # terminal columns, for headings on a narrow terminal
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NULL_STEP_NOTE = (
    "every entry includes the effect of an optimizer step with zero gradient (momentum): "
    "compare within columns, not with zero"
)


def text_table(affinity: Affinity, width: int | None = None) -> str:
    """Returns a table of means and standard errors, or a summary of more than 12 tasks.

    Args:
        affinity: the affinity to show.
        width: the width of the terminal in columns, or None for no limit. If the table does not fit, standard errors
            are omitted and names are truncated; if that is not enough, the affinity is summarized.
    """
    names, settings = [" ".join(task.split()) for task in affinity.tasks], affinity.settings
    # If values include the effect of a step with zero gradient, they cannot be compared with zero, so none is marked.
    has_null_step = settings.get("update") == "optimizer" and bool(np.isnan(affinity.null).any())

    # A power of ten (a multiple of three) scales the largest affinity between two tasks to [1, 1000). Self-affinities
    # are ignored because they would dwarf all other values.
    largest = np.nan_to_num(np.abs(affinity.mean[~np.eye(len(names), dtype=bool)])).max(initial=0.0)
    magnitude = log10(largest) if largest > 1e-300 else 0.0
    power = 0 if -1 <= magnitude < 3 else 3 * floor(magnitude / 3)
    digits = min(max(2 - floor(magnitude - power), 1), 3)

    def cell(i: int, j: int, with_errors: bool = True) -> str:
        mean, error = affinity.mean[i, j] / 10.0**power, affinity.stderr[i, j] / 10.0**power
        if np.isnan(mean):
            return f"-{BLANK}"
        mark = "~" if abs(mean) < 2 * error and not has_null_step else BLANK
        shown_error = f" ± {error:.{digits}f}" if with_errors and np.isfinite(error) else ""
        return f"{mean:.{digits}f}{shown_error}{mark}"

    # The table with errors, or else without, or else the summary.
    about, lines = "row helps column", []
    for with_errors in (True, False) if len(names) <= MAX_TABLE_TASKS else ():
        targets = names if with_errors else [truncate(name, SHORT_NAME) for name in names]
        headings = [f"{target}{BLANK}" for target in targets]  # aligned with the numbers, not with the marks after them
        text = TextTable("", *headings, numbers=headings, gap=1)
        for i, source in enumerate(names):
            text.add_row(source, *(cell(i, j, with_errors) for j in range(len(names))))
        lines = text.lines()
        if width is None or max(map(display_width, lines)) <= width:
            break
    else:
        about = pluralize(len(names), "task")
        lines = _summary_lines(affinity, names, cell, has_null_step, width)

    measured, footnotes = extent(affinity), [NULL_STEP_NOTE] if has_null_step else []
    if power:
        about += f", values × 10{str(power).translate(SUPERSCRIPT)}"
    if measured != "no history":
        measured = f"{settings.get('average', 'mean')} over {measured}"
    if settings.get("estimator"):
        measured += f", {settings['estimator']} estimator"
    if "~" in "".join(lines) and not has_null_step:
        footnotes = ["~ within two standard errors of zero"]
    return "\n".join([f"Affinity ({about}), {measured}", *lines, *footnotes])


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


def _summary_lines(
    affinity: Affinity, names: list[str], cell: Callable[[int, int], str], has_null_step: bool, width: int | None
) -> list[str]:
    others = np.where(np.eye(len(names), dtype=bool), np.nan, affinity.mean)
    strongest = np.argsort(-np.nan_to_num(np.abs(others)).max(axis=0), kind="stable")[:MAX_SUMMARY_TASKS]
    headings = ("task", "strongest helper", "", "strongest conflict", " ")
    text = TextTable(*headings, numbers=["", " "], names=[heading for heading in headings if heading.strip()])
    for j in group_order(others):
        if j not in strongest:
            continue
        partners = []
        for sign in (1, -1):
            i = int(np.nan_to_num(sign * others[:, j], nan=-np.inf).argmax())
            is_shown = has_null_step or sign * others[i, j] > 0
            partners += [names[i], cell(i, j)] if is_shown else ["-", ""]
        text.add_row(names[j], *partners)
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
