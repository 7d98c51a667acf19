"""`tagalong leaderboard`: which affinity estimator best predicts which tasks actually help?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from typing import Annotated

from tagalong.cli import (
    BudgetsOption,
    JsonOption,
    SeedsOption,
    TextTable,
    option,
    parse_names,
    print_table,
    spinner,
)
from tagalong.files import json_safe


def leaderboard(
    tables: Annotated[
        Sequence[str] | None, option("Options", "The truth tables to use; all by default.", "A,B,…", parser=parse_names)
    ] = None,
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

    Examples:
    - `tagalong leaderboard --tables nhanes,faces`: compare estimators on two tables
    """
    from . import average, leaderboard as compare, truth_names  # loads torch

    names = list(tables or truth_names())
    ks = (2, 3, 4) if budgets is None else tuple(budgets)
    with spinner("comparing estimators", quiet=json):
        standings = compare(names, budgets=ks, seeds=3 if seeds is None else seeds)
    if json:
        print(dumps({"leaderboard": [json_safe(asdict(standing)) for standing in standings]}, indent=1))
        return
    if len(names) > 1:
        standings += average(standings)
    # The highest correlation first, and rows without one last.
    standings.sort(key=lambda row: (2.0 if math.isnan(row.marginal) else -row.marginal, row.estimator))
    numbers = ("pairs", "joining", *(f"k={k}" for k in ks), "cost")
    for name in (*names, "all tables"):
        shown = TextTable(f"{name}: estimator", *numbers, numbers=numbers)
        for row in standings:
            if row.table == name:
                correlations = ["–" if math.isnan(value) else f"{value:+.2f}" for value in (row.pairs, row.marginal)]
                changes = [f"{100 * row.changes[k]:+.2f}%" if k in row.changes else "" for k in ks]
                shown.add_row(row.estimator, *correlations, *changes, f"{row.cost:.1f}")
        if shown.rows:
            print_table(shown)
            print()
