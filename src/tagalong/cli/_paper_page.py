"""What an experiment of the paper shows: its tables, which claims appeared, and where everything lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ._terminal import clean, put, say, screen, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tagalong.paper._report import Cell, Report, Sheet

WIDE = 60  # letters of a cell above which a table is shown line by line


def show_report(report: Report, files: Sequence[Path] = ()) -> None:
    """From top to bottom."""
    console = screen()
    say(console, report.title)
    for note in report.notes:
        say(console, note)
    for sheet in report.sheets:
        console.print()
        say(console, sheet.title)
        _show_sheet(console, sheet)
    if report.claims:
        console.print()
        say(console, "Did the paper's claims appear?")
    for claim in report.claims:
        say(console, f"* {claim.appeared}: {claim.text}. {claim.because}".rstrip(" .") + ".")
    if files:
        console.print()
        say(console, f"{files[0].parent}: {', '.join(file.name for file in files)}; run again, it goes on from there")


def _show_sheet(console: Console, sheet: Sheet) -> None:
    if any(len(_text(cell)) > WIDE for row in sheet.rows for cell in row):
        for row in sheet.rows:
            say(console, "* " + "; ".join(f"{c}: {_text(cell)}" for c, cell in zip(sheet.columns, row, strict=True)))
    else:
        made = _table(sheet)
        put(_wide_enough(console, made), made)
    if sheet.note:
        say(console, f"({sheet.note})")


def _wide_enough(console: Console, made: Table) -> Console:
    """A screen on which no number is cut: nine tasks with their errors are wider than most."""
    from rich.console import Console
    from rich.measure import Measurement

    endless = Console(width=10_000, file=console.file)
    needed = Measurement.get(endless, endless.options, made).maximum
    return console if needed <= console.width else Console(width=needed, file=console.file, highlight=False)


def _table(sheet: Sheet) -> Table:
    from tagalong.paper import Value

    right = tuple(
        column
        for place, column in enumerate(sheet.columns)
        if any(isinstance(row[place], (Value, int)) for row in sheet.rows)
    )
    made = table(*sheet.columns, numbers=right)
    for row in sheet.rows:
        made.add_row(*(_styled(cell) for cell in row))
    return made


def _styled(cell: Cell) -> Text:
    from tagalong.paper import Value

    helps = isinstance(cell, Value) and not cell.served
    return Text(_text(cell), style="dim" if helps else "")


def _text(cell: Cell) -> str:
    return "-" if cell is None else clean(str(cell))
