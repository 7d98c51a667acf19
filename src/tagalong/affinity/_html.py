"""An affinity in a notebook."""

from __future__ import annotations

import numpy as np

from tagalong._html import Html, join, table, tag

from ._record import Record
from ._table import _cell, _head, _largest, _scale

HELPS, HURTS = (33, 102, 172), (178, 24, 43)
SHOWN = 40  # more columns than a notebook shows


def html_table(affinity: Record) -> str:
    """Rows help columns; blue helps, red hurts, within noise is marked and has no colour."""
    shown = min(len(affinity.tasks), SHOWN)
    names = affinity.tasks[:shown]
    rows = [[name, *(_coloured(affinity, i, j) for j in range(shown))] for i, name in enumerate(names)]
    notes = ["~ within two standard errors of zero; the diagonal is self-affinity"]
    if shown < len(affinity.tasks):
        notes.append(f"; {shown} of {len(affinity.tasks)} tasks shown")
    head = _head(affinity, _scale(affinity))
    return join([table(["a step on …", *names], rows, caption=head), tag("small", *notes)])


def _coloured(affinity: Record, i: int, j: int) -> Html:
    mean, error = float(affinity.mean[i, j]), float(affinity.stderr[i, j])
    unit = 10.0 ** _scale(affinity)
    shown = _cell(mean / unit, error / unit, 2, errors=True).strip()
    sure = i != j and np.isfinite(mean) and not abs(mean) < 2 * error
    return tag("td", shown, style=_background(mean / _largest(affinity)) if sure else None)


def _background(share: float) -> str:
    """A tint over whatever the notebook's own background is."""
    colour = ", ".join(map(str, HELPS if share > 0 else HURTS))
    return f"background: rgba({colour}, {0.55 * min(abs(share), 1.0):.2f})"
