"""The `tagalong` command and its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tagalong._version import __version__

from ._demo import demo
from ._group import group
from ._leaderboard import leaderboard
from ._paper import paper
from ._plan import plan
from ._predict import predict
from ._problems import problems
from ._report import report
from ._run import run
from ._sentences import complain, sentence, usage
from ._verdict import verdict

MANUAL = """Which tasks should train together?

Measures who helps whom, chooses the networks to train for a budget, trains and compares them with the alternatives,
and says whether grouping is worth it.

**Examples**

- `tagalong demo`: everything, on a health survey.
- `tagalong run table.csv --targets age,ill,weight --budgets 2,3`: everything, on your table.
- `tagalong report runs/table --open`: the page of a run; with two runs, both side by side.
- `tagalong predict runs/table new.csv`: with the networks that the verdict recommends.
- `tagalong plan affinity.json --budgets 2,3`, then `tagalong verdict plan.csv`: the same with your own training script.
- `tagalong group affinity.csv --budget 3`: at most three networks.
- `tagalong group losses.csv --objective min --compare mine.yaml`: what a grouping made by hand loses.
- `tagalong paper selection`: the groupings that the paper printed, and the best ones.

**Exit status**: 0 if all went well, 2 with one sentence for wrong input, 130 if interrupted before there was an answer.
"""

app = typer.Typer(
    name="tagalong",
    help=MANUAL,
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
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command()(run)
app.command()(group)
app.command()(problems)
app.command()(plan)
app.command()(verdict)
app.command()(predict)
app.command()(report)
app.command()(leaderboard)
app.add_typer(paper)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: what follows the name of the program; taken from `sys.argv` by default.

    Returns:
        The exit status: 0, 2 for wrong input, 130 if interrupted.

    Example:
        >>> main(["--version"]) == 0
        tagalong ...
        True
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = typer.main.get_command(app).main(given or ["--help"], prog_name="tagalong", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (ValueError, TimeoutError) as error:
        complain(sentence(error))
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        complain(sentence(error))
    except KeyboardInterrupt:
        return 130
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
