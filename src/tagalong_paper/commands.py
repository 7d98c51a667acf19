"""`tagalong paper`: what the paper printed, computed and trained again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tagalong.cli import (
    Command,
    Commands,
    DeviceOption,
    ExecutorOption,
    JsonOption,
    OutOption,
    QuietOption,
    RecipeOption,
    TasksOption,
    WithOption,
    check_folder,
    complete_words,
    goes_on,
    parse_names,
    parse_options,
    parse_problem_options,
    print_line,
    print_table,
    printable,
    renamed_arguments,
    screen,
    show_progress,
    text_table,
    typed_whole,
)

from .experiments import EXPERIMENTS, check_methods, run_experiment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table

    from tagalong.group import Group

    from .experiments import Experiment
    from .report import Cell, Report, Sheet
    from .selection import Selection

WIDE = 60  # letters of a cell above which a table is shown line by line
GAP, ENDLESS = 2, 10_000  # columns between two columns of a table, and those of a file


def show_report(report: Report, files: Sequence[Path] = (), quiet: bool = False, resumes: bool = False) -> None:
    """From top to bottom; which claims appeared alone, if quiet; that it goes on from its files, if it resumes."""
    console = screen()
    if quiet:
        _show_claims(console, report)
        return
    print_line(console, report.title)
    for note in report.notes:
        print_line(console, note)
    for sheet in report.sheets:
        console.print()
        print_line(console, sheet.title)
        _show_sheet(console, sheet)
    if report.claims:
        console.print()
        print_line(console, "Did the paper's claims appear?")
    _show_claims(console, report)
    if files:
        console.print()
        show_files(console, files, "; run again, it goes on from there" if resumes else "")


def show_files(console: Console, files: Sequence[Path], more: str = "") -> None:
    """Where everything lies."""
    print_line(console, f"{files[0].parent}: {', '.join(file.name for file in files)}{more}")


def _show_claims(console: Console, report: Report) -> None:
    for claim in report.claims:
        print_line(console, f"* {claim.appeared}: {claim.text}. {claim.because}".rstrip(" .") + ".")


def _show_sheet(console: Console, sheet: Sheet) -> None:
    if any(len(_text(cell)) > WIDE for row in sheet.rows for cell in row):
        for row in sheet.rows:
            print_line(
                console, "* " + "; ".join(f"{c}: {_text(cell)}" for c, cell in zip(sheet.columns, row, strict=True))
            )
    else:
        for number, columns in enumerate(blocks(sheet, console.width if console.is_terminal else ENDLESS)):
            if number:
                console.print()
            made = _sheet_table(sheet, columns)
            print_table(_wide_enough(console, made), made)
    if sheet.note:
        print_line(console, f"({sheet.note})")


def blocks(sheet: Sheet, width: int) -> list[list[int]]:
    """Columns that fit side by side; those that name the rows stand before each lot, so that no number is cut."""
    widths = [max(map(len, map(_text, column))) + GAP for column in zip(sheet.columns, *sheet.rows, strict=True)]
    named = max(1, next((place for place in range(len(widths)) if _measured(sheet, place)), 1))
    named = named if sum(widths[:named]) <= width // 2 else 1
    lots: list[list[int]] = [[]]
    for place in range(named, len(widths)):
        if lots[-1] and sum(widths[at] for at in (*range(named), *lots[-1], place)) - GAP > width:
            lots.append([])
        lots[-1].append(place)
    return [[*range(named), *lot] for lot in lots]


def _wide_enough(console: Console, made: Table) -> Console:
    """A screen on which no column is cut: a file, or one that is too narrow for a single number."""
    from rich.console import Console
    from rich.measure import Measurement

    endless = Console(width=ENDLESS, file=console.file)
    needed = Measurement.get(endless, endless.options, made).maximum
    return console if needed <= console.width else Console(width=needed, file=console.file, highlight=False)


def _measured(sheet: Sheet, place: int) -> bool:
    """Whether a column holds results, rather than what names a row, such as a method or a number of groups."""
    from .report import Value

    return any(isinstance(row[place], Value) for row in sheet.rows)


def _sheet_table(sheet: Sheet, columns: Sequence[int]) -> Table:
    whole = [place for place in columns if any(isinstance(row[place], int) for row in sheet.rows)]
    right = tuple(sheet.columns[place] for place in columns if place in whole or _measured(sheet, place))
    made = text_table(*(sheet.columns[place] for place in columns), numbers=right)
    served = "bold" if any(_only_helps(cell) for row in sheet.rows for cell in row) else ""
    for row in sheet.rows:
        made.add_row(*(_styled(row[place], served) for place in columns))
    return made


def _styled(cell: Cell, served: str) -> Text:
    """A cell; results of served tasks stand out in tables that hold those of helpers too."""
    from .report import Value

    style = "dim" if _only_helps(cell) else served if isinstance(cell, Value) else ""
    return Text(_text(cell), style=style)


def _only_helps(cell: Cell) -> bool:
    from .report import Value

    return isinstance(cell, Value) and not cell.served


def _text(cell: Cell) -> str:
    return "-" if cell is None else printable(str(cell))


WHERE = "Where"
ProblemOption = Annotated[
    str,
    typer.Option(
        "--problem",
        metavar="faces|celeba|taskonomy",
        help="Drawn faces stand in for CelebA.",
        rich_help_panel=WHERE,
        autocompletion=complete_words("faces", "celeba", "taskonomy"),
    ),
]
SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="small|full",
        help="Seconds, or the paper's size (a GPU).",
        rich_help_panel=WHERE,
        autocompletion=complete_words("small", "full"),
    ),
]
SeedsOption = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="NUMBER",
        parser=typed_whole,
        help="How many runs; 2 at small, 3 at full size; Taskonomy: 1.",
        rich_help_panel=WHERE,
        show_default=False,
    ),
]
PublishedOption = Annotated[
    bool,
    typer.Option(
        "--as-published",
        metavar="",
        help="TAG's step with momentum, per learning rate, as the published code has it.",
        show_default=False,
    ),
]
LargerOption = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,…",
        help="Whose networks get larger: mtl,uw,gradnorm by default, on Taskonomy mtl,gradnorm.",
        show_default=False,
        autocompletion=complete_words("mtl", "uw", "gradnorm"),
    ),
]
AugmentedOption = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,…",
        help="What is compared with MTL: uw,gradnorm,pcgrad,pcgrad-uw by default.",
        show_default=False,
        autocompletion=complete_words("uw", "gradnorm", "pcgrad", "pcgrad-uw"),
    ),
]
COMMON: dict[str, tuple[Any, Any]] = {
    "problem": (ProblemOption, "faces"),
    "size": (SizeOption, "small"),
    "seeds": (SeedsOption, None),
    "tasks": (TasksOption, None),
    "with_": (WithOption, None),
    "recipe": (RecipeOption, None),
    "executor": (ExecutorOption, None),
    "device": (DeviceOption, None),
    "out": (OutOption, None),
    "json": (JsonOption, False),
    "quiet": (QuietOption, False),
}
OWN: dict[str, dict[str, tuple[Any, Any]]] = {
    "main": {"as_published": (PublishedOption, False)},
    "capacity": {"methods": (LargerOption, None)},
    "no-early-stopping": {"methods": (AugmentedOption, None)},
}
TYPED = {
    "problem": "--problem",
    "task": "--tasks",
    "recipe.lr": "--recipe lr",
    "seed": "--with seed",
    "workers": "workers of --executor",
}


def training_command(experiment: Experiment) -> Callable[..., None]:
    """The command of an experiment that trains: the options that all of them have, and its own."""
    own = OWN.get(experiment.name, {})

    def command(**typed: Any) -> None:
        read = {name: parse_names(typed[name]) if isinstance(typed[name], str) else typed[name] for name in own}
        run(experiment.name, typed, **read)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in {**COMMON, **own}.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)  # what typer reads
    return command


def run(name: str, typed: dict[str, Any], **own: Any) -> None:
    """Runs an experiment and shows what came out; networks that are in the folder are not trained again."""
    from .bench import open_bench
    from .experiments import run_experiment

    check_folder(typed["out"])  # before minutes of drawing or decoding
    check_methods(name, own.get("methods"))
    with renamed_arguments(**TYPED), show_progress(typed["json"] or typed["quiet"]) as progress:
        bench = open_bench(
            typed["problem"],
            typed["size"],
            out=typed["out"],
            seeds=typed["seeds"],
            tasks=parse_names(typed["tasks"]),
            options=parse_problem_options(typed["with_"] or [], "recipe", "size"),
            recipe=parse_options(typed["recipe"] or [], "recipe"),
            device=typed["device"] or "auto",
            executor=typed["executor"] or "serial",
            progress=progress,
        )
        try:
            report = run_experiment(name, bench, **own)
            files: list[Path] = report.save(bench.out)
        except KeyboardInterrupt:
            raise goes_on(bench.out) from None
    if typed["json"]:
        print(dumps(report.to_document(), indent=1, allow_nan=False))
        return
    show_report(report, files, typed["quiet"], resumes=True)


paper = typer.Typer(name="paper", cls=Commands, invoke_without_command=True, rich_markup_mode="markdown")


@paper.callback()
def _parts(context: typer.Context) -> None:
    """Computes and trains again what the paper printed (Fifty et al., NeurIPS 2021), and says where it differs.

    Examples:
        `tagalong paper`: all experiments, in a line each
        `tagalong paper selection`: the groupings that the paper printed, and the best ones
        `tagalong paper main --seeds 2`: the main figure on drawn faces, in seconds
    """
    if context.invoked_subcommand is None:
        console, width = screen(), max(len(experiment.name) for experiment in EXPERIMENTS)
        for experiment in EXPERIMENTS:
            start = f"tagalong paper {experiment.name:<{width}}  "
            print_line(console, start + experiment.summary, hang=len(start))


@paper.command(cls=Command, epilog="Example: `tagalong paper selection --json`")
def selection(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """The 15 groupings that the paper prints beside the best ones for the published matrices."""
    from json import dumps

    from .selection import selections

    check_folder(out)
    found = selections()
    text = dumps({"selections": [_document(one) for one in found]}, indent=1, allow_nan=False)
    file = None if out is None else _saved(text, out)
    if json:
        print(text)
        return
    _show(found, quiet)
    if file is not None and not quiet:
        show_files(screen(), [file])


def _saved(text: str, out: Path) -> Path:
    from tagalong.files import write_atomic

    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "selection.json", (text + "\n").encode())
    return out / "selection.json"


@paper.command(cls=Command, epilog="Example: `tagalong paper errata --json`")
def errata(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Every disagreement with the printed numbers, and why."""
    check_folder(out)
    _computed(run_experiment("errata"), out, json, quiet)


