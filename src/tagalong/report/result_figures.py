"""Draws results: error against cost, the change by task and by number of networks, and the search by `auto`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, hypot, isfinite, log10
from typing import TYPE_CHECKING, Any, Literal, get_args

from tagalong.errors import InvalidInput
from tagalong.study import Results, SearchLog, label_text

from .style import (
    BACKGROUND_COLOR,
    BETTER,
    TEXT_COLOR,
    WORSE,
    figure_heading,
    format_percent,
    line_style,
    marker_style,
    plotly_text,
    short_label,
    unlearnt_mark,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from tagalong.study import BudgetResult, Change, MethodSummary, TaskChange

CostOf = Literal["all", "deciding", "training", "size"]
COST_LABELS: dict[CostOf, str] = {
    "all": "cost of deciding and training, relative to one network for all tasks",
    "deciding": "cost of deciding, relative to training one network for all tasks",
    "training": "cost of training the chosen networks, relative to one network for all tasks",
    "size": "parameters of the chosen networks, relative to one network for all tasks",
}
KIND_LABELS = {
    "plain": "one plain network",
    "copies": "averaged copies",
    "groups": "groups",
    "taught": "taught networks",
    "larger": "wider networks",
    "tabm": "TabM networks",
}
ROW_HEIGHT = 24  # pixels
OFFSET = 0.06  # between markers of different kinds for the same number of networks


def cost_against_error(results: Results, cost: CostOf = "all", *, title: str = "Cost and benefit") -> Figure:
    """Draws the change in test loss for every method and budget against the relative cost, on a log scale.

    Changes are relative to one network for all tasks and averaged over tasks. The best methods are at the lower left.
    Bars show ± one standard error over seeds and, if known, over test rows. A line connects the budgets of a method.
    Methods whose cost is zero or unknown are left out.

    Args:
        results: the results of a study whose methods include `mtl`.
        cost: the cost to show: "all", "deciding", "training" or "size".
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.
    """
    from plotly.graph_objects import Figure, Scatter

    if cost not in COST_LABELS:
        raise InvalidInput("cost", f"must be one of {', '.join(map(repr, get_args(CostOf)))}", repr(cost))
    lines = [line for line in results.table() if line.change is not None]
    methods = list(dict.fromkeys(line.method for line in lines))
    drawn = {
        method: [line for line in lines if line.method == method and relative_cost(line, cost)] for method in methods
    }
    traces = [
        Scatter(**_method_trace(found, results, cost, methods.index(method)))
        for method, found in drawn.items()
        if found
    ]
    costs = [value for found in drawn.values() for line in found if (value := relative_cost(line, cost))]
    return Figure(traces, _cost_layout(cost, costs, title))


def relative_cost(line: MethodSummary, cost: CostOf) -> float | None:
    """Returns the relative cost of a method and budget, or None if it is unknown."""
    if cost == "size":
        return line.relative_parameters
    parts = {"deciding": [line.deciding_cost], "training": [line.training_cost]}
    known = parts.get(cost, [line.deciding_cost, line.training_cost])
    return None if None in known else sum(part for part in known if part is not None)


def known_costs(results: Results) -> list[CostOf]:
    """Returns the costs that are known for at least two methods."""
    lines = results.table()
    return [cost for cost in COST_LABELS if sum(bool(relative_cost(line, cost)) for line in lines) > 1]


def change_error(line: MethodSummary, results: Results) -> float | None:
    """Returns the standard error of the change over seeds and, if known, over test rows."""
    rows = results.noise.get((line.method, line.budget))
    known = [part for part in (line.change_stderr, rows) if part is not None and isfinite(part)]
    return hypot(*known) if known else None


def _method_trace(found: Sequence[MethodSummary], results: Results, cost: CostOf, number: int) -> dict[str, Any]:
    errors = [change_error(line, results) for line in found]
    style = marker_style(number, filled=found[0].honest)
    return {
        "name": plotly_text(found[0].method) + ("" if found[0].honest else "*"),
        "x": [relative_cost(line, cost) for line in found],
        "y": [100 * (line.change or 0.0) for line in found],
        "error_y": {"array": [100 * (error or 0.0) for error in errors], "thickness": 1, "width": 3},
        "text": ["" if line.budget is None else str(line.budget) for line in found],
        "textposition": "top right",
        "hovertext": [_method_hover_text(line, error, cost) for line, error in zip(found, errors, strict=True)],
        "hoverinfo": "text",
        "mode": "lines+markers+text",
        "marker": style,
        "line": {"color": style["line"]["color"], "width": 1, "dash": "dot"},
    }


def _method_hover_text(line: MethodSummary, error: float | None, cost: CostOf) -> str:
    budget = "" if line.budget is None else f", {line.budget} networks"
    change = format_percent(line.change or 0.0, 2) + ("" if error is None else f" ± {100 * error:.2f}")
    parts = [
        f"{plotly_text(line.method)}{budget}",
        f"{change}% test loss",
        f"{relative_cost(line, cost):.3g} × the cost",
    ]
    return "<br>".join(parts if line.honest else [*parts, "chosen on test data"])


def _cost_layout(cost: CostOf, costs: Sequence[float], title: str) -> dict[str, Any]:
    ticks = _log_ticks(costs)
    return {
        "title": figure_heading(title, "lower left is better; bars: one standard error; numbers: budgets"),
        "xaxis": {
            "type": "log",
            "title": {"text": COST_LABELS[cost]},
            "tickvals": ticks,
            "ticktext": [f"{tick:g}×" for tick in ticks],
            "gridcolor": "#eeeeee",
            "automargin": True,
        },
        "yaxis": {
            "title": {"text": "change in test loss, %"},
            "gridcolor": "#eeeeee",
            "zerolinecolor": "#999999",
            "automargin": True,
        },
        "legend": {"orientation": "h", "y": -0.25},
        "width": 760,
        "height": 520,
        "margin": {"l": 60, "r": 40, "t": 90, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }


def _log_ticks(costs: Sequence[float]) -> list[float]:
    """Returns 1, 2 and 5 times the powers of ten in the range of costs, or only the powers of ten for large ranges.

    Example:
        >>> _log_ticks([1.0, 3.0])
        [1.0, 2.0, 5.0]
    """
    if not costs:
        return [1.0]
    low, high = floor(log10(min(costs))), ceil(log10(max(costs) * 1.001))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    return [tick for tick in ticks if min(costs) / 2.5 <= tick <= 2.5 * max(costs)]


def task_changes(
    results: Results, method: str, budget: int | None = None, *, tasks: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Draws the relative change in each task's test loss compared with `mtl`, ± one standard error over seeds.

    Values left of zero are better. Filled dots are more than two standard errors away from zero; rings are not. Tasks
    marked with † were not learnt: no network beats a constant there.

    Args:
        results: the results of a study whose methods include `mtl`.
        method: the name of the method.
        budget: the budget, or None for methods without one.
        tasks: the tasks to show, in this order; by default, all tasks in the order of the problem.
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.
    """
    from plotly.graph_objects import Figure, Scatter

    found = results.changes_by_task(method, budget)
    order = [task for task in tasks or results.problem.tasks if task in found]
    rows = [found[task] for task in order]
    colors = [BETTER if row.change < 0 else WORSE for row in rows]
    dots = Scatter(
        x=[100 * row.change for row in rows],
        y=list(range(len(rows))),
        error_x={
            "array": [100 * (row.stderr or 0.0) for row in rows],
            "thickness": 1.5,
            "width": 4,
            "color": "#888888",
        },
        hovertext=[_task_hover_text(row, results.problem.errors.get(row.task, "error")) for row in rows],
        hoverinfo="text",
        mode="markers",
        marker={
            "size": 10,
            "color": [color if row.sure else BACKGROUND_COLOR for row, color in zip(rows, colors, strict=True)],
            "line": {"width": 2, "color": colors},
        },
    )
    name = method if budget is None else f"{method} (budget {budget})"
    labels = [short_label(task) + unlearnt_mark(task, results.verdict().unlearnt) for task in order]
    return Figure([dots], _changes_layout(labels, title or f"Changes with {name}, by task"))


