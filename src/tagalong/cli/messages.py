"""How commands end early: the message and the exit status for each kind of error."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

from .terminal import print_error

FAILED, INVALID, INTERRUPTED = 1, 2, 130  # exit statuses
STOPPED = "stopped; what is finished is kept, and the same command continues"
REFERENCE = re.compile(r"`([\w.]+)(?:=([^`]*))?`")


class CommandError(ValueError):
    """Invalid input, in a message that names the options of the command."""


def spell_options(message: str, parameters: Sequence[Any] = ()) -> str:
    """Replaces the arguments of the library that a message names, in backticks, by the options of a command.

    Args:
        message: the message of an error.
        parameters: the command's parameters, as created by typer.

    Example:
        >>> import typer
        >>> app = typer.Typer()
        >>> @app.command()
        ... def roll(max_size: int = 3, fair: bool = True): ...
        >>> parameters = typer.main.get_command(app).params
        >>> spell_options("`max_size` must be 4; pass `max_size=4` or `fair=False`, not `axis`", parameters)
        '--max-size must be 4; pass --max-size 4 or --no-fair, not axis'
    """
    known = {parameter.name: parameter for parameter in parameters}

    def spell(reference: re.Match[str]) -> str:
        name, _, setting = reference[1].partition(".")
        value = (reference[2] or "").strip("'\"")
        if name not in known:
            return reference[0].strip("`")
        if known[name].param_type_name == "argument":
            return str(known[name].metavar or name)
        if known[name].is_flag:
            return str((known[name].secondary_opts if value == "False" else known[name].opts)[0])
        return " ".join(filter(None, [known[name].opts[0], setting, value]))

    return REFERENCE.sub(spell, message)


def explain_error(error: Exception) -> tuple[int, str] | None:
    """Returns the exit status and the message for an error that the user can fix, or None for a bug."""
    text = spell_options(str(error))
    if hasattr(error, "format_message"):  # a command line that typer cannot parse
        return INVALID, error.format_message().replace("Value error, ", "")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = error.filename or "standard output"
        return FAILED, f"{place} could not be written: {error.strerror}; free some space, then run the command again"
    if isinstance(error, OSError) and error.filename:
        return INVALID, f"{error.filename}: {error.strerror}"
    if isinstance(error, BrokenExecutor):  # a worker was killed or ran out of memory
        return FAILED, text
    if isinstance(error, MemoryError):
        return INVALID, f"not enough memory: {text}"
    is_missing_package = isinstance(error, ImportError) and "pip install" in text
    return (INVALID, text) if is_missing_package or isinstance(error, (ValueError, OSError)) else None


class WarningPrinter(logging.Handler):
    """Prints the warnings of the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        print_error(f"warning: {record.getMessage()}")
