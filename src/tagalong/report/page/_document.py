"""The page: one file with everything in it, that needs no network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tagalong._html import Html, join, tag
from tagalong._version import __version__

from .._budgets import all_budgets, shown_budget
from .._grouping_figure import task_order
from .._run import Run
from ._affinity_section import over_time, who_helps_whom
from ._answer import answer
from ._budget_section import budget
from ._cards import recommended
from ._data import as_script, page_data
from ._obtained import obtained
from ._reading import handle_with_care, how_to_read
from ._search_section import auto_told, how_it_searched
from ._worth_section import was_it_worth_it

# The bundle of plotly.js (MIT) with lines, bars and heat maps alone: a third of what the Python package brings.
PLOTLY = "plotly-cartesian.min.js"
SCRIPTS = ("theme.js", "heatmap.js", "over_time.js", "budget.js", "worth.js", "search.js", "sort.js", "start.js")
# Nothing may be fetched, whatever a task is called.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


def page(run: Run) -> str:
    """The page of a run as HTML."""
    groupings = all_budgets(run)
    shown = shown_budget(run, groupings) if groupings else 1
    order = task_order(groupings[shown]) if groupings else []
    told = auto_told(run)
    methods = [record.method for record in run.results.records]
    body = [
        tag("a", "Skip to the networks", href="#networks", class_="skip"),
        tag(
            "main",
            answer(run),
            recommended(run),
            who_helps_whom(run, order) if order else None,
            over_time(run),
            budget(groupings, shown) if groupings else None,
            was_it_worth_it(run.results),
            how_it_searched(told) if told else None,
            how_to_read(methods),
            handle_with_care(run.results.problem.tasks),
            obtained(run),
        ),
        tag("footer", f"Made by tagalong {__version__}. This page is one file and fetches nothing."),
        tag("noscript", tag("p", "The plots and the slider need JavaScript; everything else does not.")),
        tag("script", Html(as_script(page_data(run, groupings, shown))), type="application/json", id="data"),
        tag("script", Html(_static(PLOTLY))),
        tag("script", Html("(() => {\n'use strict';\n" + "\n".join(map(_static, SCRIPTS)) + "\n})();")),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{run.results.problem.name}: which tasks should train together?"),
        tag("style", Html(_static("report.css"))),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), tag("body", join(body)), lang="en") + "\n"


@cache
def _static(name: str) -> str:
    return files("tagalong.report.page").joinpath("static", name).read_text(encoding="utf-8")
