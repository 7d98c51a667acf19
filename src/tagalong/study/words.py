"""All English about results: what the terminal, the page and `str(verdict)` say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tagalong.group import Group
from tagalong.rendering import TextTable, wrap

from .noise import Interval
from .records import Label, averaged_tasks

if TYPE_CHECKING:
    from .results import Results
    from .rule import Evidence
    from .verdict import JudgedWay, Verdict

WIDTH, NARROWEST = 100, 40  # the line length of prose, and the narrowest terminal that tables are fitted to
MAX_ROWS, MAX_NAMES, MAX_NOTES = 8, 5, 4  # so that the answer fits on one screen
MIN_SEEDS, FEW_ROWS = 3, 100
COPIES, LARGER = ("ensemble", "best-of"), ("mtl-big", "mtl-wide")
# The families of models, as named in legends.
FAMILIES = {
    "plain": "one plain network",
    "copies": "averaged copies",
    "groups": "groups",
    "taught": "taught networks",
    "larger": "wider networks",
    "tabm": "TabM networks",
    "boosting": "boosting",
    "ridge": "ridge",
    "blend": "several families",
}


def family_of(label: Label, groups: Sequence[Group]) -> str:
    """Returns the key of `FAMILIES` for a way of using models.

    Example:
        >>> family_of(("stl", None), [Group("a", "a"), Group("b", "b")]), family_of(("mtl-big2", None), [])
        ('groups', 'larger')
    """
    kinds = {group.network for group in groups}
    if len(kinds) > 1:
        return "blend"
    kind = next(iter(kinds), None)
    if kind is not None:
        return kind if kind in FAMILIES else "boosting"  # of another library
    if label[0].startswith(LARGER) or any(group.size > 1 for group in groups):
        return "larger"
    if any(group.taught for group in groups):
        return "taught"
    if len({group.trains for group in groups}) > 1:
        return "groups"
    return "copies" if len(groups) > 1 or label[0] in COPIES else "plain"


def label_text(label: Label) -> str:
    """Formats a method and its budget.

    Example:
        >>> label_text(("tag", 2)), label_text(("stl", None))
        ('tag (budget 2)', 'stl')
    """
    return label[0] if label[1] is None else f"{label[0]} (budget {label[1]})"


def percent(skill: float) -> str:
    """Formats a skill in percent.

    Example:
        >>> percent(0.4763), percent(float("nan"))
        ('47.6 %', 'unknown')
    """
    return f"{100 * skill:.1f} %" if math.isfinite(skill) else "unknown"


def points(gain: float) -> str:
    """Formats a difference of skills in points.

    Example:
        >>> points(0.0351), points(-1e-9)
        ('+3.5', '+0.0')
    """
    return f"{round(100 * gain, 1) + 0.0:+.1f}" if math.isfinite(gain) else "unknown"


def interval_text(interval: Interval) -> str:
    """Formats the ends of an interval in points, or returns an empty string if they are unknown.

    Example:
        >>> interval_text(Interval(0.02, 0.01, 0.03))
        '+1.0 to +3.0'
    """
    if interval.low is None or interval.high is None:
        return ""
    return f"{points(interval.low)} to {points(interval.high)}"


def multiple(value: float | None) -> str:
    """Formats a multiple of a cost; an unknown one is empty.

    Example:
        >>> multiple(2.0), multiple(None)
        ('2×', '')
    """
    return f"{value:.3g}×" if value else ""


# The answer ----------------------------------------------------------------------------------------------------------


def answer_sentences(verdict: Verdict) -> list[str]:
    """Returns the answer in at most three sentences: what to use, how good it is, and how sure that is."""
    reference, what = label_text(verdict.reference), label_text(verdict.recommended)
    if family_of(verdict.recommended, verdict.groups) == "blend":
        members = [group.network or "network" for group in verdict.groups]
        what = f"the average of {' and '.join(members)}: {what}"
    # Without constants, losses are compared with the reference's.
    is_relative = bool(verdict.relative) and set(verdict.relative) >= {answer.task for answer in verdict.per_task}
    explains = f"It explains {percent(verdict.skill)}"
    if verdict.recommended == verdict.reference:
        sentences = [f"Use {what}."] if is_relative else [f"Use {what}.", f"{explains}."]
        return [*sentences, "On validation rows, nothing else is enough better."]
    limits = interval_text(verdict.gain)
    sure = f"95 % interval {limits}" if limits else "without a known interval"
    if is_relative:
        sentence = f"Its losses are {percent(verdict.gain.estimate)} lower than those of {reference} ({sure})."
    else:
        gain = points(verdict.gain.estimate)
        sentence = f"{explains} instead of {percent(verdict.reference_skill)} with {reference}: {gain} points ({sure})."
    if verdict.worth_it:
        return [f"Use {what}.", sentence]
    return [f"Use {what}.", sentence, f"This is the best bet, but not shown to be better than {reference}."]


def other_sentences(verdict: Verdict) -> list[str]:
    """Returns what else to know, one sentence each: worse tasks, copies, cheaper ways, own errors, and notes."""
    sentences = []
    if verdict.folds > 1 and verdict.picked_in:
        sentences.append(f"Picked in {verdict.picked_in} of {verdict.folds} folds.")
    elif verdict.folds > 1:
        sentences.append("No fold alone picks it: it is best on the validation rows of all folds together.")
    if verdict.worse:
        sentences.append(f"Worse beyond noise: {_names(verdict.worse)}.")
    if verdict.copies is not None and verdict.over_copies is not None:
        copies, gain = label_text(verdict.copies), verdict.over_copies
        limits = interval_text(gain)
        sentences.append(f"Compared with {copies}: {points(gain.estimate)} points{f' ({limits})' if limits else ''}.")
    if verdict.recipe is not None:
        limits = interval_text(verdict.recipe)
        ends = f" ({limits})" if limits else ""
        gained = points(verdict.recipe.estimate)
        sentences.append(f"The same plan with fresh seeds ({verdict.seeds}): {gained} points{ends}.")
    if verdict.cheaper is not None:
        sentences.append(f"On test rows, {label_text(verdict.cheaper)} is cheaper and ahead beyond noise.")
    if verdict.own_error is not None:
        sentences.append(f"By the tasks' own errors on test rows, {label_text(verdict.own_error)} is best.")
    unlearnt = [answer for answer in verdict.per_task if not answer.learnt and answer.after.low is not None]
    if unlearnt and not verdict.relative:
        names = _names([f"{answer.task} ({answer.labels:,} rows)" for answer in unlearnt])
        sentences.append(f"Not shown to be better than a constant: {names}.")
    if verdict.left_out:
        sentences.append(f"Without a vote, since few validation rows have a label: {_names(verdict.left_out)}.")
    return [*sentences, *verdict.notes[:MAX_NOTES]]


def budgets_table(verdict: Verdict) -> TextTable:
    """Returns a table of the best way of using each number of models; a star marks the recommended one."""
    rows = {models: way for models, way in verdict.by_budget.items() if way.models == models} or verdict.by_budget
    shown = list(rows.items())[:MAX_ROWS]
    return _ways_table([(str(models), way) for models, way in shown], verdict)


def _ways_table(rows: Sequence[tuple[str, JudgedWay]], verdict: Verdict) -> TextTable:
    numbers = ("models", "skill", "gain", "cost")
    table = TextTable("", "models", "what", "skill", "gain", "95 % interval", "cost", numbers=numbers, names=["what"])
    for models, way in rows:
        star = "*" if way.label == verdict.recommended else ""
        skill = percent(way.skill)
        is_reference = way.label == verdict.reference
        gain, limits = ("", "") if is_reference else (points(way.gain.estimate), interval_text(way.gain))
        table.add_row(star, models, label_text(way.label), skill, gain, limits, multiple(way.relative_cost))
    return table


def verdict_text(verdict: Verdict, width: int = WIDTH) -> str:
    """Formats the table of numbers of models, the answer, and what else to know."""
    lines = budgets_table(verdict).lines(width)
    lines += ["", *wrap(" ".join(answer_sentences(verdict)), width)]
    for sentence in other_sentences(verdict):
        lines += wrap(sentence, width)
    return "\n".join(lines)


def results_text(results: Results, width: int | None = None) -> str:
    """Formats the verdict, a table of all methods and of all tasks, and the networks to use."""
    verdict, prose = results.verdict(), min(width or WIDTH, WIDTH)
    lines = [
        verdict_text(verdict, prose),
        "",
        "All methods, * recommended; skill and gain of the networks that you get:",
    ]
    lines += _ways_table([(str(way.models), way) for way in verdict.ways], verdict).lines(width)
    compared = {way.label for way in verdict.ways}
    for summary in results.table():
        if summary.label not in compared:
            state = "diverged" if summary.diverged else percent(math.nan if summary.skill is None else summary.skill)
            lines.append(f"{label_text(summary.label)}: {state}")
    lines += ["", f"By task, {label_text(verdict.reference)} and {label_text(verdict.recommended)}:"]
    lines += tasks_table(verdict, results.problem.errors).lines(width)
    lines += ["", "The networks to use:", *networks_list(verdict.groups, prose)]
    for note in results.settings.get("notes") or ():
        lines += wrap(note, prose)
    return "\n".join(lines)


def tasks_table(verdict: Verdict, measures: Mapping[str, str]) -> TextTable:
    """Returns a table of the skill and the own error of each task, before and after."""
    headings = ("task", "skill before", "after", "change", "95 % interval", "error before", "error after", "measure")
    table = TextTable(*headings, numbers=(*headings[1:4], *headings[5:7]), names=["task"])
    for answer in verdict.per_task:
        skills = (percent(answer.before.estimate), percent(answer.after.estimate))
        errors = [f"{error:.4g}" if math.isfinite(error) else "" for error in (answer.error_before, answer.error_after)]
        change = points(answer.change.estimate)
        table.add_row(
            answer.task, *skills, change, interval_text(answer.change), *errors, measures.get(answer.task, "")
        )
    return table


def networks_list(groups: Sequence[Group], width: int = WIDTH) -> list[str]:
    """Lists the networks, with the tasks that each network serves and the tasks that it is trained on."""
    lines = []
    for number, group in enumerate(groups, 1):
        lines += wrap(f"  {number}. {group}", width, hang="     ")
    if averaged_tasks(groups):
        lines.append("  The answers of networks that serve the same task are averaged.")
    return lines


# Notes ---------------------------------------------------------------------------------------------------------------


def notes_on(evidence: Evidence) -> list[str]:
    """Returns what makes the evidence weak, one sentence each."""
    notes = []
    rows = {part: len(next(iter(getattr(evidence.ways[0], part)[0].values()))) for part in ("val", "test")}
    if 1 < min(rows.values()) < FEW_ROWS:
        notes.append(f"Few rows: {rows['val']} choose and {rows['test']} report, so other rows may answer otherwise.")
    if evidence.has_few_seeds:
        seeds = len(evidence.ways[0].seeds)
        notes.append(f"Seeds: {seeds}. With at least {MIN_SEEDS}, the noise between trainings is known better.")
    late, networks = evidence.late
    if late > networks / 2:
        notes.append(f"{late} of {networks} networks were best in one of their last epochs; raise `epochs`.")
    if evidence.heavy_tails:
        names = _names(evidence.heavy_tails)
        notes.append(f"A few rows make up much of the loss of {names}; predict the logarithm, or clip extreme labels.")
    if evidence.lost:
        notes.append(f"Left out, since a network diverged: {_names([label_text(label) for label in evidence.lost])}.")
    return notes


def lost_seeds_note(seeds: Sequence[int]) -> str:
    """Says with which fresh seeds a network diverged."""
    return f"With fresh seeds, networks diverged ({', '.join(map(str, seeds))}), which the recipe leaves out."


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
