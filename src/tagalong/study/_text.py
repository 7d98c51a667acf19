"""Results and verdict as people read them, in plain text of at most a hundred columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tagalong.group import Group

from ._change import TOGETHER, Label
from ._summary import Line
from ._verdict import Verdict

if TYPE_CHECKING:
    from ._results import Results

WIDTH, GAP = 100, "  "
HEADINGS = ("method", "budget", "nets", "total loss", "vs mtl", "vs random", "decide", "train", "size", "latency")


def results_text(results: Results) -> str:
    """The table, then the verdict."""
    lines = results.table()
    rows = [HEADINGS, *(_cells(line) for line in lines)]
    used = [column for column in range(len(HEADINGS)) if column < 2 or any(row[column] for row in rows[1:])]
    widths = [max(len(row[column]) for row in rows) for column in used]
    widths[0] = min(widths[0], WIDTH - sum(width + len(GAP) for width in widths[1:]))
    table = [_aligned([row[column] for column in used], widths) for row in rows]
    seeds = max(line.seeds for line in lines)
    title = f"{results.problem.name}: {len(results.problem.tasks)} tasks, {seeds} seed{'s' if seeds > 1 else ''}"
    parts = [title, "", *table, "", *_legend(lines)]
    if any((line.method, line.budget) == TOGETHER for line in lines):
        parts += ["", str(results.verdict())]
    return "\n".join(parts)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The name to the left, cut if it must be; numbers to the right."""
    name = cells[0] if len(cells[0]) <= widths[0] else f"{cells[0][: widths[0] - 1]}…"
    numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return GAP.join([name.ljust(widths[0]), *numbers]).rstrip()


def _cells(line: Line) -> tuple[str, ...]:
    name = line.method if line.honest else f"{line.method}*"
    return (
        name,
        "" if line.budget is None else str(line.budget),
        str(len(line.groups)) if line.groups else "",
        with_error(f"{line.total:.4g}", None if line.total_stderr is None else f"{line.total_stderr:.2g}"),
        "" if line.method == "mtl" else _change(line.change, line.change_stderr),
        "" if line.method == "random" else _change(line.random_change, None),
        _times(line.deciding_cost),
        _times(line.training_cost),
        _times(line.relative_parameters),
        "" if line.latency is None else f"{1000 * line.latency:.2g} ms",
    )


def with_error(value: str, error: str | None) -> str:
    """A number with its standard error."""
    return value if error is None else f"{value} ± {error}"


def _change(value: float | None, error: float | None) -> str:
    if value is None:
        return ""
    return with_error(percent(value), None if error is None else f"{100 * error:.1f}")


def percent(value: float) -> str:
    """A share with its sign.

    Example:
        >>> percent(-0.0312), percent(0.1)
        ('-3.1 %', '+10.0 %')
    """
    return f"{round(100 * value, 1) + 0.0:+.1f} %"  # no minus before zero


def _times(value: float | None) -> str:
    return f"{value:.3g}×" if value else ""


def _legend(lines: Iterable[Line]) -> list[str]:
    text = (
        "Test losses, mean ± standard error over seeds; changes are means over tasks, negative is better; steps to "
        "decide (once for all budgets; a measured one counts as the plain ones it is worth) and to train, and size "
        "(parameters), in units of mtl's."
    )
    starred = " * chose by looking at test data: a bound, not a method." if not all(x.honest for x in lines) else ""
    return textwrap.wrap(text + starred, WIDTH)


def verdict_text(verdict: Verdict) -> str:
    """One or two sentences, then the networks to use."""
    start = "Provisional verdict: " if verdict.provisional else "Verdict: "
    text = start + verdict_sentence(verdict)
    if verdict.provisional:
        text += f" ({'; '.join(verdict.provisional)}.)"
    networks = [f"  {number}. {_network(group)}" for number, group in enumerate(verdict.groups, 1)]
    return "\n".join([*textwrap.wrap(text, WIDTH), *(line for row in networks for line in _wrapped(row))])


def verdict_sentence(verdict: Verdict) -> str:
    """What to do and why, in one sentence."""
    advice = "Train them all together in one network"
    if verdict.candidate is None or verdict.estimate is None:
        return f"{advice}: no grouping was tried."
    name = label_text(verdict.candidate)
    count = f"{len(verdict.candidate_groups)} networks of {name}"
    change, interval = percent(verdict.estimate), interval_text(verdict)
    if verdict.worth_it:
        return f"Grouping is worth it: the {count} change the test losses by {change} {interval}{_costs(verdict)}."
    if verdict.validation is not None and verdict.validation >= 0:
        best = f"the best being the {count} with {change} on test {interval}"
        return f"{advice}: no grouping did better on validation, {best}."
    why = "which is not better by more than the noise" if verdict.seeds > 1 else "and one seed cannot tell luck apart"
    if verdict.high is not None and -verdict.at_least <= verdict.high < 0:
        why = f"which is less than the {100 * verdict.at_least:g} % asked for"
    return f"{advice}: the {count}, best on validation, change the test losses by {change} {interval}, {why}."


def _costs(verdict: Verdict) -> str:
    known = {"the training": verdict.training_cost, "the parameters": verdict.size}
    costs = [f"{value:.3g} times {what}" for what, value in known.items() if value is not None]
    return f", for {' and '.join(costs)}" if costs else ""


def interval_text(verdict: Verdict) -> str:
    """The interval and how many seeds it rests on."""
    seeds = f"{verdict.seeds} seed{'s' if verdict.seeds > 1 else ''}"
    if verdict.low is None or verdict.high is None:
        return f"({seeds})"
    return f"({100 * verdict.confidence:g} % interval {percent(verdict.low)} to {percent(verdict.high)}, {seeds})"


def label_text(label: Label) -> str:
    """A method and its budget.

    Example:
        >>> label_text(("tag", 2)), label_text(("stl", None))
        ('tag (budget 2)', 'stl')
    """
    return label[0] if label[1] is None else f"{label[0]} (budget {label[1]})"


def _network(group: Group) -> str:
    helped = f" (trained with {', '.join(sorted(group.helpers))})" if group.helpers else ""
    return ", ".join(sorted(group.serves)) + helped


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent="     ")
