"""The `tagalong` command and its commands."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from typing import Annotated

import typer

from tagalong._version import __version__

from ._demo import demo
from ._group import group
from ._interrupt import STATUS
from ._manual import PURPOSE, Command
from ._plan import plan
from ._plugins import Root
from ._predict import predict
from ._problems import problems
from ._report import report
from ._run import run
from ._sentences import complain, sentence, usage
from ._verdict import verdict

COMPLETING = "_TAGALONG_COMPLETE"

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
        return STATUS
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
