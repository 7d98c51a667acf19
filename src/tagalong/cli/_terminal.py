"""Where things are shown: tables on stdout, progress on stderr, colours only on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

NARROWEST, WIDEST = 40, 100  # columns of sentences
SHORTEST_NAME = 8  # letters
JOINERS = "\u200c\u200d"  # part of how Persian, Hindi and emoji are written; they move nothing
FILLED = re.compile(r" +((?:\x1b\[[\d;]*m)*)$")


def screen() -> Console:
    """Standard output as it is now."""
    return Console(highlight=False, markup=False, emoji=False)


def table(*columns: str, numbers: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Table:
    """A plain table; numbers are right-aligned, and names shortened where it is narrow, instead of broken."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        whole = column in (*numbers, *names)
        made.add_column(
            column,
            justify="right" if column in numbers else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    return made


def prose_width(console: Console) -> int:
    """Columns that sentences take: those of the screen, as far as lines stay easy to read."""
    return min(max(console.width, NARROWEST), WIDEST)


def say(console: Console, text: str, hang: int = 0) -> None:
    """Prints a line, wrapped on a terminal only: in a file it stays one line. Paths and names are never broken.

    Args:
        console: where.
        text: what.
        hang: columns by which lines after the first are indented.
    """
    text = clean(text)
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    start = " " * (hang or 2 * text.startswith("* "))
    width = prose_width(console)
    for line in wrap(text, width, subsequent_indent=start, break_long_words=False, break_on_hyphens=False):
        console.print(line, soft_wrap=True)


def put(console: Console, made: Table) -> None:
    """Prints a table without the space that fills its last column; where it is too wide, names get shorter first."""
    _shorten_names(console, made)
    with console.capture() as captured:
        console.print(made)
    for line in captured.get().splitlines():
        print(FILLED.sub(r"\1", line), file=console.file)


def _shorten_names(console: Console, made: Table) -> None:
    endless = console.options.update(max_width=10_000)
    excess = Measurement.get(console, endless, made).maximum - console.width
    for column in made.columns:
        if excess > 0 and column.no_wrap and column.justify == "left":
            longest = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
            column.max_width = max(longest - excess, SHORTEST_NAME)
            excess -= longest - column.max_width


def clean(name: str) -> str:
    """A name without what would move the cursor or tear a table."""
    return "".join(sign if sign.isprintable() or sign in JOINERS else "?" for sign in name)


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[None]:
    """A spinner with the time elapsed, on a terminal only."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet or not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(what, total=None)
        yield
