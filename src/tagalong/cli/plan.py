"""`tagalong plan` and `tagalong verdict`: for networks that you train with your own script."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tagalong.errors import InvalidInput, pluralize

from . import options
from .arguments import check_exists, check_folder, parse_budgets, parse_methods, parse_pairs
from .group_options import AxisChoice, AxisOption
from .messages import name_arguments
from .run import show_table
from .terminal import print_line, print_text, screen

if TYPE_CHECKING:
    from tagalong.affinity import Affinity
    from tagalong.study import Results, TrainingPlan

DEFAULT_BUDGETS = (2, 3)
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

    Train each network with your own script, fill in its validation and test losses, and run `tagalong verdict`. With
    `--methods ensemble` or `best-of`, copies of a network are listed with seeds of their own. Their answers are
    averaged, so fill in the names of files with predictions instead of losses.

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
    if budgets is None:
        sizes = [budget for budget in DEFAULT_BUDGETS if budget <= tasks]
    else:
        sizes = parse_budgets(budgets, tasks)
    names = None if methods is None else parse_methods(methods)
    with name_arguments(scores=", ".join(map(str, files))):
        planned = make_plan(affinities, sizes, names, 3 if seeds is None else seeds)
    path = planned.to_csv(out or Path("plan.csv"))
    if json:
        networks = [_network_document(planned, *network) for network in planned.networks]
        print(dumps({"file": str(path), "networks": networks}, indent=1))
        return
    if quiet:
        print_text(str(path))
        return
    console = screen()
    count = pluralize(len(planned.networks), "network")
    print_line(console, f"train {count} for {', '.join(planned.methods)}; enter the results in {path}, then run:")
    if not planned.copies:
        print_line(console, f"tagalong verdict {path}")
        return
    print_line(console, f"tagalong verdict {path} --targets-file TARGETS")
    print_line(console, "Copies are averaged, so enter the names of files with predictions instead of losses.")


def _network_document(planned: TrainingPlan, tasks: Sequence[str], seed: int) -> dict[str, Any]:
    document: dict[str, Any] = {"tasks": list(tasks), "seed": seed}
    if seed in planned.copies:
        record, copy = planned.copies[seed]
        document |= {"copy": copy, "copy_of_seed": record}
    return document


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


TargetsFileOption = Annotated[
    Path | None,
    options.make_option(
        options.TABLE,
        "--targets-file",
        metavar="FILE",
        text="The labels of the validation and test rows, as npz or CSV. Losses are then computed from predictions.",
    ),
]
LogitsOption = Annotated[
    bool,
    options.make_option(options.TABLE, "--logits", text="Predictions for classes are logits instead of probabilities."),
]


def verdict(
    file: ResultsFile,
    targets_file: TargetsFileOption = None,
    kinds: options.KindsOption = None,
    logits: LogitsOption = False,
    budgets: options.BudgetsOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compares networks that you trained yourself, and tells you whether grouping is worth it.

    FILE has one row per network, seed and task, with the columns network (e.g. age+ill), seed, task, val_loss and
    test_loss, as written by `tagalong plan`. Groups are chosen by validation losses and judged by test losses. With
    `--out`, the results and a report, `report.html`, are saved. With `--targets-file`, the column predictions names
    a file for each network, from which losses and averages are computed.

    Example:
        `tagalong verdict plan.csv --out runs/own`: compare the networks, and write a report
    """
    from tagalong.study import Results, tasks_in_csv, verdict_from_csv

    _check_output_folder(out)
    check_exists(file, "a filled-in plan, or a finished run's folder or results.json")
    given = {"budgets": budgets, "targets_file": targets_file, "kinds": kinds, "logits": logits or None}
    if file.is_dir() or file.suffix.lower() == ".json":
        for name in (name for name, value in given.items() if value is not None):
            raise InvalidInput(name, "can only be used with a table of losses", str(file), f"omit `{name}`")
        with name_arguments(path=str(file)):
            results = Results.load(file)
    else:
        wanted = None if budgets is None else parse_budgets(budgets, len(tasks_in_csv(file)))
        results = verdict_from_csv(
            file,
            budgets=wanted,
            targets_file=targets_file,
            kinds=None if kinds is None else parse_pairs(kinds, "kinds"),
            logits=logits,
        )
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
