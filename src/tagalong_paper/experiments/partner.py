"""`partner`: how good is the partner that affinity chooses for each task?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from tagalong.affinity import Affinity
from tagalong.learn import Diverged
from tagalong.study import TrainingBackend

from ..affinities import measure_affinities, pool_seeds, with_short_names
from ..claims import claim_correlation, judge_lower, judge_negative, pearson, summarize
from ..experiment_report import Answer, Cell, Claim, Report, ReportTable, Value
from ..figures import draw_bars
from ..metrics import error_per_row, metric_name, metric_noun, network_results
from ..printed import PARTNER, PARTNER_PEARSON, SPREAD, PublishedMatrix

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "The best, the chosen and the worst partner of each task, relative to a random one"
MIN_CORRELATION = 0.7
PARTNER_KINDS = ("best", "chosen", "worst")
Partners = dict[str, dict[str, str]]
Errors = dict[str, dict[str, list[float]]]  # by task and partner, one error per seed
Gains = dict[str, dict[str, list[float]]]  # by kind and task, one gain per seed


def run(setup: ExperimentSetup) -> Report:
    """Trains all pairs of tasks, and compares the partner chosen by affinity with the best and the worst one.

    As in the paper, the best and the worst partner are determined on test data.
    """
    with setup.open_backend() as backend:
        errors = pair_errors(backend, setup.seeds)
        affinity = pool_seeds(measure_affinities(backend, setup.seeds, every=1 if setup.is_small else 10))
    names = setup.chosen.names
    partners = {task: _partners(errors[task], affinity, task) for task in names}
    gains: Gains = {kind: {task: gain(errors[task], partners[task][kind]) for task in names} for kind in PARTNER_KINDS}
    correlation = pearson(*([summarize(gains[kind][task]).mean for task in names] for kind in ("best", "chosen")))
    return Report(
        "partner",
        TITLE,
        tables=[_gain_table(setup, gains), _partner_table(setup, partners), _spread_table(setup, affinity)],
        claims=_claims(setup, affinity, partners, gains, correlation, _gains_per_row(setup, errors)),
        figures={"partner": _figure(setup, gains), "partner-spread": _spread_figure(setup, affinity)},
        notes=[
            *setup.notes,
            *_divergence_notes(setup, errors),
            f"gains: the reduction of the {metric_name(setup.chosen)} relative to a random partner, in percent",
        ],
        numbers={"pearson": None if np.isnan(correlation) else correlation, "printed_pearson": PARTNER_PEARSON},
    )


def pair_errors(backend: TrainingBackend, seeds: Sequence[int]) -> Errors:
    """Returns the test results of each task with each partner, except for pairs that diverged.

    Raises:
        Diverged: If all networks trained on one of the tasks diverged.
    """
    pairs = backend.subsets(largest=2, smallest=2)
    backend.networks([backend.job(pair, seed) for seed in seeds for pair in pairs], "all pairs", diverged=True)
    found: Errors = {task: {} for task in backend.problem.names}
    for pair in pairs:
        for task, values in network_results(backend, pair, seeds).items():
            if np.isfinite(values).all():
                (other,) = pair - {task}
                found[task][other] = values
    if lost := [task for task, partners in found.items() if not partners]:
        raise Diverged(f"every pair with {', '.join(lost)} diverged; lower `recipe.lr`")
    return found


def _divergence_notes(setup: ExperimentSetup, errors: Errors) -> list[str]:
    lost = [
        f"{setup.short_name(task)} with {setup.short_name(other)}"
        for task, other in combinations(setup.chosen.names, 2)
        if other not in errors[task]
    ]
    return [f"diverged with some seed and left out: {', '.join(lost)}"] if lost else []


def _partners(errors: Mapping[str, Sequence[float]], affinity: Affinity, task: str) -> dict[str, str]:
    onto = affinity.tasks.index(task)
    chosen = max(errors, key=lambda other: affinity.mean[affinity.tasks.index(other), onto])
    ranked = sorted(errors, key=lambda other: float(np.mean(errors[other])))
    return {"best": ranked[0], "chosen": chosen, "worst": ranked[-1]}


def gain(errors: Mapping[str, Sequence[float]], partner: str) -> list[float]:
    """Returns the percentage reduction in error relative to a random partner, for each seed.

    Example:
        >>> gain({"a": [4.0, 5.0], "b": [6.0, 5.0]}, "a")
        [20.0, 0.0]
    """
    usual = np.mean(list(errors.values()), axis=0)
    scale = float(usual.mean()) or float("nan")
    found: list[float] = (100 * (usual - errors[partner]) / scale).tolist()
    return found


def _gains_per_row(setup: ExperimentSetup, errors: Errors) -> dict[str, float]:
    """Returns how much one test row changes the gain of each task."""
    return {
        task: 100 * error_per_row(setup.chosen) / (float(np.mean(list(found.values()))) or float("nan"))
        for task, found in errors.items()
    }


def _gain_table(setup: ExperimentSetup, gains: Gains) -> ReportTable:
    rows: list[list[Cell]] = []
    for task in setup.chosen.names:
        printed = PARTNER.get(setup.short_name(task))
        row: list[Cell] = [setup.short_name(task)]
        for number, kind in enumerate(PARTNER_KINDS):
            row += [summarize(gains[kind][task]), None if printed is None else Value(printed[number])]
        rows.append(row)
    columns = ("task", *(name for kind in PARTNER_KINDS for name in (kind, f"printed {kind}")))
    return ReportTable(f"Less {metric_name(setup.chosen)} than with a random partner, %", columns, rows)


def _partner_table(setup: ExperimentSetup, partners: Partners) -> ReportTable:
    rows = [
        (setup.short_name(task), *(setup.short_name(found[kind]) for kind in PARTNER_KINDS))
        for task, found in partners.items()
    ]
    return ReportTable("Who they are", ("task", *PARTNER_KINDS), rows, "best and worst by test, chosen by affinity")


def _spread_tasks(setup: ExperimentSetup) -> list[str]:
    """Returns the short names of the tasks to show, which are the paper's tasks if they include ours."""
    return (
        list(SPREAD) if setup.printed_dataset == "celeba" else [setup.short_name(task) for task in setup.chosen.names]
    )


