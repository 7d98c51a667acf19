"""How affinities change while a network learns (the figure on time of Fifty et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity

from .style import (
    BACKGROUND_COLOUR,
    GREY,
    TEXT_COLOUR,
    figure_heading,
    label,
    line_style,
    need_affinity,
    plotly_text,
    plus_minus,
    transparent,
    what_was_measured,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Floats = NDArray[np.float64]
PANELS = 6  # shown if nobody says which
ACROSS = 3  # panels side by side
COLOURED = 10  # lines that can be told apart
SHARE = 10  # windows beside each other in a history
ENOUGH = 5  # values of the usual pair in a window
OVERLAP = 4  # windows that hold a step: smooth lines without a point per step
POINTS = 200  # more than a panel can show


def affinity_over_training(
    affinity: Affinity,
    onto: str | Iterable[str] | None = None,
    *,
    sources: Iterable[str] | None = None,
    smooth: int | None = None,
    title: str = "Affinity over training",
) -> Figure:
    """One panel per target task, one line per source task, with a band of one standard error either side.

    Every point is the mean over a moving window of measured steps, with the standard error that `Affinity`
    gives this window. A source has the same colour in all panels. A line has a gap where its pair has no
    value. Of more than ten lines, the ten with the highest affinity have a colour and a band, the others are
    grey; their names show on hovering. Self-affinity is not shown.

    Args:
        affinity: with its history.
        onto: the target task or tasks; by default all, six at most.
        sources: the tasks whose lines to draw; by default all.
        smooth: measured steps in a window. By default a tenth of the history, or as many as hold five values
            of the usual pair where sources took turns.
        title: the heading, as plain text.

    Returns:
        A plotly figure; `write_html` makes a file of it.

    Example:
        >>> history = [[[1, t], [2, 3]] for t in range(20)]
        >>> affinity = Affinity.from_history(history, ["age", "ill"])
        >>> figure = affinity_over_training(affinity, onto="ill", smooth=5)
        >>> figure.layout.annotations[0].text, figure.data[-1].name
        ('onto ill', 'age')
    """
    from plotly.subplots import make_subplots

    need_affinity(affinity)
    if not len(affinity.steps):
        raise ValueError(
            "`affinity` must have the history of its measured steps, found none; measure with a meter, or "
            "load one saved with its history"
        )
    targets = _numbers(affinity, "onto", affinity.tasks[:PANELS] if onto is None else onto)
    drawn = _numbers(affinity, "sources", affinity.tasks if sources is None else sources)
    windows = smoothed(affinity, smooth)
    across = 2 if len(targets) == 4 else min(ACROSS, len(targets))
    down = -(-len(targets) // across)
    panels = [f"onto {label(affinity.tasks[j])}" for j in targets]
    figure = make_subplots(down, across, subplot_titles=panels, vertical_spacing=0.3 / down)
    for place, j in enumerate(targets):
        traces = _panel(affinity, windows, [i for i in drawn if i != j], j)
        figure.add_traces(traces, rows=place // across + 1, cols=place % across + 1)
    _one_entry_per_source(figure)
    figure.update_layout(_layout(affinity, windows, title, across, down, len(drawn) > COLOURED + 1))
    figure.update_xaxes(title_text="call of the meter", showgrid=False, zeroline=False)
    figure.update_yaxes(exponentformat="power", zerolinecolor="#999999", gridcolor="#eeeeee")
    figure.update_yaxes(title_text="affinity", col=1)
    return figure


def _numbers(affinity: Affinity, argument: str, names: str | Iterable[str]) -> list[int]:
    """The tasks' numbers, each once."""
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    unknown = [name for name in wanted if name not in affinity.tasks]
    if unknown or not wanted:
        known = ", ".join(map(repr, affinity.tasks))
        found = ", ".join(map(repr, unknown)) or "none"
        raise ValueError(f"`{argument}` must name tasks among {known}, found {found}")
    return [affinity.tasks.index(name) for name in wanted]


def _panel(affinity: Affinity, windows: Smooth, sources: Sequence[int], target: int) -> list[Any]:
    """The lines of one target, the grey ones below."""
    highest = sorted(sources, key=lambda i: -np.nan_to_num(affinity.mean[i, target], nan=-np.inf))[:COLOURED]
    order = sorted(sources, key=lambda i: (i in highest, i))
    return [part for i in order for part in _line(affinity, windows, i, target, i in highest)]


