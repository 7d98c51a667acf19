"""What a study shows: the labels before, the results and the verdict after."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING

from ._terminal import clean, prose_width, put, say, screen, table

if TYPE_CHECKING:
    from pathlib import Path

    from tagalong.learn import Problem
    from tagalong.study import Results

PARTS = ("train", "val", "test")
MOST_WARNINGS, LONGEST_NOTE = 5, 160
HEADS = ("method ", "task ", "Verdict: ", "Provisional verdict: ")


def show_labels(problem: Problem) -> None:
    """How many labels each task has, and what will be hard."""
    from tagalong.learn import label_summary

    summary, console = label_summary(problem), screen()
    rows = ", ".join(f"{summary.rows[part]} {part}" for part in PARTS)
    say(console, f"{problem.name}: {len(problem.tasks)} tasks; rows: {rows}; labels of each task:")
    counted = ["positives"] if any(line.positives for line in summary.tasks) else []
    shown = table("task", "kind", *PARTS, *counted, numbers=(*PARTS, "positives"), names=("task",))
    for line in summary.tasks:
        positives = "" if line.positives is None else " / ".join(str(line.positives[part]) for part in PARTS)
        labels = (str(line.labels[part]) for part in PARTS)
        shown.add_row(clean(line.task), line.kind, *labels, *([positives] if counted else []))
    put(console, shown)
    say(console, summary.pairs)
    for note in problem.notes:
        say(console, shorten(note, LONGEST_NOTE, placeholder=" …"))
    for warning in summary.warnings[:MOST_WARNINGS]:
        say(console, f"warning: {warning}")
    if (more := len(summary.warnings) - MOST_WARNINGS) > 0:
        say(console, f"and {more} more warnings of this kind")
    console.print()


def show_table(results: Results, quiet: bool) -> None:
    """The table and the verdict; the verdict alone if quiet."""
    from tagalong.study._text import results_text, verdict_text

    console = screen()
    width = console.width
    text = verdict_text(results.verdict(), prose_width(console)) if quiet else results_text(results, width)
    for line in text.splitlines():
        console.print(clean(line), soft_wrap=True, style="bold" if line.startswith(HEADS) else "")


def show_results(results: Results, quiet: bool, out: Path) -> None:
    """The table, the verdict, and where everything lies."""
    show_table(results, quiet)
    if quiet:
        return
    console = screen()
    console.print()
    say(console, f"{out}: results, groupings, affinities and the recommended networks")
    if (page := out / "report.html").exists():
        say(console, f"the report: {page}")
    say(console, f"predict with them: tagalong predict {out} NEW.csv")
