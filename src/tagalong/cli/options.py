"""The options that commands share, and their shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tagalong.plugins import find_plugins

from .arguments import integer_option, number_option

Complete = Callable[[str], list[str]]
TABLE, PROBLEM, COMPARED, TRAINED, OUTPUT = "Table", "Problem", "Comparison", "Training", "Output"
# Repeated here because importing them would import torch, which is too slow for shell completion.
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
    """Makes an option in a panel of the help page; its text mentions the default, if any."""
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
    """Completes the names of problems, including those of plug-ins, and of tables."""
    names = [*PROBLEMS, *find_plugins("problems"), *_files(incomplete, lambda path: path.suffix in TABLES)]
    return _starting(names, incomplete)


def complete_methods(incomplete: str) -> list[str]:
    """Completes comma-separated methods, and rules after a plus."""
    before, comma, last = incomplete.rpartition(",")
    first, plus, _ = last.rpartition("+")
    names = [*METHODS, *find_plugins("methods")]
    return _starting([f"{before}{comma}{first}{plus}{name}" for name in names], incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Completes folders."""
    return _starting(_files(incomplete, Path.is_dir), incomplete)


def complete_words(*names: str) -> Callable[[str], list[str]]:
    """Returns a function that completes one of these words."""

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
TargetsOption = _text(TABLE, "--targets", "A,B,…", "The columns to predict; required for a table.")
FeaturesOption = _text(TABLE, "--features", "A,B,…", "The input columns; all others by default.")
IgnoreOption = _text(TABLE, "--ignore", "A,B,…", "Columns to leave out of the input, such as IDs and names.")
CategoricalOption = _text(TABLE, "--categorical", "A,B,…", "Columns that hold categories, as text or numbers.")
KindsOption = _text(
    TABLE, "--kinds", "A=binary,…", "Kinds of targets: binary, multiclass or regression; inferred by default."
)
ErrorsOption = _text(
    TABLE, "--errors", "A=auroc,…", "Metrics to report: error rate, auroc, auprc, mae, rmse, r2, loss."
)
SplitOption = _text(TABLE, "--split-column", "NAME", "The column that holds train, val or test.")
GroupOption = _text(TABLE, "--group-column", "NAME", "Rows with the same value in this column stay in the same split.")
FeaturesFileOption = Annotated[
    Path | None,
    make_option(TABLE, "--features-file", metavar="FILE", text="An npz or npy file with the inputs of each row."),
]
TasksOption = _text(PROBLEM, "--tasks", "A,B,…", "Use only these tasks.")
SizeOption = _text(
    PROBLEM, "--size", "small|full", "Size of the problem, if it comes in several.", complete_words("small", "full")
)
WithOption = Annotated[
    list[str] | None,
    make_option(
        PROBLEM, "--with", metavar="NAME=VALUE", text="Option of the problem, such as rows=8000; may be repeated."
    ),
]
MethodsOption = Annotated[
    str | None,
    make_option(
        *(COMPARED, "--methods", "--method"),
        metavar="A,B,…",
        text="Methods to compare, such as mtl,tag,auto or tag+pcgrad.",
        complete=complete_methods,
    ),
]
BudgetsOption = _text(COMPARED, "--budgets", "2,3 | 2-4", "Numbers of networks.")
SeedsOption = Annotated[
    int | None,
    make_option(COMPARED, "--seeds", metavar="NUMBER", parser=integer_option, text="Number of seeds; 3 by default."),
]
EffortOption = _text(
    COMPARED,
    "--effort",
    "NUMBER|quick|10min",
    "Number of trainings that auto may spend: 60 by default, quick is 20, thorough 200.",
)
SetOption = Annotated[
    list[str] | None,
    make_option(
        COMPARED,
        "--set",
        metavar="METHOD.OPTION=VALUE",
        text="Option of a method, such as tag.every=1; may be repeated.",
    ),
]
ConfirmOption = Annotated[
    int,
    make_option(
        COMPARED,
        "--confirm",
        metavar="NUMBER",
        parser=integer_option,
        text="Re-train the best grouping with this many fresh seeds before judging it; 0 by default.",
    ),
]
PriceOption = Annotated[
    float | None,
    make_option(
        COMPARED,
        "--price-per-hour",
        metavar="NUMBER",
        parser=number_option,
        text="Price of an hour of compute; adds a cost column.",
    ),
]
RecipeOption = Annotated[
    list[str] | None,
    make_option(
        TRAINED,
        "--recipe",
        metavar="NAME=VALUE",
        text="Training setting, such as lr=0.01 or epochs=50; may be repeated.",
    ),
]
ExecutorOption = _text(
    TRAINED,
    "--executor",
    "serial|processes|ray",
    "How to run trainings; serial by default; processes:4 uses four workers.",
    complete_words("serial", "processes", "ray"),
)
DeviceOption = _text(
    TRAINED,
    "--device",
    "auto|cpu|cuda",
    "Device to train on; auto by default: CUDA if available.",
    complete_words("auto", "cpu", "cuda"),
)
OutOption = Annotated[Path | None, make_option(OUTPUT, "--out", "-o", metavar="FOLDER", text="The folder of the run.")]
JsonOption = Annotated[bool, make_option(OUTPUT, "--json", metavar="", text="Print JSON and nothing else.")]
QuietOption = Annotated[
    bool, make_option(OUTPUT, "--quiet", "-q", metavar="", text="Print only the answer, without tables and progress.")
]
