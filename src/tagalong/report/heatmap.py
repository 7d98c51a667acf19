"""Draws an affinity matrix as a heat map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.group import Grouping

from .grouping_figure import task_order
from .style import (
    BACKGROUND_COLOR,
    FADED_FRACTION,
    GRAY,
    TEXT_COLOR,
    check_affinity,
    describe_measurement,
    diverging_scale,
    figure_heading,
    format_power_of_ten,
    format_with_error,
    plotly_text,
    power_of_thousand,
    short_label,
    single_color_scale,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Floats = NDArray[np.float64]
Center = Literal["zero", "target"]
BOOTSTRAP_RESAMPLES = 200  # enough to estimate standard errors to within five percent
MAX_TASKS_WITH_NUMBERS = 16  # with more tasks, numbers would not fit into the cells
CELL_SIZES, MATRIX_SIZE = (18, 72), 600  # in pixels: the smallest and the largest cell, and the whole matrix
TARGET_AXIS_TITLES: dict[Center, str] = {
    "zero": "… helps (blue) or hurts (red)",
    "target": "… helps more (blue) or less (red) than others",
}
MIN_FIGURE_WIDTH = 660  # pixels needed by the text above the cells


def affinity_heatmap(
    affinity: Affinity,
    *,
    center: Center = "zero",
    values: bool | None = None,
    grouping: Grouping | None = None,
    compare_with: Affinity | None = None,
    title: str = "Who helps whom",
) -> Figure:
    """Draws an affinity as a heat map, where rows are sources, columns are targets, blue helps and red hurts.

    Pairs within two standard errors of the center are pale and marked "~". Self-affinities are gray, since they are on
    a different scale. Pairs that were never measured are blank. Hovering over a cell shows the full names, the standard
    error and the number of values.

    Args:
        affinity: the affinity.
        center: the value shown in white: "zero", or "target" for the mean affinity of the other tasks onto each target.
            Use "target" if columns have different levels, e.g. because of momentum or weight decay. Blue and red then
            mean that a task helps more or less than the others. In either case, the numbers in the cells are
            affinities.
        values: whether to show numbers in the cells; by default, they are shown for up to 16 tasks.
        grouping: a grouping, whose tasks are placed next to each other and framed if the same network serves them.
        compare_with: another affinity whose heat map will be shown next to this one and should have the same unit and
            colors.
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.

    Example:
        >>> figure = affinity_heatmap(Affinity.from_matrix([[9, 2], [-1, 9]], ["age", "ill"]))
        >>> figure.layout.yaxis.title.text, figure.layout.xaxis.title.text
        ('a step on …', '… helps (blue) or hurts (red)')
    """
    from plotly.graph_objects import Figure, Heatmap

    check_affinity(affinity)
    if compare_with is not None:
        check_affinity(compare_with, "compare_with")
    if grouping is not None and affinity.tasks != (order := tuple(task_order(grouping))):
        affinity = affinity.only(order)
    cells = HeatmapCells.from_affinity(affinity, center, compare_with)
    with_numbers = len(affinity.tasks) <= MAX_TASKS_WITH_NUMBERS if values is None else values
    layers = [Heatmap(**_layer(cells, kind, with_numbers), **style) for kind, style in _layer_styles(cells).items()]
    frames = [] if grouping is None else _frames(grouping)
    return Figure(layers, {**_layout(cells, title), "shapes": frames})


def _layer_styles(cells: HeatmapCells) -> dict[str, dict[str, Any]]:
    """Returns the colors of each kind of cell."""
    minus_mean = "" if cells.center == "zero" else "<br>minus the mean<br>onto the target"
    bar = {
        "title": {"text": f"affinity{format_power_of_ten(cells.power)}{minus_mean}"},
        "thickness": 14,
        "outlinewidth": 0,
    }
    limits = {"zmin": -cells.color_limit, "zmax": cells.color_limit}
    return {
        "sure": {"colorscale": diverging_scale(), **limits, "colorbar": bar},
        "within noise": {"colorscale": diverging_scale(FADED_FRACTION), **limits, "showscale": False},
        "self-affinity": {"colorscale": single_color_scale(GRAY), "showscale": False},
        "never measured": {"colorscale": single_color_scale(BACKGROUND_COLOR), "showscale": False},
    }


def _layer(cells: HeatmapCells, kind: str, with_numbers: bool) -> dict[str, Any]:
    """Returns a layer that contains only the cells of one kind."""
    tasks = range(len(cells.affinity.tasks))
    mine = np.array([[cells.kind(i, j) == kind for j in tasks] for i in tasks])
    layer = {
        "name": kind,
        "z": np.where(mine, np.nan_to_num(cells.color), np.nan),
        "hovertext": [[cells.hover_text(i, j) if mine[i, j] else "" for j in tasks] for i in tasks],
        "hoverinfo": "text",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }
    if with_numbers:
        numbers = [[cells.cell_text(i, j) if mine[i, j] else "" for j in tasks] for i in tasks]
        layer |= {"text": numbers, "texttemplate": "%{text}"}
    return layer


def _layout(cells: HeatmapCells, title: str) -> dict[str, Any]:
    n = len(cells.affinity.tasks)
    cell = int(np.clip(MATRIX_SIZE // n, *CELL_SIZES))
    # Coordinates are numbers, since plotly would parse names such as "1" or "2020-01-01" as numbers or dates.
    axis = {
        "tickvals": list(range(n)),
        "ticktext": [short_label(task) for task in cells.affinity.tasks],
        "range": [-0.5, n - 0.5],
        "constrain": "domain",
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 12 if n <= MAX_TASKS_WITH_NUMBERS else 10},
    }
    return {
        "title": figure_heading(title, describe_measurement(cells.affinity), _legend_text(cells)),
        "xaxis": {**axis, "title": {"text": TARGET_AXIS_TITLES[cells.center]}, "tickangle": -45},
        "yaxis": {**axis, "title": {"text": "a step on …"}, "range": [n - 0.5, -0.5], "scaleanchor": "x"},
        "width": max(n * cell + 340, MIN_FIGURE_WIDTH),
        "height": n * cell + 280,
        "margin": {"l": 60, "r": 40, "t": 110, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }


def _frames(grouping: Grouping) -> list[dict[str, Any]]:
    """Returns frames around the tasks that each network serves."""
    frames, start = [], -0.5
    for group in grouping.groups:
        end = start + len(group.serves)
        corners = {"x0": start, "x1": end, "y0": start, "y1": end}
        frames.append({"type": "rect", **corners, "line": {"color": TEXT_COLOR, "width": 2}})
        start = end
    return frames


def _legend_text(cells: HeatmapCells) -> str:
    """Explains the kinds of cells that appear in the heat map."""
    tasks = range(len(cells.affinity.tasks))
    kinds = {cells.kind(i, j) for i in tasks for j in tasks}
    center = "zero" if cells.center == "zero" else "the mean onto the target"
    parts = {
        "within noise": f"pale or ~: within two standard errors of {center}",
        "self-affinity": "gray: self-affinity",
        "never measured": "blank: never measured",
    }
    return "; ".join(text for kind, text in parts.items() if kind in kinds)


@dataclass(frozen=True)
class HeatmapCells:
    """The cells of a heat map.

    Attributes:
        affinity: the affinity.
        distance: the difference between each affinity and the center of the color scale.
        error: the standard error of `distance`.
        center: "zero" or "target".
        size: the largest affinity between two tasks, which determines the unit of the displayed values.
        reach: the largest distance from the center, which determines the color range.
    """

    affinity: Affinity
    distance: Floats
    error: Floats
    center: Center
    size: float
    reach: float

    @classmethod
    def from_affinity(cls, affinity: Affinity, center: Center, compare_with: Affinity | None = None) -> HeatmapCells:
        """Returns the cells of an affinity, with a unit and colors that also suit `compare_with`."""
        distance, error = distance_from_center(affinity, center)
        size, reach = largest_affinity(affinity.mean), largest_affinity(distance)
        if compare_with is not None:
            size = max(size, largest_affinity(compare_with.mean))
            reach = max(reach, largest_affinity(distance_from_center(compare_with, center)[0]))
        return cls(affinity, distance, error, center, size, reach)

    def is_within_noise(self, i: int, j: int) -> bool:
        """Returns whether a pair is within two standard errors of the center."""
        return bool(i != j and abs(self.distance[i, j]) < 2 * self.error[i, j])

    def kind(self, i: int, j: int) -> str:
        """Returns the layer of the heat map that a pair belongs to."""
        if not np.isfinite(self.affinity.mean[i, j]):
            return "never measured"
        return "self-affinity" if i == j else "within noise" if self.is_within_noise(i, j) else "sure"

    @property
    def color(self) -> Floats:
        """The distances from the center, in the unit of the displayed values."""
        return self.distance / 10.0**self.power

    @property
    def color_limit(self) -> float:
        """The upper end of the color range in the same unit, or 1 if all distances are 0."""
        return self.reach / 10.0**self.power or 1.0

    @property
    def power(self) -> int:
        """The power-of-ten exponent used to scale the displayed values."""
        return power_of_thousand(self.size)

    def cell_text(self, i: int, j: int) -> str:
        """Returns the text in a cell."""
        mean, unit = self.affinity.mean[i, j], 10.0**self.power
        if not np.isfinite(mean):
            return ""
        digits = 2 if self.size < 10 * unit else 1
        return f"{mean / unit:.{digits}f}" + ("~" if self.is_within_noise(i, j) else "")

    def hover_text(self, i: int, j: int) -> str:
        """Returns the text shown when hovering over a cell."""
        source, target = plotly_text(self.affinity.tasks[i]), plotly_text(self.affinity.tasks[j])
        kind, count = self.kind(i, j), int(self.affinity.count[i, j])
        lines = [f"{source} → {target}"]
        if kind == "never measured":
            return "<br>".join([*lines, kind])
        lines.append(format_with_error(self.affinity.mean[i, j], self.affinity.stderr[i, j]))
        if self.center == "target" and i != j:
            lines.append(f"{format_with_error(self.distance[i, j], self.error[i, j])} from the mean onto {target}")
        lines.append(f"{count} value" if count == 1 else f"{count} values")
        return "<br>".join(lines if kind == "sure" else [*lines, kind])


def largest_affinity(matrix: Floats) -> float:
    """Returns the largest absolute value, ignoring self-affinities, which are far larger."""
    others = np.isfinite(matrix) & ~np.eye(len(matrix), dtype=bool)
    return float(np.abs(matrix[others]).max(initial=0.0))


def distance_from_center(affinity: Affinity, center: Center) -> tuple[Floats, Floats]:
    """Returns the difference between each affinity and the center, and the standard error of the difference."""
    if center not in ("zero", "target"):
        raise InvalidInput("center", "must be 'zero' or 'target'", repr(center))
    if center == "zero":
        return affinity.mean, affinity.stderr
    return _minus_target_mean(affinity.mean), _target_mean_error(affinity)


def _minus_target_mean(matrices: Floats) -> Floats:
    """Subtracts from each affinity the mean affinity of the other tasks onto the same target."""
    others = np.isfinite(matrices) & ~np.eye(matrices.shape[-1], dtype=bool)
    sums = np.where(others, matrices, 0.0).sum(axis=-2, keepdims=True)
    return np.asarray(matrices - sums / np.maximum(others.sum(axis=-2, keepdims=True), 1))


def _target_mean_error(affinity: Affinity) -> Floats:
    """Returns the bootstrap standard error of the difference, in which errors shared by all sources cancel out."""
    if len(affinity.steps) < 2:
        return affinity.stderr
    draws = _minus_target_mean(affinity.bootstrap(BOOTSTRAP_RESAMPLES))
    known = np.isfinite(draws).all(axis=0) & np.isfinite(affinity.stderr)
    return np.where(known, np.where(known, draws, 0.0).std(axis=0), np.nan)
