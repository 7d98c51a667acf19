"""The top of the page: the answer in one sentence, three questions with their answers, and the evidence."""

from __future__ import annotations

import re

from tagalong.rendering import Html, tag
from tagalong.study import Answer, Change, LateNetworks, Run, Verdict, averaged_tasks, label_text

from ..style import format_percent
from .networks import describe_networks, number_in_words, unlearnt_chip, with_spaces

HYPHEN_AS_MINUS = re.compile(r"(?<!\w)-(?=\d)")
CODE = re.compile(r"`([a-z_-]+)`")
MAX_UNLEARNT = 12  # names of tasks at the top of the page
NOT_BETTER = "no network beats a constant (the mean or base rate) by more than the noise"
EVERYTHING_LEARNT = "Was everything learnt, and for long enough?"


def answer_section(run: Run) -> Html:
    """Returns the header: the answer in one sentence, the questions that lead to it, and the evidence."""
    results = run.results
    verdict, tasks = results.verdict(), len(results.problem.tasks)
    doubts = "; ".join(verdict.provisional)
    _, _, worth_it, groups = verdict.answers()
    return tag(
        "header",
        tag(
            "p",
            tag("span", "Which tasks should train together? "),
            tag("span", f"{results.problem.name} · {tasks} tasks · {_format_seeds(verdict)}"),
            class_="eyebrow",
        ),
        tag("h1", headline(verdict)),
        tag(
            "div",
            _worth_it_card(verdict, worth_it),
            _groups_card(verdict, groups),
            _learnt_card(verdict, tasks),
            class_="questions",
        ),
        tag("p", tag("strong", "Provisional: "), *prose(f"{doubts}."), class_="doubt") if doubts else None,
        _evidence(verdict),
    )


def headline(verdict: Verdict) -> str:
    """Returns the answer in a few words."""
    if verdict.nothing_learnt:
        return "Nothing was learnt: no network beats a constant."
    if not verdict.worth_it:
        if verdict.candidate is None and not verdict.searched:
            return "Use one plain network for all tasks."
        if verdict.seeds == 1:
            return "Use one plain network for all tasks, until more seeds show that others are better."
        return "Use one plain network for all tasks: nothing else is reliably better."
    if verdict.recommended[0] == "stl":
        return f"Train each task alone, in {number_in_words(len(verdict.groups))} networks."
    networks = describe_networks(verdict.recommended, verdict.groups)
    comma = "," if "," in networks else ""
    return f"Use {networks}{f'{comma} and average their answers' if averaged_tasks(verdict.groups) else ''}."


def _worth_it_card(verdict: Verdict, answer: Answer) -> Html:
    claim = verdict.networks if verdict.networks and verdict.networks.high is not None else verdict.recipe
    if not verdict.worth_it or claim is None:
        tried = None if verdict.nothing_learnt else claim
        return _question_card(answer.question, answer.answer, [*prose(verdict.sentence)], tried)
    networks, several = describe_networks(verdict.recommended, verdict.groups), len(verdict.groups) > 1
    networks += "," if "," in networks else ""
    sentences = [
        f"Compared with one plain network, {networks} {'have' if several else 'has'} {_in_words(claim)} test losses, "
        f"averaged over tasks ({_interval_in_words(verdict, claim)}).",
        _costs_sentence(verdict, "They cost" if several else "It costs"),
    ]
    if verdict.recipe is not None and claim != verdict.recipe:
        fresh, chosen = "fresh " if verdict.confirmed else "", " that also chose it" if verdict.flattered else ""
        seeds = f"{number_in_words(verdict.seeds)} {fresh}seed{'s' * (verdict.seeds > 1)}{chosen}"
        sentences.append(
            f"The same plan, trained with {seeds}, has "
            f"{_in_words(verdict.recipe)} losses ({_interval_in_words(verdict, verdict.recipe)})."
        )
    short = f"Yes: {format_percent(claim.estimate)}%"
    return _question_card(answer.question, short, [" ".join(filter(None, sentences))], claim)


