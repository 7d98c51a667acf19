"""Total error against cost: the paper's figures of task groupings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tagalong.report._colours import BLANK, INK, line_style
from tagalong.report._labels import heading, literal

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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
    """One point per method and budget; methods in the order of the points.

    Example:
        >>> points = [Point("mtl", "", 1, 50.0), Point("tag", "2", 3, 49.7, 0.1)]
        >>> [trace.name for trace in error_against_cost(points, title="t", cost="cost", error="error").data]
        ['mtl', 'tag']
    """
    from plotly.graph_objects import Figure, Scatter

    made = []
    for place, method in enumerate(dict.fromkeys(point.method for point in points)):
        mine = [point for point in points if point.method == method]
        made.append(
            Scatter(
                name=literal(method),
                x=[point.cost for point in mine],
                y=[point.error for point in mine],
                text=[literal(point.label) for point in mine],
                mode="markers+text",
                textposition="top center",
                marker={"color": line_style(place)["color"], "size": 10, "symbol": place // 8},
                error_y={"type": "data", "array": [point.stderr or 0.0 for point in mine], "thickness": 1},
            )
        )
    layout = {
        "title": heading(title, note),
        "xaxis": {"title": {"text": cost}, "type": "log", "gridcolor": "#eeeeee"},
        "yaxis": {"title": {"text": error}, "gridcolor": "#eeeeee"},
        "margin": {"t": 110},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }
    return Figure(made, layout)
