"""What the page's scripts draw, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.affinity import Affinity
from tagalong.study._text import label_text

from .._cells import Cells
from .._cost_against_error import cost_against_error, known_costs
from .._grouping_figure import task_order
from .._heatmap import affinity_heatmap
from .._labels import times
from .._run import Run
from .._search_curve import search_curve
from .._smooth import smoothed
from .._task_changes import task_changes
from ._affinity_section import ESTIMATORS
from ._budget_section import budgets_data
from ._search_section import auto_told

if TYPE_CHECKING:
    from tagalong.group import Grouping

ENOUGH = 20  # measured steps, below which trimming cuts nothing
COST_NAMES = {"all": "all", "deciding": "deciding", "training": "training", "size": "size"}


def page_data(run: Run, groupings: Mapping[int, Grouping], shown: int) -> dict[str, Any]:
    """Everything that is drawn; task names are plain text, to be escaped where they are shown."""
    grouping, results = groupings.get(shown), run.results
    order = task_order(grouping) if grouping else []
    return {
        "heatmaps": heatmaps(run, grouping) if grouping else [],
        "time": over_time_data(run.affinity) if run.affinity is not None else None,
        "budgets": budgets_data(groupings, results) if groupings else [],
        "shown": shown,
        "costs": _costs(run),
        "changes": _changes(run, order),
        "search": plain(search_curve(told)) if (told := auto_told(run)) else None,
    }


def as_script(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def heatmaps(run: Run, grouping: Grouping) -> list[dict[str, Any]]:
    """One heat map per estimator and average."""
    found = []
    for name, measured in run.affinities.items():
        ordered = measured.only(task_order(grouping))
        for average in ("mean", "trimmed"):
            if average == "trimmed" and len(measured.steps) < ENOUGH:
                continue
            affinity = ordered.averaged(average) if len(ordered.steps) else ordered
            figure = affinity_heatmap(affinity, grouping=grouping)
            entry = {
                "estimator": ESTIMATORS.get(name, name),
                "average": average,
                "tasks": task_order(grouping),
                "unit": _unit(affinity),
            }
            found.append(entry | {"figure": plain(figure)})
    return found


def _unit(affinity: Affinity) -> str:
    """In what the numbers in the cells are written."""
    return times(Cells.of(affinity, "zero").power)


def over_time_data(affinity: Affinity) -> dict[str, Any] | None:
    """Means of moving windows and their errors, by target and source."""
    if len(affinity.steps) < 2:
        return None
    windows = smoothed(affinity, None)
    return {
        "tasks": list(affinity.tasks),
        "window": windows.window,
        "steps": [round(step, 1) for step in windows.steps.tolist()],
        "mean": _rounded(windows.mean.transpose(2, 1, 0).tolist(), 4),
        "stderr": _rounded(windows.stderr.transpose(2, 1, 0).tolist(), 2),
        "highest": np.argsort(-np.nan_to_num(affinity.mean, nan=-np.inf), axis=0, kind="stable").T.tolist(),
    }


def plain(figure: Any) -> dict[str, Any]:
    """A figure as plotly.js takes it, without what the page decides: size, title, template."""
    document: dict[str, Any] = json.loads(figure.to_json())
    layout = document["layout"]
    for name in ("width", "height", "title", "template", "margin", "plot_bgcolor"):
        layout.pop(name, None)
    return document


def _costs(run: Run) -> list[dict[str, Any]]:
    """Cost against error, for each cost that is known of two methods or more."""
    known = known_costs(run.results)
    return [{"name": COST_NAMES[cost], "figure": plain(cost_against_error(run.results, cost))} for cost in known]


def _changes(run: Run, order: list[str]) -> list[dict[str, Any]]:
    verdict = run.results.verdict()
    labels = dict.fromkeys((record.method, record.budget) for record in run.results.records if record.method != "mtl")
    return [
        {
            "name": label_text(label),
            "first": label == verdict.candidate,
            "figure": plain(task_changes(run.results, *label, tasks=order or None)),
        }
        for label in labels
        if label not in verdict.diverged
    ]


def _rounded(values: Any, digits: int) -> Any:
    """Numbers with so many digits, null where there is none."""
    if isinstance(values, list):
        return [_rounded(value, digits) for value in values]
    if not isfinite(values):
        return None
    return round(values, digits - 1 - floor(log10(abs(values)))) if values else 0.0
