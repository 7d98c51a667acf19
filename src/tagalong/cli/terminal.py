"""Command output: tables and sentences on stdout, progress on stderr, colors only on a terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.style import Style

from tagalong.rendering import TextTable, format_duration, wrap

if TYPE_CHECKING:
    from tagalong.progress import Progress

MIN_PROSE_WIDTH, MAX_PROSE_WIDTH = 40, 100  # in columns
BAR_WIDTH = 10  # in columns
INVISIBLE_JOINERS = "\u200c\u200d"  # invisible characters that Persian, Hindi and emoji need


def screen(stderr: bool = False) -> Console:
    """Returns a console for the current standard output or standard error."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def prose_width(console: Console) -> int:
    """Returns the width for wrapping sentences: that of the terminal, clipped to a readable range."""
    return min(max(console.width, MIN_PROSE_WIDTH), MAX_PROSE_WIDTH)


def print_line(console: Console, text: str, hang: int = 0) -> None:
    """Prints a line, which is wrapped on a terminal but not in a file. Paths and names are never split across lines.

    Args:
        console: the console to print to.
        text: the line.
        hang: the number of spaces before each wrapped line except the first.
    """
    text = printable(text)
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    indent = " " * (hang or 2 * text.startswith("* "))
    for line in wrap(text, prose_width(console), indent, break_words=False):
        console.print(line, soft_wrap=True)


def printable(name: str) -> str:
    """Substitutes question marks for characters that would move the cursor or break a table."""
    return "".join(sign if sign.isprintable() or sign in INVISIBLE_JOINERS else "?" for sign in name)


def print_text(text: str) -> None:
    """Prints a line without wrapping it, for use in scripts."""
    print(printable(text))


class PrintableFormatter(logging.Formatter):
    """Formats log messages for a terminal: names in them may contain any characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a message."""
        return "\n".join(map(printable, super().format(record).split("\n")))


def print_table(console: Console, table: TextTable, fit: bool = True) -> None:
    """Prints a table.

    Args:
        console: the console to print to.
        table: the table.
        fit: whether to fit the table to the width of the terminal.
    """
    table.rows = [tuple("\n".join(map(printable, cell.split("\n"))) for cell in row) for row in table.rows]
    emphasize = str if console.color_system is None else Style(bold=True).render
    for line in table.lines(table_width(console) if fit else None, emphasize):
        print(line, file=console.file)


def table_width(console: Console) -> int | None:
    """Returns the width for tables, or None if the output is a file or a pipe and COLUMNS is not set."""
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


@contextmanager
def spinner(what: str, quiet: bool = False) -> Iterator[None]:
    """Shows a spinner with the elapsed time if the output is a terminal."""
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    logger = logging.getLogger("tagalong.group")  # solvers log their progress
    handler = logging.Handler(logging.INFO)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        handler.emit = lambda record: bar.update(task, description=record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[Progress | None]:
    """Yields a progress display on stderr for a study, or None if `quiet`."""
    console = screen(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:
        yield ProgressLines()
    else:
        with _progress_bars(console) as bars:
            yield bars


@contextmanager
def _progress_bars(console: Console) -> Iterator[ProgressBars]:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    name = Column(no_wrap=True, overflow="ellipsis", min_width=12)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=name),
        BarColumn(bar_width=BAR_WIDTH),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[steps]}", table_column=Column(no_wrap=True, justify="right")),
        TextColumn("{task.fields[clock]}", table_column=Column(no_wrap=True)),
    )
    bars = Progress(*columns, console=console, transient=True)
    try:
        yield ProgressBars(bars)
    finally:
        bars.stop()


class ProgressLines:
    """Prints a line after each stage of the work."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._total, self._what, self._unit, self._began = total, printable(what), unit, time.monotonic()
        self._finished = 0

    def advance(self, n: int) -> None:
        self._finished += n

    def done(self) -> None:
        seconds = time.monotonic() - self._began
        print(f"{self._what}: {self._finished} of {self._total} {self._unit}, {seconds:.0f} s", file=sys.stderr)


class ProgressBars:
    """Shows a progress bar for each stage of the work, with the numbers of networks and steps and the time left."""

    def __init__(self, bars: Any) -> None:
        self._progress_bars = bars

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._progress_bars.start()
        self._task = self._progress_bars.add_task(printable(what), total=total, unit=unit, steps="", clock="")
        self._finished = self._steps = 0
        self._total, self._began = total, time.monotonic()

    def advance(self, n: int) -> None:
        self._finished += n
        self._progress_bars.update(self._task, advance=n, clock=self._time_left())

    def steps(self, n: int) -> None:
        self._steps += n
        self._progress_bars.update(self._task, steps=f"{format_count(self._steps)} steps")

    def done(self) -> None:
        self._progress_bars.update(self._task, clock=f"{format_duration(time.monotonic() - self._began)}")
        self._progress_bars.stop_task(self._task)

    def _time_left(self) -> str:
        """Estimates the remaining time from the networks finished so far."""
        spent = time.monotonic() - self._began
        return (
            f"{format_duration(spent * (self._total - self._finished) / self._finished)} left" if self._finished else ""
        )


def format_count(number: int) -> str:
    """Formats a count compactly.

    Example:
        >>> format_count(950), format_count(12_345), format_count(3_456_789)
        ('950', '12k', '3.5M')
    """
    size, letter = next(((size, letter) for size, letter in ((1e6, "M"), (1e3, "k")) if number >= size), (1, ""))
    return f"{number / size:.1f}{letter}" if size > 1 and number < 10 * size else f"{number / size:.0f}{letter}"
