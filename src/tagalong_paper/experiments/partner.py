"""`partner`: how good is the partner that affinity chooses for each task?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.learn import Diverged
from tagalong.study import Lab

from ..affinities import measured, named, pooled
from ..claims import correlated, lower, negative, pearson, value
from ..figures import bars
from ..printed import PARTNER, PARTNER_PEARSON, SPREAD, Published
from ..report import Appeared, Cell, Claim, Report, Sheet, Value
from ..totals import kind_of, noun_of, one_row, results_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench

TITLE = "The best, the chosen and the worst partner of each task, relative to a random one"
CLEAR = 0.7
KINDS = ("best", "chosen", "worst")
Partners = dict[str, dict[str, str]]
Errors = dict[str, dict[str, list[float]]]  # by task and partner, for every seed
Gains = dict[str, dict[str, list[float]]]  # by kind and task, for every seed


def run(bench: Bench) -> Report:
    """Trains all pairs; best and worst are by test, as in the paper, the chosen one has the highest affinity."""
    with bench.lab() as lab:
        errors = pair_errors(lab, bench.seeds)
        affinity = pooled(measured(lab, bench.seeds, every=1 if bench.small else 10))
    names = bench.chosen.names
    partners = {task: _partners(errors[task], affinity, task) for task in names}
    gains: Gains = {kind: {task: gain(errors[task], partners[task][kind]) for task in names} for kind in KINDS}
    correlation = pearson(*([value(gains[kind][task]).mean for task in names] for kind in ("best", "chosen")))
    return Report(
        "partner",
        TITLE,
        sheets=[_gains(bench, gains), _names(bench, partners), _spreads(bench, affinity)],
        claims=_claims(bench, affinity, partners, gains, correlation, _rows(bench, errors)),
        figures={"partner": _figure(bench, gains), "partner-spread": _spread_figure(bench, affinity)},
        notes=[
            *bench.about,
            *_diverged(bench, errors),
            f"gains: how much of the {kind_of(bench.chosen)} with a random partner is gone, in percent",
        ],
        numbers={"pearson": None if np.isnan(correlation) else correlation, "printed_pearson": PARTNER_PEARSON},
    )


def pair_errors(lab: Lab, seeds: Sequence[int]) -> Errors:
    """For each task its test result with every partner, but those with which a network diverged.

    Raises:
        Diverged: all networks of a task did.
    """
    pairs = lab.subsets(largest=2, smallest=2)
    lab.networks([lab.job(pair, seed) for seed in seeds for pair in pairs], "all pairs", diverged=True)
    found: Errors = {task: {} for task in lab.problem.names}
    for pair in pairs:
        for task, values in results_of(lab, pair, seeds).items():
            if np.isfinite(values).all():
                (other,) = pair - {task}
                found[task][other] = values
    if lost := [task for task, partners in found.items() if not partners]:
        raise Diverged(f"every pair with {', '.join(lost)} diverged; lower `recipe.lr`")
    return found


def _diverged(bench: Bench, errors: Errors) -> list[str]:
    lost = [
        f"{bench.short(task)} with {bench.short(other)}"
        for task, other in combinations(bench.chosen.names, 2)
        if other not in errors[task]
    ]
    return [f"diverged with some seed and left out: {', '.join(lost)}"] if lost else []


def _partners(errors: Mapping[str, Sequence[float]], affinity: Affinity, task: str) -> dict[str, str]:
    onto = affinity.tasks.index(task)
    chosen = max(errors, key=lambda other: affinity.mean[affinity.tasks.index(other), onto])
    ranked = sorted(errors, key=lambda other: float(np.mean(errors[other])))
    return {"best": ranked[0], "chosen": chosen, "worst": ranked[-1]}


def gain(errors: Mapping[str, Sequence[float]], partner: str) -> list[float]:
    """How much of the error with a random partner is gone with this one, in percent of its mean, for every seed.

    Example:
        >>> gain({"a": [4.0, 5.0], "b": [6.0, 5.0]}, "a")
        [20.0, 0.0]
    """
    usual = np.mean(list(errors.values()), axis=0)
    scale = float(usual.mean()) or float("nan")
    found: list[float] = (100 * (usual - errors[partner]) / scale).tolist()
    return found


def _rows(bench: Bench, errors: Errors) -> dict[str, float]:
    """What one test row adds to the gain of each task."""
    return {
        task: 100 * one_row(bench.chosen) / (float(np.mean(list(found.values()))) or float("nan"))
        for task, found in errors.items()
    }


def _gains(bench: Bench, gains: Gains) -> Sheet:
    rows: list[list[Cell]] = []
    for task in bench.chosen.names:
        printed = PARTNER.get(bench.short(task))
        row: list[Cell] = [bench.short(task)]
        for number, kind in enumerate(KINDS):
            row += [value(gains[kind][task]), None if printed is None else Value(printed[number])]
        rows.append(row)
    columns = ("task", *(name for kind in KINDS for name in (kind, f"printed {kind}")))
    return Sheet(f"Less {kind_of(bench.chosen)} than with a random partner, %", columns, rows)


def _names(bench: Bench, partners: Partners) -> Sheet:
    rows = [(bench.short(task), *(bench.short(found[kind]) for kind in KINDS)) for task, found in partners.items()]
    return Sheet("Who they are", ("task", *KINDS), rows, "best and worst by test, chosen by affinity")


def _spread_tasks(bench: Bench) -> list[str]:
    """All of the paper's tasks, by short name, where ours are among them."""
    return list(SPREAD) if bench.printed == "celeba" else [bench.short(task) for task in bench.chosen.names]


