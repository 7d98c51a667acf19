"""`partner`: how good is the partner that affinity chooses for each task?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tagalong.learn import Diverged
from tagalong.study import Runner

from ..experiment_setup import Array, ExperimentSetup, network_results, pool_seeds
from ..figures import draw_bars
from ..printed import IN_TEXT, PARTNER, SPREAD, PublishedMatrix
from ..report import (
    Answer,
    Cell,
    Claim,
    Floats,
    Report,
    ReportTable,
    claim_correlation,
    judge_lower,
    judge_negative,
    pearson,
    summarize,
    values_of,
)

TITLE = "The best, the chosen and the worst partner of each task, relative to a random one"


def run(setup: ExperimentSetup) -> Report:
    """Trains all pairs of tasks, and compares the partner chosen by affinity with the best and the worst one.

    As in the paper, the best and the worst partner are determined on test data.
    """
    with setup.open_runner() as runner:
        errors = pair_errors(runner, setup.seeds)  # [task, partner, seed]
        affinity = replace(pool_seeds(setup.measure(runner)), tasks=setup.short_names())

    # The best, the chosen and the worst partner of each task, and what each of them gains
    tasks, means = affinity.tasks, errors.mean(2)
    diverged = np.isnan(means)  # so is a task's error with itself
    partners = {
        "best": np.nanargmin(means, axis=1),
        "chosen": np.nanargmax(np.where(diverged, np.nan, affinity.mean.T), axis=1),
        "worst": np.nanargmax(means, axis=1),
    }
    usual = np.nanmean(errors, axis=1)  # expected with a random partner [task, seed]
    usual = np.where(usual.any(1, keepdims=True), usual, np.nan)  # if there are no errors, nothing can be gained
    gains = {kind: gain(errors, usual, places) for kind, places in partners.items()}  # [task, seed]
    values = {kind: list(map(summarize, by_task)) for kind, by_task in gains.items()}
    names = {kind: [tasks[place] for place in places] for kind, places in partners.items()}
    columns: dict[str, Sequence[Cell]] = {"task": tasks}
    for kind in partners:
        columns |= {kind: values[kind], f"printed {kind}": values_of(PARTNER[kind], tasks)}
    correlation = pearson(gains["best"].mean(1), gains["chosen"].mean(1))
    per_row = 100 * setup.per_row / usual.mean(1)  # how much one test row changes the gain of each task

    # For which tasks does the partner matter?
    ours, published = affinity.spread(), PublishedMatrix("celeba_tag").affinity.spread()
    shown = list(SPREAD) if setup.printed_dataset == "celeba" else tasks
    factor = np.median([published.values[task] / printed for task, printed in SPREAD.items()])
    median = float(np.median(list(ours.values.values())))
    narrowest = int(np.argmin([ours.values[task] for task in tasks]))
    lost = [f"{tasks[i]} with {tasks[j]}" for i, j in combinations(range(len(tasks)), 2) if diverged[i, j]]
    less = f"test {setup.noun}"
    return Report(
        "partner",
        TITLE,
        tables=[
            ReportTable.of_columns(f"Less {less} than with a random partner, %", columns),
            ReportTable.of_columns(
                "Who they are", {"task": tasks, **names}, "best and worst by test, chosen by affinity"
            ),
            ReportTable.of_columns(
                "Highest less lowest affinity onto each task",
                {
                    "task": shown,
                    "ours / median": values_of(ours.values, shown, per=median),
                    "remark": ["no partner stands out" if task in ours.flagged else "" for task in shown],
                    f"published matrix / {factor:.1f}": values_of(published.values, shown, per=factor),
                    "printed": values_of(SPREAD, shown),
                },
            ),
        ],
        claims=[
            claim_correlation(
                "the chosen partner's gain correlates with the best partner's (Pearson 0.93)",
                correlation,
                yes=0.7,
            ),
            claim_better_than_random(gains["chosen"], per_row, setup.noun),
            Claim(
                "in the published matrix a8 alone has no partner that stands out",
                "yes" if published.flagged == ("a8",) else "no",
                f"flagged: {', '.join(published.flagged) or 'none'}",
            ),
            Claim(
                "for the task onto which affinities differ least, the worst partner is chosen (a8 in the paper)",
                judge_worst_chosen(*(by_task[narrowest] for by_task in gains.values()), per_row=per_row[narrowest]),
                f"{tasks[narrowest]}: chosen {names['chosen'][narrowest]}, worst {names['worst'][narrowest]}",
            ),
        ],
        figures={"partner": draw_bars(values, tasks, title=TITLE, ylabel=f"less {less}, %")},
        notes=[
            *setup.notes,
            *([f"diverged with some seed and left out: {', '.join(lost)}"] if lost else []),
            f"gains: the reduction of the {less} relative to a random partner, in percent",
        ],
        numbers={"pearson": correlation, "printed_pearson": IN_TEXT["partner pearson"]},
    )


def pair_errors(runner: Runner, seeds: Sequence[int]) -> Array:
    """Returns the test results of each task with each partner [task, partner, seed], with NaN for diverged pairs.

    Raises:
        Diverged: If all networks trained on one of the tasks diverged.
    """
    tasks = runner.tasks
    pairs = list(combinations(range(len(tasks)), 2))
    jobs = [runner.job([tasks[i], tasks[j]], seed) for seed in seeds for i, j in pairs]
    runner.networks(jobs, "all pairs", diverged=True)
    errors = np.full((len(tasks), len(tasks), len(seeds)), np.nan)
    for i, j in pairs:
        results = np.array(list(network_results(runner, [tasks[i], tasks[j]], seeds).values()))
        errors[[i, j], [j, i]] = np.where(np.isfinite(results).all(1, keepdims=True), results, np.nan)
    if lost := [task for task, by_partner in zip(tasks, errors, strict=True) if np.isnan(by_partner).all()]:
        raise Diverged(f"every pair with {', '.join(lost)} diverged; lower `recipe.lr`")
    return errors


def gain(errors: Array, usual: Array, partners: NDArray[np.int64]) -> Array:
    """Returns the percentage reduction in error relative to a random partner [task, seed].

    Args:
        errors: the errors [task, partner, seed].
        usual: the expected errors with a random partner [task, seed].
        partners: the partner of each task.

    Example:
        >>> gain(np.array([[[4.0, 5.0], [6.0, 5.0]]]), np.array([[5.0, 5.0]]), [0]).tolist()
        [[20.0, 0.0]]
    """
    chosen = errors[np.arange(len(errors)), partners]
    return np.asarray(100 * (usual - chosen) / usual.mean(1, keepdims=True))


def claim_better_than_random(gains: Array, per_row: Array, metric: str = "error") -> Claim:
    """Judges whether chosen partners are clearly better than random ones, on average over tasks.

    Args:
        gains: the gains of the chosen partners [task, seed].
        per_row: how much one test row changes the gain of each task. See `judge_negative`.
        metric: "error" or "loss".
    """
    text = "the chosen partner is better than a random one"
    finite = np.isfinite(gains).all(1)
    if len(gains) < 3 or not finite.any():
        return Claim(text, "not tested", f"needs three tasks, or there is no choice, and a {metric} above zero")
    mean = gains[finite].mean(0)
    answer = judge_negative(-mean, per_row=per_row[finite].max() / finite.sum())
    return Claim(text, answer, f"{mean.mean():.2f}% less {metric} on average over tasks")


def judge_worst_chosen(best: Floats, chosen: Floats, worst: Floats, *, per_row: float = 0.0) -> Answer:
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
