"""Cost against error for every method and budget (the main figure of Fifty et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, hypot, log10
from typing import TYPE_CHECKING, Any, Literal, get_args

from ._colours import BLANK, INK, marker_style
from ._labels import heading, literal, signed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from tagalong.study import Results
    from tagalong.study._summary import Line

CostOf = Literal["all", "deciding", "training", "size"]
COSTS: dict[CostOf, str] = {
    "all": "deciding and training, against training all together",
    "deciding": "deciding alone, against training all together",
    "training": "training the chosen networks, against all together",
    "size": "parameters of the chosen networks, against the one network",
}


def cost_against_error(
    results: Results, cost: CostOf = "all", *, title: str = "What it costs and what it brings"
) -> Figure:
    """One point per method and budget: relative cost (log) across, change of the test loss up; lower left is better.

    The change is the mean over tasks of the relative change against one network for all tasks. Bars are one
    standard error either side, from seeds and, where it is known, from finitely many test rows. The budgets of a
    method are joined by a line. Methods without a known cost, or that cost nothing on a log scale, are left out.

    Args:
        results: of a study, with `mtl` among its methods.
        cost: "all", "deciding", "training" or "size"; see `COSTS`.
        title: the heading, as plain text.

    Returns:
        A plotly figure; `write_html` makes a file of it.
    """
    from plotly.graph_objects import Figure, Scatter

    if cost not in COSTS:
        raise ValueError(f"`cost` must be one of {', '.join(map(repr, get_args(CostOf)))}, found {cost!r}")
    lines = [line for line in results.table() if line.change is not None]
    methods = list(dict.fromkeys(line.method for line in lines))
    drawn = {method: [line for line in lines if line.method == method and cost_of(line, cost)] for method in methods}
    traces = [
        Scatter(**_trace(found, results, cost, methods.index(method))) for method, found in drawn.items() if found
    ]
    costs = [value for found in drawn.values() for line in found if (value := cost_of(line, cost))]
    return Figure(traces, _layout(cost, costs, title))


def cost_of(line: Line, cost: CostOf) -> float | None:
    """A relative cost of a line; None where it is not known."""
    if cost == "size":
        return line.relative_parameters
    parts = {"deciding": [line.deciding_cost], "training": [line.training_cost]}
    known = parts.get(cost, [line.deciding_cost, line.training_cost])
    return None if None in known else sum(part for part in known if part is not None)


def known_costs(results: Results) -> list[CostOf]:
    """Those that are known of two methods or more."""
    lines = results.table()
    return [cost for cost in COSTS if sum(bool(cost_of(line, cost)) for line in lines) > 1]


def change_error(line: Line, results: Results) -> float | None:
    """One standard error of a line's change: of seeds and of test rows, as far as they are known."""
    rows = results.noise.get((line.method, line.budget))
    known = [part for part in (line.change_stderr, rows) if part is not None]
    return hypot(*known) if known else None


def _trace(found: Sequence[Line], results: Results, cost: CostOf, number: int) -> dict[str, Any]:
    errors = [change_error(line, results) for line in found]
    style = marker_style(number, full=found[0].honest)
    return {
        "name": literal(found[0].method) + ("" if found[0].honest else "*"),
        "x": [cost_of(line, cost) for line in found],
        "y": [100 * (line.change or 0.0) for line in found],
        "error_y": {"array": [100 * (error or 0.0) for error in errors], "thickness": 1, "width": 3},
        "text": ["" if line.budget is None else str(line.budget) for line in found],
        "textposition": "top right",
        "hovertext": [_note(line, error, cost) for line, error in zip(found, errors, strict=True)],
        "hoverinfo": "text",
        "mode": "lines+markers+text",
        "marker": style,
        "line": {"color": style["line"]["color"], "width": 1, "dash": "dot"},
    }


def _note(line: Line, error: float | None, cost: CostOf) -> str:
    budget = "" if line.budget is None else f", {line.budget} networks"
    change = signed(line.change or 0.0, 2) + ("" if error is None else f" ± {100 * error:.2f}")
    parts = [f"{literal(line.method)}{budget}", f"{change} % test loss", f"{cost_of(line, cost):.3g} × the cost"]
    return "<br>".join(parts if line.honest else [*parts, "chosen by looking at test data"])


def _layout(cost: CostOf, costs: Sequence[float], title: str) -> dict[str, Any]:
    ticks = _ticks(costs)
    return {
        "title": heading(title, "lower left is better; bars: one standard error; numbers: networks allowed"),
        "xaxis": {
            "type": "log",
            "title": {"text": COSTS[cost]},
            "tickvals": ticks,
            "ticktext": [f"{tick:g}×" for tick in ticks],
            "gridcolor": "#eeeeee",
            "automargin": True,
        },
        "yaxis": {
            "title": {"text": "change of the test loss, %"},
            "gridcolor": "#eeeeee",
            "zerolinecolor": "#999999",
            "automargin": True,
        },
        "legend": {"orientation": "h", "y": -0.25},
        "width": 760,
        "height": 520,
        "margin": {"l": 60, "r": 40, "t": 90, "b": 60},
        "plot_bgcolor": BLANK,
        "font": {"color": INK},
    }


def _ticks(costs: Sequence[float]) -> list[float]:
    """1, 2 and 5 of every power of ten that the costs span; fewer where they span much.

    >>> _ticks([1.0, 3.0])
    [1.0, 2.0, 5.0]
    """
    if not costs:
        return [1.0]
    low, high = floor(log10(min(costs))), ceil(log10(max(costs) * 1.001))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    return [tick for tick in ticks if min(costs) / 2.5 <= tick <= 2.5 * max(costs)]
