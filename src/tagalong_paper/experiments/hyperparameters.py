"""`hyperparameters`: are the best groups for one setting also good in another?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tagalong.group import Group, select_groups
from tagalong.study import Runner

from ..experiment_setup import Array, ExperimentSetup, all_subset_jobs, grouping_totals, subset_table
from ..figures import draw_bars
from ..printed import HYPERPARAMETERS
from ..report import Cell, Claim, Report, ReportTable, claim_all_lower, summarize, values_of

TITLE = "Do the best groups depend on batch size and learning rate?"
SETTINGS = ("base", "half the batch", "twice the lr")
CLAIM_TEXTS = (
    "the best groups change with batch size and learning rate: those of others do worse in the base setting",
    "twice the learning rate carries over worse than half the batch",
)


def run(setup: ExperimentSetup) -> Report:
    """Trains every subset in three settings, and scores each setting's best groups in the base setting.

    The paper uses the same test errors to choose and to score groups, so no groups can beat those of the base setting.
    The claims are therefore judged out of sample: groups are scored with a seed that was not used to choose them.
    """
    recipe, seeds, budgets = setup.chosen.recipe, setup.seeds, setup.budgets
    batch, lr = max(2, recipe.batch_size // 2), 2 * recipe.lr
    settings: list[dict[str, Any]] = [{}, {"batch_size": batch}, {"lr": lr}]
    with ExitStack() as stack:
        runners = [stack.enter_context(setup.open_runner(**setting)) for setting in settings]
        for runner in runners:
            runner.networks(all_subset_jobs(runner, seeds), "all subsets", diverged=True)
        base = runners[0]
        chosen = _best_groups(runners, budgets, seeds)
        totals = scores(base, chosen, seeds)
        others = {seed: [other for other in seeds if other != seed] for seed in seeds if len(seeds) > 1}
        held_out = np.zeros((len(SETTINGS), len(budgets), len(others)))
        for place, (seed, rest) in enumerate(others.items()):
            held_out[:, :, [place]] = scores(base, _best_groups(runners, budgets, rest), [seed])

    printed = HYPERPARAMETERS if setup.printed_dataset == "celeba" else {}
    total, scored = f"total {setup.label()}", budgets if others else ()
    columns: dict[str, Sequence[Cell]] = {"groups": budgets, f"best {total}": list(map(setup.summarize, totals[0]))}
    out_of_sample: dict[str, Sequence[Cell]] = {
        "groups": scored,
        f"base {total}": [setup.summarize(held_out[0, place]) for place in range(len(scored))],
    }
    bars: dict[str, Sequence[Cell]] = {}
    for place, name in enumerate(SETTINGS[1:], 1):
        bars[name] = columns[f"{name}, %"] = list(map(summarize, percentage_gains(totals, place)))
        bars[f"{name}, printed"] = columns[f"printed {name}"] = values_of(printed.get(name, {}), budgets)
        held_out_gains = percentage_gains(held_out, place) if others else ()
        out_of_sample[f"{name}, %"] = list(map(summarize, held_out_gains))
    rows = [
        (name, k, "  ".join(" ".join(setup.short_names(sorted(group.trains))) for group in groups))
        for name, by_budget in zip(SETTINGS, chosen, strict=True)
        for k, groups in zip(budgets, by_budget, strict=True)
    ]
    return Report(
        "hyperparameters",
        TITLE,
        tables=[
            ReportTable.of_columns(
                "Groups of other settings in the base setting, against its own best",
                columns,
                "chosen and scored by the same test results, as in the paper, so that nothing can be above zero",
            ),
            ReportTable.of_columns(
                "Out of sample: chosen without a seed, scored with it",
                out_of_sample,
                "for each seed, the groups of a setting are the best of the other seeds; needs at least two seeds",
            ),
            ReportTable("The best groups of each setting, by test", ("setting", "groups", "networks"), rows),
        ],
        claims=judge_claims(held_out, setup.per_row),
        figures={
            "hyperparameters": draw_bars(
                bars,
                [f"{k} groups" for k in budgets],
                title=TITLE,
                ylabel=f"less {setup.noun} than with the base setting's own groups, %",
            )
        },
        notes=[*setup.notes, f"batch {recipe.batch_size} and {batch}, learning rate {recipe.lr:g} and {lr:g}"],
    )


def _best_groups(
    runners: Sequence[Runner], budgets: Sequence[int], seeds: Sequence[int]
) -> list[list[tuple[Group, ...]]]:
    tables = [subset_table(runner, seeds) for runner in runners]
    return [[select_groups(table, k, objective="min").groups for k in budgets] for table in tables]


def scores(base: Runner, chosen: Sequence[Sequence[tuple[Group, ...]]], seeds: Sequence[int]) -> Array:
    """Returns the totals of groups in the base setting [setting, budget, seed]."""
    return np.array([[grouping_totals(base, groups, seeds) for groups in by_budget] for by_budget in chosen])


def percentage_gains(totals: Array, setting: int) -> Array:
    """Returns how much better a setting's groups are than the base setting's groups, in percent [budget, seed].

    Example:
        >>> percentage_gains(np.array([[[9.0, 11.0]], [[9.0, 13.0]]]), 1).tolist()
        [[0.0, -20.0]]
    """
    base = totals[0]
    return np.asarray(100 * (base - totals[setting]) / np.where(base.any(1), base.mean(1), np.nan)[:, None])


def judge_claims(held_out: Array, per_row: float = 0.0) -> list[Claim]:
    """Judges the paper's claims out of sample, using totals over all budgets.

    Args:
        held_out: the totals in the base setting [setting, budget, seed], for seeds not used to choose the groups.
        per_row: the amount that one misclassified test row adds to a total. See `judge_negative`.
    """
    base, batch, rate = held_out.sum(1)
    if base.size < 2 or not held_out.size or not np.isfinite(held_out).all():
        because = "needs at least two seeds, a budget and finite results, since groups are scored with seeds left out"
        return [Claim(text, "not tested", because) for text in CLAIM_TEXTS]
    most = per_row * held_out.shape[1]  # the same network may be used with every budget
    pairs = (
        {"half the batch": (base, batch), "twice the lr": (base, rate)},
        {"half the batch against twice the lr": (batch, rate)},
    )
    unit = " in all over budgets, out of sample"
    return [claim_all_lower(text, pair, unit, per_row=most) for text, pair in zip(CLAIM_TEXTS, pairs, strict=True)]
