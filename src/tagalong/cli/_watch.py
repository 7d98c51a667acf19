"""How far a study is: a bar per piece of work, on a terminal; a line when each is done, elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from tagalong.study import Progress


@contextmanager
def watching(quiet: bool = False) -> Iterator[Progress | None]:
    """What a study tells its progress to, on stderr; None if nobody wants to know."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if quiet:
        yield None
    elif not console.is_terminal:
        yield Lines()
    else:
        with _bars(console) as bars:
            yield bars


class Lines:
    """A line for each finished piece of work."""

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._total, self._what, self._unit, self._began = total, what, unit, time.monotonic()
        self._finished = 0

    def advance(self, n: int) -> None:
        self._finished += n

    def done(self) -> None:
        seconds = time.monotonic() - self._began
        print(f"{self._what}: {self._finished} of {self._total} {self._unit}, {seconds:.0f} s", file=sys.stderr)


class Bars:
    """A bar for each piece of work, from the first on; finished ones stay."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._bars.start()
        self._task = self._bars.add_task(what, total=total, unit=unit)

    def advance(self, n: int) -> None:
        self._bars.advance(self._task, n)

    def done(self) -> None:
        self._bars.stop_task(self._task)


@contextmanager
def _bars(console: Console) -> Iterator[Bars]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    bars = Progress(*columns, console=console)
    try:
        yield Bars(bars)
    finally:
        bars.stop()
