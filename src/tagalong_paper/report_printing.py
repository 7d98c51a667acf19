"""Shows reports and selected groupings in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from tagalong.cli import TextTable, print_line, print_table, printable, screen
from tagalong.rendering import StyledText

from .experiment_report import Value

if TYPE_CHECKING:
    from pathlib import Path

    from tagalong.group import Group

    from .experiment_report import Cell, Report, ReportTable
    from .selection import Selection

MAX_CELL_WIDTH = 60  # a table with a longer cell is shown as a list
COLUMN_GAP = 2
UNLIMITED_WIDTH = 10_000  # for output to a file


def show_report(report: Report, files: Sequence[Path] = (), quiet: bool = False, can_resume: bool = False) -> None:
    """Shows a report.

    Args:
        report: the report.
        files: the files that were written.
        quiet: whether to show only the claims.
        can_resume: whether to mention that a later run can resume from these files.
    """
    console = screen()
    if quiet:
        _show_claims(console, report)
        return
    print_line(console, report.title)
    for note in report.notes:
        print_line(console, note)
    for table in report.tables:
        console.print()
        print_line(console, table.title)
        _show_table(console, table)
    if report.claims:
        console.print()
        print_line(console, "Were the paper's claims reproduced?")
    _show_claims(console, report)
    if files:
        console.print()
        show_files(console, files, "; another run continues from here" if can_resume else "")


def show_files(console: Console, files: Sequence[Path], suffix: str = "") -> None:
    """Shows the folder and the file names."""
    print_line(console, f"{files[0].parent}: {', '.join(file.name for file in files)}{suffix}")


def _show_claims(console: Console, report: Report) -> None:
    for claim in report.claims:
        print_line(console, f"* {claim.reproduced}: {claim.text}. {claim.because}".rstrip(" .") + ".")


def _show_table(console: Console, table: ReportTable) -> None:
    if any(len(_text(cell)) > MAX_CELL_WIDTH for row in table.rows for cell in row):
        for row in table.rows:
            print_line(
                console,
                "* " + "; ".join(f"{c}: {_text(cell)}" for c, cell in zip(table.columns, row, strict=True)),
            )
    else:
        width = console.width if console.is_terminal else UNLIMITED_WIDTH
        for number, columns in enumerate(split_columns(table, width)):
            if number:
                console.print()
            print_table(console, _text_table(table, columns), fit=False)
    if table.note:
        print_line(console, f"({table.note})")


def split_columns(table: ReportTable, width: int) -> list[list[int]]:
    """Splits the columns of a table into blocks that fit the width. Each block starts with the row labels."""
    widths = [max(map(len, map(_text, column))) + COLUMN_GAP for column in zip(table.columns, *table.rows, strict=True)]
    labels = max(1, next((column for column in range(len(widths)) if _has_results(table, column)), 1))
    labels = labels if sum(widths[:labels]) <= width // 2 else 1
    blocks: list[list[int]] = [[]]
    for column in range(labels, len(widths)):
        if blocks[-1] and sum(widths[i] for i in (*range(labels), *blocks[-1], column)) - COLUMN_GAP > width:
            blocks.append([])
        blocks[-1].append(column)
    return [[*range(labels), *block] for block in blocks]


def _text_table(table: ReportTable, columns: Sequence[int]) -> TextTable:
    integers = [column for column in columns if any(isinstance(row[column], int) for row in table.rows)]
    numbers = tuple(table.columns[c] for c in columns if c in integers or _has_results(table, c))
    shown = TextTable(*(table.columns[column] for column in columns), numbers=numbers)
    served_style = "bold" if any(_is_helper(cell) for row in table.rows for cell in row) else ""
    for row in table.rows:
        shown.add_row(*(_styled(row[column], served_style) for column in columns))
    return shown


def _has_results(table: ReportTable, column: int) -> bool:
    """Returns whether a column contains results rather than row labels, such as methods."""
    return any(isinstance(row[column], Value) for row in table.rows)


def _styled(cell: Cell, served_style: str) -> StyledText:
    """Formats a cell; in tables that include results of helpers, results of served tasks are highlighted."""
    style = "dim" if _is_helper(cell) else served_style if isinstance(cell, Value) else ""
    return StyledText(_text(cell), style)


def _is_helper(cell: Cell) -> bool:
    return isinstance(cell, Value) and not cell.served


def _text(cell: Cell) -> str:
    return "-" if cell is None else printable(str(cell))


def show_selections(found: Sequence[Selection], quiet: bool = False) -> None:
    """Shows the printed and the best groupings, with one table per matrix. If quiet, shows only the differences."""
    console = screen()
    for matrix in () if quiet else dict.fromkeys(one.matrix for one in found):
        print_line(console, f"{matrix.dataset}, {matrix.method}")
        print_table(console, _selection_table([one for one in found if one.matrix == matrix]))
        console.print()
    for one in found:
        for remark in one.remarks:
            print_line(
                console,
                f"* {one.matrix.dataset}, {one.matrix.method}, {one.budget} networks: {remark}",
            )
    same = [one for one in found if one.same and one.unique]
    print_line(console, f"{len(same)} of {len(found)} printed groupings are proven to be the unique optimum.")
    if not quiet:
        print_line(console, "Totals are sums of published scores; +task marks a helper task.")


def _selection_table(selections: list[Selection]) -> TextTable:
    shown = TextTable("budget", "printed", "total", "best", "total", numbers=("budget", "total"))
    for selection in selections:
        printed = "\n".join(_format_group(frozenset(group.results), group.bold) for group in selection.printed.groups)
        best = "\n".join(_format_group(group.trains, group.serves) for group in _in_printed_order(selection))
        budget = f"{'* ' if selection.remarks else ''}{selection.budget}"
        shown.add_row(budget, printed, _format_score(selection.given.value), best, _format_score(selection.best.value))
    return shown


def _in_printed_order(selection: Selection) -> Iterable[Group]:
    """Returns the best groups in the order of the printed groups that they resemble most."""
    order = [set(group.results) for group in selection.printed.groups]
    place = {
        group: min(range(len(order)), key=lambda i: len(order[i] ^ group.trains)) for group in selection.best.groups
    }
    return sorted(selection.best.groups, key=lambda group: place[group])


def _format_group(trains: frozenset[str], serves: frozenset[str]) -> str:
    helpers = sorted(trains - serves)
    return " ".join([*sorted(serves), *(f"+{task}" for task in helpers)])


def _format_score(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 100 else f"{value:.4f}"
