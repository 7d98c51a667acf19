"""Draws the paper's figures from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tagalong.report import BACKGROUND_COLOR, TEXT_COLOR, figure_heading, line_style, marker_style, plotly_text

from .theory import ETA, PANELS, THETA, Floats, Panel, example_loss, gradients, losses_after_steps

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

Lines = Mapping[str, Sequence[float]]
GRID_COLOR, ZERO_COLOR = "#eeeeee", "#999999"
TICKS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 5)]
OVERLAP, SPACING = 0.03, 0.022  # in decades: the distance below which points overlap, and how far apart they are drawn
GRID_X, GRID_Y = (
    np.linspace(-3.2, 0.4, 61),
    np.linspace(-2.2, 0.6, 57),
)  # grid for the contours in `draw_counterexample`


def draw_bars(
    series: Mapping[str, Sequence[float]],
    categories: Sequence[str],
    *,
    title: str,
    ylabel: str,
    note: str = "",
    errors: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Draws a grouped bar chart.

    Args:
        series: the values for each category, by series name.
        categories: the categories along the x-axis.
        title: the title.
        ylabel: the label of the y-axis.
        note: a note below the title.
        errors: the standard errors by series name, for all or some of the series.

    Example:
        >>> len(draw_bars({"ours": [1, 2], "printed": [1, 3]}, ["a1", "a2"], title="t", ylabel="error").data)
        2
    """
    from plotly.graph_objects import Bar, Figure

    made = []
    for place, (name, values) in enumerate(series.items()):
        error = {"type": "data", "array": list(errors[name])} if errors and name in errors else None
        color = line_style(place)["color"]
        made.append(Bar(name=plotly_text(name), x=list(categories), y=list(values), marker_color=color, error_y=error))
    axes = {"xaxis": {"type": "category"}, "yaxis": _axis(ylabel)}
    return Figure(made, _layout(title, note, barmode="group", **axes))


def draw_lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    note: str = "",
    log_x: bool = False,
) -> Figure:
    """Draws a line for each series of points.

    Example:
        >>> figure = draw_lines({"256": ([1e-4, 1e-3], [5, 4])}, title="t", xlabel="learning rate", ylabel="error")
        >>> figure.layout.xaxis.title.text
        'learning rate'
    """
    from plotly.graph_objects import Figure, Scatter

    made = [
        Scatter(name=plotly_text(name), x=list(x), y=list(y), mode="lines+markers", line=line_style(place))
        for place, (name, (x, y)) in enumerate(series.items())
    ]
    axis: dict[str, object] = {"title": {"text": xlabel}, "gridcolor": GRID_COLOR}
    if log_x:
        ticks = sorted({float(value) for x, _ in series.values() for value in x})
        axis |= {"type": "log", "tickvals": ticks, "ticktext": [f"{value:g}" for value in ticks]}
    return Figure(made, _layout(title, note, xaxis=axis, yaxis=_axis(ylabel)))


def draw_scatter(
    x: Floats, y: Floats, names: Sequence[str], *, title: str, xlabel: str, ylabel: str, note: str = ""
) -> Figure:
    """Draws a scatter plot with one point per name.

    Example:
        >>> x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
        >>> draw_scatter(x, y, ["a", "b"], title="t", xlabel="train", ylabel="validation").data[0].mode
        'markers'
    """
    from plotly.graph_objects import Figure, Scatter

    points = Scatter(x=x, y=y, mode="markers", marker=marker_style(0), text=names, hoverinfo="text")
    return Figure([points], _layout(title, note, xaxis=_axis(xlabel), yaxis=_axis(ylabel)))


def draw_panels(
    lines_by_panel: Mapping[str, Lines], order: Sequence[str], *, title: str, xlabel: str, ylabel: str, note: str = ""
) -> Figure:
    """Draws lines over x = 1, 2, … in adjacent panels. Each name has the same color in all panels.

    Args:
        lines_by_panel: for each panel title, a mapping from line names to values.
        order: the order of the names in the legend, which also determines their colors.
        title: the title.
        xlabel: the label of the x-axis.
        ylabel: the label of the y-axis.
        note: a note below the title.

    Example:
        >>> lines_by_panel = {"onto a": {"b": [1, 2]}, "onto b": {"a": [3, 1]}}
        >>> figure = draw_panels(lines_by_panel, ["a", "b"], title="t", xlabel="epoch", ylabel="affinity")
        >>> [(line.name, line.xaxis, list(line.y)) for line in figure.data]
        [('b', 'x', [1, 2]), ('a', 'x2', [3, 1])]
    """
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    figure = make_subplots(1, len(lines_by_panel), subplot_titles=[plotly_text(name) for name in lines_by_panel])
    named: set[str] = set()
    for column, lines in enumerate(lines_by_panel.values(), 1):
        for name, values in lines.items():
            place = order.index(name)
            look = {"mode": "lines+markers", "line": line_style(place), "marker": {"size": 4}}
            key = {"name": plotly_text(name), "legendgroup": name, "legendrank": place, "showlegend": name not in named}
            line = Scatter(x=list(range(1, len(values) + 1)), y=list(values), **look, **key)
            figure.add_trace(line, row=1, col=column)
            named.add(name)
    figure.update_layout(
        title=figure_heading(title, note), width=340 * len(lines_by_panel) + 280, margin={"t": 130},
        plot_bgcolor=BACKGROUND_COLOR, font={"color": TEXT_COLOR},
    )  # fmt: skip
    figure.update_xaxes(title_text=xlabel, gridcolor=GRID_COLOR)
    figure.update_yaxes(gridcolor=GRID_COLOR, zerolinecolor=ZERO_COLOR)
    figure.update_yaxes(title_text=ylabel, col=1)
    return figure


