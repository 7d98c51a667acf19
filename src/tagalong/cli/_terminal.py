"""Where things are shown: tables on stdout, progress on stderr, colours only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table


def screen() -> Console:
    """Standard output as it is now."""
    return Console(highlight=False, markup=False, emoji=False)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """A plain table; columns of numbers are right-aligned."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        right = column in numbers
        made.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made


def say(console: Console, text: str) -> None:
    """Prints a line, wrapped on a terminal only: in a file it stays one line."""
    console.print(clean(text), soft_wrap=not console.is_terminal)


def put(console: Console, made: Table) -> None:
    """Prints a table without the space that fills its last column."""
    with console.capture() as captured:
        console.print(made)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=console.file)


def clean(name: str) -> str:
    """A name without what would move the cursor or tear a table."""
    return "".join(sign if sign.isprintable() else "?" for sign in name)


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
