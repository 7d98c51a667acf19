"""`partner`: how good is the partner that affinity chooses for each task?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.study import Lab

from .._affinities import measured, named, pooled
from .._judge import pearson
from .._published import Published
from .._report import Cell, Claim, Report, Sheet, Value
from .._totals import results_of
from ..figures import bars
from ..printed import PARTNER, PARTNER_PEARSON, SPREAD

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from .._bench import Bench

TITLE = "The best, the chosen and the worst partner of each task, relative to a random one"
CLEAR = 0.7
KINDS = ("best", "chosen", "worst")
Partners = dict[str, dict[str, str]]


def run(bench: Bench) -> Report:
    """Trains all pairs; best and worst are by test, as in the paper, the chosen one has the highest affinity."""
    with bench.lab() as lab:
        errors = pair_errors(lab, bench.seeds)
        affinity = pooled(measured(lab, bench.seeds, every=1 if bench.small else 10))
    names = bench.chosen.names
    partners = {task: _partners(errors[task], affinity, task) for task in names}
    gains = {kind: [_gain(errors[task], partners[task][kind]) for task in names] for kind in KINDS}
    correlation = pearson(gains["best"], gains["chosen"])
    return Report(
        "partner",
        TITLE,
        sheets=[_gains(bench, gains), _names(bench, partners), _spreads(bench, affinity)],
        claims=_claims(bench, affinity, partners, gains, correlation),
        figures={
            "partner": bars(gains, [bench.short(task) for task in names], title=TITLE, value="less test error, %"),
            "partner-spread": _spread_figure(named(bench, affinity)),
        },
        notes=[*bench.about, "gains: how much of the test error with a random partner is gone, in percent"],
        numbers={"pearson": None if np.isnan(correlation) else correlation, "printed_pearson": PARTNER_PEARSON},
    )


def pair_errors(lab: Lab, seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """For each task its test result with every partner, means over seeds."""
    pairs = lab.subsets(largest=2, smallest=2)
    lab.networks([lab.job(pair, seed) for seed in seeds for pair in pairs], "all pairs")
    found: dict[str, dict[str, float]] = {task: {} for task in lab.problem.names}
    for pair in pairs:
        for task, values in results_of(lab, pair, seeds).items():
            (other,) = pair - {task}
            found[task][other] = float(np.mean(values))
    return found


def _partners(errors: dict[str, float], affinity: Affinity, task: str) -> dict[str, str]:
    onto = affinity.tasks.index(task)
    chosen = max(errors, key=lambda other: affinity.mean[affinity.tasks.index(other), onto])
    ranked = sorted(errors, key=lambda other: errors[other])
    return {"best": ranked[0], "chosen": chosen, "worst": ranked[-1]}


def _gain(errors: dict[str, float], partner: str) -> float:
    usual = float(np.mean(list(errors.values())))
    return 100 * (usual - errors[partner]) / usual if usual > 0 else float("nan")


def _gains(bench: Bench, gains: dict[str, list[float]]) -> Sheet:
    rows: list[list[Cell]] = []
    for place, task in enumerate(bench.chosen.names):
        printed = PARTNER.get(bench.short(task))
        row: list[Cell] = [bench.short(task)]
        for number, kind in enumerate(KINDS):
            row += [Value(gains[kind][place]), None if printed is None else Value(printed[number])]
        rows.append(row)
    columns = ("task", *(name for kind in KINDS for name in (kind, f"printed {kind}")))
    return Sheet("Less test error than with a random partner, %", columns, rows)


def _names(bench: Bench, partners: Partners) -> Sheet:
    rows = [(bench.short(task), *(bench.short(found[kind]) for kind in KINDS)) for task, found in partners.items()]
    return Sheet("Who they are", ("task", *KINDS), rows, "best and worst by test, chosen by affinity")


def _spreads(bench: Bench, affinity: Affinity) -> Sheet:
    published, ours = Published("celeba_tag").affinity.spread(), affinity.spread()
    usual = float(np.median(list(ours.values.values())))
    factor = float(np.median([published.values[task] / printed for task, printed in SPREAD.items()]))
    rows: list[list[Cell]] = []
    for task in bench.chosen.names:
        short = bench.short(task)
        flag = "no partner stands out" if task in ours.flagged else ""
        row: list[Cell] = [short, Value(ours.values[task] / usual), flag]
        known = short in SPREAD
        row += [Value(published.values[short] / factor), Value(SPREAD[short])] if known else [None, None]
        rows.append(row)
    columns = ("task", "ours / median", "remark", f"published matrix / {factor:.1f}", "printed")
    return Sheet("Highest less lowest affinity onto each task", columns, rows)


def _claims(
    bench: Bench, affinity: Affinity, partners: Partners, gains: dict[str, list[float]], correlation: float
) -> list[Claim]:
    chosen = float(np.nanmean(gains["chosen"]))
    narrow = min(affinity.spread().values, key=lambda task: affinity.spread().values[task])
    worst = partners[narrow]["chosen"] == partners[narrow]["worst"]
    flagged = Published("celeba_tag").affinity.spread().flagged
    return [
        Claim(
            "the chosen partner's gain goes with the best partner's (Pearson 0.93)",
            "yes" if correlation >= CLEAR else "no",
            f"Pearson {correlation:.2f}; {CLEAR} or more counts as yes",
        ),
        Claim(
            "the chosen partner is better than a random one",
            "yes" if chosen > 0 else "no",
            f"{chosen:.2f} % less error on average over tasks",
        ),
        Claim(
            "in the published matrix a8 alone has no partner that stands out",
            "yes" if flagged == ("a8",) else "no",
            f"flagged: {', '.join(flagged) or 'none'}",
        ),
        Claim(
            "for the task onto which affinities differ least, the worst partner is chosen (a8 in the paper)",
            "yes" if worst else "no",
            f"{bench.short(narrow)}: chosen {bench.short(partners[narrow]['chosen'])}, worst "
            f"{bench.short(partners[narrow]['worst'])}",
        ),
    ]


def _spread_figure(affinity: Affinity) -> Figure:
    ours, published = affinity.spread().values, Published("celeba_tag").affinity.spread().values
    series = {
        name: [found.get(task, np.nan) / float(np.median(list(found.values()))) for task in affinity.tasks]
        for name, found in (("ours", ours), ("published", published))
    }
    return bars(series, affinity.tasks, title="For which tasks does the partner matter?", value="spread / median")
