"""What a study shows: the labels before, the results and the verdict after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._terminal import clean, put, say, screen, table

if TYPE_CHECKING:
    from pathlib import Path

    from tagalong.learn import Problem
    from tagalong.study import Results

PARTS = ("train", "val", "test")
MOST_WARNINGS = 5


def show_labels(problem: Problem) -> None:
    """How many labels each task has, and what will be hard."""
    from tagalong.learn import label_summary

    summary, console = label_summary(problem), screen()
    rows = ", ".join(f"{summary.rows[part]} {part}" for part in PARTS)
    say(console, f"{problem.name}: {len(problem.tasks)} tasks; rows: {rows}")
    shown = table("task", "kind", *(f"labels {part}" for part in PARTS), "positives", numbers=_right())
    for line in summary.tasks:
        positives = "" if line.positives is None else " / ".join(str(line.positives[part]) for part in PARTS)
        shown.add_row(clean(line.task), line.kind, *(str(line.labels[part]) for part in PARTS), positives)
    put(console, shown)
    say(console, summary.pairs)
    for note in problem.notes:
        say(console, note)
    for warning in summary.warnings[:MOST_WARNINGS]:
        say(console, f"warning: {warning}")
    if (more := len(summary.warnings) - MOST_WARNINGS) > 0:
        say(console, f"and {more} more warnings of this kind")
    console.print()


def _right() -> tuple[str, ...]:
    return (*(f"labels {part}" for part in PARTS), "positives")


def show_table(results: Results, quiet: bool) -> None:
    """The table and the verdict; the verdict alone if quiet."""
    console = screen()
    for line in str(results.verdict() if quiet else results).splitlines():
        console.print(clean(line), soft_wrap=True)


def show_results(results: Results, quiet: bool, out: Path) -> None:
    """The table, the verdict, and where everything lies."""
    console = screen()
    if not quiet:
        console.print()
    show_table(results, quiet)
    if quiet:
        return
    console.print()
    say(
        console,
        f"{out}: results, groupings, affinities, and the recommended networks; run again, it goes on from there",
    )
    if (page := out / "report.html").exists():
        say(console, f"the report: {page}")
    say(console, f"predict with them: tagalong predict {out} NEW.csv")