def _task_hover_text(row: TaskChange, error: str) -> str:
    stderr = "" if row.stderr is None else f" ± {100 * row.stderr:.2f}"
    lines = [f"{plotly_text(row.task)}: {format_percent(row.change, 2)}{stderr}% test loss"]
    if row.before == row.before and row.after == row.after:
        lines.append(f"{plotly_text(error)}: {row.before:.4g} in one network for all tasks, {row.after:.4g} here")
    return "<br>".join(lines)


def _changes_layout(labels: Sequence[str], title: str) -> dict[str, Any]:
    n = len(labels)
    return {
        "title": figure_heading(
            title, "left of zero is better; bars: one standard error over seeds; filled: more than two"
        ),
        "xaxis": {
            "title": {"text": "change in test loss, %"},
            "gridcolor": "#eeeeee",
            "zerolinecolor": "#999999",
            "zerolinewidth": 2,
        },
        "yaxis": {
            "tickvals": list(range(n)),
            "ticktext": list(labels),
            "range": [n - 0.4, -0.6],
            "gridcolor": "#eeeeee",
            "zeroline": False,
            "automargin": True,
        },
        "width": 640,
        "height": n * ROW_HEIGHT + 180,
        "margin": {"l": 60, "r": 40, "t": 90, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }


def search_curve(decision: Mapping[str, Any], *, title: str = "The search by auto") -> Figure:
    """Draws the expected change in validation loss of the best networks so far against the effort, for each budget.

    Args:
        decision: the record of the search by `auto`, from `results.settings["decisions"]["auto"]`.
        title: the title, as plain text.

    Returns:
        A plotly figure.
    """
    from plotly.graph_objects import Figure, Scatter

    traces = [
        Scatter(
            name=f"budget {budget}",
            x=[spent for spent, _ in points],
            y=[100 * value for _, value in points],
            hovertext=[
                f"budget {budget}<br>effort {spent:.3g}<br>{format_percent(value, 2)}%" for spent, value in points
            ],
            hoverinfo="text",
            mode="lines+markers",
            marker={**marker_style(number), "size": 7},
            line={**line_style(number), "shape": "hv", "width": 1.5},
        )
        for number, (budget, points) in enumerate(SearchLog(decision).curve.items())
    ]
    layout = {
        "title": figure_heading(title, "expected change in validation loss compared with one network for all tasks"),
        "xaxis": {"title": {"text": "effort (number of training runs)"}, "rangemode": "tozero", "gridcolor": "#eeeeee"},
        "yaxis": {"title": {"text": "expected change, %"}, "gridcolor": "#eeeeee", "zerolinecolor": "#999999"},
        "width": 760,
        "height": 420,
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }
    return Figure(traces, layout)


def change_by_networks(results: Results, *, title: str = "What each further network buys") -> Figure:
    """Draws the change in test loss for each number of networks: the best way on validation, and those of each kind.

    Changes are measured, relative to one plain network for all tasks, and averaged over tasks. Bars show confidence
    intervals, and a circle marks the recommended networks.

    Args:
        results: the results of a study whose methods include `mtl`.
        title: the title, as plain text.

    Returns:
        A plotly figure. The first line connects the best ways, and the others show one kind of networks each.
    """
    from plotly.graph_objects import Figure, Scatter

    verdict, ways = results.verdict(), ways_by_budget(results)
    offsets = _offsets(ways)
    places = {k: place for place, k in enumerate(ways, 1)}  # evenly spaced, since 40 networks would squeeze 1 to 3
    best = [
        (places[k] + offsets[one.kind], one.change) for k, one in verdict.by_budget.items() if one.change is not None
    ]
    line = Scatter(
        name="best way found",
        x=[x for x, _ in best],
        y=[100 * change.estimate for _, change in best],
        hoverinfo="skip",
        mode="lines",
        marker=marker_style(6),
        line={"color": "#b8b8b8", "width": 9},
    )
    traces = [Scatter(**_kind_trace(kind, offset, ways, places)) for kind, offset in offsets.items()]
    traces += [
        Scatter(**_recommended_trace(places[k] + offsets[one.kind], one.change))
        for k, one in verdict.by_budget.items()
        if verdict.worth_it and one.label == verdict.recommended and one.size == k and one.change is not None
    ]
    layout = {
        "title": figure_heading(
            title, "change in test loss compared with one plain network; bars: confidence intervals"
        ),
        "xaxis": {
            "title": {"text": "networks"},
            "tickvals": list(places.values()),
            "ticktext": [str(k) for k in places],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {"title": {"text": "change in test loss, %"}, "gridcolor": "#eeeeee", "zerolinecolor": "#999999"},
        "legend": {"orientation": "h", "y": -0.25},
        "width": 760,
        "height": 420,
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }
    return Figure([line, *traces], layout)


def ways_by_budget(results: Results) -> dict[int, tuple[BudgetResult, ...]]:
    """Returns the best measured way of each kind to use each number of networks; the best of all comes first.

    If `auto` was run, the verdict considers no groups but those that `auto` found. The groups of other methods are
    included here, since readers want to see what groups buy.
    """
    found = {budget: (best, *best.others) for budget, best in results.verdict().by_budget.items()}
    others = [record for record in results.records if record.method != "auto"]
    if len(others) == len(results.records) or not found:
        return found
    without_auto = Results(
        others, problem=results.problem, noise=results.row_noise, settings=results.settings, learning=results.learning
    )
    for budget, best in without_auto.verdict().by_budget.items():
        known = found.get(budget, ())
        groups = [one for one in (best, *best.others) if one.kind == "groups"]
        if groups and all(one.kind != "groups" for one in known):
            found[budget] = (*known, *groups)
    return dict(sorted(found.items()))


def _offsets(ways: Mapping[int, Sequence[BudgetResult]]) -> dict[str, float]:
    """Returns by how much the markers of each kind are shifted, so that their bars do not overlap."""
    kinds = [kind for kind in KIND_LABELS if any(one.kind == kind for some in ways.values() for one in some)]
    shifted = [kind for kind in kinds if kind != "plain"]
    middle = (len(shifted) - 1) / 2
    return {kind: OFFSET * (shifted.index(kind) - middle) if kind in shifted else 0.0 for kind in kinds}


def _kind_trace(
    kind: str, offset: float, ways: Mapping[int, Sequence[BudgetResult]], places: Mapping[int, int]
) -> dict[str, Any]:
    """Returns the line of a kind. One copy, group or ordinary width is one plain network, where these lines start."""
    found = [(k, one, one.change) for k, some in ways.items() for one in some if one.kind == kind and one.change]
    style, ends = marker_style(list(KIND_LABELS).index(kind)), [_known_ends(change) for *_, change in found]
    start = [0.0] if kind in ("copies", "groups", "larger") and all(k > 1 for k, *_ in found) else []
    return {
        "name": KIND_LABELS[kind],
        "x": [1.0 for _ in start] + [places[k] + offset for k, *_ in found],
        "y": start + [100 * change.estimate for *_, change in found],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": start + [100 * (high - one.estimate) for (_, high), (*_, one) in zip(ends, found, strict=True)],
            "arrayminus": start + [100 * (one.estimate - low) for (low, _), (*_, one) in zip(ends, found, strict=True)],
            "thickness": 1.5,
            "width": 4,
        },
        "hovertext": ["" for _ in start] + [_way_hover_text(k, one) for k, one, _ in found],
        "hoverinfo": "text",
        "mode": "markers" if kind == "plain" else "lines+markers",
        "marker": {**style, "opacity": 1, "size": start + [style["size"] for _ in found]},
        "line": {"color": style["line"]["color"], "width": 1, "dash": "dot"},
    }


def _recommended_trace(x: float, change: Change) -> dict[str, Any]:
    return {
        "name": "recommended",
        "x": [x],
        "y": [100 * change.estimate],
        "hoverinfo": "skip",
        "mode": "markers",
        "marker": {"size": 22, "symbol": "circle-open", "color": "#000000", "line": {"width": 2, "color": "#000000"}},
        "line": {"color": "#000000"},
    }


def _way_hover_text(budget: int, one: BudgetResult) -> str:
    assert one.change is not None
    low, high = one.change.low, one.change.high
    change = f"{format_percent(one.change.estimate, 2)}% test loss"
    known = low is not None and high is not None
    interval = (
        f"{format_percent(low or 0.0, 2)} to {format_percent(high or 0.0, 2)}%" if known else "no interval is known"
    )
    return "<br>".join(
        (f"budget {budget}: {KIND_LABELS[one.kind]}", plotly_text(label_text(one.label)), change, interval)
    )


def _known_ends(change: Change) -> tuple[float, float]:
    """Returns the ends of an interval, which is empty if it is unknown."""
    return (change.estimate if change.low is None else change.low), (
        change.estimate if change.high is None else change.high
    )
