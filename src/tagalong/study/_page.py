"""The page of a finished run."""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger(__name__)


def draw_page(out: Path) -> None:
    """Writes `report.html`; results are never lost because a page could not be drawn."""
    try:
        from tagalong.report import write_report

        write_report(out)
    except Exception:
        (out / "report.html").unlink(missing_ok=True)  # that of an earlier run would show other results
        logger.exception("the page could not be drawn; the results are safe, `tagalong report %s` tries again", out)
