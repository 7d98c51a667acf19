"""How the best expectation of `auto` fell with the effort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._colours import BLANK, INK, line_style, marker_style
from ._labels import heading, signed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def search_curve(told: Mapping[str, Any], *, title: str = "What effort brought") -> Figure:
    """For each budget the expected change on validation of the best networks found so far, against the effort.

    Args:
        told: what `auto` told of its decision: `results.settings["decisions"]["auto"]`.
        title: the heading, as plain text.

    Returns:
        A plotly figure.
    """
    from plotly.graph_objects import Figure, Scatter

    from tagalong.study._search_text import curve

    traces = [
        Scatter(
            name=f"budget {budget}",
            x=[spent for spent, _ in points],
            y=[100 * value for _, value in points],
            hovertext=[f"budget {budget}<br>effort {spent:.3g}<br>{signed(value, 2)} %" for spent, value in points],
            hoverinfo="text",
            mode="lines+markers",
            marker={**marker_style(number), "size": 7},
            line={**line_style(number), "shape": "hv", "width": 1.5},
        )
        for number, (budget, points) in enumerate(curve(told).items())
    ]
    layout = {
        "title": heading(title, "expected change of validation losses against one network for all tasks"),
        "xaxis": {"title": {"text": "effort, in trainings"}, "rangemode": "tozero", "gridcolor": "#eeeeee"},
        "yaxis": {"title": {"text": "expected change, %"}, "gridcolor": "#eeeeee", "zerolinecolor": "#999999"},
        "width": 760,
        "height": 420,
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }
    return Figure(traces, layout)
