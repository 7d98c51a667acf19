"""`tagalong verdict`: is grouping worth it, by losses of networks that were trained elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _study_options as options
from ._arguments import check_folder, whole_budgets
from ._sentences import called
from ._study_page import show_table
from ._terminal import say, screen

if TYPE_CHECKING:
    from tagalong.study import Results

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A filled-in plan, or a finished run's folder or results.json.", show_default=False
    ),
]


def verdict(
    file: File,
    budgets: options.BudgetsOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compares networks that you trained, and says whether grouping is worth it.

    FILE has one row per network, seed and task, with the columns network (such as age+ill), seed, task, val_loss and
    test_loss, as `tagalong plan` writes it. The choice is made on validation and judged on test losses. With `--out`
    the results and their page, `report.html`, are kept too.

    Example:
        `tagalong verdict plan.csv --out runs/own`: what came of it, with a page
    """
    from tagalong.study import Results, verdict_from_csv

    _check(out)
    if file.is_dir() or file.suffix.lower() == ".json":
        with called(path=str(file)):
            results = Results.load(file)
    else:
        results = verdict_from_csv(file, budgets=None if budgets is None else whole_budgets(budgets, _tasks(file)))
    page = None if out is None else _keep(results, out, file)
    if json:
        from json import dumps

        print(dumps(results.to_document(), indent=1, allow_nan=False))
        return
    show_table(results, quiet)
    if page is not None and not quiet:
        console = screen()
        console.print()
        say(console, f"the report: {page}")


def _check(out: Path | None) -> None:
    check_folder(out)
    if out is not None and (out / "run.sqlite").exists():
        raise ValueError(f"--out must not be the folder of a run, whose results would be lost, found {out}")


def _keep(results: Results, out: Path, file: Path) -> Path:
    """`results.json` and `report.html`."""
    from tagalong.report import write_report

    results.settings.setdefault("command", ["tagalong", "verdict", str(file), "--out", str(out)])
    results.save(out / "results.json")
    return write_report(out)


def _tasks(file: Path) -> int:
    from tagalong.study._plan_csv import read_lines

    return len({line["task"] for line in read_lines(file)[0]})
