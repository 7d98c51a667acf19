"""Networks as cards: what each trains, what it serves, and how well."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from tagalong._html import Html, tag
from tagalong.group import Group
from tagalong.study._change import TOGETHER, Label
from tagalong.study._text import label_text

from .._labels import signed
from .._run import Run
from .._task_changes import TaskChange, changes_by_task


def recommended(run: Run) -> Html:
    """The networks to use; below them the best grouping, where another answer was given."""
    verdict = run.results.verdict()
    title = "The networks to use" if len(verdict.groups) > 1 else "The network to use"
    other = None
    if verdict.candidate is not None and not verdict.worth_it:
        name = f"The best grouping on validation: {label_text(verdict.candidate)}"
        cards = _cards(run, verdict.candidate, verdict.candidate_groups)
        other = tag("details", tag("summary", name), cards)
    cards = _cards(run, verdict.recommended, verdict.groups)
    lead = f"{'Errors' if _errors_known(run) else 'Losses'} on test data" + (
        ", and how the loss changed against one network for all." if verdict.worth_it else "."
    )
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
    changes = changes_by_task(run.results, *label)
    return tag(
        "div",
        *(_card(run, number, group, changes, label == TOGETHER) for number, group in enumerate(groups, 1)),
        class_="cards" if len(groups) > 1 else "cards one",
    )


def _card(run: Run, number: int, group: Group, changes: dict[str, TaskChange], together: bool) -> Html:
    helpers = [tag("span", task, class_="chip helper") for task in sorted(group.helpers)]
    rows = [_task(run, changes[task], together) for task in run.results.problem.tasks if task in group.serves]
    numbers = ["test error", "loss"] if _errors_known(run) else ["test loss", "change"]
    columns = ["serves", *(numbers[:1] if together else numbers)]
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in columns)))
    return tag(
        "article",
        tag("h3", tag("span", class_="swatch"), f"Network {number}" if not together else "All tasks"),
        tag("table", head, tag("tbody", *rows), class_="served"),
        tag("p", "trained along, to help: ", *_spaced(helpers), class_="helpers") if helpers else None,
        class_=f"card n{(number - 1) % 8}",
    )


def _task(run: Run, change: TaskChange, together: bool) -> Html:
    measure = run.results.problem.errors.get(change.task, "")
    error = "" if change.after != change.after else f"{change.after:.4g} {measure}".strip()
    number = error if _errors_known(run) else f"{change.loss:.4g}"
    cells = [tag("th", change.task, scope="row"), tag("td", number)]
    if not together:
        cells.append(tag("td", change_text(change), class_=_tone(change)))
    return tag("tr", *cells)


def _errors_known(run: Run) -> bool:
    """Whether there are errors beside losses: networks trained elsewhere may have come without."""
    return any(isfinite(found.error) for record in run.results.records for found in record.test.values())


def change_text(change: TaskChange) -> str:
    """A change in percent with its standard error."""
    either = "" if change.stderr is None else f" ± {100 * change.stderr:.1f}"
    return f"{signed(change.change)}{either} %"


def _tone(change: TaskChange) -> str:
    return ("better" if change.change < 0 else "worse") if change.sure else "unsure"


def _spaced(children: Sequence[Html]) -> list[object]:
    return [part for child in children for part in (child, " ")]
