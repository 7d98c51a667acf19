"""Total error against cost: the paper's figures of task groupings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tagalong.report._colours import BLANK, INK, marker_style
from tagalong.report._labels import heading, literal

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TICKS = [digit * 10.0**power for power in range(-2, 6) for digit in (1, 2, 5)]
SAME, APART = 0.03, 0.022  # of a decade: costs that would hide each other, and how far apart they are drawn then


@dataclass(frozen=True)
class Point:
    """A method at a budget.

    Attributes:
        method: one colour each.
        label: beside the point, such as the number of groups.
        cost: across, on a logarithmic axis.
        error: up.
        stderr: of the error; None with one seed.
    """

    method: str
    label: str
    cost: float
    error: float
    stderr: float | None = None


def error_against_cost(points: Sequence[Point], *, title: str, cost: str, error: str, note: str = "") -> Figure:
    """One point per method and budget; methods in the order of the points. Equal costs are drawn side by side.

    Example:
        >>> points = [Point("mtl", "", 1, 50.0), Point("tag", "2", 3, 49.7, 0.1)]
        >>> [trace.name for trace in error_against_cost(points, title="t", cost="cost", error="error").data]
        ['mtl', 'tag']
    """
    from plotly.graph_objects import Figure, Scatter

    made, across = [], side_by_side([point.cost for point in points])
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        at = [number for number, point in enumerate(points) if point.method == method]
        mine = [points[number] for number in at]
        made.append(
            Scatter(
                name=literal(method),
                x=[across[number] for number in at],
                y=[point.error for point in mine],
                text=[literal(point.label) for point in mine],
                customdata=[point.cost for point in mine],
                hovertemplate="%{text} %{y:.4g}, cost %{customdata:.3g}",
                mode="markers+text",
                textposition="top right",
                marker=marker_style(place),
                error_y={"type": "data", "array": [point.stderr or 0.0 for point in mine], "thickness": 1},
            )
        )
    layout = {
        "title": heading(title, note),
        "xaxis": {"title": {"text": cost}, "type": "log", "tickvals": TICKS, "gridcolor": "#eeeeee"},
        "yaxis": {"title": {"text": error}, "gridcolor": "#eeeeee"},
        "margin": {"t": 110},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }
    return Figure(made, layout)


def side_by_side(costs: Sequence[float]) -> list[float]:
    """Costs, drawn a little apart where points would hide each other.

    Example:
        >>> [round(cost, 2) for cost in side_by_side([1.0, 5.0, 1.0])]
        [0.97, 5.0, 1.03]
    """
    places = np.log10(np.asarray(costs, dtype=np.float64))
    order = np.argsort(places, kind="stable")
    crowds = np.split(order, np.flatnonzero(np.diff(places[order]) > SAME) + 1)
    for crowd in crowds:
        places[crowd] += APART * (np.arange(len(crowd)) - (len(crowd) - 1) / 2)
    return [float(cost) for cost in 10**places]
