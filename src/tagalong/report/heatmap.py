"""The affinity matrix as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.group import Grouping

from .grouping_figure import task_order
from .style import (
    BACKGROUND_COLOUR,
    FADE,
    GREY,
    TEXT_COLOUR,
    diverging,
    figure_heading,
    label,
    need_affinity,
    plotly_text,
    plus_minus,
    power_of_thousand,
    single_colour,
    times,
    what_was_measured,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Floats = NDArray[np.float64]
Centre = Literal["zero", "target"]
RESAMPLES = 200  # the error of the error is then five percent
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
        "self-affinity": {"colorscale": single_colour(GREY), "showscale": False},
        "never measured": {"colorscale": single_colour(BACKGROUND_COLOUR), "showscale": False},
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
        "title": figure_heading(title, what_was_measured(cells.affinity), _key(cells)),
        "xaxis": {**axis, "title": {"text": HELPS[cells.centre]}, "tickangle": -45},
        "yaxis": {**axis, "title": {"text": "a step on …"}, "range": [n - 0.5, -0.5], "scaleanchor": "x"},
        "width": max(n * cell + 340, TEXT),
        "height": n * cell + 280,
        "margin": {"l": 60, "r": 40, "t": 110, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOUR,
        "font": {"color": TEXT_COLOUR},
    }


def _frames(grouping: Grouping) -> list[dict[str, Any]]:
    """A frame around the tasks that each network serves."""
    frames, start = [], -0.5
    for group in grouping.groups:
        end = start + len(group.serves)
        corners = {"x0": start, "x1": end, "y0": start, "y1": end}
        frames.append({"type": "rect", **corners, "line": {"color": TEXT_COLOUR, "width": 2}})
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


@dataclass(frozen=True)
class Cells:
    """The pairs of an affinity as cells.

    Attributes:
        affinity: what was measured.
        beyond: how far each affinity lies from the centre of the colours.
        error: the standard error of that distance.
        centre: "zero" or "target".
        size: the largest affinity between two tasks, which the unit of the numbers follows.
        reach: the largest distance from the centre, where the colours end.
    """

    affinity: Affinity
    beyond: Floats
    error: Floats
    centre: Centre
    size: float
    reach: float

    @classmethod
    def of(cls, affinity: Affinity, centre: Centre, beside: Affinity | None = None) -> Cells:
        """The cells of an affinity, in the unit and colours of the larger one where another is looked at beside it."""
        beyond, error = from_centre(affinity, centre)
        size, reach = largest(affinity.mean), largest(beyond)
        if beside is not None:
            size = max(size, largest(beside.mean))
            reach = max(reach, largest(from_centre(beside, centre)[0]))
        return cls(affinity, beyond, error, centre, size, reach)

    def unsure(self, i: int, j: int) -> bool:
        """Whether a pair lies within two standard errors of the centre."""
        return bool(i != j and abs(self.beyond[i, j]) < 2 * self.error[i, j])

    def kind(self, i: int, j: int) -> str:
        """Which layer of the heat map a pair belongs to."""
        if not np.isfinite(self.affinity.mean[i, j]):
            return "never measured"
        return "self-affinity" if i == j else "within noise" if self.unsure(i, j) else "sure"

    @property
    def colour(self) -> Floats:
        """Distances from the centre, in the unit of the numbers."""
        return self.beyond / 10.0**self.power

    @property
    def limit(self) -> float:
        """Where the colours end, in the same unit; 1 if nothing lies off the centre."""
        return self.reach / 10.0**self.power or 1.0

    @property
    def power(self) -> int:
        """The power of ten in which the numbers are written."""
        return power_of_thousand(self.size)

    def number(self, i: int, j: int) -> str:
        """What is written into a cell."""
        mean, unit = self.affinity.mean[i, j], 10.0**self.power
        if not np.isfinite(mean):
            return ""
        digits = 2 if self.size < 10 * unit else 1
        return f"{mean / unit:.{digits}f}" + ("~" if self.unsure(i, j) else "")

    def note(self, i: int, j: int) -> str:
        """What hovering over a cell shows."""
        source, target = plotly_text(self.affinity.tasks[i]), plotly_text(self.affinity.tasks[j])
        kind, count = self.kind(i, j), int(self.affinity.count[i, j])
        lines = [f"{source} → {target}"]
        if kind == "never measured":
            return "<br>".join([*lines, kind])
        lines.append(plus_minus(self.affinity.mean[i, j], self.affinity.stderr[i, j]))
        if self.centre == "target" and i != j:
            lines.append(f"{plus_minus(self.beyond[i, j], self.error[i, j])} from the mean onto {target}")
        lines.append(f"{count} value" if count == 1 else f"{count} values")
        return "<br>".join(lines if kind == "sure" else [*lines, kind])


def largest(matrix: Floats) -> float:
    """The largest magnitude between two tasks; self-affinities are far larger and would hide the rest."""
    apart = np.isfinite(matrix) & ~np.eye(len(matrix), dtype=bool)
    return float(np.abs(matrix[apart]).max(initial=0.0))


def from_centre(affinity: Affinity, centre: Centre) -> tuple[Floats, Floats]:
    """How far each affinity lies from the centre, and the standard error of that distance."""
    if centre not in ("zero", "target"):
        raise ValueError(f'`centre` must be "zero" or "target", found {centre!r}')
    if centre == "zero":
        return affinity.mean, affinity.stderr
    return _from_level(affinity.mean), _level_error(affinity)


def _from_level(matrices: Floats) -> Floats:
    """Distance of each affinity onto a target from the mean over the target's other tasks."""
    others = np.isfinite(matrices) & ~np.eye(matrices.shape[-1], dtype=bool)
    sums = np.where(others, matrices, 0.0).sum(axis=-2, keepdims=True)
    return np.asarray(matrices - sums / np.maximum(others.sum(axis=-2, keepdims=True), 1))


def _level_error(affinity: Affinity) -> Floats:
    """Errors common to all sources of a target cancel in the distance from their mean, as resamples show."""
    if len(affinity.steps) < 2:
        return affinity.stderr
    draws = _from_level(affinity.bootstrap(RESAMPLES))
    known = np.isfinite(draws).all(axis=0) & np.isfinite(affinity.stderr)
    return np.where(known, np.where(known, draws, 0.0).std(axis=0), np.nan)
