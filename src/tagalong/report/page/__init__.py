"""The page of a run: one HTML file that can be mailed."""

from __future__ import annotations

from pathlib import Path

from tagalong.affinity._atomic import write_atomic

from .._run import Run, read_run

FILE = "report.html"


def write_report(run: str | Path | Run, path: str | Path | None = None) -> Path:
    """Makes the page of a finished run from its files: one file, no network, opens anywhere.

    Args:
        run: the folder of the run.
        path: where to write the page; `report.html` in that folder by default.

    Returns:
        The file.

    Raises:
        ValueError: the folder is not one of a finished run, or a file in it is damaged.
    """
    from ._document import page

    found = run if isinstance(run, Run) else read_run(run)
    file = found.folder / FILE if path is None else Path(path)
    write_atomic(file, page(found).encode())
    return file
