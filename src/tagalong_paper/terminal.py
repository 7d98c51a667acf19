"""How reports and groupings of the paper are shown in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from tagalong.cli import TextTable, print_line, print_table, printable, screen
from tagalong.rendering import Styled

from .report import Value

if TYPE_CHECKING:
    from pathlib import Path

    from tagalong.group import Group

    from .report import Cell, Report, Sheet
    from .selection import Selection

WIDE = 60  # letters of a cell above which a table is shown line by line
GAP, ENDLESS = 2, 10_000  # columns between two columns of a table, and those of a file


def show_report(report: Report, files: Sequence[Path] = (), quiet: bool = False, resumes: bool = False) -> None:
    """From top to bottom; which claims appeared alone, if quiet; that it goes on from its files, if it resumes."""
    console = screen()
    if quiet:
        _show_claims(console, report)
        return
    print_line(console, report.title)
    for note in report.notes:
        print_line(console, note)
    for sheet in report.sheets:
        console.print()
        print_line(console, sheet.title)
        _show_sheet(console, sheet)
    if report.claims:
        console.print()
        print_line(console, "Did the paper's claims appear?")
    _show_claims(console, report)
    if files:
        console.print()
        show_files(console, files, "; run again, it goes on from there" if resumes else "")


def show_files(console: Console, files: Sequence[Path], more: str = "") -> None:
    """Where everything lies."""
    print_line(console, f"{files[0].parent}: {', '.join(file.name for file in files)}{more}")


def _show_claims(console: Console, report: Report) -> None:
    for claim in report.claims:
        print_line(console, f"* {claim.appeared}: {claim.text}. {claim.because}".rstrip(" .") + ".")


def _show_sheet(console: Console, sheet: Sheet) -> None:
    if any(len(_text(cell)) > WIDE for row in sheet.rows for cell in row):
        for row in sheet.rows:
            print_line(
                console, "* " + "; ".join(f"{c}: {_text(cell)}" for c, cell in zip(sheet.columns, row, strict=True))
            )
    else:
        for number, columns in enumerate(blocks(sheet, console.width if console.is_terminal else ENDLESS)):
            if number:
                console.print()
            print_table(console, _sheet_table(sheet, columns), fit=False)
    if sheet.note:
        print_line(console, f"({sheet.note})")


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


def _sheet_table(sheet: Sheet, columns: Sequence[int]) -> TextTable:
    whole = [place for place in columns if any(isinstance(row[place], int) for row in sheet.rows)]
    right = tuple(sheet.columns[place] for place in columns if place in whole or _measured(sheet, place))
    made = TextTable(*(sheet.columns[place] for place in columns), numbers=right)
    served = "bold" if any(_only_helps(cell) for row in sheet.rows for cell in row) else ""
    for row in sheet.rows:
        made.add_row(*(_styled(row[place], served) for place in columns))
    return made


def _measured(sheet: Sheet, place: int) -> bool:
    """Whether a column holds results, rather than what names a row, such as a method or a number of groups."""
    return any(isinstance(row[place], Value) for row in sheet.rows)


def _styled(cell: Cell, served: str) -> Styled:
    """A cell; results of served tasks stand out in tables that hold those of helpers too."""
    style = "dim" if _only_helps(cell) else served if isinstance(cell, Value) else ""
    return Styled(_text(cell), style)


def _only_helps(cell: Cell) -> bool:
    return isinstance(cell, Value) and not cell.served


def _text(cell: Cell) -> str:
    return "-" if cell is None else printable(str(cell))


def show_selections(found: Sequence[Selection], quiet: bool = False) -> None:
    """The printed groupings beside the best ones, a table for each matrix; only where they differ, if quiet."""
    console = screen()
    for problem in () if quiet else dict.fromkeys(one.problem for one in found):
        print_line(console, f"{problem.dataset}, {problem.method}")
        print_table(console, _selection_table([one for one in found if one.problem == problem]))
        console.print()
    for one in found:
        for remark in one.remarks:
            print_line(console, f"* {one.problem.dataset}, {one.problem.method}, {one.budget} networks: {remark}")
    same = [one for one in found if one.same and one.unique]
    print_line(console, f"{len(same)} of {len(found)} printed groupings are the optimum, proven and unique.")
    if not quiet:
        print_line(console, "Totals are sums of scores in the published matrices; +task is trained along as a helper.")


def _selection_table(found: list[Selection]) -> TextTable:
    made = TextTable("budget", "printed", "total", "best", "total", numbers=("budget", "total"))
    for one in found:
        printed = "\n".join(_short(frozenset(group.results), group.bold) for group in one.printed.groups)
        best = "\n".join(_short(group.trains, group.serves) for group in _in_order(one))
        budget = f"{'* ' if one.remarks else ''}{one.budget}"
        made.add_row(budget, printed, _number(one.given.value), best, _number(one.best.value))
    return made


def _in_order(one: Selection) -> Iterable[Group]:
    """The best networks in the order of the printed ones that they are most like."""
    order = [set(group.results) for group in one.printed.groups]
    place = {group: min(range(len(order)), key=lambda i: len(order[i] ^ group.trains)) for group in one.best.groups}
    return sorted(one.best.groups, key=lambda group: place[group])


def _short(trains: frozenset[str], serves: frozenset[str]) -> str:
    helpers = sorted(trains - serves)
    return " ".join([*sorted(serves), *(f"+{task}" for task in helpers)])


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 100 else f"{value:.4f}"