def _spread_table(setup: ExperimentSetup, affinity: Affinity) -> ReportTable:
    published, ours = PublishedMatrix("celeba_tag").affinity.spread(), with_short_names(setup, affinity).spread()
    usual = float(np.median(list(ours.values.values())))
    factor = float(np.median([published.values[task] / printed for task, printed in SPREAD.items()]))
    rows: list[list[Cell]] = []
    for short in _spread_tasks(setup):
        flag = "no partner stands out" if short in ours.flagged else ""
        row: list[Cell] = [short, Value(ours.values[short] / usual) if short in ours.values else None, flag]
        known = short in SPREAD
        row += [Value(published.values[short] / factor), Value(SPREAD[short])] if known else [None, None]
        rows.append(row)
    columns = ("task", "ours / median", "remark", f"published matrix / {factor:.1f}", "printed")
    return ReportTable("Highest less lowest affinity onto each task", columns, rows)


def _claims(
    setup: ExperimentSetup,
    affinity: Affinity,
    partners: Partners,
    gains: Gains,
    correlation: float,
    per_row: Mapping[str, float],
) -> list[Claim]:
    narrow = min(affinity.spread().values, key=lambda task: affinity.spread().values[task])
    flagged = PublishedMatrix("celeba_tag").affinity.spread().flagged
    return [
        claim_correlation(
            "the chosen partner's gain correlates with the best partner's (Pearson 0.93)",
            correlation,
            yes_threshold=MIN_CORRELATION,
        ),
        claim_better_than_random(list(gains["chosen"].values()), list(per_row.values()), metric_noun(setup.chosen)),
        Claim(
            "in the published matrix a8 alone has no partner that stands out",
            "yes" if flagged == ("a8",) else "no",
            f"flagged: {', '.join(flagged) or 'none'}",
        ),
        Claim(
            "for the task onto which affinities differ least, the worst partner is chosen (a8 in the paper)",
            judge_worst_chosen(*(gains[kind][narrow] for kind in PARTNER_KINDS), per_row=per_row[narrow]),
            f"{setup.short_name(narrow)}: chosen {setup.short_name(partners[narrow]['chosen'])}, worst "
            f"{setup.short_name(partners[narrow]['worst'])}",
        ),
    ]


