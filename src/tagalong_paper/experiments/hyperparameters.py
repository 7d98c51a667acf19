"""`hyperparameters`: do the best groups of one setting carry over to another?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.group import Grouping, select_groups
from tagalong.learn import Diverged
from tagalong.study import Lab

from ..claims import all_lower, value
from ..figures import bars
from ..printed import HYPERPARAMETERS
from ..report import Cell, Claim, Report, Sheet, Value
from ..totals import digits_of, grouping_totals, measure_of, noun_of, one_row, subset_table, train_subsets

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench

TITLE = "Do the best groups depend on batch size and learning rate?"
OTHERS = ("half the batch", "twice the lr")
Chosen = dict[str, dict[int, Grouping]]
Scores = Mapping[tuple[str, int], Sequence[float]]  # by setting and budget, for every seed
CLAIMS = (
    "the best groups change with batch size and learning rate: those of others do worse in the base setting",
    "twice the learning rate carries over worse than half the batch",
)


def run(bench: Bench) -> Report:
    """Trains every subset in three settings; groups are the best of each by test, as in the paper and out of sample.

    The paper chooses and scores by the same test errors, where no groups can beat the base setting's own. So they are
    chosen once more without each seed, the base setting's too, and scored with that seed: the claims rest on these.
    """
    recipe = bench.chosen.recipe
    settings: dict[str, dict[str, Any]] = {
        "base": {},
        "half the batch": {"batch_size": max(2, recipe.batch_size // 2)},
        "twice the lr": {"lr": 2 * recipe.lr},
    }
    found: Chosen = {}
    without: dict[int, Chosen] = {seed: {} for seed in bench.seeds if len(bench.seeds) > 1}
    for name, changed in settings.items():
        with bench.lab(**changed) as lab:
            train_subsets(lab, bench.seeds)
            found[name] = _best(bench, lab, bench.seeds)
            for seed, chosen in without.items():
                chosen[name] = _best(bench, lab, [other for other in bench.seeds if other != seed])
    with bench.lab() as lab:
        totals = _totals(lab, found, bench.seeds)
        each = [_totals(lab, chosen, [seed]) for seed, chosen in without.items()]
    left_out = {key: [one[key][0] for one in each] for key in totals}
    return Report(
        "hyperparameters",
        TITLE,
        sheets=[_sheet(bench, totals), _out_of_sample(bench, left_out), _groups(bench, found)],
        claims=claims(left_out, one_row(bench.chosen)),
        figures={"hyperparameters": _figure(bench, totals, left_out)},
        notes=[*bench.about, f"batch {recipe.batch_size} and {settings['half the batch']['batch_size']}, learning rate "
               f"{recipe.lr:g} and {2 * recipe.lr:g}"],
    )  # fmt: skip


def _best(bench: Bench, lab: Lab, seeds: Sequence[int]) -> dict[int, Grouping]:
    table, recipe = subset_table(lab, seeds), lab.problem.recipe
    try:
        return {k: select_groups(table, k, objective="min") for k in bench.budgets}
    except ValueError as error:
        lost, count = len(lab.subsets()) - len(table), len(lab.subsets())
        if not lost:
            raise
        raise Diverged(
            f"{lost} of {count} subsets diverged with a learning rate of {recipe.lr:g} and batches of "
            f"{recipe.batch_size}, and no {bench.budgets[0]} of the others serve all tasks; lower `recipe.lr`"
        ) from error


def _totals(lab: Lab, chosen: Chosen, seeds: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    return {
        (name, k): grouping_totals(lab, grouping.groups, seeds)
        for name, by_budget in chosen.items()
        for k, grouping in by_budget.items()
    }


def deficits(totals: Scores, name: str, k: int) -> list[float]:
    """How much worse with every seed, in percent of the base setting's mean total.

    Example:
        >>> deficits({("base", 2): [9.0, 11.0], ("twice the lr", 2): [9.0, 13.0]}, "twice the lr", 2)
        [0.0, -20.0]
    """
    base = np.asarray(totals["base", k])
    found: list[float] = (100 * (base - totals[name, k]) / (float(base.mean()) or float("nan"))).tolist()
    return found


def claims(left_out: Scores, row: float = 0.0) -> list[Claim]:
    """What the paper says, judged out of sample: sums over budgets, seed by seed.

    Args:
        left_out: totals in the base setting, each with a seed that had no say in the choice of groups.
        row: what one test row adds to a total, see `negative`.
    """
    budgets = sorted({k for _, k in left_out})
    sums = {name: np.sum([left_out[name, k] for k in budgets], axis=0) for name in ("base", *OTHERS) if budgets}
    if not sums or any(found.size < 2 or not np.isfinite(found).all() for found in sums.values()):
        because = "needs two seeds or more, a budget, and finite results: groups are scored with seeds left out"
        return [Claim(text, "not tested", because) for text in CLAIMS]
    base, batch, rate = (found.tolist() for found in sums.values())
    unit = " in all over budgets, out of sample"
    most = row * len(budgets)  # a network may serve with every budget
    return [
        all_lower(CLAIMS[0], {name: (base, sums[name].tolist()) for name in OTHERS}, unit, row=most),
        all_lower(CLAIMS[1], {"half the batch against twice the lr": (batch, rate)}, unit, row=most),
    ]


def _sheet(bench: Bench, totals: Scores) -> Sheet:
    rows: list[list[Cell]] = []
    for k in bench.budgets:
        row: list[Cell] = [k, value(totals["base", k], digits=digits_of(bench.chosen))]
        for name in OTHERS:
            row += [value(deficits(totals, name, k)), _printed(bench, name, k)]
        rows.append(row)
    columns = ["groups", f"best total {measure_of(bench.chosen)}"]
    for name in OTHERS:
        columns += [f"{name}, %", f"printed {name}"]
    note = "chosen and scored by the same test results, as in the paper: nothing can be above zero"
    return Sheet("Groups of other settings in the base setting, against its own best", tuple(columns), rows, note)


def _printed(bench: Bench, name: str, k: int) -> Value | None:
    printed = HYPERPARAMETERS.get(k, {}).get(name) if bench.printed == "celeba" else None
    return None if printed is None else Value(printed)


def _out_of_sample(bench: Bench, left_out: Scores) -> Sheet:
    rows: list[list[Cell]] = []
    for k in bench.budgets if len(bench.seeds) > 1 else ():
        row: list[Cell] = [k, value(left_out["base", k], digits=digits_of(bench.chosen))]
        rows.append([*row, *(value(deficits(left_out, name, k)) for name in OTHERS)])
    columns = ("groups", f"base total {measure_of(bench.chosen)}", *(f"{name}, %" for name in OTHERS))
    note = "for every seed, groups of each setting are the best of the other seeds; needs two seeds or more"
    return Sheet("Out of sample: chosen without a seed, scored with it", columns, rows, note)


def _groups(bench: Bench, found: Chosen) -> Sheet:
    rows = [
        (name, k, "  ".join(" ".join(bench.short(task) for task in sorted(g.trains)) for g in grouping.groups))
        for name, by_budget in found.items()
        for k, grouping in by_budget.items()
    ]
    return Sheet("The best groups of each setting, by test", ("setting", "groups", "networks"), rows)


def _figure(bench: Bench, totals: Scores, left_out: Scores) -> Figure:
    kinds = {"": totals} | ({", out of sample": left_out} if len(bench.seeds) > 1 else {})
    shown = {
        f"{name}{kind}": [value(deficits(found, name, k)) for k in bench.budgets]
        for kind, found in kinds.items()
        for name in OTHERS
    }
    series = {name: [one.mean for one in values] for name, values in shown.items()}
    errors = {name: [one.stderr or 0.0 for one in values] for name, values in shown.items()}
    for name in OTHERS if bench.printed == "celeba" else ():
        series[f"{name}, printed"] = [HYPERPARAMETERS[k][name] for k in bench.budgets]
    places = [f"{k} groups" for k in bench.budgets]
    return bars(
        series,
        places,
        title=TITLE,
        value=f"less {noun_of(bench.chosen)} than with the base setting's own groups, %",
        errors=errors,
    )