def _costs_sentence(verdict: Verdict, start: str) -> str:
    known = {"training": verdict.training_cost, "parameters": verdict.size}
    costs = [f"{value:.2g} times the {what}" for what, value in known.items() if value and round(value, 1) != 1]
    return f"{start} {' and '.join(costs)}." if costs else ""


def _groups_card(verdict: Verdict, answer: Answer) -> Html:
    change, copies = verdict.change_from_copies, verdict.copies
    if change is None or copies is None or copies[0] == "mtl" or verdict.better_than_copies is None:
        return _question_card(answer.question, answer.answer, [*prose(_detail(answer))])
    compared = copies_in_words(*copies)
    very = verdict.networks_from_copies
    alone = "One network for all tasks has no groups. " if len(verdict.groups) == 1 else ""
    sentence = (
        f"{alone}Compared with {compared}, the same plan has "
        f"{_in_words(change)} test losses ({_interval_in_words(verdict, change)})"
        f"{'' if very is None else f'; for the very networks you get, they are {_in_words(very)}'}."
    )
    return _question_card(answer.question, answer.answer, [sentence], change)


def copies_in_words(method: str, budget: int | None) -> str:
    """Describes the copies that networks are compared with.

    Example:
        >>> copies_in_words("ensemble", 3)
        'three copies of one plain network, averaged (ensemble)'
    """
    if budget == 1:
        return f"one plain network ({method})"
    count = f"{number_in_words(budget)} copies" if budget else "copies"
    return f"{count} of one plain network, averaged ({method})"


def _learnt_card(verdict: Verdict, tasks: int) -> Html:
    """Answers whether all tasks were learnt, and whether the networks were trained for long enough."""
    learnt = verdict.answers()[0]
    if verdict.nothing_learnt:
        return _question_card(EVERYTHING_LEARNT, "No: nothing was learnt.", [learnt.detail])
    late = verdict.late
    content: list[object] = []
    if verdict.unlearnt:
        count = len(verdict.unlearnt)
        short = f"No: {count} of {tasks} tasks {'was' if count == 1 else 'were'} not learnt."
        chips = [unlearnt_chip(task) for task in verdict.unlearnt[:MAX_UNLEARNT]]
        more = f"and {count - MAX_UNLEARNT} more" if count > MAX_UNLEARNT else ""
        content.append(tag("span", *with_spaces(chips), more, class_="unlearnt"))
        content.append(f"{'It does' if count == 1 else 'They do'} not count: {NOT_BETTER}. ")
    elif verdict.learning_checked:
        short = "Yes, but perhaps not for long enough." if late and late.late else "Yes."
        content.append("On every task, a network beats a constant (the mean or base rate) by more than the noise. ")
    else:
        short = "Not checked."
        content.append(f"{learnt.detail} ")
    return _question_card(EVERYTHING_LEARNT, short, [*content, *prose(_epochs_sentence(late))])


def _epochs_sentence(late: LateNetworks | None) -> str:
    if late is None:
        return "Whether the networks were trained for long enough is not known."
    if not late.late:
        return f"All {late.networks} networks had stopped improving when training ended."
    were = "was" if late.late == 1 else "were"
    return f"{late.late} of {late.networks} networks {were} still improving when training ended; raise `epochs`."


def _question_card(question: str, answer: str, detail: list[object], change: Change | None = None) -> Html:
    strip = None if change is None else _strip(change, _scale([change]), "change in test loss")
    return tag(
        "div",
        tag("h2", question),
        tag("p", answer.removesuffix(".") if "%" in answer else answer, class_="short"),
        strip,
        tag("p", *detail, class_="why"),
        class_="question",
    )


