"""`tagalong paper`: reproduces the numbers in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tagalong.cli import (
    DeviceOption,
    ExecutorOption,
    JsonOption,
    OutOption,
    QuietOption,
    RecipeOption,
    TasksOption,
    TextTable,
    WithOption,
    check_folder,
    complete_words,
    integer_option,
    name_arguments,
    parse_names,
    parse_options,
    parse_problem_options,
    print_line,
    print_table,
    printable,
    resumable,
    screen,
    show_progress,
)
from tagalong.errors import InvalidInput

from .experiments import EXPERIMENTS, find_experiment, run_experiment
from .report import Cell, Report, ReportTable, Value

MAX_CELL_WIDTH = 60  # a table with a longer cell is shown as a list
OPTION_NAMES = {
    "problem": "--problem",
    "task": "--tasks",
    "recipe.lr": "--recipe lr",
    "seed": "--with seed",
    "data": "--with data",
    "workers": "workers of --executor",
}


def _option(name: str, metavar: str, text: str, *words: str, parser: Any = None) -> Any:
    complete = complete_words(*words) if words else None
    return typer.Option(
        name,
        metavar=metavar,
        help=text,
        parser=parser,
        autocompletion=complete,
        show_default=False,
        rich_help_panel="Experiment",
    )


ExperimentName = Annotated[
    str | None,
    typer.Argument(
        metavar="EXPERIMENT",
        help="An experiment; without it, all are listed.",
        show_default=False,
        autocompletion=complete_words(*(experiment.name for experiment in EXPERIMENTS)),
    ),
]
Problem = Annotated[
    str,
    _option(
        "--problem",
        "NAME",
        "Problem to train on; faces is a synthetic substitute for CelebA.",
        "faces",
        "celeba",
        "taskonomy",
    ),
]
Size = Annotated[
    str,
    _option(
        "--size", "small|full", "small finishes in seconds; full matches the paper and requires a GPU.", "small", "full"
    ),
]
Seeds = Annotated[
    int | None,
    _option(
        "--seeds",
        "NUMBER",
        "Number of seeds; by default 2 at small size, 3 at full size, and 1 for Taskonomy.",
        parser=integer_option,
    ),
]
Methods = Annotated[
    str | None,
    _option(
        "--methods",
        "A,B,…",
        "For capacity and no-early-stopping: methods to train, such as mtl,uw,gradnorm.",
        "mtl",
        "uw",
        "gradnorm",
    ),
]
AsPublished = Annotated[
    bool,
    _option(
        "--as-published",
        "",
        "For main: TAG's step as in the published code (with momentum, divided by the learning rate).",
    ),
]


def paper(
    experiment: ExperimentName = None,
    problem: Problem = "faces",
    size: Size = "small",
    seeds: Seeds = None,
    tasks: TasksOption = None,
    with_: WithOption = None,
    recipe: RecipeOption = None,
    methods: Methods = None,
    as_published: AsPublished = False,
    executor: ExecutorOption = None,
    device: DeviceOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Reproduces the paper's numbers (Fifty et al., NeurIPS 2021) and shows where ours differ.

    Networks that are already in the folder are not trained again.

    Examples:
        `tagalong paper`: list all experiments
        `tagalong paper selection`: compare the printed groupings with the best ones
        `tagalong paper main --seeds 2`: reproduce the main figure with synthetic faces, in seconds
    """
    if experiment is None:
        for listed in EXPERIMENTS:
            start = f"tagalong paper {listed.name:<17}  "
            print_line(screen(), start + listed.summary, hang=len(start))
        return
    options: dict[str, Any] = {} if methods is None else {"methods": parse_names(methods)}
    options |= {"as_published": True} if as_published else {}
    check_folder(out)  # before generating or decoding images, which takes minutes
    if find_experiment(experiment, **options).trains:
        from .experiment_setup import load_setup

        with name_arguments(**OPTION_NAMES), show_progress(json or quiet) as progress:
            setup = load_setup(
                problem,
                size,
                out=out,
                seeds=seeds,
                tasks=parse_names(tasks),
                options=parse_problem_options(with_ or [], "recipe", "size"),
                recipe=parse_options(recipe or [], "recipe"),
                device=device or "auto",
                executor=executor or "serial",
                progress=progress,
            )
            try:
                report = run_experiment(experiment, setup, **options)
                files = report.save(setup.out)
            except KeyboardInterrupt:
                raise resumable(setup.out) from None
    elif seeds or tasks or with_ or recipe or executor or device:
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
    console = screen()
    if not quiet:
        for line in (report.title, *report.notes):
            print_line(console, line)
        for table in report.tables:
            print_line(console, "")
            print_line(console, table.title)
            _show_table(console, table)
        print_line(console, "")
        print_line(console, "Were the paper's claims reproduced?")
    for claim in report.claims:
        print_line(console, f"* {claim.reproduced}: {claim.text}. {claim.because}".rstrip(" .") + ".")
    if files and not quiet:
        print_line(console, "")
        print_line(console, f"{files[0].parent}: {', '.join(file.name for file in files)}")


def _show_table(console: Console, table: ReportTable) -> None:
    rows = [["-" if cell is None else printable(str(cell)) for cell in row] for row in table.rows]
    if any(len(text) > MAX_CELL_WIDTH for row in rows for text in row):
        for row in rows:
            cells = [f"{column}: {text}" for column, text in zip(table.columns, row, strict=True)]
            print_line(console, f"* {'; '.join(cells)}")
    else:
        numbers = [column for column in table.columns if any(map(_is_number, table.column(column)))]
        shown = TextTable(*table.columns, numbers=numbers)
        for row in rows:
            shown.add_row(*row)
        print_table(console, shown, fit=console.is_terminal)
    if table.note:
        print_line(console, f"({table.note})")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, (int, Value))
