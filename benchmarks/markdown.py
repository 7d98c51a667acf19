"""The output of a benchmark: progress messages, and the results as a Markdown table."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a Markdown table whose columns are aligned in plain text too."""
    lines = [columns, ["---"] * len(columns), *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def replace_part(path: Path, script: str, name: str, content: str) -> None:
    """Replaces the text of a page between two comments, which a script has written."""
    start, end = f"<!-- {script}: {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{path.name} has no part between {start.strip()} and {end}")
    path.write_text(f"{before}{start}\n{content}\n\n{end}{after}", encoding="utf-8")


def progress(message: str) -> None:
    """Prints a line to standard error, separate from the table."""
    print(message, file=sys.stderr, flush=True)
