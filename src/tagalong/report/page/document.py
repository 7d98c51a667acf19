"""Writes the report of a run as one HTML file that contains all scripts and data, and loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from tagalong._version import __version__
from tagalong.affinity import Affinity
from tagalong.files import write_atomic
from tagalong.group import Group, Grouping
from tagalong.rendering import Html, join, tag
from tagalong.study import Run, label_text, read_run

from ..affinity_history import smooth_affinity
from ..grouping_figure import task_order
from ..heatmap import HeatmapCells, affinity_heatmap
from ..result_figures import change_by_networks, cost_against_error, known_costs, search_curve, task_changes
from ..style import format_power_of_ten
from .affinity_sections import ESTIMATOR_LABELS, budget_section, budgets_data, heatmap_section, over_time_section
from .answer import answer_section
from .background import disclaimer_section, provenance_section, reading_section
from .measured_budgets import has_measured_budgets, measured_section
from .networks import recommended_section
from .results_sections import results_section
from .search_section import search_section
from .usage import usage_section

REPORT_FILE = "report.html"
# A bundle of plotly.js (MIT) with only lines, bars and heat maps: a third the size of the one in the Python package.
PLOTLY_SCRIPT = "plotly-cartesian.min.js"
PAGE_SCRIPTS = (
    "theme.js",
    "heatmap.js",
    "over_time.js",
    "budget.js",
    "measured.js",
    "networks.js",
    "copy.js",
    "worth.js",
    "search.js",
    "sort.js",
    "start.js",
)
# The browser must not load anything, even if the name of a task contains HTML.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
MAX_TASKS = 60  # in plots; with 1,000 tasks, the heat maps alone would have hundreds of megabytes
MIN_STEPS_TO_TRIM = 20  # with fewer measured steps, trimming has no effect


def write_report(run: str | Path | Run, path: str | Path | None = None) -> Path:
    """Writes the report of a finished run as one HTML file that works offline.

    Args:
        run: the folder of the run, or the result of `read_run`.
        path: the file to write; by default, `report.html` in the folder of the run.

    Returns:
        The path of the page.

    Raises:
        InvalidInput: If the folder does not contain a finished run, or a file in it is damaged.
    """
    found = run if isinstance(run, Run) else read_run(run)
    file = found.folder / REPORT_FILE if path is None else Path(path)
    write_atomic(file, render_page(found, found.all_budgets()))
    return file


def render_page(run: Run, groupings: dict[int, Grouping]) -> str:
    """Returns the page of a run as HTML.

    Args:
        run: the run.
        groupings: the best groups by affinity for each number of networks; empty if no affinity was measured.
    """
    shown = run.shown_budget(groupings) if groupings else 1
    order = task_order(groupings[shown])[:MAX_TASKS] if groupings else []
    log, measured = run.results.search_log, has_measured_budgets(run.results)
    drawn = _only(run, order)
    methods = [record.method for record in run.results.records]
    body = [
        tag("a", "Skip to the networks", href="#networks", class_="skip"),
        tag(
            "main",
            answer_section(run),
            measured_section(run.results) if measured else None,
            recommended_section(run),
            usage_section(run),
            heatmap_section(drawn, order) if order else None,
            over_time_section(drawn),
            budget_section(run.results, groupings, shown, measured=measured) if groupings else None,
            results_section(run.results, MAX_TASKS),
            search_section(log) if log else None,
            reading_section(methods),
            disclaimer_section(),
            provenance_section(run),
        ),
        tag(
            "footer", f"Made by tagalong {__version__}. This page is a single file and loads nothing from the internet."
        ),
        tag("noscript", tag("p", "The plots and the slider need JavaScript.")),
        tag("script", Html(to_script_json(page_data(drawn, groupings, shown))), type="application/json", id="data"),
        tag("script", Html(_read_static(PLOTLY_SCRIPT))),
        tag("script", Html("(() => {\n'use strict';\n" + "\n".join(map(_read_static, PAGE_SCRIPTS)) + "\n})();")),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{run.results.problem.name}: which tasks should train together?"),
        tag("style", Html(_read_static("report.css"))),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), tag("body", join(body)), lang="en") + "\n"


def _only(run: Run, tasks: Sequence[str]) -> Run:
    """Returns the run with the affinities of only these tasks, if these are not all of its tasks."""
    if run.affinity is None or len(tasks) in (0, len(run.affinity.tasks)):
        return run
    return replace(run, affinities={name: affinity.only(tasks) for name, affinity in run.affinities.items()})


@cache
def _read_static(name: str) -> str:
    return files("tagalong.report.page").joinpath("static", name).read_text(encoding="utf-8")


def page_data(run: Run, groupings: Mapping[int, Grouping], shown: int) -> dict[str, Any]:
    """Returns the data for all plots. Task names are plain text, which the scripts escape."""
    grouping, results = groupings.get(shown), run.results
    order = task_order(grouping) if grouping else list(results.problem.tasks)
    return {
        "heatmaps": heatmap_data(run, _only_tasks(grouping, order[:MAX_TASKS])) if grouping else [],
        "time": over_time_data(run.affinity) if run.affinity is not None else None,
        "budgets": budgets_data(groupings, results) if groupings else [],
        "shown": 1 + list(groupings).index(shown) if groupings else 1,  # its place on the slider
        "measured": as_plotly_json(change_by_networks(results)) if has_measured_budgets(results) else None,
        "costs": _cost_figures(run),
        "changes": _change_figures(run, order[:MAX_TASKS]),
        "search": as_plotly_json(search_curve(log.about)) if (log := results.search_log) else None,
        "unlearnt": list(results.verdict().unlearnt),
    }


def _only_tasks(grouping: Grouping, tasks: Sequence[str]) -> Grouping:
    served = [group.serves.intersection(tasks) for group in grouping.groups]
    return replace(grouping, groups=tuple(Group(serves, serves) for serves in served if serves))


def to_script_json(data: Mapping[str, Any]) -> str:
    """Returns JSON that is safe inside a script element, since nothing in it can close the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def heatmap_data(run: Run, grouping: Grouping) -> list[dict[str, Any]]:
    """Returns one heat map for each estimator and each way of averaging."""
    found = []
    for name, measured in run.affinities.items():
        ordered = measured.only(task_order(grouping))
        for average in ("mean", "trimmed"):
            if average == "trimmed" and len(measured.steps) < MIN_STEPS_TO_TRIM:
                continue
            affinity = ordered.averaged(average) if len(ordered.steps) else ordered
            figure = affinity_heatmap(affinity, grouping=grouping)
            entry = {
                "estimator": ESTIMATOR_LABELS.get(name, name),
                "average": average,
                "tasks": task_order(grouping),
                "unit": _unit(affinity),
            }
            found.append(entry | {"figure": as_plotly_json(figure)})
    return found


