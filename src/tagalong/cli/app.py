"""The `tagalong` command: which commands there are, and how a command line ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from typing import Annotated, Any

import typer

from tagalong._version import __version__
from tagalong.plugins import PluginError, find_plugins, warn_once

from .group import group
from .manual import PURPOSE, Command, Commands, finish_command, manual
from .messages import INTERRUPTED, complain, sentence, usage
from .plan import plan, verdict
from .plugin_commands import ListedCommand, load_command
from .predict import predict
from .report import report
from .run import demo, problems, run

COMPLETING = "_TAGALONG_COMPLETE"  # set by the shell at a Tab


class Root(Commands):
    """`tagalong` itself: its own commands, then those of other packages."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.commands.values():
            finish_command(command)
        self._own = tuple(self.commands)
        self._all_found = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, with what the listing shows of each."""
        self._find_others()
        for command in self.commands.values():
            if isinstance(command, ListedCommand) and command.help is None:
                command.describe()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; one of another package as the listing shows it."""
        self._find_others()
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command to run, which is loaded now."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, ListedCommand):
            try:
                command = load_command(command.plugin)
            except PluginError:
                if not ctx.resilient_parsing:  # at a Tab there is nothing to offer, and nobody to tell
                    raise
        return name, command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, with an example of each command."""
        commands: list[Any] = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        self.epilog = manual([example for command in commands for example in command.examples[:1]])
        super().format_help(ctx, formatter)

    def _find_others(self) -> None:
        if self._all_found:
            return
        self._all_found = True
        for name, plugin in find_plugins("commands", self._own).items():
            try:
                self.commands[name] = ListedCommand(plugin) if plugin.registered is None else load_command(plugin)
            except PluginError as error:  # noqa: PERF203 - a broken one must not hide the others
                warn_once(str(error))


app = typer.Typer(
    name="tagalong",
    cls=Root,
    help=PURPOSE,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tagalong {__version__}")
        raise typer.Exit


@app.callback()
def _tagalong(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", help="Print the version and leave.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    pass


# In the order of use: look, run, see, predict; then the parts one by one.
for _command in (demo, problems, run, report, predict, group, plan, verdict):
    app.command(cls=Command)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: what follows the name of the program; taken from `sys.argv` by default.

    Returns:
        The exit status: 0, 1 if a worker died or nobody reads, 2 for wrong input, 130 if interrupted.

    Example:
        >>> main(["--version"]) == 0
        tagalong ...
        True
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETING in os.environ:
        logging.disable()  # the shell would write warnings into the line that is being typed
    try:
        status = typer.main.get_command(app).main(given or ["--help"], prog_name="tagalong", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (ValueError, TimeoutError) as error:
        complain(sentence(error))
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        complain(sentence(error))
    except BrokenExecutor as error:  # a worker was killed, or has no room: nothing that the user typed
        complain(sentence(error))
        return 1
    except MemoryError as error:
        complain(f"not enough memory: {error or 'ask for less at once'}")
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        return 1
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's errors of usage have no base class in all its releases
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "tagalong")
        complain(f"{usage(error.format_message())} (see `{command} --help`)")
    return 2
