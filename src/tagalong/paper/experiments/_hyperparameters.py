"""`hyperparameters`: do the best groups of one setting carry over to another?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.group import Grouping, select_groups

from .._judge import value
from .._report import Cell, Claim, Report, Sheet, Value
from .._totals import grouping_totals, measure_of, subset_table, train_subsets
from ..figures import bars
from ..printed import HYPERPARAMETERS

if TYPE_CHECKING:
    from .._bench import Bench

TITLE = "Do the best groups depend on batch size and learning rate?"
OTHERS = ("half the batch", "twice the lr")


def run(bench: Bench) -> Report:
    """Trains every subset in three settings; groups are the best of each by test, as in the paper."""
    recipe = bench.chosen.recipe
    settings: dict[str, dict[str, Any]] = {
        "base": {},
        "half the batch": {"batch_size": max(2, recipe.batch_size // 2)},
        "twice the lr": {"lr": 2 * recipe.lr},
    }
    found: dict[str, dict[int, Grouping]] = {}
    for name, changed in settings.items():
        with bench.lab(**changed) as lab:
            train_subsets(lab, bench.seeds)
            table = subset_table(lab, bench.seeds)
        found[name] = {k: select_groups(table, k, objective="min") for k in bench.budgets}
    with bench.lab() as lab:
        totals = {
            (name, k): grouping_totals(lab, grouping.groups, bench.seeds)
            for name, by_budget in found.items()
            for k, grouping in by_budget.items()
        }
    deficits = {(name, k): _deficit(totals["base", k], totals[name, k]) for name in OTHERS for k in bench.budgets}
    return Report(
        "hyperparameters",
        TITLE,
        sheets=[_sheet(bench, deficits, totals), _groups(bench, found)],
        claims=_claims(bench, deficits),
        figures={
            "hyperparameters": bars(
                {name: [deficits[name, k] for k in bench.budgets] for name in OTHERS},
                [f"{k} groups" for k in bench.budgets],
                title=TITLE,
                value="less than the base setting's best, %",
            )
        },
        notes=[*bench.about, f"batch {recipe.batch_size} and {settings['half the batch']['batch_size']}, learning rate "
               f"{recipe.lr:g} and {2 * recipe.lr:g}; chosen and scored by test, as in the paper"],
    )  # fmt: skip


def _deficit(best: list[float], other: list[float]) -> float:
    """How much worse, in percent of the best total; never positive."""
    return 100 * (float(np.mean(best)) - float(np.mean(other))) / float(np.mean(best)) if np.mean(best) else 0.0


def _sheet(bench: Bench, deficits: dict[tuple[str, int], float], totals: dict[tuple[str, int], list[float]]) -> Sheet:
    rows: list[list[Cell]] = []
    for k in bench.budgets:
        row: list[Cell] = [k, value(totals["base", k])]
        for name in OTHERS:
            printed = HYPERPARAMETERS.get(k, {}).get(name)
            row += [Value(deficits[name, k]), None if printed is None else Value(printed)]
        rows.append(row)
    columns = ["groups", f"best total {measure_of(bench.chosen)}"]
    for name in OTHERS:
        columns += [f"{name}, %", f"printed {name}"]
    return Sheet("Groups of other settings in the base setting, against its own best", tuple(columns), rows)


def _groups(bench: Bench, found: dict[str, dict[int, Grouping]]) -> Sheet:
    rows = [
        (name, k, "  ".join(" ".join(bench.short(task) for task in sorted(g.trains)) for g in grouping.groups))
        for name, by_budget in found.items()
        for k, grouping in by_budget.items()
    ]
    return Sheet("The best groups of each setting, by test", ("setting", "groups", "networks"), rows)


def _claims(bench: Bench, deficits: dict[tuple[str, int], float]) -> list[Claim]:
    mean = {name: float(np.mean([deficits[name, k] for k in bench.budgets])) for name in OTHERS}
    listed = "; ".join(f"{name}: {mean[name]:.2f} % on average" for name in OTHERS)
    changed = all(deficits[name, k] < 0 for name in OTHERS for k in bench.budgets)
    worse = mean["twice the lr"] < mean["half the batch"]
    return [
        Claim("the best groups change with batch size and learning rate", "yes" if changed else "no", listed),
        Claim("twice the learning rate carries over worse than half the batch", "yes" if worse else "no", listed),
    ]
