"""Ctrl-C: says what is kept and how to go on; a search is asked for the best so far first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any

import typer

from ._sentences import complain

STATUS = 130


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which Ctrl-C ends with a sentence: that of the error, if it has one, and exit status 130."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as error:
            complain(str(error) or "stopped; nothing was changed, the same command starts again")
            raise typer.Exit(STATUS) from None

    return wrapped


def goes_on(out: object) -> KeyboardInterrupt:
    """What to raise instead of an interrupt of work that is kept."""
    return KeyboardInterrupt(f"stopped; finished networks are kept in {out}, the same command goes on from there")


class Interrupt:
    """While entered, the first Ctrl-C only sets `asked`; the second is as usual.

    Example:
        >>> with Interrupt() as interrupt:
        ...     signal.raise_signal(signal.SIGINT)
        ...     interrupt.asked()
        True
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._asked

    def __enter__(self) -> Interrupt:
        # Only the main thread may choose what a signal does.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print("stopping with the best so far; Ctrl-C again leaves at once", file=sys.stderr)
