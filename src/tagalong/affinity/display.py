"""An affinity as plain text, as an HTML table, and as named numbers for loggers."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import TYPE_CHECKING

import numpy as np

from tagalong.rendering import Html, columns, cut, join, left, right, table, tag

from .averaging import Floats

if TYPE_CHECKING:
    from .affinity import Affinity

WIDTH = 110
NAMES = (16, 12, 8)  # where longer names are cut, in turn
FEWEST = 3  # tasks shown even where lines grow too long
MOST = 30  # more columns than ever fit

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def text_table(affinity: Affinity) -> str:
    """Rows help columns; errors are shown where they fit, values within their noise are marked."""
    scale, n = _scale(affinity), len(affinity.tasks)
    rows, shown = _fitting(affinity, scale)
    lines = [_head(affinity, scale), *rows]
    if (np.abs(affinity.mean) < 2 * affinity.stderr)[:shown, :shown].any():
        lines.append("~ within two standard errors of zero")
    if affinity.settings.get("update") == "optimizer" and np.isnan(affinity.null).any():
        lines.append("what the optimiser does without a gradient (momentum) is in every entry: compare within columns")
    if shown < n:
        lines.append(f"{shown} of {n} tasks shown; only() chooses, to_csv() has all")
    return "\n".join(lines)


def _fitting(affinity: Affinity, scale: int) -> tuple[list[str], int]:
    """Lines that fit: first without errors, then with shorter names, then with fewer tasks."""
    most = min(len(affinity.tasks), MOST)
    cells = {errors: _cells(affinity, scale, errors, most) for errors in (True, False)}
    forms = [(True, NAMES[0], most), *((False, name, most) for name in NAMES)]
    forms += [(False, NAMES[-1], shown) for shown in range(most - 1, FEWEST - 1, -1)]
    for errors, name, shown in forms:
        rows = _rows(affinity, cells[errors], name, shown)
        if max(map(columns, rows)) <= WIDTH:
            break
    return rows, shown


def _head(affinity: Affinity, scale: int) -> str:
    unit = f", values × 10{str(scale).translate(_SUPERSCRIPT)}" if scale else ""
    steps = len(affinity.steps)
    source = (
        f"{affinity.settings.get('average', 'mean')} over {steps} measured step{'s' * (steps != 1)}"
        if steps
        else "no history"
    )
    estimator = affinity.settings.get("estimator")
    return f"Affinity (row helps column{unit}), {source}" + (f", {estimator} estimator" if estimator else "")


def _largest(affinity: Affinity) -> float:
    """The largest value between two tasks; self-affinities are far larger and would hide the rest."""
    apart = ~np.eye(len(affinity.tasks), dtype=bool)
    values = np.abs(affinity.mean[apart & np.isfinite(affinity.mean)])
    return float(values.max()) if values.size and values.max() > 1e-300 else 1.0


def _scale(affinity: Affinity) -> int:
    """The power of ten, a multiple of three, that brings values to between 1 and 1000."""
    largest = _largest(affinity)
    return 0 if 0.1 <= largest < 1000 else 3 * floor(log10(largest) / 3)


def _cells(affinity: Affinity, scale: int, errors: bool, most: int) -> list[list[str]]:
    unit = 10.0**scale
    digits = min(max(2 - floor(log10(_largest(affinity) / unit)), 1), 3)
    rows = zip(affinity.mean[:most, :most].tolist(), affinity.stderr[:most, :most].tolist(), strict=True)
    return [
        [_cell(mean / unit, error / unit, digits, errors) for mean, error in zip(*row, strict=True)] for row in rows
    ]


def _cell(mean: float, error: float, digits: int, errors: bool) -> str:
    if not isfinite(mean):
        return "- "
    mark = "~" if abs(mean) < 2 * error else " "
    return f"{mean:.{digits}f}" + (f" ± {error:.{digits}f}" if errors and isfinite(error) else "") + mark


def _rows(affinity: Affinity, cells: list[list[str]], longest: int, shown: int) -> list[str]:
    tasks = affinity.tasks[:shown]
    names = [_short(task, NAMES[0]) for task in tasks]
    margin = max(map(columns, names))
    upright = [[f"{_short(task, longest)} ", *(row[j] for row in cells)] for j, task in enumerate(tasks)]
    padded = [[right(cell, max(map(columns, column))) for cell in column[: shown + 1]] for column in upright]
    lines = zip(["", *names], *padded, strict=True)
    return [" ".join([left(name, margin), *line]).rstrip() for name, *line in lines]


def _short(name: str, longest: int) -> str:
    name = " ".join(name.split())  # a line break would tear the table
    return cut(name, longest)


HELPS, HURTS = (33, 102, 172), (178, 24, 43)
SHOWN = 40  # more columns than a notebook shows


def html_table(affinity: Affinity) -> str:
    """Rows help columns; blue helps, red hurts, within noise is marked and has no colour."""
    shown = min(len(affinity.tasks), SHOWN)
    names = affinity.tasks[:shown]
    rows = [[name, *(_coloured(affinity, i, j) for j in range(shown))] for i, name in enumerate(names)]
    notes = ["~ within two standard errors of zero; the diagonal is self-affinity"]
    if shown < len(affinity.tasks):
        notes.append(f"; {shown} of {len(affinity.tasks)} tasks shown")
    head = _head(affinity, _scale(affinity))
    return join([table(["a step on …", *names], rows, caption=head), tag("small", *notes)])


def _coloured(affinity: Affinity, i: int, j: int) -> Html:
    mean, error = float(affinity.mean[i, j]), float(affinity.stderr[i, j])
    unit = 10.0 ** _scale(affinity)
    shown = _cell(mean / unit, error / unit, 2, errors=True).strip()
    sure = i != j and np.isfinite(mean) and not abs(mean) < 2 * error
    return tag("td", shown, style=_background(mean / _largest(affinity)) if sure else None)


def _background(share: float) -> str:
    """A tint over whatever the notebook's own background is."""
    colour = ", ".join(map(str, HELPS if share > 0 else HURTS))
    return f"background: rgba({colour}, {0.55 * min(abs(share), 1.0):.2f})"


def named_values(name: str, tasks: Sequence[str], values: Floats) -> dict[str, float]:
    """One number per pair of different tasks with a value; loggers show the sources of one target together.

    Example:
        >>> named_values("lookahead", ["age", "ill"], np.array([[9.0, 0.5], [np.nan, 9.0]]))
        {'lookahead onto ill/age': 0.5}
    """
    return {
        f"{name} onto {target}/{source}": float(values[i, j])
        for j, target in enumerate(tasks)
        for i, source in enumerate(tasks)
        if i != j and np.isfinite(values[i, j])
    }
