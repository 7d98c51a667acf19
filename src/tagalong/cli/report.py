"""`tagalong report`: writes the report of a run."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .terminal import print_line, print_text, screen, spinner

OpenOption = Annotated[
    bool, typer.Option("--open", help="Open the report in a browser.", rich_help_panel=options.OUTPUT)
]
PageOption = Annotated[
    Path | None,
    options.make_option(
        options.OUTPUT, "--out", "-o", metavar="FILE", text="Output file; report.html in the run's folder by default."
    ),
]


def report(
    run: options.Run,
    out: PageOption = None,
    open_: OpenOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Rewrites the report of a finished run.

    The report, `report.html`, is a single file that works offline and can be emailed.

    Examples:
        `tagalong report runs/table --open`: open the report of a run in the browser
    """
    page = _write_page(run, out, json or quiet)
    _print_path(page, json, quiet)
    if open_:
        typer.launch(page.absolute().as_uri())


def _write_page(run: Path, out: Path | None, silent: bool) -> Path:
    from tagalong.report import write_report
    from tagalong.study import read_run

    finished = read_run(run)
    try:
        with spinner("writing the report", silent):
            return write_report(finished, out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {run} is unchanged, run the same command to write the report") from None


def _print_path(page: Path, json: bool, quiet: bool) -> None:
    if json:
        print(dumps({"page": str(page)}))
    elif quiet:
        print_text(str(page))
    else:
        print_line(screen(), f"report: {page}")
