"""The options of the commands. Each is declared once: on its own, or in a group that a command takes as a whole.

The fields of a group have the names of the arguments that the library takes. So `Study.run(**given(study))` passes on
what the user has typed, and to add an option is to add a field.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from tagalong.registry import find_plugins

# Repeated here because importing them would import torch, which is too slow for shell completion.
PROBLEMS = ("nhanes", "faces", "qm9")
METHODS = (
    *("mtl", "stl", "random", "cs", "tag", "hoa", "optimal", "oracle", "auto", "ensemble", "best-of", "uw"),
    *("gradnorm", "pcgrad", "constant", "boosting", "ridge", "blend"),
)
# Panels of the help pages
DATA, TASKS, COMPARISON, TRAINING, OUTPUT = "Data", "Tasks", "Comparison", "Training", "Output"
MAX_BUDGET = 10_000  # so that a range takes no time
SCORES, COST, CONSTRAINTS, SEARCH = "Scores", "Networks and cost", "Constraints", "Search"


def complete_problems(incomplete: str) -> list[str]:
    """Completes the names of problems, including those from plug-ins; otherwise, the shell completes files."""
    return [name for name in (*PROBLEMS, *find_plugins("problem")) if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Completes comma-separated method names, and the names of training rules after a plus sign."""
    last = max(incomplete.rfind(","), incomplete.rfind("+")) + 1
    names = (*METHODS, *find_plugins("method"))
    return [incomplete[:last] + name for name in names if name.startswith(incomplete[last:])]


# Parsers, which raise `ValueError` for a text that they cannot read


