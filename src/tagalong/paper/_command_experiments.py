"""`tagalong paper NAME`: the experiments that train."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagalong.cli import (
    DeviceOption,
    ExecutorOption,
    JsonOption,
    OutOption,
    QuietOption,
    RecipeOption,
    TasksOption,
    WithOption,
    called,
    check_folder,
    goes_on,
    listed,
    of_problem,
    one_of,
    typed_whole,
    values,
    watching,
)

from ._experiments import check_methods

if TYPE_CHECKING:
    from ._experiments import Experiment

WHERE = "Where"
ProblemOption = Annotated[
    str,
    typer.Option(
        "--problem",
        metavar="faces|celeba|taskonomy",
        help="Drawn faces stand in for CelebA.",
        rich_help_panel=WHERE,
        autocompletion=one_of("faces", "celeba", "taskonomy"),
    ),
]
SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="small|full",
        help="Seconds, or the paper's size (a GPU).",
        rich_help_panel=WHERE,
        autocompletion=one_of("small", "full"),
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
        autocompletion=one_of("mtl", "uw", "gradnorm"),
    ),
]
AugmentedOption = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,…",
        help="What is compared with MTL: uw,gradnorm,pcgrad,pcgrad-uw by default.",
        show_default=False,
        autocompletion=one_of("uw", "gradnorm", "pcgrad", "pcgrad-uw"),
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
        read = {name: listed(typed[name]) if isinstance(typed[name], str) else typed[name] for name in own}
        run(experiment.name, typed, **read)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in {**COMMON, **own}.items()
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)  # what typer reads
    return command


def run(name: str, typed: dict[str, Any], **own: Any) -> None:
    """Runs an experiment and shows what came out; networks that are in the folder are not trained again."""
    from tagalong.paper import open_bench, run_experiment

    from ._command_page import show_report

    check_folder(typed["out"])  # before minutes of drawing or decoding
    check_methods(name, own.get("methods"))
    with called(**TYPED), watching(typed["json"] or typed["quiet"]) as progress:
        bench = open_bench(
            typed["problem"],
            typed["size"],
            out=typed["out"],
            seeds=typed["seeds"],
            tasks=listed(typed["tasks"]),
            options=of_problem(typed["with_"] or [], "recipe", "size"),
            recipe=values(typed["recipe"] or [], "recipe"),
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
