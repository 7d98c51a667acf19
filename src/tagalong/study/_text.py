"""Results and verdict as people read them, in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.group import Group

from ._change import TOGETHER, Label
from ._search_text import search_text
from ._text_table import NARROWEST, WIDTH, legend, methods_table, percent, tasks_table
from ._verdict import Verdict

if TYPE_CHECKING:
    from ._results import Results


def results_text(results: Results, width: int = WIDTH) -> str:
    """The table of all methods, the tasks one by one for the best grouping, then the verdict.

    Args:
        results: of a study.
        width: columns of the screen; prose takes no more than a hundred.
    """
    width = max(width, NARROWEST)
    lines, prose = results.table(), min(width, WIDTH)
    tasks, seeds = len(results.problem.tasks), max(line.seeds for line in lines)
    title = f"{results.problem.name}: {_counted(tasks, 'task')}, {_counted(seeds, 'seed')}"
    made, left_out = methods_table(lines, width)
    parts = [title, "", *made, "", *legend(lines, prose, left_out)]
    by_label = {(line.method, line.budget): line for line in lines}
    if TOGETHER in by_label:
        verdict = results.verdict()
        if verdict.candidate is not None:
            together, mine = by_label[TOGETHER], by_label[verdict.candidate]
            parts += ["", f"By task, mtl and the groups of {label_text(verdict.candidate)}:"]
            parts += tasks_table(results.problem, together, mine, width)
            parts += [] if verdict.worth_it else ["", "The groups:", *networks(verdict.candidate_groups, prose)]
        parts += ["", verdict_text(verdict, prose)]
    told = results.settings.get("decisions", {}).get("auto")
    if told and told.get("steps"):
        parts += ["", *search_text(told, prose)]
    return "\n".join(parts)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def verdict_text(verdict: Verdict, width: int = WIDTH) -> str:
    """One or two sentences, then the networks to use."""
    start = "Provisional verdict: " if verdict.provisional else "Verdict: "
    text = start + verdict_sentence(verdict)
    if verdict.provisional:
        text += f" ({'; '.join(verdict.provisional)}.)"
    return "\n".join([*_wrapped(text, width), *networks(verdict.groups, width)])


def networks(groups: Sequence[Group], width: int) -> list[str]:
    """What each network serves, and what it is trained with, on lines of their own."""
    rows = (f"  {number}. {_network(group)}" for number, group in enumerate(groups, 1))
    return [line for row in rows for line in _wrapped(row, width, hang="     ")]


def verdict_sentence(verdict: Verdict) -> str:
    """What to do and why, in one sentence."""
    advice = "Train them all together in one network"
    if verdict.candidate is None or verdict.estimate is None:
        found = "auto found no groups that validation confirms" if verdict.searched else "no grouping was tried"
        if verdict.diverged:
            lost = ", ".join(map(label_text, verdict.diverged))
            found += f"; {lost} diverged" if verdict.searched else f", but for {lost}, which diverged"
        return f"{advice}: {found}."
    name = label_text(verdict.candidate)
    count = f"{len(verdict.candidate_groups)} networks of {name}"
    change, interval = percent(verdict.estimate), interval_text(verdict)
    if verdict.worth_it:
        what = "Training each task alone" if verdict.candidate[0] == "stl" else "Grouping"
        return f"{what} is worth it: the {count} change the test losses by {change} {interval}{_costs(verdict)}."
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
    seeds = _counted(verdict.seeds, "seed")
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


def _wrapped(text: str, width: int, hang: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=hang, break_on_hyphens=False)
