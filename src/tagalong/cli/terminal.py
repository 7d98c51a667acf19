"""Command output: tables and sentences on stdout, progress and errors on stderr, colors only on a terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console

from tagalong.rendering import TextTable, terminal_width, wrap

MIN_PROSE_WIDTH, MAX_PROSE_WIDTH = 40, 100  # in columns
INVISIBLE_JOINERS = "\u200c\u200d"  # invisible characters that Persian, Hindi and emoji need


def printable(text: str) -> str:
    """Substitutes question marks for characters that would move the cursor or break a table."""
    return "".join(sign if sign.isprintable() or sign in INVISIBLE_JOINERS else "?" for sign in text)


def print_line(text: str, *, bold: bool = False, stderr: bool = False, hang: int = 0) -> None:
    """Prints a line, which is wrapped on a terminal but not in a file. Paths and names are never split across lines.

    Args:
        text: the line.
        bold: whether to print it in bold type.
        stderr: whether to print to standard error.
        hang: the number of spaces before each wrapped line except the first.
    """
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    text = printable(text)
    if console.is_terminal:
        width = min(max(console.width, MIN_PROSE_WIDTH), MAX_PROSE_WIDTH)
        text = "\n".join(wrap(text, width, hang * " "))
    console.print(text, soft_wrap=True, style="bold" if bold else None)


def print_error(message: str) -> None:
    """Prints a message to stderr. Lines after the first become list items."""
    first, *others = message.split("\n")
    print_line(f"tagalong: {first}", stderr=True, hang=2)
    for line in others:
        print_line(f"  - {line.removeprefix('  - ')}", stderr=True, hang=4)


def print_table(table: TextTable) -> None:
    """Prints a table, which is fitted to the width of a terminal."""
    table.rows = [tuple("\n".join(map(printable, cell.split("\n"))) for cell in row) for row in table.rows]
    for line in table.lines(terminal_width()):
        print(line)


def spinner(what: str, quiet: bool = False) -> AbstractContextManager[Any]:
    """Shows a spinner if stderr is a terminal."""
    return Console(stderr=True, quiet=quiet).status(printable(what))


class StudyProgress:
    """Shows a bar for each stage of the work on a terminal, and otherwise prints a line at its end.

    Args:
        quiet: whether to show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[steps]:,} steps"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        console = Console(stderr=True, quiet=quiet)
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> StudyProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._bars.start()
        self._stage = self._bars.add_task(printable(what), total=total, unit=unit, steps=0)

    def advance(self, n: int) -> None:
        self._bars.advance(self._stage, n)

    def steps(self, n: int) -> None:
        stage = self._bars.tasks[self._stage]
        self._bars.update(self._stage, steps=stage.fields["steps"] + n)

    def done(self) -> None:
        self._bars.stop_task(self._stage)
        stage = self._bars.tasks[self._stage]
        if self._bars.disable and not self._bars.console.quiet:
            finished = f"{stage.completed:.0f} of {stage.total:.0f} {stage.fields['unit']}"
            print_line(f"{stage.description}: {finished}, {stage.elapsed:.0f} s", stderr=True)
