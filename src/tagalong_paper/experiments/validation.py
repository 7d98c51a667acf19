"""`validation`: is the change in training loss as informative as the change in validation loss?"""

from __future__ import annotations

import numpy as np

from tagalong.group import Group, select_groups
from tagalong.report import marker_style

from ..experiment_setup import ExperimentSetup, grouping_totals, network_results, off_diagonal, pool_seeds
from ..figures import axis, figure_layout
from ..printed import IN_TEXT
from ..report import (
    Answer,
    Cell,
    Claim,
    Floats,
    Report,
    ReportTable,
    Value,
    claim_correlation,
    judge_lower,
    pearson,
    summarize,
)

TITLE = "Affinity on train against validation loss"


def run(setup: ExperimentSetup) -> Report:
    """Measures affinities for both losses at every step. Groups chosen on validation data may have just one task."""
    from plotly.graph_objects import Figure, Scatter

    is_celeba, shorts = setup.printed_dataset == "celeba", setup.short_names()
    rows: list[list[Cell]] = []
    chosen, means = {}, {}
    with setup.open_runner() as runner:
        affinities = {
            "train": pool_seeds(setup.measure(runner, every=1)),
            "validation": pool_seeds(setup.measure(runner, every=1, held_out=True)),
        }
        for loss, affinity in affinities.items():
            single = loss == "validation"
            groups = {k: select_groups(affinity, k, allow_single=single, resamples=0).groups for k in setup.budgets}
            totals = [grouping_totals(runner, groups[k], setup.seeds) for k in groups]
            for k, total in zip(groups, totals, strict=True):
                rows.append([loss, k, setup.summarize(total), _format_groups(setup, groups[k]), None])
            chosen[loss], means[loss] = groups, np.mean(totals, axis=0)
            printed = Value(IN_TEXT[f"{loss} error"], digits=3) if is_celeba and len(shorts) == 9 else None
            rows.append([loss, "mean", summarize(means[loss], digits=max(3, setup.digits)), "", printed])
        joint = np.sum(list(network_results(runner, runner.tasks, setup.seeds).values()), axis=0)
    x, y = (off_diagonal(affinity) for affinity in affinities.values())
    raw = pearson(x, y)
    centered = pearson(*(off_diagonal(affinity, centered=True) for affinity in affinities.values()))
    pairs = [f"{source} → {target}" for source in shorts for target in shorts if source != target]
    points = Scatter(x=1000 * x, y=1000 * y, mode="markers", marker=marker_style(0), text=pairs, hoverinfo="text")
    xaxis, yaxis = axis("affinity × 1000 on train loss"), axis("affinity × 1000 on validation loss")
    note = "too few to correlate" if np.isnan(raw) else f"Pearson {raw:.3f}"
    same = all(set(chosen["train"][k]) == set(chosen["validation"][k]) for k in setup.budgets)
    single_tasks = sum(len(group.trains) == 1 for groups in chosen["validation"].values() for group in groups)
    # A network may be used with every budget, so one test row may change the mean by as much as a total.
    equal: Answer = "yes" if same else judge_equally_good(means["train"], means["validation"], joint, setup.per_row)
    return Report(
        "validation",
        TITLE,
        tables=[
            ReportTable(
                "Pearson of the two",
                ("affinities", "ours", "printed"),
                [
                    (
                        "all pairs",
                        Value(raw, digits=4),
                        Value(IN_TEXT["validation pearson"], digits=4) if is_celeba else None,
                    ),
                    ("less the mean onto each target", Value(centered, digits=4), None),
                ],
            ),
            ReportTable(
                "Groups from either",
                ("loss", "groups", f"total {setup.label()}", "networks", "printed"),
                rows,
                "+task marks a helper",
            ),
        ],
        claims=[
            claim_correlation("train and validation affinities agree (Pearson 0.98)", raw, yes=0.9, no=0.7),
            Claim(
                "their groups do equally well",
                equal,
                f"{means['train'].mean():.4g} and {means['validation'].mean():.4g} on average over budgets, one "
                f"network for all tasks {joint.mean():.4g}; yes needs the same groups, or both clearly better than "
                "that network",
            ),
            Claim(
                "affinity on validation never chooses a group of one task, though it could",
                "no" if single_tasks else "yes",
                f"{single_tasks} groups of one task were chosen on validation",
            ),
        ],
        figures={"validation": Figure([points], figure_layout(TITLE, note, xaxis=xaxis, yaxis=yaxis))},
        notes=setup.notes,
        numbers={"pearson": raw},
    )


def _format_groups(setup: ExperimentSetup, groups: tuple[Group, ...]) -> str:
    texts = []
    for group in groups:
        helpers = [f"+{short}" for short in setup.short_names(sorted(group.helpers))]
        texts.append(f"{{{', '.join([*setup.short_names(sorted(group.serves)), *helpers])}}}")
    return " ".join(texts)


def judge_equally_good(first: Floats, second: Floats, joint: Floats, per_row: float = 0.0) -> Answer:
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
    better = [judge_lower(totals, joint, per_row=per_row) == "yes" for totals in (first, second)]
    return "yes" if all(better) else "within noise"
