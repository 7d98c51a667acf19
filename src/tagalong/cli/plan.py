"""`tagalong plan` and `tagalong verdict`: for networks that you train with your own script."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tagalong.errors import InvalidInput, pluralize

from . import options
from .arguments import check_exists, check_folder, parse_integer_budgets, parse_methods
from .group_options import AxisChoice, AxisOption
from .messages import name_arguments
from .run import show_table
from .terminal import print_line, print_text, screen

if TYPE_CHECKING:
    from tagalong.affinity import Affinity
    from tagalong.study import Results

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="An affinity in JSON or CSV format, with sources as rows. Cosine affinities are used for cs, all others "
        "for tag.",
        show_default=False,
    ),
]
CsvOption = Annotated[
    Path | None,
    options.make_option(options.OUTPUT, "--out", "-o", metavar="FILE.csv", text="Output file; plan.csv by default."),
]


def plan(
    files: Files,
    budgets: options.BudgetsOption = None,
    methods: options.MethodsOption = None,
    seeds: options.SeedsOption = None,
    axis: AxisOption = AxisChoice.source,
    out: CsvOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Writes a table of the networks to train, including one for all tasks, for you to fill in with their losses.

    Train each network with your own script, fill in its validation and test losses, and run `tagalong verdict`.

    Example:
        `tagalong plan affinity.json --budgets 2,3`: list the networks to train with your own script
    """
    from tagalong.study import plan as make_plan

    if seeds is not None and seeds < 1:
        raise InvalidInput("seeds", "must be a positive integer", str(seeds))
    if out is not None and out.suffix.lower() != ".csv":
        raise InvalidInput("out", "must end in .csv", repr(str(out)))
    affinities = [_read_affinity(file, axis.value) for file in files]
    tasks = len(affinities[0].tasks)
    wanted = [2, 3] if budgets is None else parse_integer_budgets(budgets, tasks)
    usual = [budget for budget in wanted if budget <= tasks] if budgets is None else wanted
    chosen = None if methods is None else parse_methods(methods)
    with name_arguments(scores=", ".join(map(str, files))):
        planned = make_plan(affinities, usual, chosen, 3 if seeds is None else seeds)
    path = planned.to_csv(out or Path("plan.csv"))
    if json:
        networks = [{"tasks": list(tasks), "seed": seed} for tasks, seed in planned.networks]
        print(dumps({"file": str(path), "networks": networks}, indent=1))
        return
    if quiet:
        print_text(str(path))
        return
    console = screen()
    count = pluralize(len(planned.networks), "network")
    print_line(console, f"train {count} for {', '.join(planned.methods)}; enter the results in {path}, then run:")
    print_line(console, f"tagalong verdict {path}")


def _read_affinity(file: Path, axis: Literal["source", "target"]) -> Affinity:
    from tagalong.group import read_table

    check_exists(file, "an affinity: saved by tagalong, or a square table")
    table = read_table(file, axis)
    if table.kind not in ("affinity", "square"):
        raise InvalidInput(file, "must contain an affinity", "group results", "use tagalong verdict instead")
    affinity: Affinity = table.scores
    return affinity


ResultsFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A completed plan, the folder of a finished run, or its results.json.", show_default=False
    ),
]


def verdict(
    file: ResultsFile,
    budgets: options.BudgetsOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compares networks that you trained yourself, and tells you whether grouping is worth it.

    FILE has one row per network, seed and task, with the columns network (e.g. age+ill), seed, task, val_loss and
    test_loss, as written by `tagalong plan`. Groups are chosen by validation losses and judged by test losses. With
    `--out`, the results and a report, `report.html`, are saved.

    Example:
        `tagalong verdict plan.csv --out runs/own`: compare the networks, and write a report
    """
    from tagalong.study import Results, tasks_in_csv, verdict_from_csv

    _check_output_folder(out)
    check_exists(file, "a filled-in plan, or a finished run's folder or results.json")
    if file.is_dir() or file.suffix.lower() == ".json":
        if budgets is not None:
            raise InvalidInput("budgets", "can only be used with a table of losses", str(file), "omit `budgets`")
        with name_arguments(path=str(file)):
            results = Results.load(file)
    else:
        wanted = None if budgets is None else parse_integer_budgets(budgets, len(tasks_in_csv(file)))
        results = verdict_from_csv(file, budgets=wanted)
    page = None if out is None else _save_report(results, out, file)
    if json:
        print(dumps(results.to_document(), indent=1, allow_nan=False))
        return
    show_table(results, quiet)
    if page is not None and not quiet:
        console = screen()
        console.print()
        print_line(console, f"report: {page}")


def _check_output_folder(out: Path | None) -> None:
    check_folder(out)
    if out is not None and ((out / "run.sqlite").exists() or (out / "told.json").exists()):
        raise InvalidInput("out", "must not be the folder of a run", str(out), "its results would be overwritten")


def _save_report(results: Results, out: Path, file: Path) -> Path:
    """Writes `results.json` and `report.html`; returns the path of the report."""
    from tagalong.report import write_report

    results.settings.setdefault("command", ["tagalong", "verdict", str(file), "--out", str(out)])
    results.save(out / "results.json")
    return write_report(out)
