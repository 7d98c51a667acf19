"""The options of `tagalong group`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .arguments import typed_number, typed_whole

SCORES, BUDGET, RULES, SOLVER, OUTPUT = "The scores", "Budget and cost", "Rules", "The search", "Output"


class Axis(str, Enum):
    source = "source"
    target = "target"


class Objective(str, Enum):
    max = "max"
    min = "min"


class Average(str, Enum):
    mean = "mean"
    trimmed = "trimmed"
    median = "median"


class Complete(str, Enum):
    pairs = "pairs"


class Solver(str, Enum):
    auto = "auto"
    exact = "exact"
    lp = "lp"
    columns = "columns"
    milp = "milp"
    search = "search"


def _option(
    panel: str, *names: str, metavar: str | None = None, text: str, parser: Callable[[str], float] | None = None
) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, show_default=False, parser=parser
    )
    return made


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A table of scores: CSV or JSON, see above.", show_default=False)
]
AxisOption = Annotated[Axis, _option(SCORES, "--axis", text="What the rows of a square table are; source by default.")]
ObjectiveOption = Annotated[
    Objective, _option(SCORES, "--objective", text="max if large scores are good (the default), min for losses.")
]
TasksOption = Annotated[
    str | None, _option(SCORES, "--tasks", metavar="A,B,…", text="These tasks alone, without new measurements.")
]
AverageOption = Annotated[
    Average | None, _option(SCORES, "--average", text="How to average the history of a saved affinity.")
]
CompleteOption = Annotated[
    Complete | None,
    _option(
        SCORES,
        "--complete",
        text="Scores are results of pairs, with single tasks on the diagonal of a square table; larger groups get the "
        "mean over their pairs (HOA). Where the file has costs, they cost what --cost says, or as much as the pairs.",
    ),
]
WeightsOption = Annotated[
    list[str] | None, _option(SCORES, "--weights", metavar="A=2,B=1", text="How much tasks count; 1 each by default.")
]
BudgetOption = Annotated[
    float | None,
    _option(
        BUDGET,
        "--budget",
        "-b",
        parser=typed_number,
        metavar="NUMBER",
        text="How many networks; with --cost, what all may cost.",
    ),
]
BudgetsOption = Annotated[
    str | None, _option(BUDGET, "--budgets", metavar="1,2,3 | 1-5 | all", text="Several budgets at once.")
]
CostOption = Annotated[
    str | None,
    _option(
        BUDGET,
        "--cost",
        metavar="COST",
        text="Of one network: a number; half-single (0.5 for one task alone, 1 otherwise); ENCODER+HEAD such as 10+0.5 "
        "(and so much per task); or a file of groups and costs.",
    ),
]
MaxCostOption = Annotated[
    float | None,
    _option(
        BUDGET, "--max-cost", parser=typed_number, metavar="NUMBER", text="What a single network may cost: a latency."
    ),
]
SingleOption = Annotated[
    bool | None,
    _option(
        RULES,
        "--allow-single/--no-single",
        metavar="",
        text="Whether a network may train one task alone; by default where the scores hold comparable results of it.",
    ),
]
MaxSizeOption = Annotated[
    int | None,
    _option(RULES, "--max-size", parser=typed_whole, metavar="NUMBER", text="How many tasks a network may train."),
]
MustOption = Annotated[
    list[str] | None,
    _option(RULES, "--must-link", metavar="A,B", text="Tasks served by the same network; may be repeated."),
]
CannotOption = Annotated[
    list[str] | None,
    _option(RULES, "--cannot-link", metavar="A,B", text="Tasks of which no network trains two; may be repeated."),
]
SolverOption = Annotated[Solver, _option(SOLVER, "--solver", text="By size (auto) or by name.")]
TimeOption = Annotated[
    float | None,
    _option(
        SOLVER, "--time-limit", parser=typed_number, metavar="SECONDS", text="Then the best found, with its bound."
    ),
]
SeedOption = Annotated[
    int, _option(SOLVER, "--seed", parser=typed_whole, metavar="NUMBER", text="Of random numbers; 0 by default.")
]
ResamplesOption = Annotated[
    int | None,
    _option(
        SOLVER,
        "--resamples",
        parser=typed_whole,
        metavar="NUMBER",
        text="Of the history, to see how stable the groups are.",
    ),
]
ExplainOption = Annotated[
    list[str] | None,
    _option(OUTPUT, "--explain", metavar="TASK|all", text="Why a task is served where it is; may be repeated."),
]
TogetherOption = Annotated[
    bool,
    _option(
        OUTPUT, "--together", metavar="", text="How often resamples serve two tasks in one network, for each pair."
    ),
]
CompareOption = Annotated[
    Path | None,
    _option(OUTPUT, "--compare", metavar="FILE", text="What a grouping made by hand (YAML or JSON) loses."),
]
OutOption = Annotated[
    Path | None, _option(OUTPUT, "--out", "-o", metavar="FILE", text="Save the grouping: .json or .yaml.")
]
JsonOption = Annotated[bool, _option(OUTPUT, "--json", metavar="", text="Print JSON and nothing else.")]
QuietOption = Annotated[bool, _option(OUTPUT, "--quiet", "-q", metavar="", text="Only the networks, and no progress.")]
