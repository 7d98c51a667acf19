"""The top of the page: the answer in one sentence, four questions with their answers, and the uncertainty."""

from __future__ import annotations

import re

from tagalong.rendering import Html, tag
from tagalong.study import Answer, Change, Run, Verdict, averaged_tasks, label_text

from ..style import format_percent

HYPHEN_AS_MINUS = re.compile(r"(?<!\w)-(?=\d)")
CODE = re.compile(r"`([a-z_-]+)`")
NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def answer_section(run: Run) -> Html:
    """Returns the header: the answer in one sentence, the questions that lead to it, and confidence intervals."""
    results = run.results
    verdict, tasks = results.verdict(), len(results.problem.tasks)
    doubts = "; ".join(verdict.provisional)
    return tag(
        "header",
        tag("p", f"{results.problem.name} · {tasks} tasks · {_format_seeds(verdict)}", class_="eyebrow"),
        tag("h1", "Which tasks should train together?"),
        tag("p", headline(verdict), class_="answer"),
        tag("dl", *(part for answer in verdict.answers() for part in _question(answer)), class_="questions"),
        tag("p", tag("strong", "Provisional: "), *prose(f"{doubts}."), class_="doubt") if doubts else None,
        _facts(verdict),
    )


def _question(answer: Answer) -> tuple[Html, Html]:
    detail, repeated = answer.detail, f"{answer.answer.removesuffix('.')}: "
    if detail.startswith(repeated):
        detail = detail[len(repeated)].upper() + detail[len(repeated) + 1 :]
    return tag("dt", answer.question), tag("dd", tag("strong", answer.answer), " ", *prose(detail))


def prose(text: str) -> list[str | Html]:
    """Returns a sentence with true minus signs, and with names of options in the style of code."""
    parts = CODE.split(HYPHEN_AS_MINUS.sub("−", text))
    return [tag("code", part) if number % 2 else part for number, part in enumerate(parts)]


def headline(verdict: Verdict) -> str:
    """Returns the answer in a few words."""
    if verdict.nothing_learnt:
        return "Nothing was learnt: no network beats a constant."
    if not verdict.worth_it:
        tried = verdict.candidate is not None or verdict.searched
        return f"All of them, in one network{': nothing else is reliably better' if tried else ''}."
    method, networks = verdict.recommended[0], f"{number_in_words(len(verdict.groups))} networks"
    if method == "stl":
        return f"None of them: train each task alone, in {networks}."
    if len(verdict.groups) == 1:
        return f"All of them, in one network: {_describe_single(verdict)}."
    taught = " that others taught" if all(group.taught for group in verdict.groups) else ""
    if averaged_tasks(verdict.groups):
        return f"Use {networks}{taught} and average their answers ({method})."
    return f"Use {networks}{taught}, grouped by {method}."


def _describe_single(verdict: Verdict) -> str:
    method, group = verdict.recommended[0], verdict.groups[0]
    if group.network:
        return f"a {group.network_text} ({method})"
    if group.taught:
        larger = "a larger one" if group.size > 1 else "one"
        return f"{larger} that others taught ({method})"
    if group.size > 1:
        return f"a larger one ({method})"
    return "the best of several copies" if method in ("best-of", "auto") else f"a larger one ({method})"


def number_in_words(count: int) -> str:
    """Spells out small numbers.

    Example:
        >>> number_in_words(3), number_in_words(40)
        ('three', '40')
    """
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


def _format_seeds(verdict: Verdict) -> str:
    return f"{verdict.seeds} seed{'s' if verdict.seeds != 1 else ''}"


def _facts(verdict: Verdict) -> Html | None:
    """Returns the changes, with their intervals, and the costs of the networks that are best on validation."""
    if verdict.candidate is None or verdict.estimate is None:
        return None
    costs = [
        ("training", verdict.training_cost),
        ("deciding", verdict.deciding_cost),
        ("parameters", verdict.size),
    ]
    facts = [_fact(f"{value:.3g}×", name) for name, value in costs if value]
    changes = _named_changes(verdict)
    most = 1.15 * max([1e-6, *(abs(end) for change in changes.values() for end in _ends(change))])
    return tag(
        "div",
        tag(
            "p",
            f"The best on validation, {label_text(verdict.candidate)}: change in test loss, averaged over tasks",
            class_="facts-title",
        ),
        tag("div", *(_interval(verdict, name, change, most) for name, change in changes.items()), class_="facts"),
        tag("div", *facts, _fact(str(verdict.tried), "ways of using networks tried"), class_="facts"),
        class_="candidate",
    )


def _named_changes(verdict: Verdict) -> dict[str, Change]:
    """Returns the statements about the networks you get, the recipe and copies, as far as they are known."""
    seeds = f"{verdict.seeds} {'fresh ' if verdict.confirmed else ''}seed{'s' if verdict.seeds != 1 else ''}"
    found = {
        "the networks you get, compared with one plain network": verdict.networks,
        f"the same plan over {seeds}, compared with one plain network": verdict.recipe,
    }
    if verdict.copies is not None:
        plain = verdict.copies[0] == "mtl"
        name = "the best plain network on validation" if plain else label_text(verdict.copies)
        found[f"the networks you get, compared with {name}"] = verdict.networks_from_copies
        if not plain:
            found[f"the same plan, compared with {name}"] = verdict.change_from_copies
    return {name: change for name, change in found.items() if change is not None}


def _ends(change: Change) -> tuple[float, ...]:
    return tuple(end for end in (change.low, change.estimate, change.high) if end is not None)


def _fact(value: str, name: str) -> Html:
    return tag("div", tag("span", value, class_="value"), tag("span", name, class_="name"), class_="fact")


def _interval(verdict: Verdict, name: str, change: Change, most: float) -> Html:
    """Draws a change and its interval on a line centered at zero."""
    low, high = _ends(change)[0], _ends(change)[-1]
    left, right, dot = (50 + 50 * value / most for value in (low, high, change.estimate))
    known = change.low is not None and change.high is not None
    interval = f"{format_percent(low)} to {format_percent(high)}%" if known else "no interval is known"
    strip = tag(
        "div",
        tag("i", class_="zero"),
        tag("i", class_="span", style=f"left:{left:.1f}%;width:{right - left:.1f}%") if known else None,
        tag("i", class_="dot", style=f"left:{dot:.1f}%"),
        class_="strip",
        role="img",
        aria_label=f"{name}: {format_percent(change.estimate)}%, {interval}",
    )
    ends = tag("div", tag("span", "← better"), tag("span", "worse →"), class_="ends", aria_hidden="true")
    about = f"{100 * verdict.confidence:g}% interval: {interval}" if known else interval
    return tag(
        "div",
        tag("span", f"{format_percent(change.estimate)}%", class_="value"),
        strip,
        ends,
        tag("span", f"{name}; {about}", class_="name"),
        class_="fact wide",
    )
