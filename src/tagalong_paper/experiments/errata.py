"""`errata`: every disagreement with the printed numbers, and why."""

from __future__ import annotations

from ..errata import errata
from ..report import Claim, Report, Sheet

TITLE = "Where the paper disagrees with itself, its published matrices and its code"


def run() -> Report:
    """Computes what can be computed again, and lists the rest."""
    found = errata()
    sheet = Sheet("Errata", ("where", "printed", "found", "why"), [tuple(one) for one in found])
    headline = found[0]
    claim = Claim(headline.printed, "no", f"{headline.found}: {headline.why}")
    return Report("errata", TITLE, [sheet], [claim], notes=["every other printed total and grouping was checked"])
