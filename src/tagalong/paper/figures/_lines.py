"""Lines over a number, such as an error over a learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tagalong.report._colours import BLANK, INK, line_style
from tagalong.report._labels import heading, literal

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    across: str,
    value: str,
    note: str = "",
    logarithmic: bool = False,
) -> Figure:
    """One line per series of (x, y).

    Example:
        >>> figure = lines({"256": ([1e-4, 1e-3], [5, 4])}, title="t", across="learning rate", value="error")
        >>> figure.layout.xaxis.title.text
        'learning rate'
    """
    from plotly.graph_objects import Figure, Scatter

    made = [
        Scatter(name=literal(name), x=list(x), y=list(y), mode="lines+markers", line=line_style(place))
        for place, (name, (x, y)) in enumerate(series.items())
    ]
    axis: dict[str, object] = {"title": {"text": across}, "gridcolor": "#eeeeee"}
    if logarithmic:
        there = sorted({float(value) for x, _ in series.values() for value in x})
        axis |= {"type": "log", "tickvals": there, "ticktext": [f"{value:g}" for value in there]}
    layout = {
        "title": heading(title, note),
        "xaxis": axis,
        "yaxis": {"title": {"text": value}, "gridcolor": "#eeeeee", "zerolinecolor": "#999999"},
        "margin": {"t": 110},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }
    return Figure(made, layout)