def prose(text: str) -> list[str | Html]:
    """Returns a sentence with true minus signs, and with names of options in the style of code."""
    parts = CODE.split(HYPHEN_AS_MINUS.sub("−", text))
    return [tag("code", part) if number % 2 else part for number, part in enumerate(parts)]


def _in_words(change: Change) -> str:
    """Describes a change in words, e.g. "1.3% lower"."""
    return _compared(change.estimate, "%")


def _compared(value: float, unit: str = "") -> str:
    size = f"{abs(100 * value):.1f}"
    return "about equal" if size == "0.0" else f"{size}{unit} {'lower' if value < 0 else 'higher'}"


def _interval_in_words(verdict: Verdict, change: Change) -> str:
    if change.low is None or change.high is None:
        return "no interval is known"
    name = f"{100 * verdict.confidence:g}% interval"
    if change.low < 0 < change.high:
        return f"{name}: {_compared(change.low, '%')} to {_compared(change.high, '%')}"
    near, far = sorted((change.low, change.high), key=abs)
    return f"{name}: {abs(100 * near):.1f} to {_compared(far, '%')}"


def _format_seeds(verdict: Verdict) -> str:
    return f"{verdict.seeds} seed{'s' if verdict.seeds != 1 else ''}"


def _evidence(verdict: Verdict) -> Html:
    """Returns the four answers of the verdict, the changes with their intervals, and the costs of the candidate."""
    answers = [part for one in verdict.answers() for part in (tag("dt", one.question), _answer_and_detail(one))]
    return tag(
        "details", tag("summary", "The evidence"), tag("dl", *answers, class_="answers"), _facts(verdict), id="evidence"
    )


def _answer_and_detail(answer: Answer) -> Html:
    return tag("dd", tag("strong", answer.answer), " ", *prose(_detail(answer)))


def _detail(answer: Answer) -> str:
    """Returns the detail of an answer, without the answer itself if it is repeated there."""
    repeated = f"{answer.answer.removesuffix('.')}: "
    if not answer.detail.startswith(repeated):
        return answer.detail
    return answer.detail[len(repeated)].upper() + answer.detail[len(repeated) + 1 :]


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
    most = _scale([*changes.values()])
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


def _scale(changes: list[Change]) -> float:
    """Returns the change at the right end of a strip, a little more than the largest of all ends."""
    return 1.15 * max([1e-6, *(abs(end) for change in changes for end in _ends(change))])


def _fact(value: str, name: str) -> Html:
    return tag("div", tag("span", value, class_="value"), tag("span", name, class_="name"), class_="fact")


def _interval(verdict: Verdict, name: str, change: Change, most: float) -> Html:
    known = change.low is not None and change.high is not None
    about = f"{100 * verdict.confidence:g}% interval: {_format_interval(change)}" if known else _format_interval(change)
    return tag(
        "div",
        tag("span", f"{format_percent(change.estimate)}%", class_="value"),
        _strip(change, most, name),
        tag("span", f"{name}; {about}", class_="name"),
        class_="fact wide",
    )


def _strip(change: Change, most: float, name: str) -> Html:
    """Draws a change and its interval on a line centered at zero."""
    low, high = _ends(change)[0], _ends(change)[-1]
    left, right, dot = (50 + 50 * value / most for value in (low, high, change.estimate))
    known = change.low is not None and change.high is not None
    line = tag(
        "div",
        tag("i", class_="zero"),
        tag("i", class_="span", style=f"left:{left:.1f}%;width:{right - left:.1f}%") if known else None,
        tag("i", class_="dot", style=f"left:{dot:.1f}%"),
        class_="strip",
        role="img",
        aria_label=f"{name}: {format_percent(change.estimate)}%, {_format_interval(change)}",
    )
    ends = tag("div", tag("span", "← better"), tag("span", "worse →"), class_="ends", aria_hidden="true")
    return Html(line + ends)


def _format_interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return "no interval is known"
    return f"{format_percent(change.low)} to {format_percent(change.high)}%"
