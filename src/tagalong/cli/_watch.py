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

BAR = 10  # columns


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
    """A bar for each piece of work, with networks, steps and the time left; all of them vanish in the end."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self._bars.start()
        self._task = self._bars.add_task(what, total=total, unit=unit, steps="", clock="")
        self._finished = self._steps = 0
        self._total, self._began = total, time.monotonic()

    def advance(self, n: int) -> None:
        self._finished += n
        self._bars.update(self._task, advance=n, clock=self._clock())

    def steps(self, n: int) -> None:
        self._steps += n
        self._bars.update(self._task, steps=f"{shortened(self._steps)} steps")

    def done(self) -> None:
        self._bars.update(self._task, clock=f"{duration(time.monotonic() - self._began)}")
        self._bars.stop_task(self._task)

    def _clock(self) -> str:
        """The time left, if the networks to come take as long as those that are finished."""
        spent = time.monotonic() - self._began
        return f"{duration(spent * (self._total - self._finished) / self._finished)} left" if self._finished else ""


def shortened(number: int) -> str:
    """A count in few letters.

    Example:
        >>> shortened(950), shortened(12_345), shortened(3_456_789)
        ('950', '12k', '3.5M')
    """
    size, letter = next(((size, letter) for size, letter in ((1e6, "M"), (1e3, "k")) if number >= size), (1, ""))
    return f"{number / size:.1f}{letter}" if size > 1 and number < 10 * size else f"{number / size:.0f}{letter}"


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    Example:
        >>> duration(5), duration(95), duration(7300)
        ('5 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def _bars(console: Console) -> Iterator[Bars]:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    name = Column(no_wrap=True, overflow="ellipsis", min_width=12)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=name),
        BarColumn(bar_width=BAR),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[steps]}", table_column=Column(no_wrap=True, justify="right")),
        TextColumn("{task.fields[clock]}", table_column=Column(no_wrap=True)),
    )
    bars = Progress(*columns, console=console, transient=True)
    try:
        yield Bars(bars)
    finally:
        bars.stop()
