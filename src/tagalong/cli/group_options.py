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
    milp = "milp"
    search = "search"


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A table of scores, as CSV or JSON (see above).", show_default=False)
]
AxisOption = Annotated[
    AxisChoice,
    make_option(SCORES, "--axis", text="Whether the rows of a square table are sources (the default) or targets."),
]
ObjectiveOption = Annotated[
    ObjectiveChoice,
    make_option(
        SCORES,
        "--objective",
        text="max if larger scores are better (the default), or min if smaller ones are, as for losses.",
    ),
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
        text="Treat the scores as results of pairs, and score each larger group by the mean over its pairs (HOA). "
        "The diagonal of a square table contains single-task results.",
    ),
]
PlaceOption = Annotated[
    bool,
    make_option(
        SCORES,
        "--place-unmeasured",
        metavar="",
        text="Also place tasks without any measured pair, as average tasks; by default, they are left out.",
    ),
]
WeightsOption = Annotated[
    list[str] | None, make_option(SCORES, "--weights", metavar="A=2,B=1", text="Task weights; 1 by default.")
]
BudgetOption = Annotated[
    int | None,
    make_option(BUDGET, "--budget", "-b", parser=integer_option, metavar="NUMBER", text="Maximum number of networks."),
]
BudgetsOption = Annotated[
    str | None,
    make_option(
        BUDGET, "--budgets", metavar="1,2,3 | 1-5 | all", text="Several maximum numbers of networks; all by default."
    ),
]
CostOption = Annotated[
    str | None,
    make_option(
        BUDGET,
        "--cost",
        metavar="COST",
        text="Cost of a network: a number; half-single (0.5 for a single task, 1 otherwise); "
        "ENCODER+HEAD (e.g. 10+0.5), where HEAD is added once per task; or a file with the cost of each group.",
    ),
]
MaxCostOption = Annotated[
    float | None,
    make_option(
        BUDGET,
        "--max-cost",
        parser=number_option,
        metavar="NUMBER",
        text="Maximum cost of a single network, e.g. its latency.",
    ),
]
MaxTotalCostOption = Annotated[
    float | None,
    make_option(
        BUDGET,
        "--max-total-cost",
        parser=number_option,
        metavar="NUMBER",
        text="Maximum sum of the costs of all networks.",
    ),
]
SingleOption = Annotated[
    bool | None,
    make_option(
        RULES,
        "--allow-single/--no-single",
        metavar="",
        text="Allow or forbid single-task networks; by default, they are allowed if the scores include single tasks.",
    ),
]
MaxSizeOption = Annotated[
    int | None,
    make_option(
        RULES,
        "--max-size",
        parser=integer_option,
        metavar="NUMBER",
        text="Maximum number of tasks per network.",
    ),
]
MustOption = Annotated[
    list[str] | None,
    make_option(
        RULES, "--must-link", metavar="A,B", text="Tasks that must be served by the same network; may be repeated."
    ),
]
CannotOption = Annotated[
    list[str] | None,
    make_option(
        RULES, "--cannot-link", metavar="A,B", text="Tasks that must not be trained together; may be repeated."
    ),
]
SolverOption = Annotated[
    SolverChoice, make_option(SOLVER, "--solver", text="Solver to use; auto chooses one based on the problem size.")
]
TimeOption = Annotated[
    float | None,
    make_option(
        SOLVER,
        "--time-limit",
        parser=number_option,
        metavar="SECONDS",
        text="Time limit. If it is reached, the best grouping found so far is shown with a bound on the optimum.",
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
        text="Number of resamples of the measurements, used to estimate how stable the groups are.",
    ),
]
ExplainOption = Annotated[
    list[str] | None,
    make_option(
        OUTPUT, "--explain", metavar="TASK|all", text="Explain why a task is assigned to its network; may be repeated."
    ),
]
CompareOption = Annotated[
    Path | None,
    make_option(OUTPUT, "--compare", metavar="FILE", text="Compare with your own grouping (JSON)."),
]
OutOption = Annotated[
    Path | None, make_option(OUTPUT, "--out", "-o", metavar="FILE", text="Save the grouping to a .json file.")
]
JsonOption = Annotated[bool, make_option(OUTPUT, "--json", metavar="", text="Print only JSON.")]
QuietOption = Annotated[
    bool, make_option(OUTPUT, "--quiet", "-q", metavar="", text="Print only the networks, and no progress bar.")
]
