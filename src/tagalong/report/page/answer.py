"""The top of the page: the question, the answer with its uncertainty, and the recommended networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from tagalong.group import Group
from tagalong.rendering import Html, tag
from tagalong.study import Label, Run, TaskChange, Verdict, averaged_tasks, label_text

from ..style import format_percent, percent_text

HYPHEN_AS_MINUS = re.compile(r"(?<!\w)-(?=\d)")
NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def answer_section(run: Run) -> Html:
    """Returns the header: the question, the answer in one sentence, and its confidence interval."""
    results = run.results
    verdict, tasks = results.verdict(), len(results.problem.tasks)
    doubts = "; ".join(verdict.provisional)
    return tag(
        "header",
        tag("p", f"{results.problem.name} · {tasks} tasks · {_format_seeds(verdict)}", class_="eyebrow"),
        tag("h1", "Which tasks should train together?"),
        tag("p", headline(verdict), class_="answer"),
        tag("p", HYPHEN_AS_MINUS.sub("−", verdict.sentence), class_="why"),
        tag("p", verdict.not_counted, class_="why") if verdict.not_counted else None,
        tag("p", tag("strong", "Provisional: "), f"{doubts}.", class_="doubt") if doubts else None,
        _facts(verdict),
    )


def headline(verdict: Verdict) -> str:
    """Returns the answer in a few words."""
    if verdict.nothing_learnt:
        return "Nothing was learnt: no network beats a constant."
    if verdict.worth_it:
        method, networks = verdict.recommended[0], f"{number_in_words(len(verdict.groups))} networks"
        if method == "stl":
            return f"None of them: train each task alone, in {networks}."
        if len(verdict.groups) == 1:
            kind = "the best of several copies" if method == "best-of" else f"a larger one ({method})"
            return f"All of them, in one network: {kind}."
        if averaged_tasks(verdict.groups):
            return f"Use {networks} and average their answers ({method})."
        return f"Use {networks}, grouped by {method}."
    tried = verdict.candidate is not None or verdict.searched
    return f"All of them, in one network{': no grouping is reliably better' if tried else ''}."


def number_in_words(count: int) -> str:
    """Spells out small numbers.

    Example:
        >>> number_in_words(3), number_in_words(40)
        ('three', '40')
    """
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


def _why_no_interval(verdict: Verdict) -> str:
    why = "one seed" if verdict.seeds == 1 else "the seeds differ too much"
    return f"{why}, so there is no confidence interval"


def _format_seeds(verdict: Verdict) -> str:
    return f"{verdict.seeds} seed{'s' if verdict.seeds != 1 else ''}"


def _facts(verdict: Verdict) -> Html | None:
    """Returns the confidence interval and the costs of the grouping that is best on the validation rows."""
    if verdict.candidate is None or verdict.estimate is None:
        return None
    costs = [
        ("training", verdict.training_cost),
        ("deciding", verdict.deciding_cost),
        ("parameters", verdict.size),
    ]
    facts = [_fact(f"{value:.3g}×", name) for name, value in costs if value]
    return tag(
        "div",
        tag(
            "p",
            f"The best on validation, {label_text(verdict.candidate)}, compared with one network over "
            f"{_format_seeds(verdict)}:",
            class_="facts-title",
        ),
        tag("div", _interval(verdict), *facts, _fact(str(verdict.tried), "groupings tried"), class_="facts"),
        class_="candidate",
    )


def _fact(value: str, name: str) -> Html:
    return tag("div", tag("span", value, class_="value"), tag("span", name, class_="name"), class_="fact")


def _interval(verdict: Verdict) -> Html:
    """Draws the change and its interval on a line centered at zero."""
    assert verdict.estimate is not None
    low = verdict.estimate if verdict.low is None else verdict.low
    high = verdict.estimate if verdict.high is None else verdict.high
    most = 1.15 * max(abs(low), abs(high), abs(verdict.estimate), 1e-6)
    left, right, dot = (50 + 50 * value / most for value in (low, high, verdict.estimate))
    known = verdict.low is not None
    interval = f"{format_percent(low)} to {format_percent(high)}%" if known else _why_no_interval(verdict)
    strip = tag(
        "div",
        tag("i", class_="zero"),
        tag("i", class_="span", style=f"left:{left:.1f}%;width:{right - left:.1f}%") if known else None,
        tag("i", class_="dot", style=f"left:{dot:.1f}%"),
        class_="strip",
        role="img",
        aria_label=f"change in test loss: {format_percent(verdict.estimate)}%, {interval}",
    )
    ends = tag("div", tag("span", "← better"), tag("span", "worse →"), class_="ends", aria_hidden="true")
    name = f"test loss; {100 * verdict.confidence:g}% interval: {interval}" if known else interval
    return tag(
        "div",
        tag("span", f"{format_percent(verdict.estimate)}%", class_="value"),
        strip,
        ends,
        tag("span", name, class_="name"),
        class_="fact wide",
    )


def recommended_section(run: Run) -> Html:
    """Returns the recommended networks, followed by the best grouping if it is not the recommended one."""
    verdict = run.results.verdict()
    title = "The networks to use" if len(verdict.groups) > 1 else "The network to use"
    if verdict.nothing_learnt:
        title = "One network for all tasks"
    other = None
    if verdict.candidate is not None and not verdict.worth_it:
        name = f"The best on validation: {label_text(verdict.candidate)}"
        cards = _cards(run, verdict.candidate, verdict.candidate_groups)
        other = tag("details", tag("summary", name), cards)
    cards = _cards(run, verdict.recommended, verdict.groups)
    lead = f"{'Errors' if _has_errors(run) else 'Losses'} on test data" + (
        ", and the change in loss compared with one network for all tasks." if verdict.worth_it else "."
    )
    if averaged_tasks(verdict.groups):
        lead += " The answers of networks that serve the same task are averaged."
    return tag(
        "section",
        tag("h2", title, id="networks-title"),
        tag("p", lead, class_="lead"),
        cards,
        other,
        id="networks",
        aria_labelledby="networks-title",
    )


def _cards(run: Run, label: Label, groups: Sequence[Group]) -> Html:
    changes = run.results.changes_by_task(*label)
    numbers: dict[tuple[frozenset[str], frozenset[str]], list[int]] = {}
    for number, group in enumerate(groups, 1):
        numbers.setdefault((group.trains, group.serves), []).append(number)  # copies share a card
    return tag(
        "div",
        *(_card(run, some, groups[some[0] - 1], changes, label[0] == "mtl") for some in numbers.values()),
        class_="cards" if len(numbers) > 1 else "cards one",
    )


def _card(run: Run, members: Sequence[int], group: Group, changes: dict[str, TaskChange], is_single: bool) -> Html:
    helpers = [tag("span", task, class_="chip helper") for task in sorted(group.helpers)]
    rows = [_task_row(run, changes[task], is_single) for task in run.results.problem.tasks if task in group.serves]
    numbers = ["test error", "loss change"] if _has_errors(run) else ["test loss", "change"]
    columns = ["serves", *(numbers[:1] if is_single else numbers)]
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns)))
    return tag(
        "article",
        tag("h3", tag("span", class_="swatch"), "All tasks" if is_single else _card_title(members)),
        tag("table", head, tag("tbody", *rows), class_="served"),
        tag("p", "trained only to help: ", *_with_spaces(helpers), class_="helpers") if helpers else None,
        class_=f"card n{(members[0] - 1) % 8}",
    )


def _card_title(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"Network {numbers[0]}"
    return f"Networks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}: copies, averaged"


def _task_row(run: Run, change: TaskChange, is_single: bool) -> Html:
    measure = run.results.problem.errors.get(change.task, "")
    error = "" if change.after != change.after else f"{change.after:.4g} {measure}".strip()
    number = error if _has_errors(run) else f"{change.loss:.4g}"
    unlearnt = change.task in run.results.verdict().unlearnt
    mark = [" ", tag("span", "not learnt", class_="chip helper")] if unlearnt else []
    cells = [tag("th", change.task, *mark, scope="row"), tag("td", number)]
    if not is_single:
        cells.append(tag("td", change_text(change), class_=_css_class(change)))
    return tag("tr", *cells)


def _has_errors(run: Run) -> bool:
    """Returns whether errors are known in addition to losses. Errors may be missing for networks trained elsewhere."""
    return any(isfinite(found.error) for record in run.results.records for found in record.test.values())


def change_text(change: TaskChange) -> str:
    """Formats a change in percent with its standard error."""
    return percent_text(change.change, change.stderr)


def _css_class(change: TaskChange) -> str:
    return ("better" if change.change < 0 else "worse") if change.sure else "unsure"


def _with_spaces(children: Sequence[Html]) -> list[object]:
    return [part for child in children for part in (child, " ")]
