"""`tagalong report`: writes the report of a run, or compares two runs."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagalong.errors import InvalidInput
from tagalong.rendering import TextTable

from . import options
from .terminal import print_line, print_table, print_text, printable, prose_width, screen, spinner

if TYPE_CHECKING:
    from tagalong.study import MethodSummary, RunComparison

MAX_NAME_LENGTH = 6  # of a run's name in a column heading, in characters

Other = Annotated[
    Path | None,
    typer.Argument(
        metavar="OTHER",
        help="A second run to compare with the first.",
        show_default=False,
        autocompletion=options.complete_runs,
    ),
]
OpenOption = Annotated[
    bool, typer.Option("--open", metavar="", help="Open the report in a browser.", rich_help_panel=options.OUTPUT)
]
PageOption = Annotated[
    Path | None,
    options.make_option(
        options.OUTPUT, "--out", "-o", metavar="FILE", text="Output file; report.html in the run's folder by default."
    ),
]


def report(
    run: options.Run,
    other: Other = None,
    out: PageOption = None,
    open_: OpenOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Rewrites the report of a finished run, or compares two runs.

    The report, `report.html`, is a single file that works offline and can be emailed.

    Examples:
        `tagalong report runs/table --open`: open the report of a run in the browser
        `tagalong report runs/table runs/other`: compare two runs
    """
    from tagalong.study import compare_runs, read_run

    if other is not None and (out is not None or open_):
        raise InvalidInput(
            "`out` and `open`", "require a single run", hint="comparisons of two runs are only printed to the terminal"
        )
    if other is None:
        page = _write_page(run, out, json or quiet)
        _print_path(page, json, quiet)
        if open_:
            typer.launch(page.absolute().as_uri())
        return
    comparison = compare_runs(read_run(run).results, read_run(other).results)
    if json:
        print(dumps(comparison.to_document(), indent=1, allow_nan=False))
        return
    _show_comparison(comparison, run, other, quiet)


def _write_page(run: Path, out: Path | None, silent: bool) -> Path:
    from tagalong.report import write_report
    from tagalong.study import read_run

    found = read_run(run)
    try:
        with spinner("writing the report", silent):
            return write_report(found, out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {run} is unchanged, run the same command to write the report") from None


def _print_path(page: Path, json: bool, quiet: bool) -> None:
    if json:
        print(dumps({"page": str(page)}))
    elif quiet:
        print_text(str(page))
    else:
        print_line(screen(), f"report: {page}")


def _show_comparison(comparison: RunComparison, run: Path, other: Path, quiet: bool) -> None:
    console, names = screen(), _run_labels(run, other)
    for name, path, results in zip(names, (run, other), (comparison.first, comparison.second), strict=True):
        print_line(console, name if name == printable(str(path)) else f"{name}: {path}")
        for line in results.verdict().to_text(prose_width(console) - 2).splitlines():
            console.print(f"  {printable(line)}", soft_wrap=True)
        if not quiet:
            console.print()
    if quiet:
        return
    columns = [f"{what} {name}" for what in ("loss", "cost") for name in names]
    shown = TextTable("method", "budget", *columns, numbers=("budget", *columns), names=("method",))
    for (method, budget), pair in comparison.lines.items():
        cells = [*map(_change_cell, pair), *map(_cost_cell, pair)]
        shown.add_row(printable(method), "" if budget is None else str(budget), *cells)
    print_table(console, shown)
    console.print()
    print_line(console, "loss: mean change in test loss relative to mtl; cost: total training cost relative to mtl")
    for remark in comparison.remarks:
        print_line(console, f"note: {remark}")


def _change_cell(line: MethodSummary | None) -> str:
    from tagalong.study import change_text

    return "-" if line is None else change_text(line) or "-"


def _cost_cell(line: MethodSummary | None) -> str:
    if line is None or line.training_cost is None:
        return "-"
    return f"{(line.deciding_cost or 0.0) + line.training_cost:.3g}×"


def _run_labels(run: Path, other: Path) -> tuple[str, str]:
    """Returns the names of the folders, or "A" and "B" if the names are equal or too long."""
    first, second = printable(run.resolve().name), printable(other.resolve().name)
    return (first, second) if first != second and max(len(first), len(second)) <= MAX_NAME_LENGTH else ("A", "B")
