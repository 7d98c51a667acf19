"""Draws how affinities change during training, as in Fifty et al. (2021)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_positive_integer

from .style import (
    BACKGROUND_COLOR,
    GRAY,
    TEXT_COLOR,
    check_affinity,
    describe_measurement,
    figure_heading,
    format_with_error,
    line_style,
    plotly_text,
    short_label,
    with_opacity,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Floats = NDArray[np.float64]
MAX_PANELS = 6  # unless the targets are given
PANELS_PER_ROW = 3
MAX_COLORED_LINES = 10  # the most lines that readers can tell apart
WINDOWS_PER_HISTORY = 10  # how many windows without overlap make up a history
MIN_VALUES_PER_WINDOW = 5  # of a typical pair in each window
WINDOWS_PER_STEP = 4  # number of windows that contain each step: smooth lines without a point for every step
MAX_POINTS = 200  # per line


def affinity_over_training(
    affinity: Affinity,
    onto: str | Iterable[str] | None = None,
    *,
    sources: Iterable[str] | None = None,
    smooth: int | None = None,
    title: str = "Affinity over training",
) -> Figure:
    """Draws affinities over training, with one panel per target task and one line with an error band per source task.

    Each point is the mean over a moving window of measured steps. Bands show ± one standard error. A source has the
    same color in all panels. Lines have gaps where a pair has no values. If a panel has more than ten lines, the ten
    with the highest affinity have a color and a band. The other lines are gray; hover over them to see their names.
    Self-affinity is not shown.

    Args:
        affinity: an affinity that has a history.
        onto: the target task or tasks; the first six tasks by default.
        sources: the source tasks to draw; all tasks by default.
        smooth: the number of measured steps in a window. The default is a tenth of the history, or more if a typical
            pair would have fewer than five values.
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.

    Example:
        >>> history = [[[1, t], [2, 3]] for t in range(20)]
        >>> affinity = Affinity.from_history(history, ["age", "ill"])
        >>> figure = affinity_over_training(affinity, onto="ill", smooth=5)
        >>> figure.layout.annotations[0].text, figure.data[-1].name
        ('onto ill', 'age')
    """
    from plotly.subplots import make_subplots

    check_affinity(affinity)
    if not len(affinity.steps):
        hint = "measure it with a meter, or load an affinity that was saved with its history"
        raise InvalidInput("affinity", "must have a history of measured steps", "none", hint)
    targets = _task_numbers(affinity, "onto", affinity.tasks[:MAX_PANELS] if onto is None else onto)
    drawn = _task_numbers(affinity, "sources", affinity.tasks if sources is None else sources)
    windows = smooth_affinity(affinity, smooth)
    columns = 2 if len(targets) == 4 else min(PANELS_PER_ROW, len(targets))
    rows = -(-len(targets) // columns)
    panels = [f"onto {short_label(affinity.tasks[j])}" for j in targets]
    figure = make_subplots(rows, columns, subplot_titles=panels, vertical_spacing=0.3 / rows)
    for place, j in enumerate(targets):
        traces = _panel(affinity, windows, [i for i in drawn if i != j], j)
        figure.add_traces(traces, rows=place // columns + 1, cols=place % columns + 1)
    _share_legend_entries(figure)
    figure.update_layout(_layout(affinity, windows, title, columns, rows, len(drawn) > MAX_COLORED_LINES + 1))
    figure.update_xaxes(title_text="meter call", showgrid=False, zeroline=False)
    figure.update_yaxes(exponentformat="power", zerolinecolor="#999999", gridcolor="#eeeeee")
    figure.update_yaxes(title_text="affinity", col=1)
    return figure


def _task_numbers(affinity: Affinity, argument: str, names: str | Iterable[str]) -> list[int]:
    """Returns the indices of the tasks, without duplicates."""
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    unknown = [name for name in wanted if name not in affinity.tasks]
    if unknown or not wanted:
        known = ", ".join(map(repr, affinity.tasks))
        found = ", ".join(map(repr, unknown)) or "none"
        raise InvalidInput(argument, f"must contain one or more of the tasks {known}", found)
    return [affinity.tasks.index(name) for name in wanted]


def _panel(affinity: Affinity, windows: SmoothedAffinity, sources: Sequence[int], target: int) -> list[Any]:
    """Returns the lines for one target, gray lines first."""
    highest = sorted(sources, key=lambda i: -np.nan_to_num(affinity.mean[i, target], nan=-np.inf))[:MAX_COLORED_LINES]
    order = sorted(sources, key=lambda i: (i in highest, i))
    return [part for i in order for part in _line(affinity, windows, i, target, i in highest)]


def _line(affinity: Affinity, windows: SmoothedAffinity, source: int, target: int, colored: bool) -> list[Any]:
    from plotly.graph_objects import Scatter

    name, x = affinity.tasks[source], windows.steps
    mean, error = windows.mean[:, source, target], windows.stderr[:, source, target]
    style = line_style(source) if colored else {"color": GRAY, "dash": "solid"}
    notes = [
        f"{plotly_text(name)}<br>{format_with_error(value, stderr)} around meter call {call:.0f}"
        for call, value, stderr in zip(x, mean, error, strict=True)
    ]
    common = {"name": short_label(name), "legendgroup": str(source), "legendrank": source, "showlegend": False}
    # Markers show single values between two gaps, which have no line.
    look = {"mode": "lines+markers", "line": {**style, "width": 2}, "marker": {"size": 3}}
    line = Scatter(x=x, y=mean, hovertext=notes, hoverinfo="text", **look, **common)
    if not colored:
        return [line]
    xs, ys = _band_outline(x, mean, error)
    fill = {"fill": "toself", "fillcolor": with_opacity(style["color"], 0.15), "hoverinfo": "skip"}
    return [Scatter(x=xs, y=ys, mode="none", **fill, **common), line]


def _band_outline(x: Floats, mean: Floats, error: Floats) -> tuple[list[float | None], list[float | None]]:
    """Returns a polygon around each run of points with known errors, separated by gaps."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    known = np.flatnonzero(np.isfinite(mean) & np.isfinite(error))
    for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
        back = run[::-1]
        xs += [*x[run].tolist(), *x[back].tolist(), None]
        ys += [*(mean + error)[run].tolist(), *(mean - error)[back].tolist(), None]
    return xs[:-1], ys[:-1]