def _line(affinity: Affinity, windows: Smooth, source: int, target: int, coloured: bool) -> list[Any]:
    from plotly.graph_objects import Scatter

    name, x = affinity.tasks[source], windows.steps
    mean, error = windows.mean[:, source, target], windows.stderr[:, source, target]
    style = line_style(source) if coloured else {"color": GREY, "dash": "solid"}
    notes = [
        f"{plotly_text(name)}<br>{plus_minus(value, either)} around call {call:.0f}"
        for call, value, either in zip(x, mean, error, strict=True)
    ]
    common = {"name": label(name), "legendgroup": str(source), "legendrank": source, "showlegend": False}
    # Markers too: a value between two gaps makes no line.
    look = {"mode": "lines+markers", "line": {**style, "width": 2}, "marker": {"size": 3}}
    line = Scatter(x=x, y=mean, hovertext=notes, hoverinfo="text", **look, **common)
    if not coloured:
        return [line]
    across, along = _outline(x, mean, error)
    fill = {"fill": "toself", "fillcolor": transparent(style["color"], 0.15), "hoverinfo": "skip"}
    return [Scatter(x=across, y=along, mode="none", **fill, **common), line]


def _outline(x: Floats, mean: Floats, error: Floats) -> tuple[list[float | None], list[float | None]]:
    """A polygon around each stretch of points with known errors, with gaps in between."""
    across: list[float | None] = []
    along: list[float | None] = []
    known = np.flatnonzero(np.isfinite(mean) & np.isfinite(error))
    for stretch in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
        there, back = stretch, stretch[::-1]
        across += [*x[there].tolist(), *x[back].tolist(), None]
        along += [*(mean + error)[there].tolist(), *(mean - error)[back].tolist(), None]
    return across[:-1], along[:-1]


def _one_entry_per_source(figure: Figure) -> None:
    """The first coloured line of each source stands in the legend and switches all of them."""
    seen: set[str] = set()
    for trace in figure.data:
        if trace.mode != "none" and trace.line.color != GREY and trace.legendgroup not in seen:
            seen.add(trace.legendgroup)
            trace.showlegend = True


def _layout(affinity: Affinity, windows: Smooth, title: str, across: int, down: int, many: bool) -> dict[str, Any]:
    reading = f"each point: {windows.window} measured steps; bands: one standard error either side"
    if many:
        reading += f"; grey: beyond the {COLOURED} highest"
    return {
        "title": figure_heading(title, what_was_measured(affinity), reading),
        "legend": {"title": {"text": "a step on …"}, "tracegroupgap": 0},
        "width": 340 * across + 280,
        "height": 300 * down + 160,
        "margin": {"l": 60, "r": 40, "t": 130, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOUR,
        "font": {"color": TEXT_COLOUR},
    }


@dataclass(frozen=True)
class Smooth:
    """One mean per window (windows × n × n), its standard error, and the middle of the window's steps."""

    steps: Floats
    mean: Floats
    stderr: Floats
    window: int


def smoothed(affinity: Affinity, window: int | None) -> Smooth:
    """Averages moving windows of `window` measured steps, about 200 windows at most."""
    length = len(affinity.steps)
    window = _usual(affinity) if window is None else window
    if window < 1:
        raise ValueError(f"`smooth` must be a number of measured steps, at least 1, found {window!r}")
    window = min(window, length)
    level = affinity.levelled()  # once, not window by window
    last = length - window
    starts = [*range(0, last, max(1, window // OVERLAP, -(-last // POINTS))), last]
    parts = [level.between(int(level.steps[s]), int(level.steps[s + window - 1]) + 1) for s in starts]
    return Smooth(
        steps=np.array([part.steps.mean() for part in parts]),
        mean=np.stack([part.mean for part in parts]),
        stderr=np.stack([part.stderr for part in parts]),
        window=window,
    )


def _usual(affinity: Affinity) -> int:
    length, counts = len(affinity.steps), affinity.count[affinity.count > 0]
    turns = length / float(np.median(counts)) if counts.size else 1.0
    return max(1, ceil(length / SHARE), ceil(ENOUGH * turns))
