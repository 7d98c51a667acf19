"""The output of a benchmark: progress messages, and the results as a Markdown table."""

import sys
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a Markdown table whose columns are aligned in plain text too."""
    lines = [columns, ["---"] * len(columns), *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def progress(message: str) -> None:
    """Prints a line to standard error, separate from the table."""
    print(message, file=sys.stderr, flush=True)
