"""`tagalong leaderboard`: which affinity estimator best predicts which tasks actually help?"""

from __future__ import annotations

import math
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from tagalong.cli import (
    BudgetsOption,
    JsonOption,
    SeedsOption,
    TextTable,
    parse_budgets,
    parse_names,
    print_line,
    print_table,
    printable,
    screen,
    spinner,
)
from tagalong.files import json_safe

if TYPE_CHECKING:
    from .standings import Standing

Tables = Annotated[
    str | None,
    typer.Option("--tables", metavar="A,B,…", help="The truth tables to use; all by default.", show_default=False),
]


def leaderboard(
    tables: Tables = None,
    budgets: BudgetsOption = None,
    seeds: SeedsOption = None,
    json: JsonOption = False,
) -> None:
    """Compares affinity estimators using truth tables, for which every subset of tasks was trained.

    The columns "pairs" and "joining" are correlations with the true gain from adding a task: to one other task, and on
    average over all groups that it can join. Columns such as "k=2" show the change in test loss relative to one network
    for all tasks, where negative values are better. Costs are relative to the cost of training that network.

    Four rows help to read the others: "random groups" is the expected result of random groups, "copies" averages
    networks for all tasks that differ only in their seeds, "best by validation" chooses among networks for all subsets
    of tasks, and "truth, half the seeds" predicts the truth for half of the seeds from the other half, which shows how
    much of the truth is noise. Other packages can add estimators through the "tagalong.estimators" entry point group.
    Those estimators are measured on tagalong's own problems, which takes minutes.

    Example:
        `tagalong leaderboard --tables nhanes,faces`: compare estimators on two tables
    """
    from .standings import leaderboard as compare
    from .truth_table import truth_names

    names = parse_names(tables)
    ks = (2, 3, 4) if budgets is None else tuple(int(k) for k in parse_budgets(budgets, 12))
    with spinner("comparing estimators", quiet=json):
        found = compare(names or truth_names(), budgets=ks, seeds=3 if seeds is None else seeds)
    if json:
        print(dumps({"leaderboard": [json_safe(standing.to_document()) for standing in found]}, indent=1))
        return
    _show_leaderboard(found, ks)


def _show_leaderboard(standings: list[Standing], budgets: tuple[int, ...]) -> None:
    from .standings import average

    console = screen()
    numbers = ("pairs", "joining", *(f"k={k}" for k in budgets), "cost")
    names = dict.fromkeys(standing.table for standing in standings)
    overall = average(standings) if len(names) > 1 else []
    for name in (*names, *dict.fromkeys(standing.table for standing in overall)):
        shown = TextTable(f"{printable(name)}: estimator", *numbers, numbers=numbers)
        rows = sorted((one for one in (*standings, *overall) if one.table == name), key=_sort_key)
        for standing in rows:
            changes = [f"{100 * standing.changes[k]:+.2f}%" if k in standing.changes else "" for k in budgets]
            shown.add_row(
                printable(standing.estimator),
                _format_correlation(standing.pairs),
                _format_correlation(standing.marginal),
                *changes,
                f"{standing.cost:.1f}",
            )
        print_table(console, shown)
        print_line(console, "")


def _format_correlation(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.2f}"


def _sort_key(standing: Standing) -> tuple[float, str]:
    """Returns a sort key that puts the highest correlation first and NaN last."""
    return 2.0 if math.isnan(standing.marginal) else -standing.marginal, standing.estimator