def _spreads(bench: Bench, affinity: Affinity) -> Sheet:
    published, ours = Published("celeba_tag").affinity.spread(), named(bench, affinity).spread()
    usual = float(np.median(list(ours.values.values())))
    factor = float(np.median([published.values[task] / printed for task, printed in SPREAD.items()]))
    rows: list[list[Cell]] = []
    for short in _spread_tasks(bench):
        flag = "no partner stands out" if short in ours.flagged else ""
        row: list[Cell] = [short, Value(ours.values[short] / usual) if short in ours.values else None, flag]
        known = short in SPREAD
        row += [Value(published.values[short] / factor), Value(SPREAD[short])] if known else [None, None]
        rows.append(row)
    columns = ("task", "ours / median", "remark", f"published matrix / {factor:.1f}", "printed")
    return Sheet("Highest less lowest affinity onto each task", columns, rows)


def _claims(
    bench: Bench,
    affinity: Affinity,
    partners: Partners,
    gains: Gains,
    correlation: float,
    rows: Mapping[str, float],
) -> list[Claim]:
    narrow = min(affinity.spread().values, key=lambda task: affinity.spread().values[task])
    flagged = Published("celeba_tag").affinity.spread().flagged
    return [
        correlated("the chosen partner's gain goes with the best partner's (Pearson 0.93)", correlation, yes=CLEAR),
        better_than_random(list(gains["chosen"].values()), list(rows.values()), noun_of(bench.chosen)),
        Claim(
            "in the published matrix a8 alone has no partner that stands out",
            "yes" if flagged == ("a8",) else "no",
            f"flagged: {', '.join(flagged) or 'none'}",
        ),
        Claim(
            "for the task onto which affinities differ least, the worst partner is chosen (a8 in the paper)",
            worst_chosen(*(gains[kind][narrow] for kind in KINDS), row=rows[narrow]),
            f"{bench.short(narrow)}: chosen {bench.short(partners[narrow]['chosen'])}, worst "
            f"{bench.short(partners[narrow]['worst'])}",
        ),
    ]


def better_than_random(chosen: Sequence[Sequence[float]], rows: Sequence[float], noun: str = "error") -> Claim:
    """Whether the gains with chosen partners are clear on average over tasks.

    Args:
        chosen: gains by task and seed.
        rows: what one test row adds to the gain of each task, see `negative`.
        noun: what there is less of.
    """
    known = [(found, row) for found, row in zip(chosen, rows, strict=True) if np.isfinite(found).all()]
    text = "the chosen partner is better than a random one"
    if len(chosen) < 3 or not known:
        return Claim(text, "not tested", f"needs three tasks, so that there is a choice, and some {noun}")
    mean = np.mean([found for found, _ in known], axis=0)
    most = max(row for _, row in known) / len(known)
    answer = negative((-mean).tolist(), row=most)
    return Claim(text, answer, f"{mean.mean():.2f} % less {noun} on average over tasks")


def worst_chosen(
    best: Sequence[float], chosen: Sequence[float], worst: Sequence[float], *, row: float = 0.0
) -> Appeared:
    """Whether the chosen partner is the worst, from the gains of every seed.

    Yes: none has a lower gain, and it clearly does worse than a random one. No: it clearly does better than the worst.
    For `row` see `negative`.

    Example:
        >>> worst_chosen([2.0, 2.1], [-3.0, -3.1], [-3.0, -3.1]), worst_chosen([2.0, 2.1], [2.0, 2.1], [-3.0, -3.1])
        ('yes', 'no')
    """
    if not np.mean(worst) < np.mean(best):
        return "not tested"  # one partner, or all alike
    if np.mean(chosen) <= np.mean(worst):
        return "yes" if negative(chosen, row=row) == "yes" else "within noise"
    return "no" if lower(worst, chosen, row=row) == "yes" else "within noise"


def _figure(bench: Bench, gains: Gains) -> Figure:
    names = bench.chosen.names
    found = {kind: [value(gains[kind][task]) for task in names] for kind in KINDS}
    return bars(
        {kind: [one.mean for one in values] for kind, values in found.items()},
        [bench.short(task) for task in names],
        title=TITLE,
        value=f"less {kind_of(bench.chosen)}, %",
        errors={kind: [one.stderr or 0.0 for one in values] for kind, values in found.items()},
    )


def _spread_figure(bench: Bench, affinity: Affinity) -> Figure:
    found = {"ours": named(bench, affinity).spread().values}
    if bench.printed == "celeba":
        found["published"] = Published("celeba_tag").affinity.spread().values
    tasks = _spread_tasks(bench)
    series = {
        name: [values.get(task, np.nan) / float(np.median(list(values.values()))) for task in tasks]
        for name, values in found.items()
    }
    return bars(series, tasks, title="For which tasks does the partner matter?", value="spread / median")