def claim_better_than_random(
    chosen: Sequence[Sequence[float]], per_row: Sequence[float], metric: str = "error"
) -> Claim:
    """Judges whether chosen partners are clearly better than random ones, on average over tasks.

    Args:
        chosen: the gains of the chosen partners, by task and seed.
        per_row: how much one test row changes the gain of each task. See `judge_negative`.
        metric: "error" or "loss".
    """
    known = [(found, row) for found, row in zip(chosen, per_row, strict=True) if np.isfinite(found).all()]
    text = "the chosen partner is better than a random one"
    if len(chosen) < 3 or not known:
        return Claim(text, "not tested", f"needs three tasks, or there is no choice, and a {metric} above zero")
    mean = np.mean([found for found, _ in known], axis=0)
    most = max(row for _, row in known) / len(known)
    answer = judge_negative((-mean).tolist(), per_row=most)
    return Claim(text, answer, f"{mean.mean():.2f}% less {metric} on average over tasks")


def judge_worst_chosen(
    best: Sequence[float], chosen: Sequence[float], worst: Sequence[float], *, per_row: float = 0.0
) -> Answer:
    """Judges whether the chosen partner is the worst one, given the gains of all seeds.

    "yes" means that no partner has a lower gain, and that the chosen one is clearly worse than a random partner. "no"
    means that the chosen partner is clearly better than the worst one. For `per_row`, see `judge_negative`.

    Example:
        >>> judge_worst_chosen([2.0, 2.1], [-3.0, -3.1], [-3.0, -3.1])
        'yes'
        >>> judge_worst_chosen([2.0, 2.1], [2.0, 2.1], [-3.0, -3.1])
        'no'
    """
    if not np.mean(worst) < np.mean(best):
        return "not tested"  # there is only one partner, or all are equal
    if np.mean(chosen) <= np.mean(worst):
        return "yes" if judge_negative(chosen, per_row=per_row) == "yes" else "within noise"
    return "no" if judge_lower(worst, chosen, per_row=per_row) == "yes" else "within noise"


def _figure(setup: ExperimentSetup, gains: Gains) -> Figure:
    names = setup.chosen.names
    found = {kind: [summarize(gains[kind][task]) for task in names] for kind in PARTNER_KINDS}
    return draw_bars(
        {kind: [one.mean for one in values] for kind, values in found.items()},
        [setup.short_name(task) for task in names],
        title=TITLE,
        ylabel=f"less {metric_name(setup.chosen)}, %",
        errors={kind: [one.stderr or 0.0 for one in values] for kind, values in found.items()},
    )


def _spread_figure(setup: ExperimentSetup, affinity: Affinity) -> Figure:
    found = {"ours": with_short_names(setup, affinity).spread().values}
    if setup.printed_dataset == "celeba":
        found["published"] = PublishedMatrix("celeba_tag").affinity.spread().values
    tasks = _spread_tasks(setup)
    series = {
        name: [values.get(task, np.nan) / float(np.median(list(values.values()))) for task in tasks]
        for name, values in found.items()
    }
    return draw_bars(series, tasks, title="For which tasks does the partner matter?", ylabel="spread / median")
