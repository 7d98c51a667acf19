"""`tagalong paper`: reproduces the numbers in the paper."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    integer_option,
    name_arguments,
    parse_names,
    parse_options,
    parse_problem_options,
    print_line,
    resumable,
    screen,
    show_progress,
)
from tagalong.files import document_text, write_document

from .experiments import EXPERIMENTS, check_methods, run_experiment
from .report_printing import show_files, show_report, show_selections

if TYPE_CHECKING:
    from .experiment_report import Report
    from .experiments import Experiment

SELECTIONS = "tagalong-selections"  # the format of selection.json
PANEL = "Experiment"
ProblemOption = Annotated[
    str,
    typer.Option(
        "--problem",
        metavar="faces|celeba|taskonomy",
        help="Problem to train on; faces is a synthetic substitute for CelebA.",
        rich_help_panel=PANEL,
        autocompletion=complete_words("faces", "celeba", "taskonomy"),
    ),
]
SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="small|full",
        help="small finishes in seconds; full matches the paper and requires a GPU.",
        rich_help_panel=PANEL,
        autocompletion=complete_words("small", "full"),
    ),
]
SeedsOption = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="NUMBER",
        parser=integer_option,
        help="Number of seeds; by default 2 at small size, 3 at full size, and 1 for Taskonomy.",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
PublishedOption = Annotated[
    bool,
    typer.Option(
        "--as-published",
        metavar="",
        help="For TAG, use the same step as the published code (with momentum, divided by the learning rate).",
        show_default=False,
    ),
]
LargerOption = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,…",
        help="Methods to train with larger networks; by default mtl,uw,gradnorm (Taskonomy: mtl,gradnorm).",
        show_default=False,
        autocompletion=complete_words("mtl", "uw", "gradnorm"),
    ),
]
AugmentedOption = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,…",
        help="Methods to compare with MTL; by default uw,gradnorm,pcgrad,pcgrad-uw.",
        show_default=False,
        autocompletion=complete_words("uw", "gradnorm", "pcgrad", "pcgrad-uw"),
    ),
]
COMMON_OPTIONS: dict[str, tuple[Any, Any]] = {
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
EXPERIMENT_OPTIONS: dict[str, dict[str, tuple[Any, Any]]] = {
    "main": {"as_published": (PublishedOption, False)},
    "capacity": {"methods": (LargerOption, None)},
    "no-early-stopping": {"methods": (AugmentedOption, None)},
}
OPTION_NAMES = {
    "problem": "--problem",
    "task": "--tasks",
    "recipe.lr": "--recipe lr",
    "seed": "--with seed",
    "workers": "workers of --executor",
}

paper = typer.Typer(name="paper", cls=Commands, invoke_without_command=True, rich_markup_mode="markdown")


@paper.callback()
def _list_experiments(context: typer.Context) -> None:
    """Reproduces the paper's numbers (Fifty et al., NeurIPS 2021) and shows where ours differ.

    Examples:
        `tagalong paper`: list all experiments
        `tagalong paper selection`: compare the printed groupings with the best ones
        `tagalong paper main --seeds 2`: reproduce the main figure with synthetic faces, in seconds
    """
    if context.invoked_subcommand is None:
        console, width = screen(), max(len(experiment.name) for experiment in EXPERIMENTS)
        for experiment in EXPERIMENTS:
            start = f"tagalong paper {experiment.name:<{width}}  "
            print_line(console, start + experiment.summary, hang=len(start))


@paper.command(cls=Command, epilog="Example: `tagalong paper selection --json`")
def selection(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Compares the paper's 15 printed groupings with the best ones for the published matrices."""
    from .selection import selections

    check_folder(out)
    found = selections()
    document = {"selections": [one.to_document() for one in found]}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_document(out / "selection.json", SELECTIONS, 1, document)
    if json:
        print(document_text(SELECTIONS, 1, document))
        return
    show_selections(found, quiet)
    if out is not None and not quiet:
        show_files(screen(), [out / "selection.json"])


@paper.command(cls=Command, epilog="Example: `tagalong paper errata --json`")
def errata(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Lists all disagreements with the printed numbers and explains them."""
    check_folder(out)
    _show_computed(run_experiment("errata"), out, json, quiet)


@paper.command(cls=Command, epilog="Example: `tagalong paper theory --json`")
def theory(out: OutOption = None, json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Tests Lemma 1 and each printed version of Proposition 1, and draws the counterexample."""
    check_folder(out)
    _show_computed(run_experiment("theory"), out, json, quiet)


def _show_computed(report: Report, out: Path | None, json: bool, quiet: bool) -> None:
    """Shows the report of an experiment that trains no networks. Writes files only if a folder is given."""
    files = [] if out is None else report.save(out)
    if json:
        print(report.to_json())
        return
    show_report(report, files, quiet)


def training_command(experiment: Experiment) -> Callable[..., None]:
    """Returns the command for an experiment that trains networks, with both common and experiment-specific options."""
    own_options = EXPERIMENT_OPTIONS.get(experiment.name, {})

    def command(**arguments: Any) -> None:
        options = {
            name: parse_names(arguments[name]) if isinstance(arguments[name], str) else arguments[name]
            for name in own_options
        }
        run_and_show(experiment.name, arguments, **options)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in {**COMMON_OPTIONS, **own_options}.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)  # typer reads this attribute
    return command


def run_and_show(name: str, arguments: dict[str, Any], **own_options: Any) -> None:
    """Runs an experiment and shows its report. Networks that are already in the folder are not trained again."""
    from .experiment_setup import load_setup

    check_folder(arguments["out"])  # before generating or decoding images, which takes minutes
    check_methods(name, own_options.get("methods"))
    with name_arguments(**OPTION_NAMES), show_progress(arguments["json"] or arguments["quiet"]) as progress:
        setup = load_setup(
            arguments["problem"],
            arguments["size"],
            out=arguments["out"],
            seeds=arguments["seeds"],
            tasks=parse_names(arguments["tasks"]),
            options=parse_problem_options(arguments["with_"] or [], "recipe", "size"),
            recipe=parse_options(arguments["recipe"] or [], "recipe"),
            device=arguments["device"] or "auto",
            executor=arguments["executor"] or "serial",
            progress=progress,
        )
        try:
            report = run_experiment(name, setup, **own_options)
            files: list[Path] = report.save(setup.out)
        except KeyboardInterrupt:
            raise resumable(setup.out) from None
    if arguments["json"]:
        print(report.to_json())
        return
    show_report(report, files, arguments["quiet"], can_resume=True)


for _experiment in EXPERIMENTS:
    if _experiment.trains:
        _help = f"{_experiment.summary[0].upper()}{_experiment.summary[1:]}".rstrip(".?")
        paper.command(
            _experiment.name,
            cls=Command,
            help=_help + ("?" if _experiment.summary.endswith("?") else "."),
            epilog=f"Example: `tagalong paper {_experiment.name} --seeds 1 --out runs/try`",
        )(training_command(_experiment))
