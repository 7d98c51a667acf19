"""Who helps whom, and how that changed while the network learnt: what is around the plots."""

from __future__ import annotations

import numpy as np

from tagalong._html import Html, table, tag
from tagalong.affinity import Affinity

from .._labels import plus_minus
from .._run import Run

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
