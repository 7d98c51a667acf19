"""`validation`: is the change in training loss as informative as the change in validation loss?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import Grouping, select_groups

from ..affinities import measure_every_step, off_diagonal, pool_seeds, with_short_names
from ..claims import claim_correlation, judge_lower, pearson, summarize
from ..experiment_report import Answer, Cell, Claim, Report, ReportTable, Value
from ..figures import draw_scatter
from ..metrics import error_per_row, grouping_totals, metric_digits, metric_label, network_results
from ..printed import EVERY_STEP_ERROR, VALIDATION_ERROR, VALIDATION_PEARSON

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "Affinity on train against validation loss"
PRINTED_MEAN = {"train": EVERY_STEP_ERROR, "validation": VALIDATION_ERROR}


def run(setup: ExperimentSetup) -> Report:
    """Measures affinities for both losses at every step. Groups chosen on validation data may have just one task."""
    with setup.open_backend() as backend:
        found = {
            "train": pool_seeds(measure_every_step(backend, setup.seeds)),
            "validation": pool_seeds(measure_every_step(backend, setup.seeds, held_out=True)),
        }
        groupings = {
            loss: {k: select_groups(a, k, allow_single=loss == "validation", resamples=0) for k in setup.budgets}
            for loss, a in found.items()
        }
        errors = {
            (loss, k): grouping_totals(backend, grouping.groups, setup.seeds)
            for loss, by_budget in groupings.items()
            for k, grouping in by_budget.items()
        }
        joint_totals = [
            sum(each)
            for each in zip(*network_results(backend, backend.problem.names, setup.seeds).values(), strict=True)
        ]
    raw = pearson(*(off_diagonal(affinity) for affinity in found.values()))
    centered = pearson(*(off_diagonal(affinity, centered=True) for affinity in found.values()))
    return Report(
        "validation",
        TITLE,
        tables=[_correlation_table(setup, raw, centered), _group_table(setup, groupings, errors)],
        claims=_claims(raw, setup, errors, groupings, joint_totals),
        figures={"validation": _figure(setup, found)},
        notes=setup.notes,
        numbers={"pearson": None if np.isnan(raw) else raw},
    )


def _correlation_table(setup: ExperimentSetup, raw: float, centered: float) -> ReportTable:
    printed = Value(VALIDATION_PEARSON, digits=4) if setup.printed_dataset == "celeba" else None
    rows: list[list[Cell]] = [
        ["all pairs", Value(raw, digits=4), printed],
        ["less the mean onto each target", Value(centered, digits=4), None],
    ]
    return ReportTable("Pearson of the two", ("affinities", "ours", "printed"), rows)


def _group_table(
    setup: ExperimentSetup, groupings: dict[str, dict[int, Grouping]], errors: dict[tuple[str, int], list[float]]
) -> ReportTable:
    rows: list[list[Cell]] = []
    digits = metric_digits(setup.chosen)
    for loss, by_budget in groupings.items():
        for k, grouping in by_budget.items():
            shown = " ".join(_format_group(setup, group.trains, group.serves) for group in grouping.groups)
            rows.append([loss, k, summarize(errors[loss, k], digits=digits), shown, None])
        mean = np.mean([errors[loss, k] for k in by_budget], axis=0).tolist()
        comparable = setup.printed_dataset == "celeba" and len(setup.chosen.names) == 9
        printed = Value(PRINTED_MEAN[loss], digits=3) if comparable else None
        rows.append([loss, "mean", summarize(mean, digits=max(3, digits)), "", printed])
    columns = ("loss", "groups", f"total {metric_label(setup.chosen)}", "networks", "printed")
    return ReportTable("Groups from either", columns, rows, "+task marks a helper")


def _format_group(setup: ExperimentSetup, trains: frozenset[str], serves: frozenset[str]) -> str:
    helpers = [f"+{setup.short_name(task)}" for task in sorted(trains - serves)]
    return f"{{{', '.join([*map(setup.short_name, sorted(serves)), *helpers])}}}"


def _claims(
    raw: float,
    setup: ExperimentSetup,
    errors: dict[tuple[str, int], list[float]],
    groupings: dict[str, dict[int, Grouping]],
    joint_totals: Sequence[float],
) -> list[Claim]:
    train, validation = (np.mean([errors[loss, k] for k in setup.budgets], axis=0).tolist() for loss in PRINTED_MEAN)
    same = all(set(one.groups) == set(groupings["validation"][k].groups) for k, one in groupings["train"].items())
    row = error_per_row(setup.chosen)  # applies to the mean too, since a network may be used with every budget
    single = sum(len(g.trains) == 1 for grouping in groupings["validation"].values() for g in grouping.groups)
    return [
        claim_correlation(
            "train and validation affinities agree (Pearson 0.98)", raw, yes_threshold=0.9, no_threshold=0.7
        ),
        Claim(
            "their groups do equally well",
            "yes" if same else judge_equally_good(train, validation, joint_totals, row),
            f"{np.mean(train):.4g} and {np.mean(validation):.4g} on average over budgets, one network for all tasks "
            f"{np.mean(joint_totals):.4g}; yes needs the same groups, or both clearly better than that network",
        ),
        Claim(
            "affinity on validation never chooses a group of one task, though it could",
            "no" if single else "yes",
            f"{single} groups of one task were chosen on validation",
        ),
    ]


def judge_equally_good(
    first: Sequence[float], second: Sequence[float], joint_totals: Sequence[float], per_row: float = 0.0
) -> Answer:
    """Judges whether two ways of grouping are equally good, given the totals of all seeds.

    "yes" requires that both are clearly better than one network for all tasks. For `per_row`, see `judge_negative`.

    Example:
        >>> judge_equally_good([5.0, 5.1], [5.1, 5.0], [7.0, 7.1])
        'yes'
        >>> judge_equally_good([5.0, 5.1], [5.1, 5.0], [5.0, 5.1])
        'within noise'
    """
    if "yes" in (judge_lower(first, second, per_row=per_row), judge_lower(second, first, per_row=per_row)):
        return "no"
    gains = {judge_lower(found, joint_totals, per_row=per_row) for found in (first, second)}
    return "yes" if gains == {"yes"} else "within noise"


def _figure(setup: ExperimentSetup, affinities: dict[str, Affinity]) -> Figure:
    tasks = with_short_names(setup, affinities["train"]).tasks
    pairs = [f"{source} → {target}" for source in tasks for target in tasks if source != target]
    x, y = (off_diagonal(affinity) for affinity in affinities.values())
    correlation = pearson(x, y)
    return draw_scatter(
        1000 * x,
        1000 * y,
        pairs,
        title=TITLE,
        xlabel="affinity × 1000 on train loss",
        ylabel="affinity × 1000 on validation loss",
        note="too few to correlate" if np.isnan(correlation) else f"Pearson {correlation:.3f}",
    )
