"""Draws the figures that several experiments share, from the columns of their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tagalong.report import BACKGROUND_COLOR, TEXT_COLOR, figure_heading, line_style, marker_style, plotly_text

from .report import Cell, ReportTable, Value

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

GRID_COLOR = "#eeeeee"
TICKS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 5)]
OVERLAP, SPACING = 0.03, 0.022  # in decades: the distance below which points overlap, and how far apart they are drawn


def figure_layout(title: str, note: str = "", **more: Any) -> dict[str, Any]:
    """Returns the layout that all figures share."""
    heading, font = figure_heading(title, note), {"color": TEXT_COLOR}
    return {"title": heading, "margin": {"t": 110}, "plot_bgcolor": BACKGROUND_COLOR, "font": font, **more}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Returns an axis with grid lines."""
    return {"title": {"text": title}, "gridcolor": GRID_COLOR, "zerolinecolor": "#999999", **more}


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
        values = [cell if isinstance(cell, Value) else Value(np.nan) for cell in cells]
        stderr = {"type": "data", "array": [value.stderr or 0.0 for value in values]}
        color = line_style(place)["color"]
        y = [value.mean for value in values]
        bars.append(Bar(name=plotly_text(name), x=categories, y=y, marker_color=color, error_y=stderr))
    return Figure(bars, figure_layout(title, barmode="group", xaxis={"type": "category"}, yaxis=axis(ylabel)))


def draw_lines(table: ReportTable, *, title: str) -> Figure:
    """Draws a line for each column of a table over the numbers in its first column, on a logarithmic axis.

    Example:
        >>> table = ReportTable("validation error", ("learning rate", "256"), [("0.1", Value(5)), ("0.2", Value(4))])
        >>> draw_lines(table, title="MTL").layout.xaxis.title.text
        'learning rate'
    """
    from plotly.graph_objects import Figure, Scatter

    label, *names = table.columns
    x = [float(str(row[0])) for row in table.rows]
    lines = []
    for place, name in enumerate(names):
        y = [cell.mean for cell in table.column(name) if isinstance(cell, Value)]
        lines.append(Scatter(name=plotly_text(name), x=x, y=y, mode="lines+markers", line=line_style(place)))
    xaxis = axis(label, type="log", tickvals=x)
    return Figure(lines, figure_layout(title, xaxis=xaxis, yaxis=axis(table.title)))


class Point(NamedTuple):
    """A point in a figure, which represents a method with a budget.

    Attributes:
        method: the method, which determines the color.
        label: the text next to the point, such as the number of groups.
        cost: the x-coordinate.
        error: the y-coordinate.
    """

    method: str
    label: str
    cost: float
    error: Value


def draw_error_against_cost(
    points: Sequence[Point], *, title: str, cost_label: str, error_label: str, note: str
) -> Figure:
    """Plots error against cost on a logarithmic axis. Points with equal costs are drawn side by side.

    Example:
        >>> points = [Point("mtl", "", 1, Value(50.0)), Point("tag", "2", 3, Value(49.7, 0.1))]
        >>> figure = draw_error_against_cost(points, title="t", cost_label="cost", error_label="error", note="")
        >>> [trace.name for trace in figure.data]
        ['mtl', 'tag']
    """
    from plotly.graph_objects import Figure, Scatter

    shown_costs = separate_overlaps([point.cost for point in points])
    traces = []
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        mine = [(x, point) for x, point in zip(shown_costs, points, strict=True) if point.method == method]
        traces.append(
            Scatter(
                name=plotly_text(method),
                x=[x for x, _ in mine],
                y=[point.error.mean for _, point in mine],
                text=[plotly_text(point.label) for _, point in mine],
                customdata=[point.cost for _, point in mine],
                hovertemplate="%{text} %{y:.4g}, cost %{customdata:.3g}",
                mode="markers+text",
                textposition="top right",
                marker=marker_style(place),
                error_y={"type": "data", "array": [point.error.stderr or 0.0 for _, point in mine], "thickness": 1},
            )
        )
    xaxis = axis(cost_label, type="log", tickvals=TICKS)
    return Figure(traces, figure_layout(title, note, xaxis=xaxis, yaxis=axis(error_label)))


def separate_overlaps(costs: Sequence[float]) -> list[float]:
    """Moves costs slightly apart if their points would overlap.

    Example:
        >>> [round(cost, 2) for cost in separate_overlaps([1.0, 5.0, 1.0])]
        [0.97, 5.0, 1.03]
    """
    places = np.log10(costs)
    order = np.argsort(places, kind="stable")
    for crowd in np.split(order, np.flatnonzero(np.diff(places[order]) > OVERLAP) + 1):
        places[crowd] += SPACING * (np.arange(len(crowd)) - (len(crowd) - 1) / 2)
    return list((10**places).tolist())
