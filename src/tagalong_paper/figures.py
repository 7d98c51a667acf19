"""Draws the figures that several experiments share, from the columns of their tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tagalong.report import BACKGROUND_COLOR, TEXT_COLOR, figure_heading, line_style, marker_style, plotly_text

from .report import Cell, Value

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TICKS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 5)]


def figure_layout(title: str, note: str = "", **more: Any) -> dict[str, Any]:
    """Returns the layout that all figures share."""
    heading, font = figure_heading(title, note), {"color": TEXT_COLOR}
    return {"title": heading, "margin": {"t": 110}, "plot_bgcolor": BACKGROUND_COLOR, "font": font, **more}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Returns an axis with grid lines."""
    return {"title": {"text": title}, "gridcolor": "#eeeeee", "zerolinecolor": "#999999", **more}


def draw_bars(columns: Mapping[str, Sequence[Cell]], categories: Sequence[Cell], *, title: str, ylabel: str) -> Figure:
    """Draws a grouped bar chart with standard errors.

    Args:
        columns: the values for each category, by series name.
        categories: the categories along the x-axis.
        title: the title.
        ylabel: the label of the y-axis.

    Example:
        >>> len(draw_bars({"ours": [Value(1), None], "printed": [None] * 2}, ["a1", "a2"], title="", ylabel="").data)
        2
    """
    from plotly.graph_objects import Bar, Figure

    bars = []
    for place, (name, cells) in enumerate(columns.items()):
        values = [cell if isinstance(cell, Value) else Value(math.nan) for cell in cells]
        stderr = {"type": "data", "array": [value.stderr or 0.0 for value in values]}
        color = line_style(place)["color"]
        y = [value.mean for value in values]
        bars.append(Bar(name=plotly_text(name), x=categories, y=y, marker_color=color, error_y=stderr))
    return Figure(bars, figure_layout(title, barmode="group", xaxis={"type": "category"}, yaxis=axis(ylabel)))


def draw_error_against_cost(
    rows: Iterable[tuple[Cell, Cell, Value, Value]], *, title: str, cost_label: str, error_label: str, note: str
) -> Figure:
    """Plots error against cost on a logarithmic axis, without networks that diverged.

    Args:
        rows: the method, which determines the color, a label such as the number of groups, the cost and the error.
        title: the title.
        cost_label: the label of the x-axis.
        error_label: the label of the y-axis.
        note: a note below the title.

    Example:
        >>> rows = [("mtl", "-", Value(1.0), Value(50.0)), ("tag", 2, Value(3.0), Value(49.7, 0.1))]
        >>> figure = draw_error_against_cost(rows, title="t", cost_label="cost", error_label="error", note="")
        >>> [trace.name for trace in figure.data]
        ['mtl', 'tag']
    """
    from plotly.graph_objects import Figure, Scatter

    by_method: dict[Cell, list[tuple[Cell, Value, Value]]] = {}
    for method, label, cost, error in rows:
        if math.isfinite(error.mean):
            by_method.setdefault(method, []).append((label, cost, error))
    traces = []
    for place, (method, points) in enumerate(by_method.items()):
        labels, costs, errors = zip(*points, strict=True)
        traces.append(
            Scatter(
                name=plotly_text(str(method)),
                x=[cost.mean for cost in costs],
                y=[error.mean for error in errors],
                text=list(map(str, labels)),
                mode="markers+text",
                textposition="top right",
                marker=marker_style(place),
                error_y={"type": "data", "array": [error.stderr or 0.0 for error in errors], "thickness": 1},
            )
        )
    xaxis = axis(cost_label, type="log", tickvals=TICKS)
    return Figure(traces, figure_layout(title, note, xaxis=xaxis, yaxis=axis(error_label)))
