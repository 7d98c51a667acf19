"""The affinity matrix as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tagalong.affinity import Affinity

from ._cells import Cells
from ._centre import Centre
from ._colours import BLANK, FADE, GREY, INK, diverging, plain
from ._grouping_figure import task_order
from ._labels import heading, label, need_affinity, times, what_was_measured

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from tagalong.group import Grouping

WRITTEN = 16  # tasks up to which the numbers fit into the cells
CELL, CELLS = (18, 72), 600  # pixels of a cell, and of all of them together
HELPS: dict[Centre, str] = {
    "zero": "… helps (blue) or hurts (red)",
    "target": "… helps more (blue) or less (red) than others",
}
TEXT = 660  # pixels that the lines above the cells need


def affinity_heatmap(
    affinity: Affinity,
    *,
    centre: Centre = "zero",
    values: bool | None = None,
    grouping: Grouping | None = None,
    beside: Affinity | None = None,
    title: str = "Who helps whom",
) -> Figure:
    """Rows are sources, columns are targets; blue helps, red hurts; around a target: more or less than others do.

    Pairs within two standard errors of the centre are faded and marked "~". Self-affinities are grey: they
    are on another scale and take no part in the colours. Pairs never measured stay blank. Hovering shows
    names in full, the standard error and the number of values.

    Args:
        affinity: what was measured.
        centre: where white lies. "zero", or "target": the mean affinity onto each target from the other
            tasks, for matrices whose columns lie on a level of their own (momentum, weight decay). The
            numbers in the cells are the affinities in either case.
        values: whether to write the numbers into the cells; by default up to 16 tasks.
        grouping: puts tasks that it serves together beside each other, and frames them.
        beside: another affinity whose heat map is looked at beside this one: both get the unit and the colours of the
            larger one, so that they compare.
        title: the heading, as plain text.

    Returns:
        A plotly figure; `write_html` makes a file of it.

    Example:
        >>> figure = affinity_heatmap(Affinity.from_matrix([[9, 2], [-1, 9]], ["age", "ill"]))
        >>> figure.layout.yaxis.title.text, figure.layout.xaxis.title.text
        ('a step on …', '… helps (blue) or hurts (red)')
    """
    from plotly.graph_objects import Figure, Heatmap

    need_affinity(affinity)
    if beside is not None:
        need_affinity(beside, "beside")
    if grouping is not None and affinity.tasks != (order := tuple(task_order(grouping))):
        affinity = affinity.only(order)
    cells = Cells.of(affinity, centre, beside)
    written = len(affinity.tasks) <= WRITTEN if values is None else values
    layers = [Heatmap(**_layer(cells, kind, written), **style) for kind, style in _styles(cells).items()]
    frames = [] if grouping is None else _frames(grouping)
    return Figure(layers, {**_layout(cells, title), "shapes": frames})


def _styles(cells: Cells) -> dict[str, dict[str, Any]]:
    """The colours of each kind of pair."""
    less = "" if cells.centre == "zero" else "<br>less the mean<br>onto the target"
    bar = {"title": {"text": f"affinity{times(cells.power)}{less}"}, "thickness": 14, "outlinewidth": 0}
    limits = {"zmin": -cells.limit, "zmax": cells.limit}
    return {
        "sure": {"colorscale": diverging(), **limits, "colorbar": bar},
        "within noise": {"colorscale": diverging(FADE), **limits, "showscale": False},
        "self-affinity": {"colorscale": plain(GREY), "showscale": False},
        "never measured": {"colorscale": plain(BLANK), "showscale": False},
    }


def _layer(cells: Cells, kind: str, written: bool) -> dict[str, Any]:
    """The cells of one kind of pair, and nothing elsewhere."""
    tasks = range(len(cells.affinity.tasks))
    mine = np.array([[cells.kind(i, j) == kind for j in tasks] for i in tasks])
    layer = {
        "name": kind,
        "z": np.where(mine, np.nan_to_num(cells.colour), np.nan),
        "hovertext": [[cells.note(i, j) if mine[i, j] else "" for j in tasks] for i in tasks],
        "hoverinfo": "text",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }
    if written:
        numbers = [[cells.number(i, j) if mine[i, j] else "" for j in tasks] for i in tasks]
        layer |= {"text": numbers, "texttemplate": "%{text}"}
    return layer


def _layout(cells: Cells, title: str) -> dict[str, Any]:
    n = len(cells.affinity.tasks)
    cell = int(np.clip(CELLS // n, *CELL))
    # Numbers as coordinates: names such as "1" or "2020-01-01" would be taken for numbers and dates.
    axis = {
        "tickvals": list(range(n)),
        "ticktext": [label(task) for task in cells.affinity.tasks],
        "range": [-0.5, n - 0.5],
        "constrain": "domain",
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 12 if n <= WRITTEN else 10},
    }
    return {
        "title": heading(title, what_was_measured(cells.affinity), _key(cells)),
        "xaxis": {**axis, "title": {"text": HELPS[cells.centre]}, "tickangle": -45},
        "yaxis": {**axis, "title": {"text": "a step on …"}, "range": [n - 0.5, -0.5], "scaleanchor": "x"},
        "width": max(n * cell + 340, TEXT),
        "height": n * cell + 280,
        "margin": {"l": 60, "r": 40, "t": 110, "b": 60},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }


def _frames(grouping: Grouping) -> list[dict[str, Any]]:
    """A frame around the tasks that each network serves."""
    frames, start = [], -0.5
    for group in grouping.groups:
        end = start + len(group.serves)
        corners = {"x0": start, "x1": end, "y0": start, "y1": end}
        frames.append({"type": "rect", **corners, "line": {"color": INK, "width": 2}})
        start = end
    return frames


def _key(cells: Cells) -> str:
    """How to read the cells."""
    tasks = range(len(cells.affinity.tasks))
    kinds = {cells.kind(i, j) for i in tasks for j in tasks}
    centre = "zero" if cells.centre == "zero" else "the mean onto the target"
    parts = {
        "within noise": f"pale, ~: within two standard errors of {centre}",
        "self-affinity": "grey: self-affinity",
        "never measured": "blank: never measured",
    }
    return "; ".join(text for kind, text in parts.items() if kind in kinds)