def _unit(affinity: Affinity) -> str:
    """Returns the unit of the numbers in the cells."""
    return format_power_of_ten(HeatmapCells.from_affinity(affinity, "zero").power)


def over_time_data(affinity: Affinity) -> dict[str, Any] | None:
    """Returns the means over moving windows and their standard errors, by target and source."""
    if len(affinity.steps) < 2:
        return None
    windows = smooth_affinity(affinity, None)
    return {
        "tasks": list(affinity.tasks),
        "extent": windows.extent,
        "steps": [round(step, 1) for step in windows.steps.tolist()],
        "mean": _round(windows.mean.transpose(2, 1, 0).tolist(), 4),
        "stderr": _round(windows.stderr.transpose(2, 1, 0).tolist(), 2),
        "highest": np.argsort(-np.nan_to_num(affinity.mean, nan=-np.inf), axis=0, kind="stable").T.tolist(),
    }


def _cost_figures(run: Run) -> list[dict[str, Any]]:
    """Returns figures of error against cost, one for each cost that is known for at least two methods."""
    known = known_costs(run.results)
    return [{"name": cost, "figure": as_plotly_json(cost_against_error(run.results, cost))} for cost in known]


def _change_figures(run: Run, order: list[str]) -> list[dict[str, Any]]:
    verdict = run.results.verdict()
    labels = dict.fromkeys((record.method, record.budget) for record in run.results.records if record.method != "mtl")
    return [
        {
            "name": label_text(label),
            "first": label == verdict.candidate,
            "figure": as_plotly_json(task_changes(run.results, *label, tasks=order)),
        }
        for label in labels
        if label not in verdict.diverged
    ]


def as_plotly_json(figure: Any) -> dict[str, Any]:
    """Returns a figure for plotly.js without its size, title and template, which the page sets itself."""
    document: dict[str, Any] = json.loads(figure.to_json())
    layout = document["layout"]
    for name in ("width", "height", "title", "template", "margin", "plot_bgcolor"):
        layout.pop(name, None)
    return document


def _round(values: Any, digits: int) -> Any:
    """Rounds nested lists of numbers to significant digits. Numbers that are not finite become None."""
    if isinstance(values, list):
        return [_round(value, digits) for value in values]
    if not isfinite(values):
        return None
    return round(values, digits - 1 - floor(log10(abs(values)))) if values else 0.0
