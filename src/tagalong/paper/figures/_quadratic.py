"""The figure of the quadratic counterexample: level sets of L_a and the steps on them, in four panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tagalong.report._colours import BLANK, INK, line_style
from tagalong.report._labels import heading

from ..theory._example import ETA, PANELS, THETA, Panel, after_steps, example_loss, gradients

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

ACROSS, UP = np.linspace(-3.2, 0.4, 61), np.linspace(-2.2, 0.6, 57)


def counterexample() -> Figure:
    """Four panels: arrows are negative gradients of unit length, marks are where a step of η = 0.09 ends."""
    from plotly.graph_objects import Contour
    from plotly.subplots import make_subplots

    grid = np.stack(np.meshgrid(ACROSS, UP), -1).reshape(-1, 2)
    levels = example_loss(grid).reshape(len(UP), len(ACROSS))
    titles = [_title(panel) for panel in PANELS]
    figure = make_subplots(2, 2, subplot_titles=titles, vertical_spacing=0.14)
    for place, panel in enumerate(PANELS):
        where = {"row": place // 2 + 1, "col": place % 2 + 1}
        contour = Contour(x=ACROSS, y=UP, z=levels, contours_coloring="lines", showscale=False, ncontours=25)
        figure.add_trace(contour, **where)
        for trace in _arrows(panel, legend=place == 0):
            figure.add_trace(trace, **where)
    figure.update_layout(
        title=heading("A task with more affinity can be the worse partner", "L_a = ½(x₁² + 10·x₂²) from (−2, −1)"),
        width=1000, height=860, margin={"t": 120}, plot_bgcolor=BLANK, font={"color": INK},
    )  # fmt: skip
    return figure


def _title(panel: Panel) -> str:
    with_b, with_c = after_steps(panel)
    what = "g_a + " if panel.combined else ""
    return f"({panel.letter}) L_a after {what}g_b: {with_b:.3f}, after {what}g_c: {with_c:.3f}"


def _arrows(panel: Panel, *, legend: bool) -> list[Scatter]:
    from plotly.graph_objects import Scatter

    found = gradients(panel)
    steps = {f"−g_{name}": vector for name, vector in found.items()}
    if panel.combined:
        steps = {f"−(g_a + g_{name})": found["a"] + found[name] for name in "bc"}
    made = []
    for place, (name, vector) in enumerate(steps.items()):
        end, landed = np.array(THETA) - vector, np.array(THETA) - ETA * vector
        colour = line_style(place + panel.combined)["color"]
        made.append(
            Scatter(
                name=name,
                x=[THETA[0], landed[0], end[0]],
                y=[THETA[1], landed[1], end[1]],
                mode="lines+markers",
                line={"color": colour, "width": 3},
                marker={"symbol": ["circle", "x", "arrow"], "angleref": "previous", "size": [6, 8, 14]},
                showlegend=legend or panel.letter == "b",
            )
        )
    return made
