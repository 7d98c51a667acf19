"""How commands end: errors as one plain sentence, and Ctrl-C."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType, TracebackType
from typing import Any

import typer
from rich.console import Console

from .terminal import print_line

INTERRUPTED = 130  # the exit status after Ctrl-C
OPTIONS = (
    *("budgets", "budget", "cost", "max_cost", "max_size", "must_link", "cannot_link", "allow_single", "weights"),
    *("objective", "axis", "average", "complete", "tasks", "solver", "time_limit", "seed", "resamples"),
    *(
        "targets",
        "features_file",
        "features",
        "ignore",
        "categorical",
        "kinds",
        "errors",
        "split_column",
        "group_column",
    ),
    *("methods", "seeds", "set", "price_per_hour", "confirm", "recipe", "executor", "device", "size", "with", "out"),
)
SPELT = {"allow_single=False": "--no-single", "allow_single=True": "--allow-single"}


def complain(message: str) -> None:
    """Prints a sentence where errors go, wrapped on a terminal; names in it that would move the cursor cannot."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    for line in f"tagalong: {message}".split("\n"):
        print_line(console, line, hang=4 if line.startswith("  - ") else 2)


def sentence(error: Exception, file: str | None = None) -> str:
    """What an error says, with options instead of arguments, and the file's name instead of `scores`.

    Example:
        >>> sentence(ValueError("`max_cost` needs `cost`, found none"))
        '--max-cost needs --cost, found none'
        >>> sentence(ValueError("`solver='lp'` needs at most 24 tasks; solver='auto' chooses one that fits"))
        '--solver lp needs at most 24 tasks; --solver auto chooses one that fits'
    """
    text = str(error)
    for name in OPTIONS:
        option = f"--{name.replace('_', '-')}"
        text = re.sub(rf"`?\b{name}=(True|False)\b`?", lambda found: SPELT.get(found[0].strip("`"), found[0]), text)
        text = re.sub(rf"`?\b{name}=['\"]?([\w.]+)['\"]?`?", rf"{option} \1", text)
        text = text.replace(f"`{name}`", option)
    text = text.replace("`scores`", file or "the scores").replace("`groups`", "the groups")
    text = text.replace("`", "")  # arguments that are no options, such as those of a problem
    first, *others = text.split("\n")
    return "\n".join([first, *(f"  - {line.removeprefix('  - ')}" for line in others)])


@contextmanager
def renamed_arguments(**typed: str) -> Iterator[None]:
    """Errors inside name what was typed, instead of the library's arguments.

    Example:
        >>> with renamed_arguments(path="table.csv"):
        ...     raise ValueError("`path` must have rows, found none")
        Traceback (most recent call last):
        ValueError: table.csv must have rows, found none
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        for argument, word in typed.items():
            text = text.replace(f"`{argument}`", word)
        raise ValueError(text) from error


def usage(message: str) -> str:
    """What typer says about an option, without its frame.

    Example:
        >>> usage("Invalid value for '--budget' / '-b': must be a number, found 'x'.")
        "--budget must be a number, found 'x'"
        >>> usage("Invalid value for 'what': Value error, 'x' is not one of 'a', 'b'.")
        "'x' is not one of 'a', 'b'"
    """
    found = re.fullmatch(r"Invalid value for '([\w-]+)'(?: / '[^']+')*: (.*)", message, re.DOTALL)
    if not found:
        return message.rstrip(".")
    said = found[2].removeprefix("Value error, ").rstrip(".")
    if not found[1].startswith("--"):
        return said
    return f"{found[1]}{'' if said.startswith('must') else ':'} {said}"


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which Ctrl-C ends with a sentence: that of the error, if it has one, and exit status 130."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as error:
            complain(str(error) or "stopped; nothing was changed, the same command starts again")
            raise typer.Exit(INTERRUPTED) from None

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
