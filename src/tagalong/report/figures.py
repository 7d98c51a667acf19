"""Figures of affinities and results, as plotly figures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, isfinite, log10
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_positive_integer
from tagalong.group import Grouping
from tagalong.study import (
    FAMILIES,
    Interval,
    JudgedWay,
    TaskAnswer,
    Verdict,
    family_of,
    interval_text,
    label_text,
    percent,
    points,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Floats = NDArray[np.float64]
Center = Literal["zero", "target"]

# Okabe and Ito (2008), without yellow, which is hard to see on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star", "hourglass")
BETTER = "#2166ac"  # blue, as at the end of the scale of affinities
GRAY, TEXT_COLOR, BACKGROUND_COLOR = "#e4e4e4", "#404040", "#ffffff"
AXIS = {"gridcolor": "#eeeeee", "zerolinecolor": "#999999", "automargin": True}
# What all figures share. The page replaces it by its own fonts and colors.
TEMPLATE = {
    "layout": {
        "xaxis": AXIS,
        "yaxis": AXIS,
        "margin": {"l": 60, "r": 40, "t": 110, "b": 60},
        "plot_bgcolor": BACKGROUND_COLOR,
        "font": {"color": TEXT_COLOR},
    }
}
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_LABEL_LENGTH = 24  # of a task's name, in characters; hovering shows the whole name
BOOTSTRAP_RESAMPLES = 200  # enough to estimate standard errors to within five percent
MAX_TASKS_WITH_NUMBERS = 16  # with more tasks, numbers would not fit into the cells
CELL_SIZES, MATRIX_SIZE = (18, 72), 600  # in pixels: the smallest and the largest cell, and the whole matrix
MAX_PANELS, PANELS_PER_ROW = 6, 3
MAX_COLORED_LINES = 10  # the most lines that readers can tell apart
WINDOWS_PER_HISTORY = 10  # how many windows without overlap make up a history
MIN_VALUES_PER_WINDOW = 5  # of a typical pair in each window
WINDOWS_PER_STEP = 4  # number of windows that contain each step: smooth lines without a point for every step
MAX_POINTS = 200  # per line
OFFSET = 0.06  # between the marks of different families for the same number of networks


# Who helps whom ------------------------------------------------------------------------------------------------------


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

    _check_affinity(affinity)
    if compare_with is not None:
        _check_affinity(compare_with, "compare_with")
    if grouping is not None:
        affinity = affinity.only([task for group in grouping.groups for task in sorted(group.serves)])
    n = len(affinity.tasks)
    distance, error = _distance_from_center(affinity, center), _error_of_distance(affinity, center)

    # The unit and the range of colors also suit the other affinity.
    compared = [affinity] if compare_with is None else [affinity, compare_with]
    largest = max(_largest(other.mean) for other in compared)
    limit = max(_largest(_distance_from_center(other, center)) for other in compared)
    unit, unit_text = _unit(largest)

    # Each kind of cell is a layer with colors of its own.
    own, measured = np.eye(n, dtype=bool), np.isfinite(affinity.mean)
    uncertain = measured & ~own & (np.abs(distance) < 2 * error)
    kinds = {
        "sure": measured & ~own & ~uncertain,
        "within noise": uncertain,
        "self-affinity": measured & own,
        "never measured": ~measured,
    }
    relative = "" if center == "zero" else "<br>minus the mean<br>onto the target"
    bar = {"title": {"text": f"affinity{unit_text}{relative}"}, "thickness": 14, "outlinewidth": 0}
    looks: dict[str, dict[str, Any]] = {
        "sure": {"colorscale": "RdBu", "colorbar": bar},
        "within noise": {"colorscale": "RdBu", "opacity": 0.35},
        "self-affinity": {"colorscale": [(0, GRAY), (1, GRAY)]},
        "never measured": {"colorscale": [(0, BACKGROUND_COLOR), (1, BACKGROUND_COLOR)]},
    }
    digits = 2 if largest < 10 * unit else 1
    numbers = [[_cell_text(value / unit, digits) for value in row] for row in affinity.mean]
    layers = []
    for kind, cells in kinds.items():
        layer = Heatmap(
            name=kind,
            z=np.where(cells, np.nan_to_num(distance / unit), np.nan).tolist(),
            zmin=-limit / unit or -1.0,
            zmax=limit / unit or 1.0,
            hovertext=_heatmap_notes(affinity, kind, cells, distance, error, center),
            hoverinfo="text",
            hoverongaps=False,
            showscale=kind == "sure",
            xgap=1,
            ygap=1,
            **looks[kind],
        )
        if n <= MAX_TASKS_WITH_NUMBERS if values is None else values:
            mark = "~" if kind == "within noise" else ""
            layer.text = np.where(cells, np.char.add(numbers, mark), "").tolist()
            layer.texttemplate = "%{text}"
        layers.append(layer)

    # Coordinates are numbers, since plotly would parse names such as "1" or "2020-01-01" as numbers or dates.
    axis = {
        "tickvals": list(range(n)),
        "ticktext": [short_label(task) for task in affinity.tasks],
        "range": [-0.5, n - 0.5],
        "constrain": "domain",
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"size": 12 if n <= MAX_TASKS_WITH_NUMBERS else 10},
    }
    meaning = "helps (blue) or hurts (red)" if center == "zero" else "helps more (blue) or less (red) than others"
    legend = "pale or ~: within two standard errors; gray: self-affinity; blank: never measured"
    cell = int(np.clip(MATRIX_SIZE // n, *CELL_SIZES))
    layout = {
        "template": TEMPLATE,
        "title": figure_heading(title, _describe_measurement(affinity), legend),
        "xaxis": {**axis, "title": {"text": f"… {meaning}"}, "tickangle": -45},
        "yaxis": {**axis, "title": {"text": "a step on …"}, "range": [n - 0.5, -0.5], "scaleanchor": "x"},
        "shapes": [] if grouping is None else list(_frames(grouping)),
        "width": max(n * cell + 340, 660),  # the text above the cells needs 660 pixels
        "height": n * cell + 280,
    }
    return Figure(layers, layout)


def _heatmap_notes(
    affinity: Affinity, kind: str, cells: NDArray[np.bool_], distance: Floats, error: Floats, center: Center
) -> list[list[str]]:
    """Returns what hovering over the cells of a kind shows."""
    n = len(affinity.tasks)
    notes = [[""] * n for _ in range(n)]
    for i, j in np.argwhere(cells):
        source, target = plotly_text(affinity.tasks[i]), plotly_text(affinity.tasks[j])
        lines = [f"{source} → {target}"]
        if kind != "never measured":
            lines.append(with_error(affinity.mean[i, j], affinity.stderr[i, j]))
            if center == "target" and i != j:
                lines.append(f"{with_error(distance[i, j], error[i, j])} from the mean onto {target}")
            lines.append(f"values: {affinity.count[i, j]:.0f}")
        if kind != "sure":
            lines.append(kind)
        notes[i][j] = "<br>".join(lines)
    return notes


def _cell_text(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else ""


def _frames(grouping: Grouping) -> Iterator[dict[str, Any]]:
    """Yields frames around the tasks that each network serves."""
    start = -0.5
    for group in grouping.groups:
        end = start + len(group.serves)
        corners = {"x0": start, "x1": end, "y0": start, "y1": end}
        yield {"type": "rect", **corners, "line": {"color": TEXT_COLOR, "width": 2}}
        start = end


def _largest(matrix: Floats) -> float:
    """Returns the largest absolute value, ignoring self-affinities, which are far larger."""
    others = np.isfinite(matrix) & ~np.eye(len(matrix), dtype=bool)
    return float(np.abs(matrix[others]).max(initial=0.0))


def _unit(largest: float) -> tuple[float, str]:
    """Returns the power of a thousand that suits values up to `largest`, and its name.

    Example:
        >>> _unit(0.0042), _unit(0.3)
        ((0.001, ' × 10⁻³'), (1.0, ''))
    """
    if largest <= 0 or 0.1 <= largest < 1000:
        return 1.0, ""
    power = 3 * floor(log10(largest) / 3)
    return 10.0**power, f" × 10{str(power).translate(SUPERSCRIPT)}"


def _distance_from_center(affinity: Affinity, center: Center) -> Floats:
    if center not in ("zero", "target"):
        raise InvalidInput("center", "must be 'zero' or 'target'", repr(center))
    return affinity.mean if center == "zero" else _minus_target_mean(affinity.mean)


def _error_of_distance(affinity: Affinity, center: Center) -> Floats:
    """Returns the standard error of the distance, in which errors that all sources share cancel out."""
    if center == "zero" or len(affinity.steps) < 2:
        return affinity.stderr
    draws = _minus_target_mean(affinity.bootstrap(BOOTSTRAP_RESAMPLES))
    known = np.isfinite(draws).all(axis=0) & np.isfinite(affinity.stderr)
    return np.where(known, np.where(known, draws, 0.0).std(axis=0), np.nan)


def _minus_target_mean(matrices: Floats) -> Floats:
    """Subtracts from each affinity the mean affinity of the other tasks onto the same target."""
    others = np.isfinite(matrices) & ~np.eye(matrices.shape[-1], dtype=bool)
    sums = np.where(others, matrices, 0.0).sum(axis=-2, keepdims=True)
    return np.asarray(matrices - sums / np.maximum(others.sum(axis=-2, keepdims=True), 1))


# Affinity over training ----------------------------------------------------------------------------------------------


def affinity_over_training(
    affinity: Affinity,
    onto: str | Iterable[str] | None = None,
    *,
    sources: Iterable[str] | None = None,
    smooth: int | None = None,
    title: str = "Affinity over training",
) -> Figure:
    """Draws affinities over training, with one panel per target task and one line with an error band per source task.

    Each point is the mean over a moving window of measured steps. Bands show ± one standard error. A source has the
    same color in all panels. Lines have gaps where a pair has no values. If a panel has more than ten lines, the ten
    with the highest affinity have a color and a band. The other lines are gray; hover over them to see their names.
    Self-affinity is not shown.

    Args:
        affinity: an affinity that has a history.
        onto: the target task or tasks; the first six tasks by default.
        sources: the source tasks to draw; all tasks by default.
        smooth: the number of measured steps in a window. The default is a tenth of the history, or more if a typical
            pair would have fewer than five values.
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.
    """
    from plotly.subplots import make_subplots

    _check_affinity(affinity)
    if not len(affinity.steps):
        raise InvalidInput("affinity", "must have a history", "only a matrix", "measure it with an AffinityMeter")
    if smooth is not None and not is_positive_integer(smooth):
        raise InvalidInput("smooth", "must be a positive integer (the number of measured steps)", repr(smooth))
    targets = _task_numbers(affinity, "onto", affinity.tasks[:MAX_PANELS] if onto is None else onto)
    drawn = _task_numbers(affinity, "sources", affinity.tasks if sources is None else sources)
    window = min(len(affinity.steps), smooth or _default_window(affinity))
    steps, means, errors = _moving_means(affinity, window)  # [windows], [windows, n, n], [windows, n, n]

    columns = 2 if len(targets) == 4 else min(PANELS_PER_ROW, len(targets))
    rows = ceil(len(targets) / columns)
    panels = [f"onto {short_label(affinity.tasks[j])}" for j in targets]
    figure = make_subplots(rows, columns, subplot_titles=panels, vertical_spacing=0.3 / rows)
    in_legend: set[int] = set()
    for place, target in enumerate(targets):
        highest = np.argsort(-np.nan_to_num(affinity.mean[:, target], nan=-np.inf), kind="stable").tolist()
        colored = [source for source in highest if source in drawn and source != target][:MAX_COLORED_LINES]
        gray = [source for source in drawn if source != target and source not in colored]
        for source in [*gray, *sorted(colored)]:
            traces = _history_traces(affinity, source, steps, means[:, source, target], errors[:, source, target])
            if source in gray:
                traces = traces[1:]
                traces[0].line.color = GRAY
            elif source not in in_legend:  # where clicking it toggles all of its lines
                traces[1].showlegend = True
                in_legend.add(source)
            figure.add_traces(traces, rows=place // columns + 1, cols=place % columns + 1)
    reading = f"each point: {window} measured steps; bands: ± one standard error; gray: all but the 10 highest"
    figure.update_layout(
        template=TEMPLATE,
        title=figure_heading(title, _describe_measurement(affinity), reading),
        legend={"title": {"text": "a step on …"}, "tracegroupgap": 0},
        width=340 * columns + 280,
        height=300 * rows + 160,
    )
    figure.update_xaxes(title_text="meter call", showgrid=False, zeroline=False)
    figure.update_yaxes(exponentformat="power")
    figure.update_yaxes(title_text="affinity", col=1)
    return figure


def _history_traces(affinity: Affinity, source: int, steps: Floats, mean: Floats, error: Floats) -> list[Any]:
    """Returns the band and the line of a source."""
    from plotly.graph_objects import Scatter

    style = line_style(source)
    shared = {
        "name": short_label(affinity.tasks[source]),
        "legendgroup": str(source),
        "legendrank": source,
        "showlegend": False,
    }
    x, y = _band_outline(steps, mean, error)
    band = Scatter(
        x=x, y=y, mode="none", fill="toself", fillcolor=f"{style['color']}26", hoverinfo="skip", **shared
    )  # 26: an opacity of 15%
    # Markers show single values between two gaps, which have no line.
    line = Scatter(
        x=steps.tolist(),
        y=mean.tolist(),
        mode="lines+markers",
        line={**style, "width": 2},
        marker={"size": 3},
        **shared,
    )
    return [band, line]


def _band_outline(x: Floats, mean: Floats, error: Floats) -> tuple[list[float | None], list[float | None]]:
    """Returns a polygon around each run of points with known errors, separated by gaps."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    known = np.flatnonzero(np.isfinite(mean) & np.isfinite(error))
    for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
        back = run[::-1]
        xs += [*x[run].tolist(), *x[back].tolist(), None]
        ys += [*(mean + error)[run].tolist(), *(mean - error)[back].tolist(), None]
    return xs[:-1], ys[:-1]


