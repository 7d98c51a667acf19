"""The `tagalong` command: its subcommands, their help pages, and the exit status."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tagalong._version import __version__
from tagalong.errors import InvalidInput
from tagalong.registry import Registry

from .group import group
from .messages import FAILED, INTERRUPTED, STOPPED, CommandError, WarningPrinter, explain_error, spell_options
from .options import expand_groups
from .own_networks import plan, verdict
from .predict import predict
from .run import demo, problems, report, run
from .terminal import print_error

COMPLETION_VARIABLE = "_TAGALONG_COMPLETE"  # set by the shell during tab completion
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Your data": (run, predict, report),
    "Your own training loop": (group, plan, verdict),
    "Examples": (demo, problems),
}
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


class FlagsWithoutType:
    """Leaves out the type of flags on help pages."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the options and arguments."""
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
        """Returns the names of all commands that can be loaded."""
        return list(self._registry.load())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command with this name."""
        try:
            return self._registry.find(cmd_name, "command")
        except InvalidInput:
            if ctx.resilient_parsing:  # in shell completion, there is nothing to suggest
                return None
            raise

    def invoke(self, ctx: Any) -> Any:
        """Runs a subcommand; Ctrl-C ends it with a message."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print_error(STOPPED)
            raise typer.Exit(INTERRUPTED) from None


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
    if COMPLETION_VARIABLE not in os.environ:  # they would show up in the line being typed
        logger.addHandler(warnings)
    try:
        for before, word in pairwise(["tagalong", *words]):
            if not word.strip():  # e.g. an unset variable of the shell; as a path, it would be the current folder
                raise CommandError(f"the argument after {before} is empty")
        status = typer.main.get_command(app).main(words or ["--help"], prog_name="tagalong", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            # Standard output cannot be written, of which the interpreter would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return FAILED
        explained = explain_error(error)
        if explained is None:
            raise
        status, message = explained
        print_error(message)
        return status
    finally:
        logger.removeHandler(warnings)
