"""What an experiment of the paper shows: its tables, which claims appeared, and where everything lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from tagalong.cli import clean, put, say, screen, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ._report import Cell, Report, Sheet

WIDE = 60  # letters of a cell above which a table is shown line by line
GAP, ENDLESS = 2, 10_000  # columns between two columns of a table, and those of a file


def show_report(report: Report, files: Sequence[Path] = (), quiet: bool = False, resumes: bool = False) -> None:
    """From top to bottom; which claims appeared alone, if quiet; that it goes on from its files, if it resumes."""
    console = screen()
    if quiet:
        _show_claims(console, report)
        return
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
    _show_claims(console, report)
    if files:
        console.print()
        show_files(console, files, "; run again, it goes on from there" if resumes else "")


def show_files(console: Console, files: Sequence[Path], more: str = "") -> None:
    """Where everything lies."""
    say(console, f"{files[0].parent}: {', '.join(file.name for file in files)}{more}")


def _show_claims(console: Console, report: Report) -> None:
    for claim in report.claims:
        say(console, f"* {claim.appeared}: {claim.text}. {claim.because}".rstrip(" .") + ".")


def _show_sheet(console: Console, sheet: Sheet) -> None:
    if any(len(_text(cell)) > WIDE for row in sheet.rows for cell in row):
        for row in sheet.rows:
            say(console, "* " + "; ".join(f"{c}: {_text(cell)}" for c, cell in zip(sheet.columns, row, strict=True)))
    else:
        for number, columns in enumerate(blocks(sheet, console.width if console.is_terminal else ENDLESS)):
            if number:
                console.print()
            made = _table(sheet, columns)
            put(_wide_enough(console, made), made)
    if sheet.note:
        say(console, f"({sheet.note})")


def blocks(sheet: Sheet, width: int) -> list[list[int]]:
    """Columns that fit side by side; those that name the rows stand before each lot, so that no number is cut."""
    widths = [max(map(len, map(_text, column))) + GAP for column in zip(sheet.columns, *sheet.rows, strict=True)]
    named = max(1, next((place for place in range(len(widths)) if _measured(sheet, place)), 1))
    named = named if sum(widths[:named]) <= width // 2 else 1
    lots: list[list[int]] = [[]]
    for place in range(named, len(widths)):
        if lots[-1] and sum(widths[at] for at in (*range(named), *lots[-1], place)) - GAP > width:
            lots.append([])
        lots[-1].append(place)
    return [[*range(named), *lot] for lot in lots]


def _wide_enough(console: Console, made: Table) -> Console:
    """A screen on which no column is cut: a file, or one that is too narrow for a single number."""
    from rich.console import Console
    from rich.measure import Measurement

    endless = Console(width=ENDLESS, file=console.file)
    needed = Measurement.get(endless, endless.options, made).maximum
    return console if needed <= console.width else Console(width=needed, file=console.file, highlight=False)


def _measured(sheet: Sheet, place: int) -> bool:
    """Whether a column holds results, rather than what names a row, such as a method or a number of groups."""
    from ._report import Value

    return any(isinstance(row[place], Value) for row in sheet.rows)


def _table(sheet: Sheet, columns: Sequence[int]) -> Table:
    whole = [place for place in columns if any(isinstance(row[place], int) for row in sheet.rows)]
    right = tuple(sheet.columns[place] for place in columns if place in whole or _measured(sheet, place))
    made = table(*(sheet.columns[place] for place in columns), numbers=right)
    served = "bold" if any(_only_helps(cell) for row in sheet.rows for cell in row) else ""
    for row in sheet.rows:
        made.add_row(*(_styled(row[place], served) for place in columns))
    return made


def _styled(cell: Cell, served: str) -> Text:
    """A cell; results of served tasks stand out in tables that hold those of helpers too."""
    from ._report import Value

    style = "dim" if _only_helps(cell) else served if isinstance(cell, Value) else ""
    return Text(_text(cell), style=style)


def _only_helps(cell: Cell) -> bool:
    from ._report import Value

    return isinstance(cell, Value) and not cell.served


def _text(cell: Cell) -> str:
    return "-" if cell is None else clean(str(cell))
