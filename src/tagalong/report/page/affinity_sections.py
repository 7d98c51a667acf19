"""Sections of the page on affinity: who helps whom, over training, and the groups for every budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tagalong.affinity import Affinity
from tagalong.group import MOST_TIES, Grouping
from tagalong.rendering import Html, table, tag
from tagalong.study import Results, Run

from ..style import plus_minus, power_of_thousand, signed, times

ESTIMATORS = {
    "lookahead": "lookahead",
    "gradient": "first order",
    "cosine": "cosine of gradients",
    "cosine_kernels": "cosine of gradients, kernels only",
}


def who_helps_whom(run: Run, order: list[str]) -> Html | None:
    """The heat map with its switches, its key and its numbers as a table."""
    if run.affinity is None:
        return None
    return tag(
        "section",
        tag("h2", "Who helps whom", id="affinity-title"),
        tag(
            "p",
            "A step on the task of a row lowers (blue) or raises (red) the loss of the task of a column. Compare "
            "within a column. Frames hold tasks that the groups below put together.",
            class_="lead",
        ),
        tag("div", id="affinity-switches", class_="switches"),
        tag("div", id="heatmap", class_="plot", role="img", aria_label=described(run.affinity)),
        _key(),
        tag("details", tag("summary", "The numbers as a table"), _numbers(run.affinity.only(order))),
        id="affinity",
        aria_labelledby="affinity-title",
    )


def over_time(run: Run) -> Html | None:
    """The chart of one target, with a chooser."""
    if run.affinity is None or len(run.affinity.steps) < 2:
        return None
    return tag(
        "section",
        tag("h2", "Over time", id="time-title"),
        tag(
            "p",
            "How much a step on each task helped the chosen one while the network learnt. Bands are one standard error "
            "either side. Lines that cross often mean that the order of partners is not settled.",
            class_="lead",
        ),
        tag("div", tag("label", "Affinity onto ", tag("select", id="time-task")), class_="switches"),
        tag("div", id="over-time", class_="plot", role="img", aria_label="Affinity onto the chosen task over training"),
        id="time",
        aria_labelledby="time-title",
    )


def described(affinity: Affinity) -> str:
    """The heat map in words, for those who do not see it."""
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


def _key() -> Html:
    bar = tag("span", tag("span", "hurts"), tag("i", class_="scale"), tag("span", "helps"), class_="scale-key")
    entries = [
        tag("span", tag("i", class_="box pale"), "pale, ~: within two standard errors of zero"),
        tag("span", tag("i", class_="box grey"), "a task's own step"),
        tag("span", id="heatmap-unit"),
    ]
    return tag("div", bar, *entries, class_="key", aria_hidden="true")


def _numbers(affinity: Affinity) -> Html:
    rows = [
        [source, *(_number(affinity, i, j) for j in range(len(affinity.tasks)))]
        for i, source in enumerate(affinity.tasks)
    ]
    made = table(["a step on …", *affinity.tasks], rows, caption="Affinity ± standard error; rows help columns")
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="Affinities as a table")


def _number(affinity: Affinity, i: int, j: int) -> str:
    mean = float(affinity.mean[i, j])
    return plus_minus(mean, float(affinity.stderr[i, j])) if np.isfinite(mean) else "–"


def budget(groupings: Mapping[int, Grouping], shown: int) -> Html:
    """The slider, what can be said of its groups, and where they are drawn."""
    n = len(groupings)
    slider = tag(
        "input", type="range", id="budget-slider", min="1", max=str(n), step="1", value=str(shown), list="budget-ticks"
    )
    return tag(
        "section",
        tag("h2", "How many networks?", id="budget-title"),
        tag(
            "p",
            "The best groups by affinity for each number of networks. Full chips are served by the network; dashed "
            "ones are only trained along because they help. More networks cost more training and more memory.",
            class_="lead",
        ),
        tag(
            "div",
            tag("label", "Networks ", tag("output", str(shown), id="budget-k"), for_="budget-slider"),
            tag("button", "−", type="button", id="budget-less", aria_label="one network less"),
            slider,
            tag("button", "+", type="button", id="budget-more", aria_label="one network more"),
            class_="slider",
        ),
        tag("p", id="budget-summary", aria_live="polite"),
        tag("div", id="budget-groups", class_="cards"),
        tag(
            "div", id="budget-curve", class_="plot", role="img", aria_label="Total affinity for each number of networks"
        ),
        id="budget",
        aria_labelledby="budget-title",
    )


def budgets_data(groupings: Mapping[int, Grouping], results: Results) -> list[dict[str, Any]]:
    """What the slider needs to know, in the order of k."""
    largest = max(abs(grouping.value) for grouping in groupings.values())
    power = power_of_thousand(largest)
    measured = any(grouping.resampled is not None for grouping in groupings.values())
    return [_data(k, grouping, power, results, measured) for k, grouping in groupings.items()]


def _data(k: int, grouping: Grouping, power: int, results: Results, measured: bool) -> dict[str, Any]:
    unit, resampled = 10.0**power, grouping.resampled
    return {
        "k": k,
        "networks": [{"serves": sorted(group.serves), "helpers": sorted(group.helpers)} for group in grouping.groups],
        "value": grouping.value / unit,
        "bound": grouping.bound / unit,
        "unit": times(power),
        "summary": _sentences(k, grouping, power, results, measured),
        "unsettled": [] if resampled is None else list(resampled.unsettled),
    }


def _sentences(k: int, grouping: Grouping, power: int, results: Results, measured: bool) -> list[str]:
    """How good, whether that is proven, how stable, what else is as good, and what training it brought."""
    unit, used = 10.0**power, len(grouping.groups)
    start = f"{used} network{'s' * (used != 1)}" + (f" (more than {used} bring nothing)" if used < k else "")
    said = [f"{start}, total affinity {grouping.value / unit:.3g}{times(power)}"]
    if grouping.status == "optimal":
        said.append("no other grouping is better (proven)")
    else:
        said.append(f"at most {grouping.bound / unit:.3g}{times(power)} is possible, {grouping.gap:.1%} more")
    if grouping.resampled is not None:
        said.append(f"the same groups in {grouping.resampled.share:.0%} of {grouping.resampled.resamples} resamples")
    elif measured:
        said.append("how stable they are was not looked at: it is for budgets that a run asks for")
    if ties := len(grouping.ties):
        said.append(f"{'at least ' * (ties == MOST_TIES)}{ties} other{'s are' if ties > 1 else ' is'} just as good")
    trained = [line for line in results.table() if (line.method, line.budget) == ("tag", k)]
    if trained and trained[0].change is not None:
        said.append(f"trained, it changed the test losses by {signed(trained[0].change)} %")
    return said
