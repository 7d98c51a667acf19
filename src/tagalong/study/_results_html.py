"""Results in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagalong._html import join, table, tag

from ._change import TOGETHER
from ._text_table import HEADINGS, cells, legend

if TYPE_CHECKING:
    from ._results import Results


def html_table(results: Results) -> str:
    """The verdict, then one row per method and budget."""
    lines = results.table()
    rows = [cells(line) for line in lines]
    used = [column for column in range(len(HEADINGS)) if column < 2 or any(row[column] for row in rows)]
    title = f"{results.problem.name}: {len(results.problem.tasks)} tasks"
    made = table(
        [HEADINGS[column] for column in used], [[row[column] for column in used] for row in rows], caption=title
    )
    parts = [made, tag("small", " ".join(legend(lines)))]
    if any((line.method, line.budget) == TOGETHER for line in lines):
        parts.insert(0, tag("p", *_broken(str(results.verdict()))))
    return join(parts)


def _broken(text: str) -> list[object]:
    """Lines with breaks between them."""
    return [part for line in text.splitlines() for part in (line, tag("br"))]
