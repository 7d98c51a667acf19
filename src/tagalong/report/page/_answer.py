"""The top of the page: the question, the answer, and how sure it is."""

from __future__ import annotations

import re

from tagalong._html import Html, tag
from tagalong.study._text import label_text, verdict_sentence
from tagalong.study._verdict import Verdict

from .._labels import signed
from .._run import Run

MINUS = re.compile(r"(?<!\w)-(?=\d)")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def answer(run: Run) -> Html:
    """The question, the answer in one sentence, and the interval it rests on."""
    results = run.results
    verdict, tasks = results.verdict(), len(results.problem.tasks)
    doubts = "; ".join(verdict.provisional)
    return tag(
        "header",
        tag("p", f"{results.problem.name} · {tasks} tasks · {_seeds(verdict)}", class_="eyebrow"),
        tag("h1", "Which tasks should train together?"),
        tag("p", headline(verdict), class_="answer"),
        tag("p", MINUS.sub("−", verdict_sentence(verdict)), class_="why"),
        tag("p", tag("strong", "Provisional: "), f"{doubts}.", class_="doubt") if doubts else None,
        _facts(verdict),
    )


def headline(verdict: Verdict) -> str:
    """The answer in a few words."""
    if verdict.worth_it:
        method, networks = verdict.recommended[0], f"{number(len(verdict.groups))} networks"
        return (
            f"None of them: each alone, in {networks}." if method == "stl" else f"In {networks}, grouped by {method}."
        )
    tried = verdict.candidate is not None or verdict.searched
    return f"All of them, in one network{': no grouping does better for sure' if tried else ''}."


def number(count: int) -> str:
    """Small numbers as words.

    >>> number(3), number(40)
    ('three', '40')
    """
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def _seeds(verdict: Verdict) -> str:
    return f"{verdict.seeds} seed{'s' if verdict.seeds != 1 else ''}"


def _facts(verdict: Verdict) -> Html | None:
    """The interval as a picture, and the costs, of the grouping that did best on validation."""
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
            f"The best grouping on validation, {label_text(verdict.candidate)}, against one network:",
            class_="facts-title",
        ),
        tag("div", _interval(verdict), *facts, _fact(str(verdict.tried), "groupings tried"), class_="facts"),
        class_="candidate",
    )


def _fact(value: str, name: str) -> Html:
    return tag("div", tag("span", value, class_="value"), tag("span", name, class_="name"), class_="fact")


def _interval(verdict: Verdict) -> Html:
    """The change with its interval on a line, zero in the middle."""
    assert verdict.estimate is not None
    low = verdict.estimate if verdict.low is None else verdict.low
    high = verdict.estimate if verdict.high is None else verdict.high
    most = 1.15 * max(abs(low), abs(high), abs(verdict.estimate), 1e-6)
    left, right, dot = (50 + 50 * value / most for value in (low, high, verdict.estimate))
    known = verdict.low is not None
    said = f"{signed(low)} to {signed(high)} %" if known else "one seed: how sure is not known"
    strip = tag(
        "div",
        tag("i", class_="zero"),
        tag("i", class_="span", style=f"left:{left:.1f}%;width:{right - left:.1f}%") if known else None,
        tag("i", class_="dot", style=f"left:{dot:.1f}%"),
        class_="strip",
        role="img",
        aria_label=f"change of the test losses {signed(verdict.estimate)} %, {said}",
    )
    ends = tag("div", tag("span", "← better"), tag("span", "worse →"), class_="ends", aria_hidden="true")
    name = f"test loss; {100 * verdict.confidence:g} %: {said}" if known else said
    return tag(
        "div",
        tag("span", f"{signed(verdict.estimate)} %", class_="value"),
        strip,
        ends,
        tag("span", name, class_="name"),
        class_="fact wide",
    )
