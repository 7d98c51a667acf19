"""`hyperparameters`: are the best groups for one setting also good in another?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.group import Grouping, select_groups
from tagalong.learn import Diverged
from tagalong.study import TrainingBackend, train_side_by_side

from ..claims import claim_all_lower, summarize
from ..experiment_report import Cell, Claim, Report, ReportTable, Value
from ..figures import draw_bars
from ..metrics import (
    all_subset_jobs,
    error_per_row,
    grouping_totals,
    metric_digits,
    metric_label,
    metric_noun,
    subset_table,
)
from ..printed import HYPERPARAMETERS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "Do the best groups depend on batch size and learning rate?"
OTHER_SETTINGS = ("half the batch", "twice the lr")
Groupings = dict[str, dict[int, Grouping]]
Scores = Mapping[tuple[str, int], Sequence[float]]  # by setting and budget, one score per seed
CLAIM_TEXTS = (
    "the best groups change with batch size and learning rate: those of others do worse in the base setting",
    "twice the learning rate carries over worse than half the batch",
)


def run(setup: ExperimentSetup) -> Report:
    """Trains every subset in three settings, and scores each setting's best groups in the base setting.

    The paper uses the same test errors to choose and to score groups, so no groups can beat those of the base setting.
    The claims are therefore judged out of sample: groups are scored with a seed that was not used to choose them.
    """
    recipe = setup.chosen.recipe
    settings: dict[str, dict[str, Any]] = {
        "base": {},
        "half the batch": {"batch_size": max(2, recipe.batch_size // 2)},
        "twice the lr": {"lr": 2 * recipe.lr},
    }
    found: Groupings = {}
    without: dict[int, Groupings] = {seed: {} for seed in setup.seeds if len(setup.seeds) > 1}
    with setup.open_backend() as base:
        backends = {name: base.variant(**changed) if changed else base for name, changed in settings.items()}
        jobs = all_subset_jobs(base, setup.seeds)
        train_side_by_side(dict.fromkeys(backends.values(), jobs), "all subsets")
        for name, backend in backends.items():
            backend.networks(jobs, "all subsets", diverged=True)  # logs which of them diverged
            found[name] = _best_groupings(setup, backend, setup.seeds)
            for seed, chosen in without.items():
                chosen[name] = _best_groupings(setup, backend, [other for other in setup.seeds if other != seed])
        totals = _totals(base, found, setup.seeds)
        each = [_totals(base, chosen, [seed]) for seed, chosen in without.items()]
    held_out_totals = {key: [one[key][0] for one in each] for key in totals}
    return Report(
        "hyperparameters",
        TITLE,
        tables=[_gain_table(setup, totals), _out_of_sample_table(setup, held_out_totals), _group_table(setup, found)],
        claims=judge_claims(held_out_totals, error_per_row(setup.chosen)),
        figures={"hyperparameters": _figure(setup, totals, held_out_totals)},
        notes=[*setup.notes, f"batch {recipe.batch_size} and {settings['half the batch']['batch_size']}, learning rate "
               f"{recipe.lr:g} and {2 * recipe.lr:g}"],
    )  # fmt: skip


def _best_groupings(setup: ExperimentSetup, backend: TrainingBackend, seeds: Sequence[int]) -> dict[int, Grouping]:
    table, recipe = subset_table(backend, seeds), backend.problem.recipe
    try:
        return {k: select_groups(table, k, objective="min") for k in setup.budgets}
    except ValueError as error:
        lost, count = len(backend.subsets()) - len(table), len(backend.subsets())
        if not lost:
            raise
        raise Diverged(
            f"{lost} of {count} subsets diverged with a learning rate of {recipe.lr:g} and batches of "
            f"{recipe.batch_size}, and no {setup.budgets[0]} of the others cover all tasks; lower `recipe.lr`"
        ) from error


def _totals(backend: TrainingBackend, groupings: Groupings, seeds: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    return {
        (name, k): grouping_totals(backend, grouping.groups, seeds)
        for name, by_budget in groupings.items()
        for k, grouping in by_budget.items()
    }


def percentage_gains(totals: Scores, name: str, k: int) -> list[float]:
    """Returns how much better a setting's groups are than the base setting's groups, in percent, for each seed.

    Example:
        >>> percentage_gains({("base", 2): [9.0, 11.0], ("twice the lr", 2): [9.0, 13.0]}, "twice the lr", 2)
        [0.0, -20.0]
    """
    base = np.asarray(totals["base", k])
    found: list[float] = (100 * (base - totals[name, k]) / (float(base.mean()) or float("nan"))).tolist()
    return found


def judge_claims(held_out_totals: Scores, per_row: float = 0.0) -> list[Claim]:
    """Judges the paper's claims out of sample, using totals over all budgets.

    Args:
        held_out_totals: the totals in the base setting, each for a seed that was not used to choose the groups.
        per_row: the amount that one misclassified test row adds to a total. See `judge_negative`.
    """
    budgets = sorted({k for _, k in held_out_totals})
    sums = {
        name: np.sum([held_out_totals[name, k] for k in budgets], axis=0)
        for name in ("base", *OTHER_SETTINGS)
        if budgets
    }
    if not sums or any(found.size < 2 or not np.isfinite(found).all() for found in sums.values()):
        because = "needs at least two seeds, a budget and finite results, since groups are scored with seeds left out"
        return [Claim(text, "not tested", because) for text in CLAIM_TEXTS]
    base, batch, rate = (found.tolist() for found in sums.values())
    unit = " in all over budgets, out of sample"
    most = per_row * len(budgets)  # the same network may be used with every budget
    return [
        claim_all_lower(
            CLAIM_TEXTS[0], {name: (base, sums[name].tolist()) for name in OTHER_SETTINGS}, unit, per_row=most
        ),
        claim_all_lower(CLAIM_TEXTS[1], {"half the batch against twice the lr": (batch, rate)}, unit, per_row=most),
    ]


def _gain_table(setup: ExperimentSetup, totals: Scores) -> ReportTable:
    rows: list[list[Cell]] = []
    for k in setup.budgets:
        row: list[Cell] = [k, summarize(totals["base", k], digits=metric_digits(setup.chosen))]
        for name in OTHER_SETTINGS:
            row += [summarize(percentage_gains(totals, name, k)), _printed_value(setup, name, k)]
        rows.append(row)
    columns = ["groups", f"best total {metric_label(setup.chosen)}"]
    for name in OTHER_SETTINGS:
        columns += [f"{name}, %", f"printed {name}"]
    note = "chosen and scored by the same test results, as in the paper, so that nothing can be above zero"
    return ReportTable("Groups of other settings in the base setting, against its own best", tuple(columns), rows, note)


def _printed_value(setup: ExperimentSetup, name: str, k: int) -> Value | None:
    printed = HYPERPARAMETERS.get(k, {}).get(name) if setup.printed_dataset == "celeba" else None
    return None if printed is None else Value(printed)


def _out_of_sample_table(setup: ExperimentSetup, held_out_totals: Scores) -> ReportTable:
    rows: list[list[Cell]] = []
    for k in setup.budgets if len(setup.seeds) > 1 else ():
        row: list[Cell] = [k, summarize(held_out_totals["base", k], digits=metric_digits(setup.chosen))]
        rows.append([*row, *(summarize(percentage_gains(held_out_totals, name, k)) for name in OTHER_SETTINGS)])
    columns = ("groups", f"base total {metric_label(setup.chosen)}", *(f"{name}, %" for name in OTHER_SETTINGS))
    note = "for each seed, the groups of a setting are the best of the other seeds; needs at least two seeds"
    return ReportTable("Out of sample: chosen without a seed, scored with it", columns, rows, note)


def _group_table(setup: ExperimentSetup, groupings: Groupings) -> ReportTable:
    rows = [
        (name, k, "  ".join(" ".join(setup.short_name(task) for task in sorted(g.trains)) for g in grouping.groups))
        for name, by_budget in groupings.items()
        for k, grouping in by_budget.items()
    ]
    return ReportTable("The best groups of each setting, by test", ("setting", "groups", "networks"), rows)


def _figure(setup: ExperimentSetup, totals: Scores, held_out_totals: Scores) -> Figure:
    kinds = {"": totals} | ({", out of sample": held_out_totals} if len(setup.seeds) > 1 else {})
    shown = {
        f"{name}{kind}": [summarize(percentage_gains(found, name, k)) for k in setup.budgets]
        for kind, found in kinds.items()
        for name in OTHER_SETTINGS
    }
    series = {name: [one.mean for one in values] for name, values in shown.items()}
    errors = {name: [one.stderr or 0.0 for one in values] for name, values in shown.items()}
    for name in OTHER_SETTINGS if setup.printed_dataset == "celeba" else ():
        series[f"{name}, printed"] = [HYPERPARAMETERS[k][name] for k in setup.budgets]
    places = [f"{k} groups" for k in setup.budgets]
    return draw_bars(
        series,
        places,
        title=TITLE,
        ylabel=f"less {metric_noun(setup.chosen)} than with the base setting's own groups, %",
        errors=errors,
    )
