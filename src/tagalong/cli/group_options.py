"""The options of `tagalong group`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .arguments import integer_option, number_option
from .options import make_option

SCORES, BUDGET, RULES, SOLVER, OUTPUT = "Scores", "Budget and cost", "Constraints", "Search", "Output"


class AxisChoice(str, Enum):
    source = "source"
    target = "target"


class ObjectiveChoice(str, Enum):
    max = "max"
    min = "min"


class AverageChoice(str, Enum):
    mean = "mean"
    trimmed = "trimmed"
    median = "median"


class CompleteChoice(str, Enum):
    pairs = "pairs"


class SolverChoice(str, Enum):
    auto = "auto"
    exact = "exact"
    lp = "lp"
    columns = "columns"
    milp = "milp"
    search = "search"


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A table of scores: CSV or JSON, see above.", show_default=False)
]
AxisOption = Annotated[
    AxisChoice, make_option(SCORES, "--axis", text="Meaning of the rows of a square table; source by default.")
]
ObjectiveOption = Annotated[
    ObjectiveChoice,
    make_option(SCORES, "--objective", text="max if larger scores are better (the default), min for losses."),
]
TasksOption = Annotated[str | None, make_option(SCORES, "--tasks", metavar="A,B,…", text="Use only these tasks.")]
AverageOption = Annotated[
    AverageChoice | None, make_option(SCORES, "--average", text="How to average the history of a saved affinity.")
]
CompleteOption = Annotated[
    CompleteChoice | None,
    make_option(
        SCORES,
        "--complete",
        text="Treat scores as results of pairs, with single tasks on the diagonal of a square table; larger groups "
        "get the mean over their pairs (HOA). If the file has costs, theirs come from --cost or the pairs.",
    ),
]
WeightsOption = Annotated[
    list[str] | None, make_option(SCORES, "--weights", metavar="A=2,B=1", text="Weights of tasks; 1 each by default.")
]
BudgetOption = Annotated[
    float | None,
    make_option(
        BUDGET,
        "--budget",
        "-b",
        parser=number_option,
        metavar="NUMBER",
        text="Number of networks; with --cost, their total cost.",
    ),
]
BudgetsOption = Annotated[
    str | None, make_option(BUDGET, "--budgets", metavar="1,2,3 | 1-5 | all", text="Several budgets at once.")
]
CostOption = Annotated[
    str | None,
    make_option(
        BUDGET,
        "--cost",
        metavar="COST",
        text="Cost of a network: a number; half-single (0.5 for a single task, 1 otherwise); "
        "ENCODER+HEAD such as 10+0.5, where HEAD counts once per task; or a file of groups and costs.",
    ),
]
MaxCostOption = Annotated[
    float | None,
    make_option(
        BUDGET,
        "--max-cost",
        parser=number_option,
        metavar="NUMBER",
        text="Highest cost of a single network, such as a latency.",
    ),
]
SingleOption = Annotated[
    bool | None,
    make_option(
        RULES,
        "--allow-single/--no-single",
        metavar="",
        text="Whether a network may train a single task; by default if the scores include results for that.",
    ),
]
MaxSizeOption = Annotated[
    int | None,
    make_option(
        RULES,
        "--max-size",
        parser=integer_option,
        metavar="NUMBER",
        text="Largest number of tasks that a network may train.",
    ),
]
MustOption = Annotated[
    list[str] | None,
    make_option(RULES, "--must-link", metavar="A,B", text="Tasks that the same network must serve; may be repeated."),
]
CannotOption = Annotated[
    list[str] | None,
    make_option(
        RULES, "--cannot-link", metavar="A,B", text="Tasks that no network may train together; may be repeated."
    ),
]
SolverOption = Annotated[
    SolverChoice, make_option(SOLVER, "--solver", text="Solver; auto chooses by the size of the problem.")
]
TimeOption = Annotated[
    float | None,
    make_option(
        SOLVER,
        "--time-limit",
        parser=number_option,
        metavar="SECONDS",
        text="Time limit, after which the best grouping found is shown with its bound.",
    ),
]
SeedOption = Annotated[
    int, make_option(SOLVER, "--seed", parser=integer_option, metavar="NUMBER", text="Random seed; 0 by default.")
]
ResamplesOption = Annotated[
    int | None,
    make_option(
        SOLVER,
        "--resamples",
        parser=integer_option,
        metavar="NUMBER",
        text="Number of bootstrap resamples of the history, to see how stable the groups are.",
    ),
]
ExplainOption = Annotated[
    list[str] | None,
    make_option(
        OUTPUT, "--explain", metavar="TASK|all", text="Explain why a task is served by its network; may be repeated."
    ),
]
TogetherOption = Annotated[
    bool,
    make_option(
        OUTPUT, "--together", metavar="", text="Show how often resamples serve each pair of tasks by one network."
    ),
]
CompareOption = Annotated[
    Path | None,
    make_option(OUTPUT, "--compare", metavar="FILE", text="Compare with a grouping of your own (YAML or JSON)."),
]
OutOption = Annotated[
    Path | None, make_option(OUTPUT, "--out", "-o", metavar="FILE", text="Save the grouping as .json or .yaml.")
]
JsonOption = Annotated[bool, make_option(OUTPUT, "--json", metavar="", text="Print JSON and nothing else.")]
QuietOption = Annotated[
    bool, make_option(OUTPUT, "--quiet", "-q", metavar="", text="Print only the networks, without progress.")
]
