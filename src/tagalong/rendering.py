"""Plain-text tables and line wrapping."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Collection
from io import StringIO

from rich.cells import cell_len, chop_cells

BLANK = "\u2800"  # becomes a space, also at the end of a number, where others are removed
UNLIMITED = 10**5  # the width of a table that is as wide as its content
display_width = cell_len  # the number of columns that a text takes up in a terminal


def truncate(text: str, width: int) -> str:
    """Truncates text that is too long and appends "…".

    Example:
        >>> truncate("weight", 6), truncate("weight", 4), truncate("年齢と体重", 6)
        ('weight', 'wei…', '年齢…')
    """
    return text if cell_len(text) <= width else f"{chop_cells(text, width - 1)[0]}…"


def wrap(text: str, width: int, hang: str = "") -> list[str]:
    """Breaks text into lines at spaces. Paths and names are never split across lines.

    Args:
        text: the text to break.
        width: the maximum number of columns per line.
        hang: the text to insert before all lines but the first.

    Example:
        >>> wrap("one network for all tasks", 11, hang="  ")
        ['one network', '  for all', '  tasks']
    """
    lines = textwrap.wrap(text, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def terminal_width() -> int | None:
    """Returns the width of the terminal, or None if standard output is a file or a pipe and COLUMNS is not set."""
    is_limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_limited else None


def format_duration(seconds: float) -> str:
    """Formats a duration as minutes and seconds, or hours and minutes.

    Example:
        >>> format_duration(5), format_duration(95), format_duration(7300)
        ('5 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class TextTable:
    """A plain-text table. The library and its commands print all of their tables with this class.

    By default, the table is as wide as its content. To fit a given width, names are truncated, and other text and the
    headings of numeric columns are wrapped. Numbers are never truncated, so a table with many numeric columns may still
    be too wide.

    Args:
        headings: the column headings. If all headings are empty, the heading line is omitted.
        numbers: the headings of numeric columns, which are right-aligned.
        names: the headings of columns that are truncated instead of wrapped.
        gap: the number of spaces between two columns.

    Example:
        >>> table = TextTable("task", "kind", "loss", numbers=["loss"], names=["task"])
        >>> table.add_row("blood_pressure", "regression", "0.71")
        >>> table.add_row("ill", "binary", "12.5")
        >>> print(table)
        task            kind        loss
        blood_pressure  regression  0.71
        ill             binary      12.5
        >>> print("\\n".join(table.lines(width=28)))
        task        kind        loss
        blood_pre…  regression  0.71
        ill         binary      12.5
    """

    def __init__(
        self, *headings: str, numbers: Collection[str] = (), names: Collection[str] = (), gap: int = 2
    ) -> None:
        self.headings = headings
        self.rows: list[tuple[str, ...]] = []
        self._numbers, self._names, self._gap = frozenset(numbers), frozenset(names), gap

    def add_row(self, *cells: str) -> None:
        """Adds a row. Cells may span multiple lines."""
        self.rows.append(cells)

    def lines(self, width: int | None = None) -> list[str]:
        """Returns the lines of the table.

        Args:
            width: the maximum width of the table in columns, or None for no limit.
        """
        lines = self._render(UNLIMITED)
        if width is None or max(map(cell_len, lines)) <= width:
            return lines
        return self._render(width, wrap_headings=True)

    def _render(self, width: int, wrap_headings: bool = False) -> list[str]:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        padding = (0, self._gap, 0, 0)
        table = Table(box=None, padding=padding, pad_edge=False, show_header=any(self.headings))
        for column, heading in enumerate(self.headings):
            if heading in self._numbers:
                widest = max((cell_len(row[column]) for row in self.rows), default=0)
                shown = "\n".join(wrap(heading, max(1, widest))) if wrap_headings else heading
                table.add_column(Text(shown), justify="right", no_wrap=True, min_width=widest)
            else:
                table.add_column(Text(heading), overflow="ellipsis" if heading in self._names else "fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        text = StringIO()
        console = Console(file=text, width=width, color_system=None, force_jupyter=False)
        console.print(table, crop=False)
        return [line.replace(BLANK, " ").rstrip() for line in text.getvalue().splitlines()]

    def __str__(self) -> str:
        return "\n".join(self.lines())
