"""Writes the report of a run as one HTML file that contains all scripts and data, and loads nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from math import floor, isfinite, log10
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from tagalong._version import __version__
from tagalong.affinity import CAUTION
from tagalong.files import write_atomic
from tagalong.group import Group, Grouping
from tagalong.rendering import format_duration
from tagalong.study import (
    FAMILIES,
    Results,
    Run,
    answer_sentences,
    interval_text,
    label_text,
    multiple,
    other_sentences,
    percent,
    points,
    read_run,
)

from .figures import (
    affinity_heatmap,
    affinity_over_training,
    best_ways,
    gain_by_models,
    task_skills,
    with_error,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

REPORT_FILE = "report.html"
# A bundle of plotly.js (MIT) with only lines, bars and heat maps: a third the size of the one in the Python package.
PLOTLY_SCRIPT = "plotly-cartesian.min.js"
MAX_TASKS = 30  # in figures, so that the page stays below two megabytes
MAX_TASKS_OF_ALL_ESTIMATORS = 16  # with more tasks, only the heat map of the first is shown
MAX_TARGETS = 8  # of affinities over training
SIGNIFICANT_DIGITS = 4  # of numbers in figures
SETTINGS = ("methods", "budgets", "seeds", "confirming_seeds", "options", "device", "executor", "recipe")
ENVIRONMENT = ("versions", "machine", "git")
CODE = re.compile(r"`([a-z_-]+)`")
INTERACTIVE_PROGRAMS = ("", "-c", "ipykernel_launcher.py")  # in a prompt, in `python -c` and in a notebook


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
    if not isinstance(run, Run):
        run = read_run(run)
    file = run.folder / REPORT_FILE if path is None else Path(path)
    write_atomic(file, render_page(run))
    return file


def render_page(run: Run) -> str:
    """Returns the page of a run as HTML."""
    results = run.results
    verdict = results.verdict()
    headline, *reasons = answer_sentences(verdict)
    summaries = {summary.label: summary for summary in results.table()}
    rows = "new.csv" if run.inputs == "table" else "new.npy"
    command = _command_line([str(part) for part in results.settings.get("command") or []])
    text = _template().render(
        run=run,
        results=results,
        verdict=verdict,
        problem=results.problem,
        headline=headline.rstrip("."),
        reason=" ".join(reasons),
        others=other_sentences(verdict),
        plans=[(number, way.label, network_rows(way.groups)) for number, way in verdict.by_budget.items()],
        networks=network_rows(verdict.groups),
        ways=[(family, way, summaries[way.label]) for (_, family), way in best_ways(verdict).items()],
        judged={way.label: way for way in verdict.ways},
        rows=rows,
        code_text=usage_code(run.folder, rows),
        predict=shlex.join(["tagalong", "predict", str(run.folder), rows, "--out", "predictions.csv"]),
        command=shlex.join(command),
        rewrite=shlex.join(["tagalong", "report", str(run.folder)]),
        caution=CAUTION,
        settings=_settings_text(results, SETTINGS),
        environment=_settings_text(results, ENVIRONMENT),
        data=to_script_json(page_figures(run)),
        plotly=_read_static(PLOTLY_SCRIPT),
        script=_read_static("page.js"),
        style=_read_static("page.css"),
        families=FAMILIES,
        max_tasks=MAX_TASKS,
        version=__version__,
    )
    return text + "\n"


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "label": label_text,
        "percent": percent,
        "points": points,
        "interval": interval_text,
        "with_error": with_error,
        "duration": format_duration,
        "number": _number_text,
        "prose": _prose,
        "multiple": multiple,
    }
    return environment.from_string(files("tagalong.report").joinpath("page.html.j2").read_text(encoding="utf-8"))


@cache
def _read_static(name: str) -> str:
    return files("tagalong.report").joinpath("static", name).read_text(encoding="utf-8")


# Texts ---------------------------------------------------------------------------------------------------------------


def network_rows(groups: Sequence[Group]) -> list[tuple[str, Group]]:
    """Returns the numbers of networks that differ only in their seeds, and one of them.

    Example:
        >>> for numbers, group in network_rows([Group("ab", "ab"), Group("ab", "ab", copy=1), Group("a", "a")]):
        ...     print(numbers, sorted(group.serves))
        1, 2 ['a', 'b']
        3 ['a']
    """
    rows: dict[Group, list[str]] = {}
    for number, group in enumerate(groups, 1):
        rows.setdefault(replace(group, copy=0), []).append(str(number))
    return [(", ".join(numbers), group) for group, numbers in rows.items()]


def usage_code(folder: Path, rows: str) -> str:
    """Returns Python code that loads the networks of a run, predicts and exports."""
    table = rows.endswith(".csv")
    new_rows = f'"{rows}"' if table else f'np.load("{rows}")'
    lines = [
        "from tagalong import Results",
        "",
        f"best = Results.load({json.dumps(str(folder), ensure_ascii=False)}).best()  # the recommended networks",
        f"predictions = best.predict({new_rows})  # a dict from task to array",
        'best.export("exported")  # programs and load.py, which needs only torch',
    ]
    return "\n".join(lines if table else ["import numpy as np", *lines])


def _command_line(arguments: Sequence[str]) -> list[str]:
    """Returns the command of a run as `tagalong …` or `python script.py …`, or an empty list for interactive use.

    Example:
        >>> _command_line(["/usr/bin/tagalong", "demo"]), _command_line(["train.py"]), _command_line(["-c"])
        (['tagalong', 'demo'], ['python', 'train.py'], [])
    """
    path = PurePath(arguments[0] if arguments else "")
    if path.stem == "tagalong" or path.parts[-2:] == ("tagalong", "__main__.py"):
        return ["tagalong", *arguments[1:]]
    return [] if path.name in INTERACTIVE_PROGRAMS else ["python", *arguments]


def _prose(text: str) -> Markup:
    """Returns a sentence of the study as HTML, with names of options as code.

    Example:
        >>> _prose("a < b; raise `epochs`")
        Markup('a &lt; b; raise <code>epochs</code>')
    """
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


def _number_text(value: float | None) -> str:
    """Formats a number with four significant digits, or all digits of whole thousands; an unknown one is empty.

    Example:
        >>> _number_text(0.12345), _number_text(13453), _number_text(None)
        ('0.1235', '13,453', '')
    """
    if value is None or not isfinite(value):
        return ""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _settings_text(results: Results, names: Sequence[str]) -> str:
    known = {name: results.settings[name] for name in names if results.settings.get(name)}
    return "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in known.items())


# Figures -------------------------------------------------------------------------------------------------------------


def page_figures(run: Run) -> dict[str, dict[str, Any]]:
    """Returns the figures for each place on the page, by the names from which readers choose."""
    results, verdict = run.results, run.results.verdict()
    figures: dict[str, dict[str, Figure]] = {
        "curve": {"": gain_by_models(verdict)},
        "changes": {"": task_skills(verdict, tasks=results.problem.tasks[:MAX_TASKS])},
        "heatmap": {},
        "over-time": {},
    }

    grouping = _shown_grouping(run)
    for name, affinity in run.affinities.items():
        if len(affinity.tasks) > MAX_TASKS:
            affinity, grouping = affinity.only(affinity.tasks[:MAX_TASKS]), None
        if not figures["heatmap"] or len(affinity.tasks) <= MAX_TASKS_OF_ALL_ESTIMATORS:
            figures["heatmap"][name] = affinity_heatmap(affinity, grouping=grouping)
    if run.affinity is not None and len(run.affinity.steps) > 1:
        measured = run.affinity.only(run.affinity.tasks[:MAX_TARGETS])
        for task in measured.tasks:
            figures["over-time"][f"onto {task}"] = affinity_over_training(measured, task)
    return {
        place: {name: _figure_json(figure) for name, figure in choices.items()} for place, choices in figures.items()
    }


def _shown_grouping(run: Run) -> Grouping | None:
    """Returns the groups by affinity for as many networks as are recommended, or else for the most."""
    models = run.results.verdict().chosen.models
    return run.groupings.get(models if models > 1 else 0, run.groupings.get(max(run.groupings, default=0)))


def _figure_json(figure: Figure) -> Any:
    """Returns a figure without its title, template and width, which the page sets itself."""
    document = figure.to_plotly_json()
    for name in ("title", "template", "width"):
        document["layout"].pop(name, None)
    return _rounded(document)


def _rounded(value: Any) -> Any:
    """Rounds numbers to significant digits. Those that are not finite become None."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if not isinstance(value, float) or value == 0:
        return value
    return round(value, SIGNIFICANT_DIGITS - 1 - floor(log10(abs(value)))) if isfinite(value) else None


def to_script_json(data: Any) -> str:
    """Returns JSON that is safe inside a script element, since nothing in it can close the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