def _moving_means(affinity: Affinity, window: int) -> tuple[Floats, Floats, Floats]:
    """Averages over moving windows: their middle steps, their means and the standard errors of these."""
    level = affinity.leveled()  # once, rather than for each window
    steps = affinity.steps
    last = len(steps) - window
    starts = [*range(0, last, max(1, window // WINDOWS_PER_STEP, ceil(last / MAX_POINTS))), last]
    parts = [level.between(steps[start], steps[start + window - 1] + 1) for start in starts]
    middles = np.array([steps[start : start + window].mean() for start in starts])
    return middles, np.stack([part.mean for part in parts]), np.stack([part.stderr for part in parts])


def _default_window(affinity: Affinity) -> int:
    length, counts = len(affinity.steps), affinity.count[affinity.count > 0]
    turns = length / float(np.median(counts)) if counts.size else 1.0  # steps for each value of a typical pair
    return max(1, ceil(length / WINDOWS_PER_HISTORY), ceil(MIN_VALUES_PER_WINDOW * turns))


def _task_numbers(affinity: Affinity, argument: str, names: str | Iterable[str]) -> list[int]:
    """Returns the indices of the tasks, without duplicates."""
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    unknown = [name for name in wanted if name not in affinity.tasks]
    if unknown or not wanted:
        known = ", ".join(map(repr, affinity.tasks))
        raise InvalidInput(argument, f"must contain one or more of the tasks {known}", repr(unknown or wanted))
    return [affinity.tasks.index(name) for name in wanted]


# What models bring ---------------------------------------------------------------------------------------------------


def gain_by_models(verdict: Verdict, *, title: str = "What each further model buys") -> Figure:
    """Draws the skill of every family for each number of models: the best of each family on validation rows.

    Bars show the 95 % intervals of the gain over the reference, and a circle marks the recommended models.

    Args:
        verdict: the verdict of a study.
        title: the title, as plain text.

    Returns:
        A plotly figure. The first line connects the best ways on validation rows, and the others show one family each.
    """
    from plotly.graph_objects import Figure, Scatter

    ways = best_ways(verdict)
    numbers = sorted({models for models, _ in ways})  # evenly spaced, since 40 models would squeeze 1 to 3
    families = [family for family in FAMILIES if any(family == known for _, known in ways)]

    def place(models: int, family: str) -> float:
        beside = [other for other in families if (models, other) in ways]  # around the tick of so many models
        return numbers.index(models) + 1 + OFFSET * (beside.index(family) - (len(beside) - 1) / 2)

    best = [(key, way) for key, way in ways.items() if verdict.by_budget.get(key[0]) == way]
    traces = [
        Scatter(
            name="best on validation",
            x=[place(*key) for key, _ in best],
            y=[100 * way.skill for _, way in best],
            hoverinfo="skip",
            mode="lines",
            line={"color": GRAY, "width": 9},
        )
    ]
    for family in families:
        shown = [(key, way) for key, way in ways.items() if key[1] == family]
        style = marker_style(list(FAMILIES).index(family))
        trace = Scatter(
            name=FAMILIES[family],
            x=[place(*key) for key, _ in shown],
            y=[100 * way.skill for _, way in shown],
            error_y=_interval_bars([way.gain for _, way in shown]),
            hovertext=[_way_note(models, way) for (models, _), way in shown],
            hoverinfo="text",
            mode="lines+markers",
            marker=style,
            line={"color": style["color"], "width": 1, "dash": "dot"},
        )
        traces.append(trace)
    ring = {"size": 22, "symbol": "circle-open", "color": "#000000", "line": {"width": 2}}
    recommended = [(key, way) for key, way in ways.items() if way.label == verdict.recommended and key[0] == way.models]
    traces.append(
        Scatter(
            name="recommended",
            x=[place(*key) for key, _ in recommended],
            y=[100 * way.skill for _, way in recommended],
            hoverinfo="skip",
            mode="markers",
            marker=ring,
        )
    )
    layout = {
        "template": TEMPLATE,
        "title": figure_heading(title, f"bars: 95 % intervals of the gain over {label_text(verdict.reference)}"),
        "xaxis": {
            "title": {"text": "models"},
            "tickvals": list(range(1, len(numbers) + 1)),
            "ticktext": list(map(str, numbers)),
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {"title": {"text": "skill on test rows, %"}},
        "legend": {"orientation": "h", "y": -0.25},
        "width": 760,
        "height": 420,
    }
    return Figure(traces, layout)


def best_ways(verdict: Verdict) -> dict[tuple[int, str], JudgedWay]:
    """Returns the best way of each family, on validation rows, by the number of models and the family."""
    ways: dict[tuple[int, str], JudgedWay] = {}
    for way in verdict.ways:
        key = way.models, family_of(way.label, way.groups)
        if way.honest and isfinite(way.skill) and (key not in ways or way.validation > ways[key].validation):
            ways[key] = way
    recommended = verdict.chosen
    ways[recommended.models, family_of(recommended.label, recommended.groups)] = recommended
    return dict(sorted(ways.items()))


def _interval_bars(intervals: Sequence[Interval]) -> dict[str, Any]:
    """Returns error bars in points, which have no length where no interval is known."""
    above, below = [], []
    for interval in intervals:
        above.append(0.0 if interval.high is None else 100 * (interval.high - interval.estimate))
        below.append(0.0 if interval.low is None else 100 * (interval.estimate - interval.low))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, "width": 4}


def _way_note(models: int, way: JudgedWay) -> str:
    return "<br>".join(
        [
            f"{models}: {plotly_text(label_text(way.label))}",
            f"skill {percent(way.skill)}",
            f"{points(way.gain.estimate)} points, {interval_text(way.gain) or 'no interval is known'}",
        ]
    )


def task_skills(verdict: Verdict, *, tasks: Sequence[str] | None = None, title: str = "Skill by task") -> Figure:
    """Draws each task's skill on test rows with the reference and with the recommended models.

    Args:
        verdict: the verdict of a study.
        tasks: the tasks to show, in this order; by default, all tasks.
        title: the title, as plain text.

    Returns:
        A plotly figure, which can be saved with its `write_html` method.
    """
    from plotly.graph_objects import Figure, Scatter

    by_task = {answer.task: answer for answer in verdict.per_task}
    shown = [by_task[task] for task in tasks or by_task]
    before, after = [answer.before for answer in shown], [answer.after for answer in shown]
    traces = []
    sides = [(verdict.reference, before, "#ffffff"), (verdict.recommended, after, BETTER)]
    if verdict.recommended == verdict.reference:
        sides = sides[1:]
    for number, (label, intervals, fill) in enumerate(sides):
        trace = Scatter(
            name=plotly_text(label_text(label)),
            x=[100 * interval.estimate for interval in intervals],
            y=[place + 0.16 * (2 * number - 1) for place in range(len(shown))],
            error_x={**_interval_bars(intervals), "color": "#888888"},
            hovertext=[_task_note(answer) for answer in shown],
            hoverinfo="text",
            mode="markers",
            marker={"size": 10, "color": fill, "line": {"width": 2, "color": BETTER}},
        )
        traces.append(trace)
    layout = {
        "template": TEMPLATE,
        "title": figure_heading(title, "share of a constant's loss that is avoided; bars: 95 % intervals"),
        "xaxis": {"title": {"text": "skill on test rows, %"}, "rangemode": "tozero", "zerolinewidth": 2},
        "yaxis": {
            "tickvals": list(range(len(shown))),
            "ticktext": [short_label(answer.task) for answer in shown],
            "range": [len(shown) - 0.4, -0.6],
            "zeroline": False,
        },
        "legend": {"orientation": "h", "y": -0.25},
        "width": 640,
        "height": 24 * len(shown) + 220,
    }
    return Figure(traces, layout)


def _task_note(answer: TaskAnswer) -> str:
    change = f"{points(answer.change.estimate)} points, {interval_text(answer.change) or 'no interval is known'}"
    return (
        f"{plotly_text(answer.task)}: {percent(answer.before.estimate)} to {percent(answer.after.estimate)}<br>{change}"
    )


# Style ---------------------------------------------------------------------------------------------------------------


def line_style(number: int) -> dict[str, str]:
    """Returns the color and dash style of a line by its number: eight solid colors, then the same colors dashed."""
    return {"color": COLORS[number % len(COLORS)], "dash": DASHES[number // len(COLORS) % len(DASHES)]}


def marker_style(number: int) -> dict[str, Any]:
    """Returns the color and symbol of a marker by its number; the first 72 markers are all different."""
    color = COLORS[number % len(COLORS)]
    return {
        "size": 10,
        "symbol": SYMBOLS[number % len(SYMBOLS)],
        "color": color,
        "line": {"width": 1.5, "color": color},
    }


def plotly_text(name: str) -> str:
    """Escapes text for plotly, which interprets tags, entities, and TeX between dollar signs.

    Example:
        >>> plotly_text("<b>R&D</b> $5")
        '&lt;b&gt;R&amp;D&lt;/b&gt; &#36;5'
    """
    return html.escape(name, quote=False).replace("$", "&#36;")


def short_label(name: str) -> str:
    """Escapes a name for plotly, and shortens it in the middle if it is long.

    Example:
        >>> short_label("number_of_days_in_hospital_2019")
        'number_of_da…spital_2019'
    """
    if len(name) > MAX_LABEL_LENGTH:
        name = f"{name[: MAX_LABEL_LENGTH // 2]}…{name[-(MAX_LABEL_LENGTH // 2 - 1) :]}"
    return plotly_text(name)


def figure_heading(title: str, *lines: str) -> dict[str, Any]:
    """Returns a left-aligned title with smaller lines of text below it."""
    small = "".join(f"<br><sup>{line}</sup>" for line in lines if line)
    return {"text": plotly_text(title) + small, "x": 0.02, "y": 1, "yanchor": "top", "pad": {"t": 24}}


def with_error(mean: float, error: float) -> str:
    """Formats a value with its standard error, if it is known.

    Example:
        >>> with_error(0.01234, 0.0005), with_error(0.01234, float("nan")), with_error(float("nan"), 0.1)
        ('0.0123 ± 0.0005', '0.0123', '–')
    """
    if not isfinite(mean):
        return "–"
    return f"{mean:.3g} ± {error:.2g}" if isfinite(error) else f"{mean:.3g}"


def _describe_measurement(affinity: Affinity) -> str:
    """Describes what was measured and how it was averaged, for use as a subtitle."""
    settings = affinity.settings
    parts = [str(settings.get("estimator", ""))]
    if settings.get("update") == "optimizer":
        parts.append("optimizer step")
    if settings.get("held_out"):
        parts.append("held-out loss")
    if len(affinity.steps):
        parts.append(f"{settings.get('average', 'mean')} over {len(affinity.steps)} measured steps")
    return plotly_text(", ".join(filter(None, parts)))


def _check_affinity(value: object, name: str = "affinity") -> None:
    if not isinstance(value, Affinity):
        raise TypeError(
            f"`{name}` must be an Affinity, found {type(value).__name__}; create one with Affinity.from_matrix()"
        )
