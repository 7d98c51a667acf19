"""The options that commands share, and what the shell offers when Tab is pressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tagalong.plugins import find_plugins

from .arguments import typed_number, typed_whole

Complete = Callable[[str], list[str]]
TABLE, PROBLEM, COMPARED, TRAINED, OUTPUT = "A table", "A problem", "What is compared", "How it is trained", "Output"
# Written down, because the rooms that know them import torch, for which nobody waits at a Tab.
PROBLEMS = ("nhanes", "faces", "qm9")
METHODS = ("mtl", "stl", "random", "cs", "tag", "hoa", "optimal", "oracle", "auto", "uw", "gradnorm", "pcgrad")
TABLES = (".csv", ".tsv", ".txt")


def make_option(
    panel: str,
    *names: str,
    text: str,
    metavar: str | None = None,
    parser: Callable[[str], float] | None = None,
    complete: Complete | None = None,
) -> typer.models.OptionInfo:
    """An option in a panel of the help; the text says the default, where there is one."""
    made: typer.models.OptionInfo = typer.Option(
        *names,
        metavar=metavar,
        help=text,
        rich_help_panel=panel,
        show_default=False,
        parser=parser,
        autocompletion=complete,
    )
    return made


def _text(panel: str, name: str, metavar: str, text: str, complete: Complete | None = None) -> Any:
    return Annotated[str | None, make_option(panel, name, metavar=metavar, text=text, complete=complete)]


def complete_problems(incomplete: str) -> list[str]:
    """Problems by name, those of other packages too; and tables."""
    names = [*PROBLEMS, *find_plugins("problems"), *_files(incomplete, lambda path: path.suffix in TABLES)]
    return _starting(names, incomplete)


def complete_methods(incomplete: str) -> list[str]:
    """Methods between commas, and what may stand on top of groups after a plus."""
    before, comma, last = incomplete.rpartition(",")
    first, plus, _ = last.rpartition("+")
    names = [*METHODS, *find_plugins("methods")]
    return _starting([f"{before}{comma}{first}{plus}{name}" for name in names], incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Folders of finished runs, and folders on the way there."""
    return _starting(_files(incomplete, Path.is_dir), incomplete)


def complete_words(*names: str) -> Callable[[str], list[str]]:
    """One of a few words."""

    def complete(incomplete: str) -> list[str]:
        return _starting(names, incomplete)

    return complete


def _files(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    start = incomplete[: incomplete.rfind("/") + 1]
    if not folder.is_dir():
        return []
    return [f"{start}{path.name}" for path in sorted(folder.iterdir()) if wanted(path) and path.name[0] != "."]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.startswith(incomplete)))


What = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM|TABLE.csv",
        help="A problem of `tagalong problems`, or a table.",
        show_default=False,
        autocompletion=complete_problems,
    ),
]
Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of a finished run.", show_default=False, autocompletion=complete_runs
    ),
]
TargetsOption = _text(TABLE, "--targets", "A,B,…", "The columns to be learnt; needed for a table.")
FeaturesOption = _text(TABLE, "--features", "A,B,…", "The columns to learn from; all others by default.")
IgnoreOption = _text(TABLE, "--ignore", "A,B,…", "Columns that are not learnt from, such as ids and names.")
CategoricalOption = _text(TABLE, "--categorical", "A,B,…", "Columns of categories, given as text or numbers.")
KindsOption = _text(TABLE, "--kinds", "A=binary,…", "Kinds of targets: binary, multiclass, regression; else guessed.")
ErrorsOption = _text(TABLE, "--errors", "A=auroc,…", "Errors reported: error rate, auroc, auprc, mae, rmse, r2, loss.")
SplitOption = _text(TABLE, "--split-column", "NAME", "A column that says train, val or test.")
GroupOption = _text(TABLE, "--group-column", "NAME", "Rows with the same value never straddle a split.")
FeaturesFileOption = Annotated[
    Path | None,
    make_option(TABLE, "--features-file", metavar="FILE", text="An npz or npy with the inputs of each row."),
]
TasksOption = _text(PROBLEM, "--tasks", "A,B,…", "These tasks alone.")
SizeOption = _text(
    PROBLEM, "--size", "small|full", "How large a problem that comes in sizes.", complete_words("small", "full")
)
WithOption = Annotated[
    list[str] | None,
    make_option(
        PROBLEM, "--with", metavar="NAME=VALUE", text="An option of the problem, such as rows=8000; may be repeated."
    ),
]
MethodsOption = Annotated[
    str | None,
    make_option(
        *(COMPARED, "--methods", "--method"),
        metavar="A,B,…",
        text="Such as mtl,tag,auto or tag+pcgrad.",
        complete=complete_methods,
    ),
]
BudgetsOption = _text(COMPARED, "--budgets", "2,3 | 2-4", "How many networks there may be.")
SeedsOption = Annotated[
    int | None, make_option(COMPARED, "--seeds", metavar="NUMBER", parser=typed_whole, text="How many; 3 by default.")
]
EffortOption = _text(
    COMPARED, "--effort", "NUMBER|quick|10min", "Trainings that auto may spend; 60 by default, quick 20, thorough 200."
)
SetOption = Annotated[
    list[str] | None,
    make_option(COMPARED, "--set", metavar="METHOD.OPTION=VALUE", text="Such as tag.every=1; may be repeated."),
]
ConfirmOption = Annotated[
    int,
    make_option(
        COMPARED,
        "--confirm",
        metavar="NUMBER",
        parser=typed_whole,
        text="So many fresh seeds judge the best grouping once more; 0 by default.",
    ),
]
PriceOption = Annotated[
    float | None,
    make_option(
        COMPARED, "--price-per-hour", metavar="NUMBER", parser=typed_number, text="Of computing, to see money."
    ),
]
RecipeOption = Annotated[
    list[str] | None,
    make_option(TRAINED, "--recipe", metavar="NAME=VALUE", text="Such as lr=0.01 or epochs=50; may be repeated."),
]
ExecutorOption = _text(
    TRAINED,
    "--executor",
    "serial|processes|ray",
    "Where networks are trained; serial by default; processes:4 has four workers.",
    complete_words("serial", "processes", "ray"),
)
DeviceOption = _text(
    TRAINED,
    "--device",
    "auto|cpu|cuda",
    "auto by default: CUDA where there is one.",
    complete_words("auto", "cpu", "cuda"),
)
OutOption = Annotated[Path | None, make_option(OUTPUT, "--out", "-o", metavar="FOLDER", text="The folder of the run.")]
JsonOption = Annotated[bool, make_option(OUTPUT, "--json", metavar="", text="Print JSON and nothing else.")]
QuietOption = Annotated[
    bool, make_option(OUTPUT, "--quiet", "-q", metavar="", text="The answer alone, without tables and progress.")
]
