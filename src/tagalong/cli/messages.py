"""Messages for commands that end early because of invalid input, a failure or Ctrl-C."""

from __future__ import annotations

import errno
import logging
import signal
import sys
import threading
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import typer
from rich.console import Console

from tagalong.errors import InvalidInput, ReferenceFormatter
from tagalong.files import damage_logger, describe_unwritten

from .terminal import print_line

FAILED, INVALID, INTERRUPTED = 1, 2, 130  # exit statuses
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def print_error(message: str) -> None:
    """Prints a message to stderr, wrapped if stderr is a terminal. Lines after the first become list items."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    first, *others = f"tagalong: {message}".split("\n")
    print_line(console, first, hang=2)
    for line in others:
        print_line(console, f"  - {line.removeprefix('  - ')}", hang=4)


class WarningPrinter(logging.Handler):
    """Prints each warning to stderr once, in the style of the other messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._printed:  # a file that is read twice is damaged both times
            self._printed.add(message)
            print_error(f"warning: {message}")


@contextmanager
def print_damage() -> Iterator[None]:
    """Prints warnings about damaged files, also those that a run writes to its log file."""
    printer = WarningPrinter()
    damage_logger.addHandler(printer)
    try:
        yield
    finally:
        damage_logger.removeHandler(printer)


def spell_options(parameters: Sequence[Any]) -> ReferenceFormatter:
    """Returns a function that converts argument names to command-line options and leaves other names unchanged.

    Args:
        parameters: the command's parameters, as created by typer.

    Example:
        >>> app = typer.Typer()
        >>> @app.command()
        ... def group(allow_single: bool = typer.Option(True, "--allow-single/--no-single"), max_size: int = 3): ...
        >>> spell = spell_options(typer.main.get_command(app).params)
        >>> spell("max_size"), spell("max_size=4"), spell("allow_single=False"), spell("axis")
        ('--max-size', '--max-size 4', '--no-single', 'axis')
    """
    options = {parameter.name.rstrip("_"): parameter for parameter in parameters if _long_names(parameter.opts)}

    def spell(reference: str) -> str:
        name, equals, value = reference.partition("=")
        option = options.get(name)
        if option is None:
            return reference
        if equals and option.is_flag:
            return _long_names(option.opts if value == "True" else option.secondary_opts)[0]
        return f"{_long_names(option.opts)[0]}{' ' * bool(equals)}{_unquote(value)}"

    return spell


def _long_names(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith("--")]


def _unquote(value: str) -> str:
    return str(literal_eval(value)) if value[:1] in ("'", '"') else value


@contextmanager
def name_arguments(**names: str) -> Iterator[None]:
    """Makes error messages refer to what the user typed, such as a file name instead of `path`.

    Example:
        >>> with name_arguments(path="table.csv"):
        ...     raise InvalidInput("path", "must have rows", "none")
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: table.csv must have rows, found none
    """
    try:
        yield
    except InvalidInput as error:
        error.show_as(names)
        raise
    except ValueError as error:
        invalid = InvalidInput("", str(error))
        invalid.show_as(names)
        raise invalid from error


def explain_error(error: BaseException, spelling: ReferenceFormatter) -> tuple[int, str] | None:
    """Returns the exit status and the message for an error that the user can fix, or None for a bug."""
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, InvalidInput):
        return INVALID, error.render(spelling)
    is_missing_package = isinstance(error, ImportError) and "pip install" in str(error)
    if is_missing_package or isinstance(error, (ValueError, TimeoutError)):
        return INVALID, InvalidInput("", str(error)).render(spelling)
    if isinstance(error, BrokenExecutor):  # a worker was killed or ran out of memory
        return FAILED, InvalidInput("", str(error)).render(spelling)
    if isinstance(error, MemoryError):
        return INVALID, f"not enough memory: {error or 'try a smaller problem'}"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        place = Path(error.filename or "standard output")
        return FAILED, f"{describe_unwritten(place, error)}; free some space, then run the same command again"
    if isinstance(error, OSError):
        return INVALID, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, str(error) or "stopped; nothing was changed, run the same command to start again"
    return None


def end_with_message(callback: Callable[..., None], parameters: Sequence[Any]) -> Callable[..., None]:
    """Wraps a command so that an error ends it with a message and an exit status instead of a traceback.

    Args:
        callback: the function that implements the command.
        parameters: the command's parameters, which messages refer to by option name.
    """

    @wraps(callback)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            callback(*arguments, **options)
        except (Exception, KeyboardInterrupt) as error:
            explained = explain_error(error, spell_options(parameters))
            if explained is None:
                raise
            status, message = explained
            print_error(message)
            raise typer.Exit(status) from None

    return wrapped


def describe_usage_error(error: Any) -> str:
    """Describes a command line that typer could not parse, in the style of the other messages."""
    parameter = getattr(error, "param", None)
    message = getattr(error, "message", "").removeprefix("Value error, ").rstrip(".")
    if parameter is None or not message:
        return str(error.format_message()).rstrip(".")
    names = _long_names(parameter.opts)
    if not names:
        return message
    return f"{names[0]}{'' if message.startswith('must') else ':'} {message}"


def resumable(out: object) -> KeyboardInterrupt:
    """Returns the exception to raise on Ctrl-C when the finished networks are kept."""
    return KeyboardInterrupt(f"stopped; finished networks are kept in {out}, run the same command to continue")


class InterruptRequest:
    """A context manager in which the first Ctrl-C only sets a flag and the second one interrupts as usual.

    Example:
        >>> with InterruptRequest() as interrupt:
        ...     signal.raise_signal(signal.SIGINT)
        ...     interrupt.received()
        True
    """

    def __init__(self) -> None:
        self._received = False
        self._previous_handler: Any = None

    def received(self) -> bool:
        """Returns whether Ctrl-C was pressed."""
        return self._received

    def __enter__(self) -> InterruptRequest:
        if threading.current_thread() is threading.main_thread():  # no other thread may set signal handlers
            self._previous_handler = signal.signal(signal.SIGINT, self._handle_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _handle_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._received:
            raise KeyboardInterrupt
        self._received = True
        print("stopping with the best result so far; press Ctrl-C again to quit immediately", file=sys.stderr)
