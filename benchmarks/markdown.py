"""What a benchmark shows: a table in Markdown when it is done, and how far it is on the way."""

import sys
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of one width, so that the text reads well as it is."""
    lines = [columns, ["---"] * len(columns), *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def progress(message: str) -> None:
    """A line where it does not mix with the table."""
    print(message, file=sys.stderr, flush=True)
