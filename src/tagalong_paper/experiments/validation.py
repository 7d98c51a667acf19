"""`validation`: is the change in train loss as good a signal as the change in validation loss?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import Grouping, select_groups

from ..affinities import between_tasks, every_step, named, pooled
from ..claims import correlated, lower, pearson, value
from ..figures import scatter
from ..printed import EVERY_STEP_ERROR, VALIDATION_ERROR, VALIDATION_PEARSON
from ..report import Appeared, Cell, Claim, Report, Sheet, Value
from ..totals import digits_of, grouping_totals, measure_of, one_row, results_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench

TITLE = "Affinity on train against validation loss"
PRINTED_MEAN = {"train": EVERY_STEP_ERROR, "validation": VALIDATION_ERROR}


def run(bench: Bench) -> Report:
    """Measures both at every step; groups from validation may hold a single task."""
    with bench.lab() as lab:
        found = {
            "train": pooled(every_step(lab, bench.seeds)),
            "validation": pooled(every_step(lab, bench.seeds, held_out=True)),
        }
        groupings = {
            loss: {k: select_groups(a, k, allow_single=loss == "validation", resamples=0) for k in bench.budgets}
            for loss, a in found.items()
        }
        errors = {
            (loss, k): grouping_totals(lab, grouping.groups, bench.seeds)
            for loss, by_budget in groupings.items()
            for k, grouping in by_budget.items()
        }
        together = [sum(each) for each in zip(*results_of(lab, lab.problem.names, bench.seeds).values(), strict=True)]
    raw = pearson(*(between_tasks(affinity) for affinity in found.values()))
    centred = pearson(*(between_tasks(affinity, centred=True) for affinity in found.values()))
    return Report(
        "validation",
        TITLE,
        sheets=[_pearsons(bench, raw, centred), _groups(bench, groupings, errors)],
        claims=_claims(raw, bench, errors, groupings, together),
        figures={"validation": _figure(bench, found)},
        notes=bench.about,
        numbers={"pearson": None if np.isnan(raw) else raw},
    )


def _pearsons(bench: Bench, raw: float, centred: float) -> Sheet:
    printed = Value(VALIDATION_PEARSON, digits=4) if bench.printed == "celeba" else None
    rows: list[list[Cell]] = [
        ["all pairs", Value(raw, digits=4), printed],
        ["less the mean onto each target", Value(centred, digits=4), None],
    ]
    return Sheet("Pearson of the two", ("affinities", "ours", "printed"), rows)


def _groups(
    bench: Bench, groupings: dict[str, dict[int, Grouping]], errors: dict[tuple[str, int], list[float]]
) -> Sheet:
    rows: list[list[Cell]] = []
    digits = digits_of(bench.chosen)
    for loss, by_budget in groupings.items():
        for k, grouping in by_budget.items():
            shown = " ".join(_short(bench, group.trains, group.serves) for group in grouping.groups)
            rows.append([loss, k, value(errors[loss, k], digits=digits), shown, None])
        mean = np.mean([errors[loss, k] for k in by_budget], axis=0).tolist()
        comparable = bench.printed == "celeba" and len(bench.chosen.names) == 9
        printed = Value(PRINTED_MEAN[loss], digits=3) if comparable else None
        rows.append([loss, "mean", value(mean, digits=max(3, digits)), "", printed])
    columns = ("loss", "groups", f"total {measure_of(bench.chosen)}", "networks", "printed")
    return Sheet("Groups from either", columns, rows, "+task is trained along as a helper")


def _short(bench: Bench, trains: frozenset[str], serves: frozenset[str]) -> str:
    helpers = [f"+{bench.short(task)}" for task in sorted(trains - serves)]
    return f"{{{', '.join([*map(bench.short, sorted(serves)), *helpers])}}}"


def _claims(
    raw: float,
    bench: Bench,
    errors: dict[tuple[str, int], list[float]],
    groupings: dict[str, dict[int, Grouping]],
    together: Sequence[float],
) -> list[Claim]:
    train, validation = (np.mean([errors[loss, k] for k in bench.budgets], axis=0).tolist() for loss in PRINTED_MEAN)
    same = all(set(one.groups) == set(groupings["validation"][k].groups) for k, one in groupings["train"].items())
    row = one_row(bench.chosen)  # in the mean too, since a network may serve with every budget
    single = sum(len(g.trains) == 1 for grouping in groupings["validation"].values() for g in grouping.groups)
    return [
        correlated("train and validation affinities agree (Pearson 0.98)", raw, yes=0.9, no=0.7),
        Claim(
            "their groups do equally well",
            "yes" if same else equally_well(train, validation, together, row),
            f"{np.mean(train):.4g} and {np.mean(validation):.4g} on average over budgets, one network for all tasks "
            f"{np.mean(together):.4g}; yes needs the same groups, or both clearly better than that network",
        ),
        Claim(
            "affinity on validation, which may, chooses no group of one task (the paper: one is never the best)",
            "no" if single else "yes",
            f"{single} groups of one task were chosen on validation",
        ),
    ]


def equally_well(one: Sequence[float], other: Sequence[float], together: Sequence[float], row: float = 0.0) -> Appeared:
    """Whether two ways of grouping are as good, from totals of every seed; where neither gains, nothing is shown.

    For `row` see `negative`.

    Example:
        >>> equally_well([5.0, 5.1], [5.1, 5.0], [7.0, 7.1]), equally_well([5.0, 5.1], [5.1, 5.0], [5.0, 5.1])
        ('yes', 'within noise')
    """
    if "yes" in (lower(one, other, row=row), lower(other, one, row=row)):
        return "no"
    gains = {lower(found, together, row=row) for found in (one, other)}
    return "yes" if gains == {"yes"} else "within noise"


def _figure(bench: Bench, found: dict[str, Affinity]) -> Figure:
    tasks = named(bench, found["train"]).tasks
    pairs = [f"{source} → {target}" for source in tasks for target in tasks if source != target]
    x, y = (between_tasks(affinity) for affinity in found.values())
    alike = pearson(x, y)
    return scatter(
        1000 * x,
        1000 * y,
        pairs,
        title=TITLE,
        across="affinity × 1000 on train loss",
        value="affinity × 1000 on validation loss",
        note="too few to correlate" if np.isnan(alike) else f"Pearson {alike:.3f}",
    )
