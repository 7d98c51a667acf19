"""The `tagalong` command: registers the subcommands, and turns errors into messages and exit statuses."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tagalong._version import __version__
from tagalong.errors import InvalidInput
from tagalong.registry import Registry

from .group import group
from .manual import PURPOSE, Command, Commands, finish_command, manual
from .messages import FAILED, INTERRUPTED, INVALID, describe_usage_error, explain_error, print_damage, print_error
from .plan import plan, verdict
from .predict import predict
from .report import report
from .run import demo, problems, run
from .terminal import PrintableFormatter

COMPLETION_VARIABLE = "_TAGALONG_COMPLETE"  # set by the shell during tab completion


def _to_command(name: str, loaded: Any) -> Any:
    """Converts a function, or a typer app for a group of commands, to a command."""
    app = typer.Typer(rich_markup_mode="markdown")
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        app.command(name, cls=Command)(loaded)
    command = typer.main.get_group(app).commands[name]
    finish_command(command)
    return command


class RootCommand(Commands):
    """The `tagalong` command, with its own subcommands and those from other packages.

    The latter are imported when they run, and for `tagalong --help`.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.commands.values():
            finish_command(command)
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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help page, including one example per command."""
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        self.epilog = manual([example for command in commands for example in command.examples[:1]])
        super().format_help(ctx, formatter)


app = typer.Typer(
    name="tagalong",
    cls=RootCommand,
    help=PURPOSE,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tagalong {__version__}")
        raise typer.Exit


@app.callback()
def _tagalong(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


# Complete workflows first, then the individual steps.
for _command in (demo, problems, run, report, predict, group, plan, verdict):
    app.command(cls=Command)(_command)


def _flush_output(status: int) -> None:
    """Writes the rest of the output. Raises an error if that fails, unless an earlier error set the exit status."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
        if not status:
            raise


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the interpreter complains at exit


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
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
    if COMPLETION_VARIABLE in os.environ:
        logging.disable()  # warnings would show up in the line being typed
    try:
        with print_damage():
            status = typer.main.get_command(app).main(words or ["--help"], prog_name="tagalong", standalone_mode=False)
        status = status if isinstance(status, int) else 0
        _flush_output(status)
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return FAILED
    except Exception as error:
        if hasattr(error, "format_message"):  # usage errors do not share a base class in every typer release
            command = getattr(getattr(error, "ctx", None), "command_path", "tagalong")
            print_error(f"{describe_usage_error(error)} (see `{command} --help`)")
            return INVALID
        explained = explain_error(error, str)  # raised outside any command, e.g. by a plug-in that cannot be imported
        if explained is None:
            raise
        status, message = explained
        print_error(message)
        return status