@paper.command(cls=Command, epilog="Example: `tagalong paper theory --json`")
def theory(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Lemma 1 and each printed version of Proposition 1 put to the test, and the counterexample's four panels."""
    check_folder(out)
    _computed(run_experiment("theory"), out, json, quiet)


def _computed(report: Report, out: Path | None, json: bool, quiet: bool) -> None:
    """What nothing was trained for; files are only written where a folder is named."""

    files = [] if out is None else report.save(out)
    if json:
        from json import dumps

        print(dumps(report.to_document(), indent=1, allow_nan=False))
        return
    show_report(report, files, quiet)


for _experiment in EXPERIMENTS:
    if _experiment.trains:
        _help = f"{_experiment.summary[0].upper()}{_experiment.summary[1:]}".rstrip(".?")
        paper.command(
            _experiment.name,
            cls=Command,
            help=_help + ("?" if _experiment.summary.endswith("?") else "."),
            epilog=f"Example: `tagalong paper {_experiment.name} --seeds 1 --out runs/try`",
        )(training_command(_experiment))


def _show(found: tuple[Selection, ...], quiet: bool) -> None:
    console = screen()
    for problem in () if quiet else dict.fromkeys(one.problem for one in found):
        print_line(console, f"{problem.dataset}, {problem.method}")
        print_table(console, _selection_table([one for one in found if one.problem == problem]))
        console.print()
    for one in found:
        for remark in one.remarks:
            print_line(console, f"* {one.problem.dataset}, {one.problem.method}, {one.budget} networks: {remark}")
    same = [one for one in found if one.same and one.unique]
    print_line(console, f"{len(same)} of {len(found)} printed groupings are the optimum, proven and unique.")
    if not quiet:
        print_line(console, "Totals are sums of scores in the published matrices; +task is trained along as a helper.")


def _selection_table(found: list[Selection]) -> Table:
    made = text_table("budget", "printed", "total", "best", "total ", numbers=("budget", "total", "total "))
    for one in found:
        printed = "\n".join(_short(frozenset(group.results), group.bold) for group in one.printed.groups)
        best = "\n".join(_short(group.trains, group.serves) for group in _in_order(one))
        budget = f"{'* ' if one.remarks else ''}{one.budget}"
        made.add_row(budget, printed, _number(one.given.value), best, _number(one.best.value))
    return made


def _in_order(one: Selection) -> Iterable[Group]:
    """The best networks in the order of the printed ones that they are most like."""
    order = [set(group.results) for group in one.printed.groups]
    place = {group: min(range(len(order)), key=lambda i: len(order[i] ^ group.trains)) for group in one.best.groups}
    return sorted(one.best.groups, key=lambda group: place[group])


def _short(trains: frozenset[str], serves: frozenset[str]) -> str:
    helpers = sorted(trains - serves)
    return " ".join([*sorted(serves), *(f"+{task}" for task in helpers)])


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 100 else f"{value:.4f}"


def _document(one: Selection) -> dict[str, Any]:
    return {
        "dataset": one.problem.dataset,
        "method": one.problem.method,
        "budget": one.budget,
        "objective": one.best.objective,
        "printed": {
            "groups": [{"trains": sorted(g.results), "bold": sorted(g.bold)} for g in one.printed.groups],
            "value": one.given.value,
            "total_test_result": one.printed.total,
        },
        "best": {
            "groups": [{"trains": sorted(g.trains), "serves": sorted(g.serves)} for g in one.best.groups],
            "value": one.best.value,
            "status": one.best.status,
            "unique": one.unique,
        },
        "same": one.same,
        "remarks": one.remarks,
    }