def _share_legend_entries(figure: Figure) -> None:
    """Shows each source once in the legend, where clicking it toggles all of its lines."""
    seen: set[str] = set()
    for trace in figure.data:
        if trace.mode != "none" and trace.line.color != GRAY and trace.legendgroup not in seen:
            seen.add(trace.legendgroup)
            trace.showlegend = True


def _layout(
    affinity: Affinity, windows: SmoothedAffinity, title: str, columns: int, rows: int, has_gray_lines: bool
) -> dict[str, Any]:
    reading = f"each point: {windows.extent}; bands: ± one standard error"
    if has_gray_lines:
        reading += f"; gray: all but the {MAX_COLORED_LINES} highest"
    return {
        "title": figure_heading(title, describe_measurement(affinity), reading),
        "legend": {"title": {"text": "a step on …"}, "tracegroupgap": 0},
        "width": 340 * columns + 280,
        "height": 300 * rows + 160,
        "margin": {"l": 60, "r": 40, "t": 130, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }


@dataclass(frozen=True)
class SmoothedAffinity:
    """The mean of each window [windows, n, n], its standard error, and the middle step of the window.

    Attributes:
        steps: the middle step of each window.
        mean: the means.
        stderr: the standard errors of the means.
        extent: the extent of a window, in words.
    """

    steps: Floats
    mean: Floats
    stderr: Floats
    extent: str


def smooth_affinity(affinity: Affinity, window: int | None) -> SmoothedAffinity:
    """Averages over moving windows of `window` measured steps, with at most about 200 windows."""
    if window is not None and not is_positive_integer(window):
        raise InvalidInput("smooth", "must be a positive integer (the number of measured steps)", repr(window))
    length = len(affinity.steps)
    entries = min(length, _default_window(affinity) if window is None else window)
    level = affinity.leveled()  # once, rather than for each window
    last = length - entries
    starts = [*range(0, last, max(1, entries // WINDOWS_PER_STEP, -(-last // MAX_POINTS))), last]
    steps = affinity.steps
    parts = [level.between(steps[start], steps[start + entries - 1] + 1) for start in starts]
    return SmoothedAffinity(
        steps=np.array([steps[start : start + entries].mean() for start in starts]),
        mean=np.stack([part.mean for part in parts]),
        stderr=np.stack([part.stderr for part in parts]),
        extent=f"{entries} measured steps",
    )


def _default_window(affinity: Affinity) -> int:
    length, counts = len(affinity.steps), affinity.count[affinity.count > 0]
    turns = length / float(np.median(counts)) if counts.size else 1.0
    return max(1, ceil(length / WINDOWS_PER_HISTORY), ceil(MIN_VALUES_PER_WINDOW * turns))
