"""`tagalong paper`: what the paper printed, computed and trained again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from json import dumps
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
from tagalong.files import write_document

from .experiments import EXPERIMENTS, check_methods, run_experiment
from .terminal import show_files, show_report, show_selections

if TYPE_CHECKING:
    from .experiments import Experiment
    from .report import Report

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
        parser=integer_option,
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
    from .selection import selections

    check_folder(out)
    found = selections()
    document = {"selections": [one.to_document() for one in found]}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_document(out / "selection.json", "tagalong-selections", 1, document)
    if json:
        print(dumps(document, indent=1, allow_nan=False))
        return
    show_selections(found, quiet)
    if out is not None and not quiet:
        show_files(screen(), [out / "selection.json"])


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
        print(dumps(report.to_document(), indent=1, allow_nan=False))
        return
    show_report(report, files, quiet)


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

    check_folder(typed["out"])  # before minutes of drawing or decoding
    check_methods(name, own.get("methods"))
    with name_arguments(**TYPED), show_progress(typed["json"] or typed["quiet"]) as progress:
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
            raise resumable(bench.out) from None
    if typed["json"]:
        print(dumps(report.to_document(), indent=1, allow_nan=False))
        return
    show_report(report, files, typed["quiet"], resumes=True)


for _experiment in EXPERIMENTS:
    if _experiment.trains:
        _help = f"{_experiment.summary[0].upper()}{_experiment.summary[1:]}".rstrip(".?")
        paper.command(
            _experiment.name,
            cls=Command,
            help=_help + ("?" if _experiment.summary.endswith("?") else "."),
            epilog=f"Example: `tagalong paper {_experiment.name} --seeds 1 --out runs/try`",
        )(training_command(_experiment))