def _layout(title: str, note: str, **extra: object) -> dict[str, object]:
    usual = {
        "title": figure_heading(title, note),
        "margin": {"t": 110},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }
    return {**usual, **extra}


def _axis(title: str) -> dict[str, object]:
    return {"title": {"text": title}, "gridcolor": GRID_COLOR, "zerolinecolor": ZERO_COLOR}


@dataclass(frozen=True)
class Point:
    """A point in a figure, which represents a method with a budget.

    Attributes:
        method: the method, which determines the color.
        label: the text next to the point, such as the number of groups.
        cost: the x-coordinate.
        error: the y-coordinate.
        stderr: the standard error of the y-coordinate, or None if there is only one seed.
    """

    method: str
    label: str
    cost: float
    error: float
    stderr: float | None = None


def draw_error_against_cost(
    points: Sequence[Point], *, title: str, cost_label: str, error_label: str, note: str = ""
) -> Figure:
    """Plots error against cost on a logarithmic axis. Points with equal costs are drawn side by side.

    Example:
        >>> points = [Point("mtl", "", 1, 50.0), Point("tag", "2", 3, 49.7, 0.1)]
        >>> figure = draw_error_against_cost(points, title="t", cost_label="cost", error_label="error")
        >>> [trace.name for trace in figure.data]
        ['mtl', 'tag']
    """
    from plotly.graph_objects import Figure, Scatter

    made, x = [], separate_overlaps([point.cost for point in points])
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        at = [number for number, point in enumerate(points) if point.method == method]
        mine = [points[number] for number in at]
        made.append(
            Scatter(
                name=plotly_text(method),
                x=[x[number] for number in at],
                y=[point.error for point in mine],
                text=[plotly_text(point.label) for point in mine],
                customdata=[point.cost for point in mine],
                hovertemplate="%{text} %{y:.4g}, cost %{customdata:.3g}",
                mode="markers+text",
                textposition="top right",
                marker=marker_style(place),
                error_y={"type": "data", "array": [point.stderr or 0.0 for point in mine], "thickness": 1},
            )
        )
    xaxis = {"title": {"text": cost_label}, "type": "log", "tickvals": TICKS, "gridcolor": GRID_COLOR}
    return Figure(
        made, _layout(title, note, xaxis=xaxis, yaxis={"title": {"text": error_label}, "gridcolor": GRID_COLOR})
    )


def separate_overlaps(costs: Sequence[float]) -> list[float]:
    """Moves costs slightly apart if their points would overlap.

    Example:
        >>> [round(cost, 2) for cost in separate_overlaps([1.0, 5.0, 1.0])]
        [0.97, 5.0, 1.03]
    """
    places = np.log10(np.asarray(costs, dtype=np.float64))
    order = np.argsort(places, kind="stable")
    crowds = np.split(order, np.flatnonzero(np.diff(places[order]) > OVERLAP) + 1)
    for crowd in crowds:
        places[crowd] += SPACING * (np.arange(len(crowd)) - (len(crowd) - 1) / 2)
    return [float(cost) for cost in 10**places]


def draw_counterexample() -> Figure:
    """Draws the four panels of the counterexample.

    Arrows are negative gradients of unit length. Crosses mark the end of a step with η = 0.09.
    """
    from plotly.graph_objects import Contour
    from plotly.subplots import make_subplots

    grid = np.stack(np.meshgrid(GRID_X, GRID_Y), -1).reshape(-1, 2)
    levels = example_loss(grid).reshape(len(GRID_Y), len(GRID_X))
    titles = [_panel_title(panel) for panel in PANELS]
    figure = make_subplots(2, 2, subplot_titles=titles, vertical_spacing=0.14)
    for place, panel in enumerate(PANELS):
        where = {"row": place // 2 + 1, "col": place % 2 + 1}
        contour = Contour(x=GRID_X, y=GRID_Y, z=levels, contours_coloring="lines", showscale=False, ncontours=25)
        figure.add_trace(contour, **where)
        for trace in _arrows(panel, show_legend=place == 0):
            figure.add_trace(trace, **where)
    figure.update_layout(
        title=figure_heading(
            "A task with more affinity can be the worse partner", "L_a = ½(x₁² + 10·x₂²) from (−2, −1)"
        ),
        width=1000, height=860, margin={"t": 120}, plot_bgcolor=BACKGROUND_COLOR, font={"color": TEXT_COLOR},
    )  # fmt: skip
    return figure


def _panel_title(panel: Panel) -> str:
    with_b, with_c = losses_after_steps(panel)
    what = "g_a + " if panel.combined else ""
    return f"({panel.letter}) L_a after {what}g_b: {with_b:.3f}, after {what}g_c: {with_c:.3f}"


def _arrows(panel: Panel, *, show_legend: bool) -> list[Scatter]:
    from plotly.graph_objects import Scatter

    found = gradients(panel)
    steps = {f"−g_{name}": vector for name, vector in found.items()}
    if panel.combined:
        steps = {f"−(g_a + g_{name})": found["a"] + found[name] for name in "bc"}
    made = []
    for place, (name, vector) in enumerate(steps.items()):
        end, landed = np.array(THETA) - vector, np.array(THETA) - ETA * vector
        color = line_style(place + panel.combined)["color"]
        made.append(
            Scatter(
                name=name,
                x=[THETA[0], landed[0], end[0]],
                y=[THETA[1], landed[1], end[1]],
                mode="lines+markers",
                line={"color": color, "width": 3},
                marker={"symbol": ["circle", "x", "arrow"], "angleref": "previous", "size": [6, 8, 14]},
                showlegend=show_legend or panel.letter == "b",
            )
        )
    return made
