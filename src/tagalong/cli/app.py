"""The `tagalong` command: its subcommands, their help pages, messages of errors, and the exit status."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tagalong._version import __version__
from tagalong.registry import Registry

from .group import group
from .options import expand_groups
from .own_networks import plan, verdict
from .predict import predict
from .run import demo, problems, report, run
from .terminal import print_error

PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Your data": (run, predict, report),
    "Your own training loop": (group, plan, verdict),
    "Examples": (demo, problems),
}
FAILED, INVALID, INTERRUPTED = 1, 2, 130  # exit statuses
STOPPED = "stopped; what is finished is kept, and the same command continues"
REFERENCE = re.compile(r"`([\w.]+)(?:=([^`]*))?`")
RESEARCH = ("paper", "leaderboard")
PURPOSE = """Which tasks should train together?

Measures which tasks help each other in a single training run, chooses the networks to train within a budget, trains
them, compares them with the alternatives, and tells you what to use.
"""
MANUAL = """**Examples**

- `tagalong demo`: a health survey, in less than two minutes
- `tagalong run table.csv --targets age,ill,weight`: what predicts the columns of your table best
- `tagalong predict runs/table new.csv --out answers.csv`: predictions for new rows
- `tagalong group affinity.csv`: what each number of networks brings

**Files in the folder of a run (`--out`; by default in `runs/`)**

- `report.html`: the report: a single file that works offline and can be emailed
- `results.json`: all results, including the table and the verdict
- `affinity.json, groupings.json`: the affinities, and the groups for each method and budget
- `networks/`: the recommended networks, for `tagalong predict`
- `settings.json, run.log`: the settings, versions and seeds; a log with timestamps
- `run.sqlite, partial/`: trained networks, which let the same command resume

**Exit status**

- `0`: success
- `1`: a worker process died, the disk is full, or the output pipe was closed
- `2`: invalid input, reported before anything is trained
- `130`: stopped by Ctrl-C; finished work is kept, and the same command resumes

**Environment**

- `COLUMNS`: the width of tables, if different from that of the terminal
- `NO_COLOR`: turns colors off; output to files and pipes never has colors

See `tagalong COMMAND --help` for details; `tagalong --install-completion` sets up shell completion.
"""


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
    if hasattr(error, "format_message"):  # a command line that typer cannot parse
        return INVALID, error.format_message().replace("Value error, ", "")
    if isinstance(error, OSError) and error.strerror:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return FAILED if is_full else INVALID, f"{error.filename or 'standard output'}: {error.strerror}"
    text = spell_options(str(error)) or type(error).__name__
    if isinstance(error, BrokenExecutor):  # a worker was killed or ran out of memory
        return FAILED, text
    is_missing_package = isinstance(error, ImportError) and "pip install" in text
    is_fixable = is_missing_package or isinstance(error, (ValueError, OSError, MemoryError))
    return (INVALID, text) if is_fixable else None


class WarningPrinter(logging.Handler):
    """Prints the warnings of the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        print_error(f"warning: {record.getMessage()}")


class FlagsWithoutType:
    """Leaves out the type of flags on help pages."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(FlagsWithoutType, TyperCommand):
    """A command whose docstring ends with examples, which the help page shows below the options."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.help, _, examples = (self.help or "").partition("\n\nExamples:\n")
        self.epilog = f"**Examples**\n\n{examples}" if examples else None

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; messages of errors name its options."""
        try:
            return super().invoke(ctx)
        except ValueError as error:
            raise CommandError(spell_options(str(error), self.params)) from error


class RootCommand(FlagsWithoutType, TyperGroup):
    """The `tagalong` command, with its own subcommands and those from other packages.

    The latter are imported when they run, and for `tagalong --help`.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._registry = Registry("command", _to_command, self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._registry.load())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._registry.get(cmd_name)


def _to_command(name: str, loaded: Any) -> Any:
    """Converts a function, or a typer app for a group of commands, to a command."""
    plugins = typer.Typer(rich_markup_mode="markdown")
    panel = "Research" if name in RESEARCH else "Commands of other packages"
    if isinstance(loaded, typer.Typer):
        plugins.add_typer(loaded, name=name, rich_help_panel=panel)
    else:
        plugins.command(name, cls=Command, rich_help_panel=panel)(expand_groups(loaded))
    return typer.main.get_group(plugins).commands[name]


app = typer.Typer(
    name="tagalong",
    cls=RootCommand,
    help=PURPOSE,
    epilog=MANUAL,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for _panel, _commands in PANELS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_panel)(expand_groups(_command))


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tagalong {__version__}")
        raise typer.Exit


@app.callback()
def _tagalong(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the command-line arguments; `sys.argv[1:]` by default.

    Returns:
        The exit status: 0 on success, 1 if a worker died, the disk is full or the output pipe was closed, 2 for invalid
            input, 130 if interrupted.

    Example:
        >>> main(["--version"]) == 0
        tagalong ...
        True
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings, logger = WarningPrinter(), logging.getLogger("tagalong")
    logger.addHandler(warnings)
    try:
        for before, word in pairwise(["tagalong", *words]):
            if not word.strip():  # e.g. an unset variable of the shell; as a path, it would be the current folder
                raise CommandError(f"the argument after {before} is empty")
        status = typer.main.get_command(app).main(words or ["--help"], prog_name="tagalong", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:
            print_error(STOPPED)
        return status or 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            # Standard output cannot be written, of which the interpreter would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        explained = explain_error(error)
        if explained is None:
            raise
        status, message = explained
        if not isinstance(error, BrokenPipeError):
            print_error(message)
        return status
    finally:
        logger.removeHandler(warnings)
