"""`tagalong paper NAME`: the experiments that train."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from . import _study_options as options
from ._arguments import check_folder, typed_whole
from ._completion import one_of
from ._interrupt import goes_on
from ._sentences import called
from ._study_arguments import listed, of_problem, values

if TYPE_CHECKING:
    from tagalong.paper import Experiment

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


def training_command(experiment: Experiment) -> Callable[..., None]:
    """The command of an experiment that trains."""

    def command(
        problem: ProblemOption = "faces",
        size: SizeOption = "small",
        seeds: SeedsOption = None,
        tasks: options.TasksOption = None,
        with_: options.WithOption = None,
        recipe: options.RecipeOption = None,
        executor: options.ExecutorOption = None,
        device: options.DeviceOption = None,
        out: options.OutOption = None,
        json: options.JsonOption = False,
        quiet: options.QuietOption = False,
    ) -> None:
        given: dict[str, Any] = {"seeds": seeds, "tasks": tasks, "with_": with_, "recipe": recipe}
        given |= {"executor": executor, "device": device, "out": out}
        run(experiment.name, problem, size, Shown(json, quiet), given)

    return command


def main_command(
    problem: ProblemOption = "faces",
    size: SizeOption = "small",
    seeds: SeedsOption = None,
    tasks: options.TasksOption = None,
    with_: options.WithOption = None,
    recipe: options.RecipeOption = None,
    as_published: PublishedOption = False,
    executor: options.ExecutorOption = None,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    given: dict[str, Any] = {"seeds": seeds, "tasks": tasks, "with_": with_, "recipe": recipe}
    given |= {"executor": executor, "device": device, "out": out}
    run("main", problem, size, Shown(json, quiet), given, as_published=as_published)


class Shown(NamedTuple):
    """How much of a report is shown."""

    json: bool = False
    quiet: bool = False


def run(name: str, problem: str, size: str, shown: Shown, given: dict[str, Any], **more: Any) -> None:
    """Runs an experiment and shows what came out; networks that are in the folder are not trained again."""
    from tagalong.paper import open_bench, run_experiment

    from ._paper_page import show_report
    from ._watch import watching

    check_folder(given["out"])  # before minutes of drawing or decoding
    with called(task="--tasks"), watching(shown.json or shown.quiet) as progress:
        bench = open_bench(
            problem,
            size,
            out=given["out"],
            seeds=given["seeds"],
            tasks=listed(given["tasks"]),
            options=of_problem(given["with_"] or [], "recipe", "size"),
            recipe=values(given["recipe"] or [], "recipe"),
            device=given["device"] or "auto",
            executor=given["executor"] or "serial",
            progress=progress,
        )
        try:
            report = run_experiment(name, bench, **more)
            files: list[Path] = report.save(bench.out)
        except KeyboardInterrupt:
            raise goes_on(bench.out) from None
    if shown.json:
        print(json_module.dumps(report.to_document(), indent=1, allow_nan=False))
        return
    show_report(report, files, shown.quiet, resumes=True)
