"""`errata`: lists all disagreements with the printed numbers and explains them."""

from __future__ import annotations

from ..errata import errata
from ..experiment_report import Claim, Report, ReportTable

TITLE = "Where the paper disagrees with itself, its published matrices and its code"


def run() -> Report:
    """Lists all errata, recomputing the paper's numbers where possible."""
    found = errata()
    table = ReportTable("Errata", ("where", "printed", "found", "why"), [tuple(one) for one in found])
    headline = found[0]
    claim = Claim(headline.printed, "no", f"{headline.found}: {headline.why}")
    return Report("errata", TITLE, [table], [claim], notes=["all other printed totals and groupings were checked"])
