"""Plain-text tables and line wrapping."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Collection
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

WORD_PATTERN = re.compile(r" *[^ ]+")
MIN_TEXT_WIDTH = 8  # minimum width of names and sentences on a narrow terminal
display_width = cell_len  # the number of columns that a text takes up in a terminal


def truncate(text: str, width: int) -> str:
    """Truncates text that is too long and appends "…".

    Example:
        >>> truncate("weight", 6), truncate("weight", 4), truncate("年齢と体重", 6)
        ('weight', 'wei…', '年齢…')
    """
    return text if cell_len(text) <= width else f"{chop_cells(text, width - 1)[0]}…"


def wrap(text: str, width: int, hang: str = "", break_words: bool = True) -> list[str]:
    """Breaks text into lines at spaces.

    Args:
        text: the text to break.
        width: the maximum number of columns per line.
        hang: the text to insert before all lines but the first.
        break_words: whether to break words that are longer than a line.

    Example:
        >>> wrap("one network for all tasks", 11, hang="  ")
        ['one network', '  for all', '  tasks']
    """
    lines = [""]
    longest = max(1, width - cell_len(hang))
    for word in WORD_PATTERN.findall(" ".join(text.splitlines())):
        is_too_long = break_words and cell_len(word.lstrip()) > longest
        for part in chop_cells(word, longest) if is_too_long else [word]:
            if lines[-1] and cell_len(lines[-1] + part) > width:
                lines.append(hang + part.lstrip())
            else:
                lines[-1] += part
    return lines


def terminal_width() -> int | None:
    """Returns the width of the terminal in columns, or None if standard output is a file, a pipe or a notebook."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


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

    By default, the table is as wide as its content. To fit a given width, names are truncated first; then other text
    and the headings of numeric columns are wrapped. Numbers are never truncated, so a table with many numeric columns
    may still be too wide.

    Args:
        headings: the column headings. If all headings are empty, the heading line is omitted.
        numbers: the headings of numeric columns, which are right-aligned.
        names: the headings of columns that are truncated instead of wrapped.
        gap: the number of spaces between two columns.
        shortest: the minimum width of columns that contain names or sentences.
        wrap_headings: whether the headings of numeric columns may be wrapped.

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
        self,
        *headings: str,
        numbers: Collection[str] = (),
        names: Collection[str] = (),
        gap: int = 2,
        shortest: int = MIN_TEXT_WIDTH,
        wrap_headings: bool = True,
    ) -> None:
        self.headings = headings
        self.rows: list[tuple[str, ...]] = []
        self._numbers, self._names = frozenset(numbers), frozenset(names)
        self._gap, self._shortest, self._wrap_headings = gap, shortest, wrap_headings

    def add_row(self, *cells: str) -> None:
        """Adds a row. Cells may span multiple lines."""
        self.rows.append(cells)

    def lines(self, width: int | None = None, emphasize: Callable[[str], str] = str) -> list[str]:
        """Returns the lines of the table.

        Args:
            width: the maximum width of the table in columns, or None for no limit.
            emphasize: applied to each line of the headings, e.g. to make it bold.
        """
        columns = list(zip(self.headings, *self.rows, strict=True))
        widths = [max(cell_len(line) for cell in cells for line in cell.split("\n")) for cells in columns]
        if width is not None:
            self._shrink(widths, width)
        lines = []
        for number, row in enumerate([self.headings, *self.rows] if any(self.headings) else self.rows):
            cells = [self._cell_lines(*cell) for cell in zip(self.headings, row, widths, strict=True)]
            is_heading = any(self.headings) and number == 0
            if is_heading:  # headings of several lines end at the bottom
                height = max(map(len, cells))
                cells = [[""] * (height - len(cell)) + cell for cell in cells]
            for parts in zip_longest(*cells, fillvalue=""):
                line = ""
                for heading, part, column in zip(self.headings, parts, widths, strict=True):
                    padding = " " * (column - cell_len(part))
                    line += (padding + part if heading in self._numbers else part + padding) + " " * self._gap
                lines.append(emphasize(line.rstrip()) if is_heading else line.rstrip())
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _shrink(self, widths: list[int], width: int) -> None:
        """Narrows the widest columns until the table fits: first names, then sentences, then headings of numbers."""
        order: tuple[list[int], ...] = ([], [], [])
        shortest = [self._shortest] * len(widths)
        for place, heading in enumerate(self.headings):
            if heading in self._numbers:
                words = heading.split() if self._wrap_headings else [heading]
                shortest[place] = max(map(cell_len, [*words, *(row[place] for row in self.rows)]), default=0)
            order[0 if heading in self._names else 2 if heading in self._numbers else 1].append(place)
        excess = sum(widths) + self._gap * (len(widths) - 1) - width
        for places in order:
            while excess > 0 and (wider := [place for place in places if widths[place] > shortest[place]]):
                widths[max(wider, key=widths.__getitem__)] -= 1
                excess -= 1

    def _cell_lines(self, heading: str, cell: str, width: int) -> list[str]:
        if heading in self._names:
            return [truncate(cell, width)]
        return [part for line in cell.split("\n") for part in (wrap(line, width) if cell_len(line) > width else [line])]
