"""The sections about affinity: the heat map, the changes over training, and the groups for every budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import MAX_TIES, Grouping
from tagalong.rendering import Html, table, tag
from tagalong.study import Results, Run

from ..style import format_percent, format_power_of_ten, format_with_error, power_of_thousand, unlearnt_mark

ESTIMATOR_LABELS = {
    "lookahead": "lookahead",
    "gradient": "first order",
    "cosine": "cosine of gradients",
    "cosine_kernels": "cosine of gradients, kernels only",
    "centered_cosine": "cosine of centered gradients",
}


def heatmap_section(run: Run, order: list[str]) -> Html | None:
    """Returns the heat map with its controls, its legend and a table of its numbers."""
    if run.affinity is None:
        return None
    return tag(
        "section",
        tag("h2", "Who helps whom", id="affinity-title"),
        tag(
            "p",
            "A training step on a row's task lowers (blue) or raises (red) the loss of a column's task. Compare cells "
            "within a column. Frames mark tasks that are grouped together below.",
            class_="lead",
        ),
        omitted_tasks(len(order), len(run.results.problem.tasks)),
        tag("div", id="affinity-switches", class_="switches"),
        tag("div", id="heatmap", class_="plot", role="img", aria_label=describe_heatmap(run.affinity)),
        _legend(),
        unlearnt_note(run.results, order),
        tag(
            "details",
            tag("summary", "The numbers as a table"),
            _number_table(run.affinity.only(order), run.results.verdict().unlearnt),
        ),
        id="affinity",
        aria_labelledby="affinity-title",
    )


def over_time_section(run: Run) -> Html | None:
    """Returns the chart for one target task, with a menu to choose the task."""
    if run.affinity is None or len(run.affinity.steps) < 2:
        return None
    return tag(
        "section",
        tag("h2", "Affinity over training", id="time-title"),
        tag(
            "p",
            "How much a step on each task helped the chosen task during training. Bands are ± one standard error. If "
            "lines cross often, the ranking of partners has not settled.",
            class_="lead",
        ),
        omitted_tasks(len(run.affinity.tasks), len(run.results.problem.tasks)),
        tag("div", tag("label", "Affinity onto ", tag("select", id="time-task")), class_="switches"),
        tag("div", id="over-time", class_="plot", role="img", aria_label="Affinity onto the chosen task over training"),
        unlearnt_note(run.results, run.affinity.tasks),
        id="time",
        aria_labelledby="time-title",
    )


def omitted_tasks(shown: int, total: int) -> Html | None:
    """Returns a note on how many tasks are shown, or None if all are."""
    if shown == total:
        return None
    return tag("p", f"The first {shown} of {total:,} tasks; the files of the run contain all of them.", class_="note")


def unlearnt_note(results: Results, shown: Iterable[str]) -> Html | None:
    """Explains the mark of tasks that were not learnt, if any of them is shown."""
    if not set(results.verdict().unlearnt).intersection(shown):
        return None
    return tag(
        "p", "† not learnt: on validation data, no network beats a constant by more than the noise.", class_="note"
    )


def describe_heatmap(affinity: Affinity) -> str:
    """Describes the heat map in words, for screen readers."""
    mean = np.where(np.eye(len(affinity.tasks), dtype=bool), np.nan, affinity.mean)
    if not np.isfinite(mean).any():
        return "Heat map of affinities; no pair of tasks was measured."
    best, worst = (np.unravel_index(at(mean), mean.shape) for at in (np.nanargmax, np.nanargmin))
    names = affinity.tasks
    return (
        f"Heat map of affinities between {len(names)} tasks. Highest: {names[best[0]]} onto {names[best[1]]}, "
        f"{mean[best]:.3g}. Lowest: {names[worst[0]]} onto {names[worst[1]]}, {mean[worst]:.3g}. "
        "All numbers are in the table below."
    )


def _legend() -> Html:
    bar = tag("span", tag("span", "hurts"), tag("i", class_="scale"), tag("span", "helps"), class_="scale-key")
    entries = [
        tag("span", tag("i", class_="box pale"), "pale or ~: within two standard errors of zero"),
        tag("span", tag("i", class_="box gray"), "a task's effect on itself"),
        tag("span", id="heatmap-unit"),
    ]
    return tag("div", bar, *entries, class_="key", aria_hidden="true")


def _number_table(affinity: Affinity, unlearnt: Collection[str]) -> Html:
    names = [task + unlearnt_mark(task, unlearnt) for task in affinity.tasks]
    rows = [
        [source, *(_format_cell(affinity, i, j) for j in range(len(affinity.tasks)))] for i, source in enumerate(names)
    ]
    element = table(["a step on …", *names], rows, caption="Affinity ± standard error; rows help columns")
    return tag("div", element, class_="scroll", tabindex="0", role="region", aria_label="Affinities as a table")


def _format_cell(affinity: Affinity, i: int, j: int) -> str:
    mean = float(affinity.mean[i, j])
    return format_with_error(mean, float(affinity.stderr[i, j])) if np.isfinite(mean) else "–"


def budget_section(results: Results, groupings: Mapping[int, Grouping], shown: int, *, measured: bool = False) -> Html:
    """Returns the slider for the number of networks, with placeholders for the groups and their curve.

    Args:
        results: the results of the run.
        groupings: the best groups by affinity for each number of networks.
        shown: the number of networks to show first.
        measured: whether another section answers how many networks to use, with measured results.
    """
    place, last = 1 + list(groupings).index(shown), len(groupings)
    slider = tag(
        "input",
        type="range",
        id="budget-slider",
        min="1",
        max=str(last),
        step="1",
        value=str(place),
        list="budget-ticks",
    )
    return tag(
        "section",
        tag("h2", "Groups suggested by affinity" if measured else "How many networks?", id="budget-title"),
        tag(
            "p",
            "The best groups by affinity for each number of networks. A network serves the tasks in solid chips; those "
            "in dashed chips are trained only because they help. "
            + (
                "Affinity only predicts which groups are good."
                if measured
                else "More networks take more training and memory."
            ),
            class_="lead",
        ),
        tag(
            "div",
            tag("label", "Networks ", tag("output", str(shown), id="budget-k"), for_="budget-slider"),
            tag("button", "−", type="button", id="budget-less", aria_label="one network fewer"),
            slider,
            tag("button", "+", type="button", id="budget-more", aria_label="one network more"),
            class_="slider",
        ),
        tag("p", id="budget-summary", aria_live="polite"),
        tag("div", id="budget-groups", class_="cards"),
        unlearnt_note(results, results.problem.tasks),
        tag(
            "div", id="budget-curve", class_="plot", role="img", aria_label="Total affinity for each number of networks"
        ),
        id="budget",
        aria_labelledby="budget-title",
    )


def budgets_data(groupings: Mapping[int, Grouping], results: Results) -> list[dict[str, Any]]:
    """Returns the data for the slider, ordered by the number of networks, k."""
    largest = max(abs(grouping.value) for grouping in groupings.values())
    power = power_of_thousand(largest)
    measured = any(grouping.resampled is not None for grouping in groupings.values())
    return [_budget_data(k, grouping, power, results, measured) for k, grouping in groupings.items()]


def _budget_data(k: int, grouping: Grouping, power: int, results: Results, measured: bool) -> dict[str, Any]:
    unit, resampled = 10.0**power, grouping.resampled
    return {
        "k": k,
        "networks": [{"serves": sorted(group.serves), "helpers": sorted(group.helpers)} for group in grouping.groups],
        "value": grouping.value / unit,
        "bound": grouping.bound / unit,
        "unit": format_power_of_ten(power),
        "summary": _grouping_sentences(k, grouping, power, results, measured),
        "unsettled": [] if resampled is None else list(resampled.unsettled),
    }


def _grouping_sentences(k: int, grouping: Grouping, power: int, results: Results, measured: bool) -> list[str]:
    """Describes how good the grouping is, whether that is proven, how stable it is, and how it affects the losses."""
    unit, used = 10.0**power, len(grouping.groups)
    start = f"{used} network{'s' * (used != 1)}" + (f" (more than {used} would not help)" if used < k else "")
    parts = [f"{start}, total affinity {grouping.value / unit:.3g}{format_power_of_ten(power)}"]
    if grouping.status == "optimal":
        parts.append("no other grouping is better (proven)")
    else:
        parts.append(
            f"at most {grouping.bound / unit:.3g}{format_power_of_ten(power)} is possible, {grouping.gap:.1%} more"
        )
    if grouping.resampled is not None:
        parts.append(f"the same groups in {grouping.resampled.share:.0%} of {grouping.resampled.resamples} resamples")
    elif measured:
        parts.append("stability was not tested, since this budget was not part of the run")
    if ties := len(grouping.ties):
        parts.append(f"{'at least ' * (ties == MAX_TIES)}{ties} other{'s are' if ties > 1 else ' is'} equally good")
    trained = [line for line in results.table() if (line.method, line.budget) == ("tag", k)]
    if trained and trained[0].change is not None:
        parts.append(f"training these networks changed the test losses by {format_percent(trained[0].change)}%")
    return parts