def parse_names(text: str) -> list[str]:
    """Parses comma-separated names.

    Example:
        >>> parse_names("age, ill")
        ['age', 'ill']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"must have at least one name, found {text!r}")
    return names


def parse_pairs(text: str) -> dict[str, str]:
    """Parses comma-separated pairs of a name and a word.

    Example:
        >>> parse_pairs("age=regression, ill=binary")
        {'age': 'regression', 'ill': 'binary'}
    """
    pairs = {}
    for part in parse_names(text):
        name, sign, word = (side.strip() for side in part.rpartition("="))
        if not sign or name in pairs:
            raise ValueError(f"must be comma-separated NAME=VALUE pairs with distinct names, found {part!r}")
        pairs[name] = word
    return pairs


def parse_weights(text: str) -> dict[str, float]:
    return {name: float(word) for name, word in parse_pairs(text).items()}


def parse_budgets(text: str) -> list[int]:
    """Parses numbers of networks: comma-separated integers and ranges.

    Example:
        >>> parse_budgets("1,3-5")
        [1, 3, 4, 5]
    """
    expected = "must have integers or ranges, e.g. 2,3 or 2-4"
    budgets: list[int] = []
    for part in parse_names(text):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise ValueError(f"{expected}, found {part!r}")
        budgets += range(int(first), min(int(last or first), MAX_BUDGET) + 1)
    if not budgets:
        raise ValueError(f"{expected}, found {text!r}")
    return list(dict.fromkeys(budgets))


def parse_cost(text: str) -> float | Callable[[frozenset[str]], float]:
    """Parses the cost of a network: a number, half-single, or ENCODER+HEAD.

    Example:
        >>> parse_cost("10+0.5")(frozenset({"age", "ill"}))
        11.0
    """
    if text == "half-single":
        return lambda group: 0.5 if len(group) == 1 else 1.0
    numbers = [float(part) for part in text.split("+")]
    if len(numbers) == 1:
        return numbers[0]
    encoder, head = numbers
    return lambda group: encoder + head * len(group)


def parse_setting(text: str) -> tuple[str, Any]:
    """Parses NAME=VALUE. The value is a Python literal, `true`, `false`, or else text.

    Example:
        >>> parse_setting("tag.every=1"), parse_setting("size=full"), parse_setting("teach=false")
        (('tag.every', 1), ('size', 'full'), ('teach', False))
    """
    name, sign, word = (part.strip() for part in text.partition("="))
    if not (name and sign):
        raise ValueError(f"must have the form NAME=VALUE, found {text!r}")
    try:
        value = {"true": True, "false": False}.get(word)  # as in JSON and YAML
        return name, ast.literal_eval(word) if value is None else value
    except (ValueError, SyntaxError):
        return name, word


def option(
    panel: str,
    text: str,
    metavar: str | None = None,
    *names: str,
    parser: Callable[[str], Any] | None = None,
    complete: Callable[[str], list[str]] | None = None,
) -> Any:
    """Declares an option in a panel of the help page. Its text should mention the default, if any.

    Without names, it is spelt like the parameter.
    """
    about: dict[str, Any] = {"help": text, "rich_help_panel": panel, "show_default": False, "metavar": metavar}
    return typer.Option(*names, **about, parser=parser, autocompletion=complete)


def given(group: Any) -> dict[str, Any]:
    """Returns the options of a group that the user has typed, by name."""
    return {name: value for name, value in vars(group).items() if value is not None}


def expand_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a command whose parameters are all single options, also those of groups."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            parameters.append(parameter.replace(annotation=hints.get(name, parameter.annotation)))

    @wraps(command)
    def expanded(**options: Any) -> Any:
        for name, kind in groups.items():
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        return command(**options)

    keywords = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    expanded.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


OutFolder = Annotated[Path | None, option(OUTPUT, "The output folder of the run.", "FOLDER", "--out", "-o")]
OutFile = Annotated[Path | None, option(OUTPUT, "The file to write.", "FILE", "--out", "-o")]
JsonOption = Annotated[bool, option(OUTPUT, "Print only JSON.", None, "--json")]
QuietOption = Annotated[bool, option(OUTPUT, "Print only the answer, without data or progress.", None, "--quiet", "-q")]
AllOption = Annotated[bool, option(COMPARISON, "Show every method and task, not only the answer.", None, "--all")]
KindsOption = Annotated[
    Mapping[str, Any] | None,
    option(
        DATA,
        "Kinds of targets: binary, multiclass or regression; inferred by default.",
        "A=binary,…",
        parser=parse_pairs,
    ),
]
AxisOption = Annotated[
    Literal["source", "target"],
    option(SCORES, "Whether the rows of a square table are sources (the default) or targets."),
]
WeightsOption = Annotated[
    Mapping[str, float] | None, option(TASKS, "Task weights; usually 1.", "A=2,B=1", parser=parse_weights)
]
TasksOption = Annotated[Sequence[str] | None, option(TASKS, "Use only these tasks.", "A,B,…", parser=parse_names)]
BudgetsOption = Annotated[
    Sequence[int] | None,
    option(
        COMPARISON,
        "Numbers of networks to compare.",
        "2,3 | 2-4",
        parser=parse_budgets,
    ),
]
SeedsOption = Annotated[int | None, option(COMPARISON, "Number of seeds; 3 by default.", "NUMBER")]
What = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM|TABLE.csv",
        help="A problem listed by `tagalong problems`, or a table file.",
        show_default=False,
        autocompletion=complete_problems,
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)]


@dataclass
class TableOptions:
    """How to read a table; see `Problem.from_table`."""

    targets: Annotated[
        Sequence[str] | None,
        option(DATA, "The columns to predict; required for a table.", "A,B,…", parser=parse_names),
    ] = None
    features: Annotated[
        Sequence[str] | None,
        option(DATA, "The input columns; all but IDs and free text by default.", "A,B,…", parser=parse_names),
    ] = None
    ignore: Annotated[
        Sequence[str] | None,
        option(DATA, "Columns to leave out of the input, such as names.", "A,B,…", parser=parse_names),
    ] = None
    categorical: Annotated[
        Sequence[str] | None,
        option(
            DATA,
            "Columns that contain categories, e.g. numbers; text with few values is found.",
            "A,B,…",
            parser=parse_names,
        ),
    ] = None
    kinds: KindsOption = None
    errors: Annotated[
        Mapping[str, str] | None,
        option(
            DATA,
            "Metrics to report: error rate, auroc, auprc, mae, rmse, r2, loss.",
            "A=auroc,…",
            parser=parse_pairs,
        ),
    ] = None
    split_column: Annotated[
        str | None, option(DATA, "The column that says train, val or test for each row.", "NAME")
    ] = None
    group_column: Annotated[
        str | None, option(DATA, "Rows with the same value in this column stay in the same split.", "NAME")
    ] = None
    features_file: Annotated[
        Path | None, option(DATA, "An npy or npz file with the input features of each row.", "FILE")
    ] = None
    unlabelled: Annotated[
        Path | None,
        option(DATA, "A table with the same input columns and no labels, for networks that others teach.", "FILE"),
    ] = None
    encoder: Annotated[
        Literal["mlp", "tabm"] | None,
        option(DATA, "Network for the table: tabm (the default), or mlp, which is faster and usually worse."),
    ] = None


@dataclass
class ProblemOptions:
    """How to change a problem before training."""

    tasks: TasksOption = None
    settings: Annotated[
        list[Any] | None,
        option(
            DATA,
            "Setting of a problem by name, e.g. rows=8000; may be repeated.",
            "NAME=VALUE",
            "--with",
            parser=parse_setting,
        ),
    ] = None
    recipe: Annotated[
        list[Any] | None,
        option(
            TRAINING,
            "Training setting, e.g. lr=0.01 or epochs=50; may be repeated.",
            "NAME=VALUE",
            parser=parse_setting,
        ),
    ] = None


@dataclass
class TrainingOptions:
    """Where to train; see `Study`."""

    executor: Annotated[
        str | None,
        option(
            TRAINING,
            "How to run training jobs; serial by default, processes:4 uses four workers.",
            "serial|processes|ray",
        ),
    ] = None
    device: Annotated[
        str | None,
        option(TRAINING, "Device to train on; auto, the default, uses CUDA if available.", "auto|cpu|cuda"),
    ] = None


@dataclass
class ComparisonOptions:
    """What to compare; see `Study.run`."""

    methods: Annotated[
        Sequence[str] | None,
        option(
            COMPARISON,
            "Methods to compare, e.g. mtl,tag,auto or tag+pcgrad.",
            "A,B,…",
            parser=parse_names,
            complete=complete_methods,
        ),
    ] = None
    budgets: BudgetsOption = None
    seeds: SeedsOption = None


@dataclass
class StudyOptions(ComparisonOptions):
    """What to compare, and how; see `Study.run`."""

    effort: Annotated[
        str | None,
        option(
            COMPARISON,
            "Training runs that auto and best-of each may use: 60 by default; quick means 20, thorough 200.",
            "NUMBER|quick|10min",
        ),
    ] = None
    time: Annotated[
        str | None,
        option(COMPARISON, "Stop training after this time, and leave out methods that are not finished.", "10min|2h"),
    ] = None
    reference: Annotated[
        str | None,
        option(
            COMPARISON,
            "Compare everything with this method; boosting for tables and mtl otherwise, by default.",
            "METHOD",
            complete=complete_methods,
        ),
    ] = None
    repeats: Annotated[
        int | None,
        option(
            COMPARISON,
            "Number of folds; without --seeds, 5 by default for less than 2,000 labelled rows.",
            "NUMBER",
        ),
    ] = None
    confirm: Annotated[
        int | None,
        option(
            COMPARISON,
            "Retrain the best grouping with this many new seeds before judging it; 0 by default.",
            "NUMBER",
        ),
    ] = None
    options: Annotated[
        list[Any] | None,
        option(
            COMPARISON,
            "Method option, e.g. tag.every=1; may be repeated.",
            "METHOD.OPTION=VALUE",
            "--set",
            parser=parse_setting,
        ),
    ] = None


@dataclass
class SelectionOptions:
    """How to choose networks; see `select_groups`."""

    cost: Annotated[
        Any,
        option(
            COST,
            "Cost of a network: a number; half-single (0.5 for a single task, 1 otherwise); or ENCODER+HEAD (e.g. "
            "10+0.5), where HEAD is added once per task.",
            "COST",
            parser=parse_cost,
        ),
    ] = None
    max_cost: Annotated[float | None, option(COST, "Maximum cost of a single network, e.g. its latency.", "NUMBER")] = (
        None
    )
    max_total_cost: Annotated[float | None, option(COST, "Maximum sum of the costs of all networks.", "NUMBER")] = None

    objective: Annotated[
        Literal["max", "min"],
        option(SCORES, "max if larger scores are better (the default), or min if smaller ones are, as for losses."),
    ] = "max"
    complete: Annotated[
        Literal["pairs"] | None,
        option(
            SCORES,
            "Treat the scores as results of pairs, and score each larger group by the mean over its pairs (HOA). "
            "The diagonal of a square table contains single-task results.",
        ),
    ] = None
    place_unmeasured: Annotated[
        bool,
        option(
            SCORES,
            "Also place tasks without any measured pair, as average tasks; by default, they are left out.",
            None,
            "--place-unmeasured",
        ),
    ] = False
    weights: WeightsOption = None
    allow_single: Annotated[
        bool | None,
        option(
            CONSTRAINTS,
            "Allow or forbid single-task networks; by default, they are allowed if the scores include single tasks.",
            None,
            "--allow-single/--no-single",
        ),
    ] = None
    max_size: Annotated[int | None, option(CONSTRAINTS, "Maximum number of tasks per network.", "NUMBER")] = None
    must_link: Annotated[
        list[Any] | None,
        option(
            CONSTRAINTS,
            "Tasks that must be served by the same network; may be repeated.",
            "A,B",
            parser=parse_names,
        ),
    ] = None
    cannot_link: Annotated[
        list[Any] | None,
        option(CONSTRAINTS, "Tasks that must not be trained together; may be repeated.", "A,B", parser=parse_names),
    ] = None
    solver: Annotated[
        Literal["auto", "exact", "milp", "search"],
        option(SEARCH, "Solver to use; auto chooses one based on the problem size."),
    ] = "auto"
    time_limit: Annotated[
        float | None,
        option(
            SEARCH,
            "Time limit. If it is reached, the best grouping found so far is shown with a bound on the optimum.",
            "SECONDS",
        ),
    ] = None
    seed: Annotated[int, option(SEARCH, "Random seed; 0 by default.", "NUMBER")] = 0
    resamples: Annotated[
        int | None,
        option(
            SEARCH,
            "Number of resamples of the measurements, used to estimate how stable the groups are.",
            "NUMBER",
        ),
    ] = None
