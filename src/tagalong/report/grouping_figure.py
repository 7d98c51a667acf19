"""Draws a grouping, showing which networks train and serve each task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tagalong.group import Grouping

from .style import BACKGROUND_COLOR, TEXT_COLOR, figure_heading, line_style, plotly_text, short_label

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ROW_HEIGHT, COLUMN_WIDTH = 26, 64  # pixels


def grouping_figure(grouping: Grouping, *, title: str = "Which network serves which task") -> Figure:
    """Draws a grouping with one column per network and one row per task.

    A filled dot marks a task that the network serves. A ring marks a helper, which the network trains but does not
    serve.

    Args:
        grouping: the grouping, as returned by `select_groups`.
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.

    Example:
        >>> from tagalong.group import select_groups
        >>> figure = grouping_figure(select_groups([[0, 5, 1], [5, 0, 0], [0, 0, 0]], budget=2))
        >>> figure.data[0].hovertext
        ('0 is served by network 1', '1 is served by network 1', '2 is served by network 2')
    """
    from plotly.graph_objects import Figure, Scatter

    if not isinstance(grouping, Grouping):
        raise TypeError(
            f"`grouping` must be a Grouping, found {type(grouping).__name__}; create one with select_groups()"
        )
    order = task_order(grouping)
    served = [(k, task) for k, group in enumerate(grouping.groups) for task in sorted(group.serves, key=order.index)]
    helping = [(k, task) for k, group in enumerate(grouping.groups) for task in sorted(group.helpers)]
    return Figure(
        [
            Scatter(name="served", **_dots(served, order, "is served by", filled=True)),
            Scatter(name="helps", **_dots(helping, order, "helps in", filled=False)),
        ],
        _layout(grouping, order, title),
    )


def task_order(grouping: Grouping) -> list[str]:
    """Returns all tasks, ordered so that tasks served by the same network are adjacent."""
    return [task for group in grouping.groups for task in sorted(group.serves)]


def _dots(positions: list[tuple[int, str]], order: list[str], verb: str, *, filled: bool) -> dict[str, Any]:
    colors = [line_style(k)["color"] for k, _ in positions]
    return {
        "x": [k for k, _ in positions],
        "y": [order.index(task) for _, task in positions],
        "hovertext": [f"{plotly_text(task)} {verb} network {k + 1}" for k, task in positions],
        "hoverinfo": "text",
        "mode": "markers",
        "marker": {
            "size": 13,
            "symbol": "circle",
            "color": colors if filled else BACKGROUND_COLOR,
            "line": {"width": 2, "color": colors},
        },
    }


def _layout(grouping: Grouping, order: list[str], title: str) -> dict[str, Any]:
    networks, n = len(grouping.groups), len(order)
    axis = {"showgrid": True, "gridcolor": "#eeeeee", "zeroline": False, "automargin": True}
    return {
        "title": figure_heading(
            title, plotly_text(grouping.summary), "filled: served by the network; ring: trained only as a helper"
        ),
        "xaxis": {
            **axis,
            "title": {"text": "network"},
            "tickvals": list(range(networks)),
            "ticktext": [str(k + 1) for k in range(networks)],
            "range": [-0.6, networks - 0.4],
        },
        "yaxis": {
            **axis,
            "tickvals": list(range(n)),
            "ticktext": [short_label(task) for task in order],
            "range": [n - 0.4, -0.6],
        },
        "showlegend": False,
        "width": max(560, networks * COLUMN_WIDTH + 240),
        "height": n * ROW_HEIGHT + 200,
        "margin": {"l": 60, "r": 40, "t": 110, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }
