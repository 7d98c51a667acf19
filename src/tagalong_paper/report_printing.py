"""Shows reports in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from tagalong.cli import TextTable, print_line, print_table, printable, screen

from .report import Cell, Report, ReportTable, Value

if TYPE_CHECKING:
    from pathlib import Path


MAX_CELL_WIDTH = 60  # a table with a longer cell is shown as a list


def show_report(report: Report, files: Sequence[Path] = (), quiet: bool = False) -> None:
    """Shows a report.

    Args:
        report: the report.
        files: the files that were written.
        quiet: whether to show only the claims.
    """
    console = screen()
    if not quiet:
        for line in (report.title, *report.notes):
            print_line(console, line)
        for table in report.tables:
            print_line(console, "")
            print_line(console, table.title)
            _show_table(console, table)
        print_line(console, "")
        print_line(console, "Were the paper's claims reproduced?")
    for claim in report.claims:
        print_line(console, f"* {claim.reproduced}: {claim.text}. {claim.because}".rstrip(" .") + ".")
    if files and not quiet:
        print_line(console, "")
        print_line(console, f"{files[0].parent}: {', '.join(file.name for file in files)}")


def _show_table(console: Console, table: ReportTable) -> None:
    rows = [["-" if cell is None else printable(str(cell)) for cell in row] for row in table.rows]
    if any(len(text) > MAX_CELL_WIDTH for row in rows for text in row):
        for row in rows:
            cells = [f"{column}: {text}" for column, text in zip(table.columns, row, strict=True)]
            print_line(console, f"* {'; '.join(cells)}")
    else:
        numbers = [column for column in table.columns if any(map(_is_number, table.column(column)))]
        shown = TextTable(*table.columns, numbers=numbers)
        for row in rows:
            shown.add_row(*row)
        print_table(console, shown, fit=console.is_terminal)
    if table.note:
        print_line(console, f"({table.note})")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, (int, Value))
