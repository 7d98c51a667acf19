"""Options shared by multiple commands, and their shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tagalong.registry import find_plugins

from .arguments import ENCODERS, integer_option

Complete = Callable[[str], list[str]]
TABLE, PROBLEM, COMPARISON, TRAINING, OUTPUT = "Table", "Problem", "Comparison", "Training", "Output"
# Repeated here because importing them would import torch, which is too slow for shell completion.
SUGGESTED_PROBLEMS = ("nhanes", "faces", "qm9")
SUGGESTED_METHODS = (
    "mtl",
    "stl",
    "random",
    "cs",
    "tag",
    "hoa",
    "optimal",
    "oracle",
    "auto",
    "ensemble",
    "best-of",
    "uw",
    "gradnorm",
    "pcgrad",
    "constant",
    "boosting",
    "ridge",
    "blend",
)
TABLE_SUFFIXES = (".csv", ".tsv", ".txt")


def make_option(
    panel: str,
    *names: str,
    text: str,
    metavar: str | None = None,
    parser: Callable[[str], float] | None = None,
    complete: Complete | None = None,
) -> typer.models.OptionInfo:
    """Creates an option in a panel of the help page. The help text should mention the default, if any."""
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


def _text_option(panel: str, name: str, metavar: str, text: str, complete: Complete | None = None) -> Any:
    return Annotated[str | None, make_option(panel, name, metavar=metavar, text=text, complete=complete)]


def complete_problems(incomplete: str) -> list[str]:
    """Completes the names of problems (including those from plug-ins) and of table files."""
    names = [
        *SUGGESTED_PROBLEMS,
        *find_plugins("problem"),
        *_matching_files(incomplete, lambda path: path.suffix in TABLE_SUFFIXES),
    ]
    return _with_prefix(names, incomplete)


def complete_tables(incomplete: str) -> list[str]:
    """Completes the names of table files."""
    return _with_prefix(_matching_files(incomplete, lambda path: path.suffix in TABLE_SUFFIXES), incomplete)


def complete_methods(incomplete: str) -> list[str]:
    """Completes comma-separated method names, and the names of training rules after a plus sign."""
    before, comma, last = incomplete.rpartition(",")
    first, plus, _ = last.rpartition("+")
    names = [*SUGGESTED_METHODS, *find_plugins("method")]
    return _with_prefix([f"{before}{comma}{first}{plus}{name}" for name in names], incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Completes folder names."""
    return _with_prefix(_matching_files(incomplete, Path.is_dir), incomplete)


def complete_words(*names: str) -> Callable[[str], list[str]]:
    """Returns a completion function for a fixed list of words."""

    def complete(incomplete: str) -> list[str]:
        return _with_prefix(names, incomplete)

    return complete


def _matching_files(incomplete: str, is_match: Callable[[Path], bool]) -> list[str]:
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    start = incomplete[: incomplete.rfind("/") + 1]
    if not folder.is_dir():
        return []
    return [f"{start}{path.name}" for path in sorted(folder.iterdir()) if is_match(path) and path.name[0] != "."]


def _with_prefix(names: Iterable[str], incomplete: str) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.startswith(incomplete)))


What = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM|TABLE.csv",
        help="A problem listed by `tagalong problems`, or a table file.",
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
TargetsOption = _text_option(TABLE, "--targets", "A,B,…", "The columns to predict; required for a table.")
FeaturesOption = _text_option(TABLE, "--features", "A,B,…", "The input columns; all but IDs and free text by default.")
IgnoreOption = _text_option(TABLE, "--ignore", "A,B,…", "Columns to leave out of the input, such as IDs and names.")
CategoricalOption = _text_option(
    TABLE, "--categorical", "A,B,…", "Columns that contain categories, e.g. numbers; text with few values is found."
)
KindsOption = _text_option(
    TABLE, "--kinds", "A=binary,…", "Kinds of targets: binary, multiclass or regression; inferred by default."
)
ErrorsOption = _text_option(
    TABLE, "--errors", "A=auroc,…", "Metrics to report: error rate, auroc, auprc, mae, rmse, r2, loss."
)
SplitOption = _text_option(TABLE, "--split-column", "NAME", "The column that says train, val or test for each row.")
GroupOption = _text_option(
    TABLE, "--group-column", "NAME", "Rows with the same value in this column stay in the same split."
)
FeaturesFileOption = Annotated[
    Path | None,
    make_option(
        TABLE, "--features-file", metavar="FILE", text="An npy or npz file with the input features of each row."
    ),
]
UnlabelledOption = Annotated[
    Path | None,
    make_option(
        TABLE,
        "--unlabelled",
        metavar="FILE",
        text="A table with the same input columns and no labels, for networks that others teach.",
        complete=complete_tables,
    ),
]
EncoderOption = _text_option(
    TABLE,
    "--encoder",
    "mlp|tabm",
    "Network for the table: tabm (the default), or mlp, which is faster and usually worse.",
    complete_words(*ENCODERS),
)
TasksOption = _text_option(PROBLEM, "--tasks", "A,B,…", "Use only these tasks.")
SizeOption = _text_option(
    PROBLEM, "--size", "small|full", "Size of the problem, if there is more than one.", complete_words("small", "full")
)
WithOption = Annotated[
    list[str] | None,
    make_option(PROBLEM, "--with", metavar="NAME=VALUE", text="Problem option, e.g. rows=8000; may be repeated."),
]
MethodsOption = Annotated[
    str | None,
    make_option(
        *(COMPARISON, "--methods", "--method"),
        metavar="A,B,…",
        text="Methods to compare, e.g. mtl,tag,auto or tag+pcgrad.",
        complete=complete_methods,
    ),
]
BudgetsOption = _text_option(COMPARISON, "--budgets", "2,3 | 2-4", "Numbers of networks to compare.")
StudyBudgetsOption = _text_option(
    COMPARISON, "--budgets", "2,3 | 2-4", "Numbers of networks to compare; 2-4 by default, up to the number of tasks."
)
SeedsOption = Annotated[
    int | None,
    make_option(COMPARISON, "--seeds", metavar="NUMBER", parser=integer_option, text="Number of seeds; 3 by default."),
]
EffortOption = _text_option(
    COMPARISON,
    "--effort",
    "NUMBER|quick|10min",
    "Training runs that auto and best-of each may use: 60 by default; quick means 20, thorough 200.",
)
PassesOption = Annotated[
    int | None,
    make_option(
        COMPARISON,
        "--passes",
        metavar="NUMBER",
        parser=integer_option,
        text="Most networks of auto that answer a task; no limit by default.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    make_option(
        COMPARISON,
        "--set",
        metavar="METHOD.OPTION=VALUE",
        text="Method option, e.g. tag.every=1; may be repeated.",
    ),
]
ConfirmOption = Annotated[
    int,
    make_option(
        COMPARISON,
        "--confirm",
        metavar="NUMBER",
        parser=integer_option,
        text="Retrain the best grouping with this many new seeds before judging it; 0 by default.",
    ),
]
SameTeachersOption = Annotated[
    bool,
    make_option(
        COMPARISON,
        "--same-teachers",
        text="With --confirm, do not retrain the networks that teach others.",
    ),
]
ReferenceOption = Annotated[
    str | None,
    make_option(
        COMPARISON,
        "--reference",
        metavar="METHOD",
        text="Compare everything with this method; boosting for tables and mtl otherwise, by default.",
    ),
]
TaskWeightsOption = Annotated[
    list[str] | None,
    make_option(COMPARISON, "--weights", metavar="A=2,B=1", text="Task weights, in losses and mean skill; usually 1."),
]
AllOption = Annotated[bool, make_option(COMPARISON, "--all", text="Show every method and task, not only the answer.")]
RecipeOption = Annotated[
    list[str] | None,
    make_option(
        TRAINING,
        "--recipe",
        metavar="NAME=VALUE",
        text="Training setting, e.g. lr=0.01 or epochs=50; may be repeated.",
    ),
]
ExecutorOption = _text_option(
    TRAINING,
    "--executor",
    "serial|processes|ray",
    "How to run training jobs; serial by default, processes:4 uses four workers.",
    complete_words("serial", "processes", "ray"),
)
DeviceOption = _text_option(
    TRAINING,
    "--device",
    "auto|cpu|cuda",
    "Device to train on; auto, the default, uses CUDA if available.",
    complete_words("auto", "cpu", "cuda"),
)
OutOption = Annotated[
    Path | None, make_option(OUTPUT, "--out", "-o", metavar="FOLDER", text="The output folder of the run.")
]
JsonOption = Annotated[bool, make_option(OUTPUT, "--json", text="Print only JSON.")]
QuietOption = Annotated[
    bool, make_option(OUTPUT, "--quiet", "-q", text="Print only the answer, without tables or progress.")
]
