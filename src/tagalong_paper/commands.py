"""`tagalong paper`: reproduces the numbers in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tagalong.cli import (
    JsonOption,
    OutFolder,
    ProblemOptions,
    QuietOption,
    StudyProgress,
    TextTable,
    TrainingOptions,
    given,
    option,
    parse_names,
    print_line,
    print_table,
)
from tagalong.errors import InvalidInput

from .experiments import EXPERIMENTS, find_experiment, run_experiment
from .report import Cell, Report, ReportTable, Value

MAX_CELL_WIDTH = 60  # a table with a longer cell is shown as a list
PANEL = "Experiment"


def paper(
    changes: ProblemOptions,
    training: TrainingOptions,
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT",
            help="An experiment; without it, all are listed.",
            show_default=False,
            autocompletion=lambda incomplete: [
                experiment.name for experiment in EXPERIMENTS if experiment.name.startswith(incomplete)
            ],
        ),
    ] = None,
    problem: Annotated[
        str,
        option(PANEL, "faces (a synthetic substitute for CelebA), celeba or taskonomy.", "NAME"),
    ] = "faces",
    size: Annotated[
        Literal["small", "full"],
        option(PANEL, "small finishes in seconds; full matches the paper and requires a GPU."),
    ] = "small",
    seeds: Annotated[
        int | None,
        option(PANEL, "Number of seeds; by default 2 at small size, 3 at full size, and 1 for Taskonomy.", "NUMBER"),
    ] = None,
    methods: Annotated[
        Sequence[str] | None,
        option(
            PANEL,
            "For capacity and no-early-stopping: methods to train, such as mtl,uw,gradnorm.",
            "A,B,…",
            parser=parse_names,
        ),
    ] = None,
    as_published: Annotated[
        bool,
        option(
            PANEL,
            "For main: TAG's step as in the published code (with momentum, divided by the learning rate).",
            None,
            "--as-published",
        ),
    ] = False,
    out: OutFolder = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reproduces the paper's numbers (Fifty et al., NeurIPS 2021) and shows where ours differ.

    Networks that are already in the folder are not trained again.

    Examples:
    - `tagalong paper`: list all experiments
    - `tagalong paper selection`: compare the printed groupings with the best ones
    - `tagalong paper main --seeds 2`: reproduce the main figure with synthetic faces, in seconds
    """
    if experiment is None:
        for listed in EXPERIMENTS:
            start = f"tagalong paper {listed.name:<17}  "
            print_line(start + listed.summary, hang=len(start))
        return
    options: dict[str, Any] = {} if methods is None else {"methods": methods}
    options |= {"as_published": True} if as_published else {}
    if find_experiment(experiment, **options).trains:
        from .experiment_setup import load_setup

        with StudyProgress(json or quiet) as progress:
            setup = load_setup(
                problem,
                size,
                out=out,
                seeds=seeds,
                tasks=changes.tasks,
                options=dict(changes.settings or ()),
                recipe=dict(changes.recipe or ()),
                progress=progress,
                **given(training),
            )
            report = run_experiment(experiment, setup, **options)
            files = report.save(setup.out)
    elif seeds or given(changes) or given(training):
        raise InvalidInput(f"the experiment {experiment}", "has no options for training, since it trains no networks")
    else:
        report = run_experiment(experiment)
        files = [] if out is None else report.save(out)
    if json:
        print(report.to_json())
    else:
        show_report(report, files, quiet)


def show_report(report: Report, files: Sequence[Path] = (), quiet: bool = False) -> None:
    """Shows a report.

    Args:
        report: the report.
        files: the files that were written.
        quiet: whether to show only the claims.
    """
    if not quiet:
        for line in (report.title, *report.notes):
            print_line(line)
        for table in report.tables:
            print_line("")
            print_line(table.title)
            _show_table(table)
        print_line("")
        print_line("Were the paper's claims reproduced?")
    for claim in report.claims:
        print_line(f"* {claim.reproduced}: {claim.text}. {claim.because}".rstrip(" .") + ".")
    if files and not quiet:
        print_line("")
        print_line(f"{files[0].parent}: {', '.join(file.name for file in files)}")


def _show_table(table: ReportTable) -> None:
    rows = [["-" if cell is None else str(cell) for cell in row] for row in table.rows]
    if any(len(text) > MAX_CELL_WIDTH for row in rows for text in row):
        for row in rows:
            cells = [f"{column}: {text}" for column, text in zip(table.columns, row, strict=True)]
            print_line(f"* {'; '.join(cells)}")
    else:
        numbers = [column for column in table.columns if any(map(_is_number, table.column(column)))]
        shown = TextTable(*table.columns, numbers=numbers)
        for row in rows:
            shown.add_row(*row)
        print_table(shown)
    if table.note:
        print_line(f"({table.note})")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, (int, Value))
