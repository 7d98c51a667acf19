"""Bars beside each other: one series per method, one group of bars per task or budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tagalong.report._colours import BLANK, INK, line_style
from tagalong.report._labels import heading, literal

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def bars(
    series: Mapping[str, Sequence[float]],
    over: Sequence[str],
    *,
    title: str,
    value: str,
    note: str = "",
    errors: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Grouped bars.

    Args:
        series: by name, a value for each place.
        over: the places along the axis.
        title: the heading.
        value: what the height of a bar is.
        note: below the heading.
        errors: standard errors of some series.

    Example:
        >>> len(bars({"ours": [1, 2], "printed": [1, 3]}, ["a1", "a2"], title="t", value="error").data)
        2
    """
    from plotly.graph_objects import Bar, Figure

    made = []
    for place, (name, values) in enumerate(series.items()):
        error = {"type": "data", "array": list(errors[name])} if errors and name in errors else None
        colour = line_style(place)["color"]
        made.append(Bar(name=literal(name), x=list(over), y=list(values), marker_color=colour, error_y=error))
    layout = {
        "title": heading(title, note),
        "barmode": "group",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": value}, "gridcolor": "#eeeeee", "zerolinecolor": "#999999"},
        "margin": {"t": 110},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }
    return Figure(made, layout)
