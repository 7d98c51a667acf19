"""Panels side by side, with the same lines in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tagalong.report._colours import BLANK, INK, line_style
from tagalong.report._labels import heading, literal

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Lines = Mapping[str, Sequence[float]]


def panels(
    shown: Mapping[str, Lines], order: Sequence[str], *, title: str, across: str, value: str, note: str = ""
) -> Figure:
    """A panel for each heading, a line for each name over 1, 2, …; a name has the same colour in all panels.

    Args:
        shown: by heading of a panel, lines by name.
        order: of the names, which gives them their colours and their place in the legend.
        title: the heading.
        across: what is counted along the axis.
        value: what is up.
        note: below the heading.

    Example:
        >>> shown = {"onto a": {"b": [1, 2]}, "onto b": {"a": [3, 1]}}
        >>> figure = panels(shown, ["a", "b"], title="t", across="epoch", value="affinity")
        >>> [(line.name, line.xaxis, list(line.y)) for line in figure.data]
        [('b', 'x', [1, 2]), ('a', 'x2', [3, 1])]
    """
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    figure = make_subplots(1, len(shown), subplot_titles=[literal(name) for name in shown])
    named: set[str] = set()
    for column, lines in enumerate(shown.values(), 1):
        for name, values in lines.items():
            place = order.index(name)
            look = {"mode": "lines+markers", "line": line_style(place), "marker": {"size": 4}}
            key = {"name": literal(name), "legendgroup": name, "legendrank": place, "showlegend": name not in named}
            line = Scatter(x=list(range(1, len(values) + 1)), y=list(values), **look, **key)
            figure.add_trace(line, row=1, col=column)
            named.add(name)
    figure.update_layout(
        title=heading(title, note), width=340 * len(shown) + 280, margin={"t": 130}, plot_bgcolor=BLANK,
        font={"color": INK},
    )  # fmt: skip
    figure.update_xaxes(title_text=across, gridcolor="#eeeeee")
    figure.update_yaxes(gridcolor="#eeeeee", zerolinecolor="#999999")
    figure.update_yaxes(title_text=value, col=1)
    return figure
